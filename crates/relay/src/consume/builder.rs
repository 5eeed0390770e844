//! Putting a consumer together.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use semel_core::{Clock, DeadLetters, InboxStore, Marks};
use serde::de::DeserializeOwned;

use super::handler::{Stateful, Typed};
use super::order::{OutOfOrder, Sequences};
use super::positions::Positions;
use super::{Consumer, EventFn, Handler, Handlers, StatefulEventFn, Unknown};
use crate::settings::Settings;

/// Puts a [`Consumer`] together. Made by [`Consumer::builder`].
///
/// ```
/// use semel_core::memory::{MemoryBroker, MemoryDatabase, MemoryTx};
/// use semel_core::{Event, HandlerError, Message, Sink};
/// use semel_relay::{Consumer, Stop};
/// use serde::Deserialize;
///
/// #[derive(Deserialize)]
/// struct Order {
///     cents: i64,
/// }
///
/// async fn charge(tx: &mut MemoryTx, order: Order, _: &Message) -> Result<(), HandlerError> {
///     tx.add("charged", order.cents);
///     Ok(())
/// }
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let (broker, database) = (MemoryBroker::new(), MemoryDatabase::new());
/// let placed = Event::new("order", "42", "OrderPlaced")
///     .with_json(&serde_json::json!({ "cents": 99 }))?;
/// let message = Message::first("order.events", placed);
/// broker.publish(&[message.clone(), message]).await; // delivered twice
///
/// let payments = Consumer::builder("payments", database.clone())
///     .on("OrderPlaced", charge)
///     .dead_letters(database.clone())
///     .build();
/// payments.drain(broker.subscribe("payments", &["order.events"]), Stop::never()).await?;
/// assert_eq!(database.get("charged"), 99);
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[must_use]
pub struct ConsumerBuilder<S: InboxStore> {
    name: String,
    store: S,
    handlers: Handlers<S::Tx<'static>>,
    options: Options<S::Tx<'static>>,
}

/// What a consumer does beside calling its handler.
pub(super) struct Options<Tx> {
    pub(super) settings: Settings,
    pub(super) handler_timeout: Duration,
    pub(super) letters: Option<Arc<dyn DeadLetters<Tx>>>,
    pub(super) sequences: Option<Sequences<Tx>>,
    pub(super) positions: Option<Positions<Tx>>,
    pub(super) retention: Option<Duration>,
    pub(super) takes_old: bool,
    pub(super) clock: Arc<dyn Clock>,
}

impl<S> ConsumerBuilder<S>
where
    S: InboxStore + 'static,
    S::Tx<'static>: 'static,
{
    pub(super) fn new(name: String, store: S) -> Self {
        let handlers = Handlers { by_type: HashMap::new(), unknown: Unknown::default() };
        Self { name, store, handlers, options: Options::default() }
    }

    /// Handles events of this type by a plain
    /// `async fn(&mut Tx, Payload, &Message) -> Result<Reply, HandlerError>`. The payload is read
    /// from JSON; what cannot be read becomes a dead letter. The reply is stored for duplicates.
    pub fn on<P, F>(self, event_type: impl Into<String>, function: F) -> Self
    where
        P: DeserializeOwned + Send + 'static,
        F: for<'a> EventFn<'a, S::Tx<'static>, P> + 'static,
    {
        self.on_raw(event_type, Typed { function, payload: PhantomData })
    }

    /// The same with something of the application's own as the first argument.
    pub fn on_with<A, P, F>(self, event_type: impl Into<String>, state: A, function: F) -> Self
    where
        A: Send + Sync + 'static,
        P: DeserializeOwned + Send + 'static,
        F: for<'a> StatefulEventFn<'a, A, S::Tx<'static>, P> + 'static,
    {
        self.on_raw(event_type, Stateful { state, function, payload: PhantomData })
    }

    /// Handles events of this type by a handler that reads the payload itself.
    pub fn on_raw(
        mut self,
        event_type: impl Into<String>,
        handler: impl Handler<S::Tx<'static>> + 'static,
    ) -> Self {
        self.handlers.by_type.insert(event_type.into(), Box::new(handler));
        self
    }

    /// What becomes of types that have no handler. By default they are ignored.
    pub fn unknown(mut self, policy: Unknown) -> Self {
        self.handlers.unknown = policy;
        self
    }

    /// The consumer.
    #[must_use]
    pub fn build(self) -> Consumer<S, Handlers<S::Tx<'static>>> {
        Consumer::with_options(self.name, self.store, self.handlers, self.options)
    }

    /// The consumer, with one handler for all messages instead.
    #[must_use]
    pub fn build_with<H: Handler<S::Tx<'static>>>(self, handler: H) -> Consumer<S, H> {
        Consumer::with_options(self.name, self.store, handler, self.options)
    }

    /// Batches, concurrency, schedule, and whether the lane of a dead letter waits. The time limit
    /// of a call, `publish_timeout`, is that of the database for whatever the consumer itself asks
    /// of it; the handler has [its own](Self::handler_timeout).
    pub fn settings(mut self, settings: Settings) -> Self {
        self.options.settings = settings;
        self
    }

    /// How long the handler may take for one message; then it failed this time. Default 10 s.
    pub fn handler_timeout(mut self, limit: Duration) -> Self {
        self.options.handler_timeout = limit;
        self
    }

    /// Keeps dead letters in the consumer's own database, instead of leaving them to the broker.
    /// By default later messages of their lane wait behind them, in order; see
    /// [`OnDead`](crate::OnDead). What an operator retries is taken up by [`Consumer::run`].
    pub fn dead_letters(mut self, letters: impl DeadLetters<S::Tx<'static>> + 'static) -> Self {
        self.options.letters = Some(Arc::new(letters));
        self
    }

    /// What becomes of events that come out of their [sequence](semel_core::Event::sequence). By
    /// default they are accepted, and so are events without one.
    pub fn out_of_order(
        mut self,
        marks: impl Marks<S::Tx<'static>> + 'static,
        policy: OutOfOrder,
    ) -> Self {
        self.options.sequences = Some(Sequences { marks: Arc::new(marks), policy });
        self
    }

    /// Remembers how far each log took effect, one mark for each partition of a topic, and no id for
    /// those messages whose publisher says that they are in their log once: a relay that delivers
    /// exactly once into Kafka. Other messages still go by their ids.
    ///
    /// All messages of a partition are one lane: one that fails is tried again with all of them
    /// behind it. Then it goes to [`dead_letters`](Self::dead_letters), which must be there, in one
    /// transaction with the mark. No reply is kept, and nothing is too old. An event that an
    /// operator replays is refused, unless [old events are taken](Self::take_old_events): there is
    /// no memory of its id.
    ///
    /// ```
    /// use semel_core::memory::{MemoryDatabase, MemoryTx};
    /// use semel_core::{HandlerError, Message};
    /// use semel_relay::Consumer;
    ///
    /// async fn charge(_: &mut MemoryTx, _: i64, _: &Message) -> Result<(), HandlerError> {
    ///     Ok(())
    /// }
    ///
    /// let database = MemoryDatabase::new();
    /// let payments = Consumer::builder("payments", database.clone())
    ///     .on("OrderPlaced", charge)
    ///     .dead_letters(database.clone())
    ///     .by_position(database)
    ///     .build();
    /// # let _ = payments;
    /// ```
    pub fn by_position(mut self, marks: impl Marks<S::Tx<'static>> + 'static) -> Self {
        self.options.positions = Some(Positions::new(Arc::new(marks)));
        self
    }

    /// How long ids are remembered: [`Consumer::run`] forgets older ones, a thousand at a time. The
    /// default is 7 days; none means for ever. An event that is older than that and not remembered
    /// is refused, because nobody knows whether it took effect. All consumers of one database
    /// should agree on it.
    pub fn remember_for(mut self, retention: Option<Duration>) -> Self {
        self.options.retention = retention;
        self
    }

    /// Takes events that are older than what is remembered: for a consumer that is new, or a replay
    /// on purpose. What took effect and was forgotten takes effect again.
    pub fn take_old_events(mut self) -> Self {
        self.options.takes_old = true;
        self
    }

    /// Replaces the clock.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.options.clock = clock;
        self
    }
}

impl<S: InboxStore> fmt::Debug for ConsumerBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ConsumerBuilder");
        shown.field("name", &self.name).field("handlers", &self.handlers).finish_non_exhaustive()
    }
}

impl<Tx> Default for Options<Tx> {
    fn default() -> Self {
        const DAY: Duration = Duration::from_secs(24 * 60 * 60);
        Self {
            settings: Settings::default(),
            handler_timeout: Duration::from_secs(10),
            letters: None,
            sequences: None,
            positions: None,
            retention: Some(7 * DAY),
            takes_old: false,
            clock: Arc::new(semel_core::SystemClock),
        }
    }
}
