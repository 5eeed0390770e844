//! Where messages go: the [`Sink`] contract.
//!
//! A broker, a webhook and a consumer's handler are all sinks.

use std::sync::Arc;

use async_trait::async_trait;

use crate::delivery::Message;
use crate::event::EventId;
use crate::failure::Failure;
use crate::lane::LaneKey;

/// Publishes messages, and says of each one what became of it.
///
/// **Order.** Messages of one [lane](Self::lane) take effect in the order of the batch. Within a lane, message
/// k+1 is never confirmed when k was not: after a failure the rest of that lane must not become
/// visible, and is [`Verdict::Behind`] (a failure there means the same). Other lanes go on.
///
/// **Concurrency.** `publish` is called many times at once, but never with the same lane in two
/// calls at the same time.
///
/// **Durability.** `Confirmed` means that the message survives a crash of the receiver as far as
/// the receiver can promise it.
///
/// **Repetition.** The same event may come again, with the same id, after an unknown outcome. The
/// id travels as the broker's deduplication id where it has one.
///
/// **Cancellation.** A `publish` that is dropped half-way has an unknown outcome; the sink must
/// stay usable.
///
/// **Memory.** A sink that recognises what it has confirmed already [`remembers`](Self::remembers),
/// and needs to know how long: until [`settled`](Self::settled) names it. What it remembers from an
/// earlier life, and what is not named by the time of [`caught_up`](Self::caught_up), was settled
/// before.
///
/// ```
/// use semel_core::memory::MemoryBroker;
/// use semel_core::{Event, Message, Sink};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let broker = MemoryBroker::new();
/// let message = Message::first("order.events", Event::new("order", "42", "OrderPlaced"));
/// assert!(broker.publish(&[message]).await.all_confirmed());
/// # });
/// ```
#[async_trait]
pub trait Sink: Send + Sync {
    /// Sends the batch and waits for its confirmations.
    async fn publish(&self, batch: &[Message]) -> Published;

    /// A cheap probe: could a publish succeed now? Asked before the first batch, and after an
    /// outage until it answers well.
    ///
    /// # Errors
    /// `Unavailable` while it cannot be reached, `Misconfigured` when it never will be, `Refused`
    /// when this sink is at its end and another one has to be opened.
    async fn check(&self) -> Result<(), Failure>;

    /// Whether it recognises what it has confirmed, and so wants to be told what follows. By
    /// default it does not.
    fn remembers(&self) -> bool {
        false
    }

    /// The source has recorded these as delivered: it will not hand them out again. Called after
    /// every settle that delivered something; it must not wait. The default does nothing.
    fn settled(&self, events: &[EventId]) {
        let _ = events;
    }

    /// Everything that the source had unsettled when the relay began has been handed out and
    /// settled. Called once. The default does nothing.
    fn caught_up(&self) {}

    /// Which messaging system it sends to, by the name that OpenTelemetry has for it, such as `kafka`
    /// or `rabbitmq`. Nothing for a sink that sends nothing itself: a consumer, which is the effect,
    /// or one that passes messages on to other sinks. It decides what a trace shows; the default is a
    /// system without a name.
    fn system(&self) -> Option<&'static str> {
        Some("_OTHER")
    }

    /// What must stay in order with this message. The default is its aggregate; whoever says else
    /// must keep the messages of an aggregate together.
    fn lane(&self, message: &Message) -> LaneKey {
        message.event.lane_key()
    }
}

#[async_trait]
impl<S: Sink + ?Sized> Sink for Arc<S> {
    async fn publish(&self, batch: &[Message]) -> Published {
        self.as_ref().publish(batch).await
    }

    async fn check(&self) -> Result<(), Failure> {
        self.as_ref().check().await
    }

    fn remembers(&self) -> bool {
        self.as_ref().remembers()
    }

    fn settled(&self, events: &[EventId]) {
        self.as_ref().settled(events);
    }

    fn caught_up(&self) {
        self.as_ref().caught_up();
    }

    fn system(&self) -> Option<&'static str> {
        self.as_ref().system()
    }

    fn lane(&self, message: &Message) -> LaneKey {
        self.as_ref().lane(message)
    }
}

/// What became of a batch.
///
/// ```
/// # use semel_core::{Failure, Published, Verdict};
/// let refused = Verdict::Failed(Failure::refused("E-TOO-LARGE", "2 MiB, the limit is 1 MiB"));
/// let published = Published::Each(vec![Verdict::Confirmed, refused]);
/// assert!(!published.all_confirmed());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Published {
    /// Every message was confirmed.
    All,
    /// One verdict per message, in the order of the batch.
    Each(Vec<Verdict>),
    /// The call as a whole failed; nothing is known of any message.
    None(Failure),
}

impl Published {
    /// Whether every message was confirmed.
    #[must_use]
    pub fn all_confirmed(&self) -> bool {
        match self {
            Self::All => true,
            Self::Each(verdicts) => verdicts.iter().all(|verdict| *verdict == Verdict::Confirmed),
            Self::None(_) => false,
        }
    }
}

/// What became of one message.
///
/// ```
/// # use semel_core::{Failure, Verdict};
/// let verdict = Verdict::from(Err(Failure::transient("E-BUSY", "the queue is full")));
/// assert_ne!(verdict, Verdict::Confirmed);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The receiver has it.
    Confirmed,
    /// It failed; the fault says whether for good.
    Failed(Failure),
    /// It was not sent, because an earlier message of its lane failed.
    Behind,
    /// It failed for good, and the receiver has put it among its own dead letters: the source is
    /// rid of it. What follows it in its lane is the receiver's affair too.
    Buried(Failure),
}

impl From<Result<(), Failure>> for Verdict {
    fn from(result: Result<(), Failure>) -> Self {
        match result {
            Ok(()) => Self::Confirmed,
            Err(failure) => Self::Failed(failure),
        }
    }
}
