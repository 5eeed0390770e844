//! What takes effect for a message: the [`Handler`] contract, and functions as handlers.

use std::collections::HashMap;
use std::fmt;
use std::future::{Future, ready};
use std::marker::PhantomData;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use semel_core::{Failure, HandlerError, Message};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Takes effect for a message, with the transaction in hand.
///
/// Everything it does through `tx` commits together with the memory that the message was seen, or
/// not at all. What it returns is stored for duplicates to get; empty means nothing to store.
///
/// ```
/// use semel_core::memory::{MemoryDatabase, MemoryTx};
/// use semel_core::Message;
/// use semel_relay::{Handler, handler_fn};
///
/// let charge = handler_fn(|tx: &mut MemoryTx, message: &Message| Box::pin(async move {
///     tx.add(format!("charged {}", message.event.aggregate_id), 1);
///     Ok(Default::default())
/// }));
/// # fn is_a_handler(_: impl Handler<MemoryTx>) {}
/// # is_a_handler(charge);
/// ```
#[async_trait]
pub trait Handler<Tx>: Send + Sync {
    /// Takes effect for one message.
    ///
    /// # Errors
    /// The error says what follows.
    async fn handle(&self, tx: &mut Tx, message: &Message) -> Result<Bytes, HandlerError>;

    /// Whether it does anything for such a message. One that it does not want is acknowledged and
    /// not remembered. By default it wants all.
    fn wants(&self, message: &Message) -> bool {
        let _ = message;
        true
    }
}

/// A function as a [`Handler`].
pub fn handler_fn<Tx, F>(function: F) -> HandlerFn<F>
where
    F: for<'a> Fn(&'a mut Tx, &'a Message) -> BoxFuture<'a, Result<Bytes, HandlerError>>
        + Send
        + Sync,
{
    HandlerFn(function)
}

/// What [`handler_fn`] returns.
pub struct HandlerFn<F>(F);

/// As `async_trait` would have it, without a future around that of the function.
impl<Tx: Send, F> Handler<Tx> for HandlerFn<F>
where
    F: for<'a> Fn(&'a mut Tx, &'a Message) -> BoxFuture<'a, Result<Bytes, HandlerError>>
        + Send
        + Sync,
{
    fn handle<'s, 't, 'm, 'call>(
        &'s self,
        tx: &'t mut Tx,
        message: &'m Message,
    ) -> BoxFuture<'call, Result<Bytes, HandlerError>>
    where
        's: 'call,
        't: 'call,
        'm: 'call,
        Self: 'call,
    {
        (self.0)(tx, message)
    }
}

impl<F> fmt::Debug for HandlerFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerFn").finish_non_exhaustive()
    }
}

/// A plain `async fn(&mut Tx, Payload, &Message) -> Result<Reply, HandlerError>`: every such
/// function is one.
pub trait EventFn<'a, Tx: 'a, P>: Send + Sync {
    /// What it returns, stored as JSON for duplicates; nothing is stored for `()`.
    type Reply: Serialize;
    /// Its call.
    type Call: Future<Output = Result<Self::Reply, HandlerError>> + Send + 'a;

    /// Calls it.
    fn call(&self, tx: &'a mut Tx, payload: P, message: &'a Message) -> Self::Call;
}

impl<'a, Tx: 'a, P, F, C, R> EventFn<'a, Tx, P> for F
where
    F: Fn(&'a mut Tx, P, &'a Message) -> C + Send + Sync,
    C: Future<Output = Result<R, HandlerError>> + Send + 'a,
    R: Serialize,
{
    type Reply = R;
    type Call = C;

    fn call(&self, tx: &'a mut Tx, payload: P, message: &'a Message) -> C {
        self(tx, payload, message)
    }
}

/// The same with something of the application's own in hand:
/// `async fn(&State, &mut Tx, Payload, &Message) -> Result<Reply, HandlerError>`.
pub trait StatefulEventFn<'a, S: 'a, Tx: 'a, P>: Send + Sync {
    /// As of [`EventFn`].
    type Reply: Serialize;
    /// As of [`EventFn`].
    type Call: Future<Output = Result<Self::Reply, HandlerError>> + Send + 'a;

    /// Calls it.
    fn call(&self, state: &'a S, tx: &'a mut Tx, payload: P, message: &'a Message) -> Self::Call;
}

impl<'a, S: 'a, Tx: 'a, P, F, C, R> StatefulEventFn<'a, S, Tx, P> for F
where
    F: Fn(&'a S, &'a mut Tx, P, &'a Message) -> C + Send + Sync,
    C: Future<Output = Result<R, HandlerError>> + Send + 'a,
    R: Serialize,
{
    type Reply = R;
    type Call = C;

    fn call(&self, state: &'a S, tx: &'a mut Tx, payload: P, message: &'a Message) -> C {
        self(state, tx, payload, message)
    }
}

/// A function that takes a payload, as a handler.
pub(super) struct Typed<F, P> {
    pub(super) function: F,
    pub(super) payload: PhantomData<fn() -> P>,
}

#[async_trait]
impl<Tx, F, P> Handler<Tx> for Typed<F, P>
where
    Tx: Send + 'static,
    P: DeserializeOwned + Send,
    F: for<'a> EventFn<'a, Tx, P>,
{
    async fn handle(&self, tx: &mut Tx, message: &Message) -> Result<Bytes, HandlerError> {
        let payload = decode(message)?;
        encode(&self.function.call(tx, payload, message).await?)
    }
}

/// The same, with a state.
pub(super) struct Stateful<S, F, P> {
    pub(super) state: S,
    pub(super) function: F,
    pub(super) payload: PhantomData<fn() -> P>,
}

#[async_trait]
impl<S, Tx, F, P> Handler<Tx> for Stateful<S, F, P>
where
    S: Send + Sync + 'static,
    Tx: Send + 'static,
    P: DeserializeOwned + Send,
    F: for<'a> StatefulEventFn<'a, S, Tx, P>,
{
    async fn handle(&self, tx: &mut Tx, message: &Message) -> Result<Bytes, HandlerError> {
        let payload = decode(message)?;
        encode(&self.function.call(&self.state, tx, payload, message).await?)
    }
}

fn decode<P: DeserializeOwned>(message: &Message) -> Result<P, HandlerError> {
    serde_json::from_slice(message.event.payload.bytes()).map_err(|error| {
        let what =
            format!("the payload of {} is not what its handler takes", message.event.event_type);
        Failure::refused("E-HANDLER-PAYLOAD", what)
            .with_source(error)
            .with_fix("deploy a handler that reads it, then retry the dead letter")
            .into()
    })
}

fn encode<R: Serialize>(reply: &R) -> Result<Bytes, HandlerError> {
    let json = serde_json::to_vec(reply)?;
    Ok(if json == b"null" { Bytes::new() } else { json.into() })
}

/// What becomes of a message of a type that has no handler.
///
/// ```
/// # use semel_relay::Unknown;
/// assert_eq!(Unknown::default(), Unknown::Ignore);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unknown {
    /// It is acknowledged and not remembered: a topic has many types, and not all concern everyone.
    #[default]
    Ignore,
    /// It becomes a dead letter.
    Reject,
}

/// A handler for each event type.
pub struct Handlers<Tx> {
    pub(super) by_type: HashMap<String, Box<dyn Handler<Tx>>>,
    pub(super) unknown: Unknown,
}

/// As `async_trait` would have it, without a future around that of the handler.
impl<Tx: Send + 'static> Handler<Tx> for Handlers<Tx> {
    fn handle<'s, 't, 'm, 'call>(
        &'s self,
        tx: &'t mut Tx,
        message: &'m Message,
    ) -> BoxFuture<'call, Result<Bytes, HandlerError>>
    where
        's: 'call,
        't: 'call,
        'm: 'call,
        Self: 'call,
    {
        let event_type = &message.event.event_type;
        match self.by_type.get(event_type) {
            Some(handler) => handler.handle(tx, message),
            None => {
                let what = format!("there is no handler for {event_type}");
                let failure = Failure::refused("E-HANDLER-UNKNOWN", what)
                    .with_fix("deploy one, then retry the dead letter");
                Box::pin(ready(Err(failure.into())))
            }
        }
    }

    fn wants(&self, message: &Message) -> bool {
        self.unknown == Unknown::Reject || self.by_type.contains_key(&message.event.event_type)
    }
}

impl<Tx> fmt::Debug for Handlers<Tx> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.by_type.keys()).finish()
    }
}
