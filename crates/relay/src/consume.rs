//! A consumer: a handler as a sink, inside the inbox transaction.
//!
//! What one call brings takes effect in one transaction, because the commit is the cost. When one
//! message fails, the transaction is undone and the messages are taken one by one.

use std::collections::HashSet;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use metrics::Counter;
use semel_core::inbox::Seen;
use semel_core::{Failure, InboxStore, LaneKey, Message, Published, Sink, Verdict, telemetry};
use tokio::time::timeout;

/// Takes effect for a message, with the transaction in hand.
///
/// Everything it does through `tx` commits together with the memory that the message was seen, or
/// not at all. What it returns is stored for duplicates to get; empty means nothing to store.
///
/// A failure with [`Fault::Transient`](semel_core::Fault::Transient) is tried again by the
/// schedule, `Refused` makes a dead letter at once, `Unavailable` waits for the end of an outage.
///
/// ```
/// use semel_core::memory::{MemoryDatabase, MemoryTx};
/// use semel_core::{Failure, Message};
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
    /// The fault of the failure says what follows.
    async fn handle(&self, tx: &mut Tx, message: &Message) -> Result<Bytes, Failure>;
}

/// A function as a [`Handler`].
pub fn handler_fn<Tx, F>(function: F) -> HandlerFn<F>
where
    F: for<'a> Fn(&'a mut Tx, &'a Message) -> BoxFuture<'a, Result<Bytes, Failure>> + Send + Sync,
{
    HandlerFn(function)
}

/// What [`handler_fn`] returns.
pub struct HandlerFn<F>(F);

#[async_trait]
impl<Tx: Send, F> Handler<Tx> for HandlerFn<F>
where
    F: for<'a> Fn(&'a mut Tx, &'a Message) -> BoxFuture<'a, Result<Bytes, Failure>> + Send + Sync,
{
    async fn handle(&self, tx: &mut Tx, message: &Message) -> Result<Bytes, Failure> {
        (self.0)(tx, message).await
    }
}

impl<F> fmt::Debug for HandlerFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerFn").finish_non_exhaustive()
    }
}

/// Runs a handler once per message, whatever is delivered twice.
///
/// ```
/// use semel_core::memory::{MemoryBroker, MemoryDatabase, MemoryTx};
/// use semel_core::{Event, Message, Sink};
/// use semel_relay::{Consumer, Relay, Stop, handler_fn};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let (broker, database) = (MemoryBroker::new(), MemoryDatabase::new());
/// let placed = Message::first("order.events", Event::new("order", "42", "OrderPlaced"));
/// broker.publish(&[placed.clone(), placed]).await; // delivered twice
///
/// let charge = handler_fn(|tx: &mut MemoryTx, _: &Message| Box::pin(async move {
///     tx.add("charged", 1);
///     Ok(Default::default())
/// }));
/// let payments = Consumer::new("payments", database.clone(), charge);
/// let subscription = broker.subscribe("payments", &["order.events"]);
/// Relay::new("payments", subscription, payments).drain(Stop::never()).await?;
/// assert_eq!(database.get("charged"), 1);
/// # Ok::<(), semel_core::Failure>(()) }).unwrap();
/// ```
pub struct Consumer<S, H> {
    name: String,
    store: S,
    handler: Arc<H>,
    handler_timeout: Duration,
    applied: Counter,
    duplicates: Counter,
}

impl<S, H> Consumer<S, H>
where
    S: InboxStore,
    H: Handler<S::Tx<'static>>,
{
    /// A consumer. Its name is its identity: consumers of different names each take effect.
    pub fn new(name: impl Into<String>, store: S, handler: H) -> Self {
        let name = name.into();
        let counter = |name_of: telemetry::Metric| metrics::counter!(name_of.name, "consumer" => name.clone());
        Self {
            applied: counter(telemetry::INBOX_APPLIED),
            duplicates: counter(telemetry::INBOX_DUPLICATES),
            name,
            store,
            handler: Arc::new(handler),
            handler_timeout: Duration::from_secs(10),
        }
    }

    /// How long the handler may take for one message; then it failed this time. Default 10 s.
    #[must_use]
    pub fn with_handler_timeout(mut self, limit: Duration) -> Self {
        self.handler_timeout = limit;
        self
    }

    /// All messages in one transaction: all or none.
    async fn apply_together(&self, batch: &[Message]) -> Result<(), Failure> {
        let mut tx = self.store.begin().await?;
        let (mut applied, mut duplicates) = (0, 0);
        for message in batch {
            match self.apply(&mut tx, message).await {
                Ok(true) => applied += 1,
                Ok(false) => duplicates += 1,
                Err(failure) => {
                    self.store.rollback(tx).await;
                    return Err(failure);
                }
            }
        }
        self.store.commit(tx).await?;
        self.applied.increment(applied);
        self.duplicates.increment(duplicates);
        Ok(())
    }

    /// Whether the message took effect now; if not, it had before.
    async fn apply(&self, tx: &mut S::Tx<'static>, message: &Message) -> Result<bool, Failure> {
        let (consumer, id) = (&self.name, message.event.id);
        if self.store.record(tx, consumer, id).await? != Seen::First {
            return Ok(false);
        }
        let result = self.handle(tx, message).await?;
        if !result.is_empty() {
            self.store.store_result(tx, consumer, id, result).await?;
        }
        Ok(true)
    }

    /// Runs the handler; a panic or a hang is a failure of this message, this time.
    async fn handle(&self, tx: &mut S::Tx<'static>, message: &Message) -> Result<Bytes, Failure> {
        let call = self.handler.handle(tx, message);
        #[cfg(feature = "trace")]
        let span = crate::spans::processing(message);
        #[cfg(feature = "trace")]
        let call = tracing::Instrument::instrument(call, span.clone());
        let call = AssertUnwindSafe(call).catch_unwind();
        let result = match timeout(self.handler_timeout, call).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(Failure::transient("E-HANDLER-PANIC", "the handler panicked")),
            Err(_) => Err(Failure::transient(
                "E-HANDLER-TIMEOUT",
                format!("the handler took longer than {:?}", self.handler_timeout),
            )),
        };
        if let Err(failure) = &result {
            #[cfg(feature = "trace")]
            crate::spans::fail(&span, failure);
            let fault = failure.fault().as_str();
            let (name, consumer) = (telemetry::HANDLER_FAILED.name, self.name.clone());
            metrics::counter!(name, "consumer" => consumer, "fault" => fault).increment(1);
        }
        result
    }

    /// Each message in a transaction of its own; a lane stops at its first failure.
    async fn apply_one_by_one(&self, batch: &[Message]) -> Published {
        let mut failed: HashSet<LaneKey> = HashSet::new();
        let mut verdicts = Vec::with_capacity(batch.len());
        for message in batch {
            let lane = message.event.lane_key();
            if failed.contains(&lane) {
                verdicts.push(Verdict::Behind);
                continue;
            }
            let result = self.apply_together(std::slice::from_ref(message)).await;
            if result.is_err() {
                failed.insert(lane);
            }
            verdicts.push(result.into());
        }
        Published::Each(verdicts)
    }
}

#[async_trait]
impl<S, H> Sink for Consumer<S, H>
where
    S: InboxStore,
    H: Handler<S::Tx<'static>>,
{
    async fn publish(&self, batch: &[Message]) -> Published {
        match self.apply_together(batch).await {
            Ok(()) => Published::All,
            Err(failure) if batch.len() == 1 => Published::Each(vec![Verdict::Failed(failure)]),
            Err(_) => self.apply_one_by_one(batch).await,
        }
    }

    async fn check(&self) -> Result<(), Failure> {
        let tx = self.store.begin().await?;
        self.store.rollback(tx).await;
        Ok(())
    }

    fn is_effect(&self) -> bool {
        true
    }
}

impl<S, H> fmt::Debug for Consumer<S, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("name", &self.name).finish_non_exhaustive()
    }
}
