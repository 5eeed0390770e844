//! A consumer: a handler as a sink, inside the inbox transaction.
//!
//! What one call brings takes effect in one transaction, because the commit is the cost. When one
//! message fails, the transaction is undone, and that message is taken alone.

mod age;
mod batch;
mod builder;
mod counting;
mod handler;
mod in_place;
mod letters;
mod opening;
mod order;
mod pace;
mod patience;
mod positions;
mod run;
mod sorting;

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt;
use semel_core::event::within;
use semel_core::inbox::Tally;
use semel_core::{Failure, HandlerError, InboxStore, LaneKey, Message, Published, Sink, telemetry};
use tokio::time::{Instant, Sleep, sleep};

pub use self::builder::ConsumerBuilder;
use self::builder::Options;
use self::counting::Counting;
pub use self::handler::{
    EventFn, Handler, HandlerFn, Handlers, StatefulEventFn, Unknown, handler_fn,
};
use self::opening::{Begun, Recorded};
pub use self::order::OutOfOrder;
use self::pace::Pace;
use self::positions::Claims;

/// Runs a handler once per message, whatever is delivered twice.
///
/// [`builder`](Self::builder) gives handlers by event type, dead letters and all else;
/// [`run`](Self::run) runs it on a subscription. It is also a [`Sink`], for a
/// [`Relay`](crate::Relay) of your own.
///
/// ```
/// use semel_core::memory::{MemoryBroker, MemoryDatabase, MemoryTx};
/// use semel_core::{Event, Message, Sink};
/// use semel_relay::{Consumer, Stop, handler_fn};
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
/// let payments = Consumer::builder("payments", database.clone()).build_with(charge);
/// let subscription = broker.subscribe("payments", &["order.events"]);
/// payments.drain(subscription, Stop::never()).await?;
/// assert_eq!(database.get("charged"), 1);
/// # Ok::<(), semel_core::Failure>(()) }).unwrap();
/// ```
pub struct Consumer<S: InboxStore, H> {
    parts: Arc<Parts<S, H>>,
}

struct Parts<S: InboxStore, H> {
    name: String,
    store: S,
    handler: H,
    options: Options<S::Tx<'static>>,
    pace: Pace,
    counting: Counting,
}

/// How long a transaction goes on taking up messages.
const TURN: Duration = Duration::from_secs(1);

/// The longest time that a handler may have, whatever is set: later cannot be said.
const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// Where a message comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Broker,
    /// The consumer's own letters: it is due.
    Letters,
}

/// A transaction was not committed.
struct Undone {
    trouble: Trouble,
    /// How many messages of its batch it was at work for.
    reach: usize,
    /// Whether it is the last of these that failed; else any may have.
    by_last: bool,
}

impl Undone {
    fn of_one(error: impl Into<HandlerError>) -> Self {
        Self { trouble: Trouble::from(error.into()), reach: 1, by_last: true }
    }
}

/// How far a transaction came.
#[derive(Default)]
struct Course {
    counts: Tally,
    reach: usize,
    is_with_last: bool,
}

/// Why a transaction was not committed.
enum Trouble {
    /// There was none to be had.
    Store(Failure),
    /// The store did not answer: it is out, or somebody else has what a message needs.
    Silence(Failure),
    /// A message, or the commit.
    Message(HandlerError),
}

impl<S: InboxStore + 'static> Consumer<S, Handlers<S::Tx<'static>>>
where
    S::Tx<'static>: 'static,
{
    /// A consumer with a handler for each event type. Its name is its identity: consumers of
    /// different names each take effect.
    pub fn builder(name: impl Into<String>, store: S) -> ConsumerBuilder<S> {
        ConsumerBuilder::new(name.into(), store)
    }
}

impl<S, H> Consumer<S, H>
where
    S: InboxStore,
    H: Handler<S::Tx<'static>>,
{
    /// A consumer with one handler for all messages, for a [`Relay`](crate::Relay) of your own. Such a
    /// relay gives all messages of a call its `publish_timeout` together, however long each may take,
    /// and nobody forgets ids. [`run`](Self::run) of one that is
    /// [built with the handler](ConsumerBuilder::build_with) sees to both.
    pub fn new(name: impl Into<String>, store: S, handler: H) -> Self {
        let options = Options { retention: None, ..Options::default() };
        Self::with_options(name.into(), store, handler, options)
    }

    fn with_options(
        name: String,
        store: S,
        handler: H,
        mut options: Options<S::Tx<'static>>,
    ) -> Self {
        options.retention = options.retention.into_iter().chain(store.retention()).min();
        let (pace, counting) = (Pace::default(), Counting::new(&name));
        let parts = Parts { name, store, handler, options, pace, counting };
        Self { parts: Arc::new(parts) }
    }
}

impl<S, H> Parts<S, H>
where
    S: InboxStore,
    H: Handler<S::Tx<'static>>,
{
    /// As many messages as its time allows, in one transaction: all of them or none. Says how many.
    async fn apply_together(&self, batch: &[&Message], origin: Origin) -> Result<usize, Undone> {
        let beginning = self.in_time(self.begin(batch, origin));
        let mut begun = beginning.await.map_err(|failure| Undone {
            trouble: Trouble::Store(failure),
            reach: 0,
            by_last: false,
        })?;
        let mut course = Course::default();
        let error = match self.apply_in(&mut begun, batch, origin, &mut course).await {
            Ok(claims) => match self.in_time(self.store.commit(begun.tx)).await {
                Ok(()) => {
                    self.note(claims);
                    self.counting.add(course.counts);
                    return Ok(course.reach);
                }
                Err(failure) => HandlerError::from(failure),
            },
            Err(error) => {
                self.undo(begun.tx).await;
                error
            }
        };
        let Course { reach, is_with_last: by_last, .. } = course;
        Err(Undone { trouble: error.into(), reach, by_last })
    }

    /// Takes messages up in chunks, at least one, and as long as there is time. The ids of a chunk
    /// are recorded at once, those of the first maybe already; what goes by its position is claimed
    /// before all: whoever had the mark may hold it until he is found dead, and till then it is asked for
    /// again and again.
    async fn apply_in<'m>(
        &self,
        begun: &mut Begun<'m, S::Tx<'static>>,
        batch: &[&'m Message],
        origin: Origin,
        course: &mut Course,
    ) -> Result<Claims, HandlerError> {
        let Begun { tx, claims, first, with_letters } = begun;
        course.reach = batch.len();
        let mut claims = match claims.take() {
            Some(claims) => claims,
            None => self.in_time(self.claim(tx, batch)).await?,
        };
        let (start, mut done) = (Instant::now(), 0);
        // One for all: to set a timer for each message would wake the runtime each time.
        let mut alarm = pin!(sleep(self.options.handler_timeout));
        while done < batch.len() && (done == 0 || start.elapsed() < TURN) {
            let started = Instant::now();
            let end = match first {
                Some(recorded) => recorded.end,
                None => batch.len().min(done + self.pace.chunk()),
            };
            course.reach = end;
            let chunk = &batch[done..end];
            let Recorded { taken, new, .. } = match first.take() {
                Some(recorded) => recorded,
                None => {
                    let (claims, counts) = (&mut claims, &mut course.counts);
                    let taken =
                        self.sort_out(tx, chunk, origin, claims, with_letters, counts).await?;
                    let new = self.in_time(self.record(tx, claims, &taken)).await?;
                    Recorded { end, taken, new }
                }
            };
            for (message, is_new) in taken.into_iter().zip(new) {
                let applying = self.apply(tx, message, is_new, origin, &claims, alarm.as_mut());
                if let Err(error) = applying.await {
                    let place = chunk.iter().position(|other| std::ptr::eq(*other, message));
                    course.reach = done + place.map_or(chunk.len(), |place| place + 1);
                    course.is_with_last = true;
                    return Err(error);
                }
                course.counts.applied += u64::from(is_new);
                course.counts.duplicates += u64::from(!is_new);
            }
            self.pace.learn(end - done, started.elapsed(), TURN);
            done = end;
        }
        if let Some(positions) = self.options.positions.as_ref().filter(|_| done < batch.len()) {
            self.in_time(positions.give_back(tx, &self.name, &mut claims)).await?;
        }
        Ok(claims)
    }

    /// Which of these messages are new: by their positions, and the others by their ids.
    async fn record(
        &self,
        tx: &mut S::Tx<'static>,
        claims: &Claims,
        messages: &[&Message],
    ) -> Result<Vec<bool>, Failure> {
        let by_id = messages.iter().filter(|message| !claims.cover(message));
        let ids: Vec<_> = by_id.map(|message| message.event.id).collect();
        if ids.is_empty() {
            return Ok(vec![true; messages.len()]);
        }
        let mut new = self.store.record_all(tx, &self.name, &ids).await?.into_iter();
        let is_new = |message: &&Message| claims.cover(message) || new.next().unwrap_or(false);
        Ok(messages.iter().map(is_new).collect())
    }

    /// All that is done for one message beside recording it.
    async fn apply(
        &self,
        tx: &mut S::Tx<'static>,
        message: &Message,
        is_new: bool,
        origin: Origin,
        claims: &Claims,
        alarm: Pin<&mut Sleep>,
    ) -> Result<(), HandlerError> {
        if is_new {
            self.take_effect(tx, message, origin, claims, alarm).await?;
        }
        Ok(self.leave_letters(tx, message, origin).await?)
    }

    /// It is recorded: runs the handler and keeps what it returns, with the id.
    async fn take_effect(
        &self,
        tx: &mut S::Tx<'static>,
        message: &Message,
        origin: Origin,
        claims: &Claims,
        alarm: Pin<&mut Sleep>,
    ) -> Result<(), HandlerError> {
        let by_position = claims.cover(message);
        if by_position {
            self.refuse_replayed(message)?;
        } else {
            self.refuse_old(message, origin)?;
            self.store.attend(tx, &self.name, message.event.id);
        }
        let result = self.handle(tx, message, alarm).await?;
        if !result.is_empty() && !by_position {
            let stored = self.store.store_result(tx, &self.name, message.event.id, result);
            self.in_time(stored).await?;
        }
        Ok(())
    }

    /// Runs the handler; a panic or a hang is a failure of this message, this time.
    async fn handle(
        &self,
        tx: &mut S::Tx<'static>,
        message: &Message,
        alarm: Pin<&mut Sleep>,
    ) -> Result<Bytes, HandlerError> {
        let limit = self.options.handler_timeout;
        let overdue = overdue(alarm, Instant::now() + limit.min(YEAR));
        // Called inside, where its panics are caught.
        let call = async { self.handler.handle(tx, message).await };
        let call = within(Arc::clone(&message.event), call);
        #[cfg(feature = "trace")]
        let span = crate::spans::processing(message);
        #[cfg(feature = "trace")]
        let call = tracing::Instrument::instrument(call, span.clone());
        let ended = tokio::select! {
            biased;
            ended = AssertUnwindSafe(call).catch_unwind() => Some(ended),
            () = overdue => None,
        };
        let failure = match ended {
            Some(Ok(Err(HandlerError::AlreadyApplied))) => {
                return Err(HandlerError::AlreadyApplied);
            }
            Some(Ok(Err(error))) => self.failure(error),
            Some(Ok(Ok(result))) => return Ok(result),
            Some(Err(_)) => Failure::transient("E-HANDLER-PANIC", "the handler panicked"),
            None => Failure::transient(
                "E-HANDLER-TIMEOUT",
                format!("the handler took longer than {limit:?}"),
            ),
        };
        #[cfg(feature = "trace")]
        crate::spans::fail(&span, &failure);
        let (name, fault) = (telemetry::HANDLER_FAILED.name, failure.fault().as_str());
        metrics::counter!(name, "consumer" => self.name.clone(), "fault" => fault).increment(1);
        Err(HandlerError::Failed(failure))
    }

    fn failure(&self, error: HandlerError) -> Failure {
        match error {
            HandlerError::Failed(failure) => failure,
            HandlerError::Other(error) => self.store.classify(error),
            other => Failure::transient("E-HANDLER", other.to_string()),
        }
    }

    /// The effect is there already: remembers that, so that the next copy costs less.
    async fn note_applied(&self, message: &Message, origin: Origin) -> Result<(), Failure> {
        let mut tx = self.in_time(self.store.begin()).await?;
        let claims = self.in_time(self.claim(&mut tx, &[message])).await?;
        self.in_time(self.record(&mut tx, &claims, &[message])).await?;
        self.turn(&mut tx, message, Origin::Letters).await?;
        self.leave_letters(&mut tx, message, origin).await?;
        self.in_time(self.store.commit(tx)).await?;
        self.note(claims);
        self.counting.add(Tally { duplicates: 1, ..Tally::default() });
        Ok(())
    }
}

/// Resolves at the deadline, by an alarm that may have been set for an earlier one: only then is it
/// set anew, and not for each message.
async fn overdue(mut alarm: Pin<&mut Sleep>, deadline: Instant) {
    loop {
        alarm.as_mut().await;
        if alarm.deadline() >= deadline {
            return;
        }
        alarm.as_mut().reset(deadline);
    }
}

#[async_trait]
impl<S, H> Sink for Consumer<S, H>
where
    S: InboxStore,
    H: Handler<S::Tx<'static>>,
{
    async fn publish(&self, batch: &[Message]) -> Published {
        let parts = &self.parts;
        let taking = parts.take(batch, Origin::Broker);
        let taken = match parts.options.positions {
            None => taking.await,
            Some(_) => parts.hold_on(batch, taking).await,
        };
        parts.counting.tell_in_time(&parts.store, &parts.name).await;
        taken
    }

    async fn check(&self) -> Result<(), Failure> {
        self.parts.check().await
    }

    fn system(&self) -> Option<&'static str> {
        None
    }

    fn lane(&self, message: &Message) -> LaneKey {
        self.parts.lane(message)
    }
}

impl<S: InboxStore, H> Parts<S, H> {
    async fn check(&self) -> Result<(), Failure> {
        if self.options.positions.is_some() && self.options.letters.is_none() {
            let what = "by position, a message may leave its place only as a dead letter of the \
                consumer's own";
            return Err(Failure::misconfigured("E-CONSUMER", what)
                .with_fix("add `dead_letters` to the consumer"));
        }
        let tx = self.in_time(self.store.begin()).await?;
        self.undo(tx).await;
        Ok(())
    }
}

impl<S: InboxStore, H> Clone for Consumer<S, H> {
    fn clone(&self) -> Self {
        Self { parts: Arc::clone(&self.parts) }
    }
}

impl<S: InboxStore, H> fmt::Debug for Consumer<S, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("name", &self.parts.name).finish_non_exhaustive()
    }
}
