//! Where messages go: the [`Sink`] contract.
//!
//! A broker, a webhook and a consumer's handler are all sinks.

use std::sync::Arc;

use async_trait::async_trait;

use crate::delivery::Message;
use crate::failure::Failure;

/// Publishes messages, and says of each one what became of it.
///
/// **Order.** Messages of one lane take effect in the order of the batch. Within a lane, message
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
    /// `Unavailable` while it cannot be reached, `Misconfigured` when it never will be.
    async fn check(&self) -> Result<(), Failure>;
}

#[async_trait]
impl<S: Sink + ?Sized> Sink for Arc<S> {
    async fn publish(&self, batch: &[Message]) -> Published {
        self.as_ref().publish(batch).await
    }

    async fn check(&self) -> Result<(), Failure> {
        self.as_ref().check().await
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
}

impl From<Result<(), Failure>> for Verdict {
    fn from(result: Result<(), Failure>) -> Self {
        match result {
            Ok(()) => Self::Confirmed,
            Err(failure) => Self::Failed(failure),
        }
    }
}
