//! Dead letters that consumers left with a broker: looked at, sent back, given up.
//!
//! A subscription is the wrong reader for them. It buries what is no event once more, forgets what
//! was written on a letter, and writes events anew; here a letter stays the message that it was.

use async_trait::async_trait;
use semel_core::wire::Inscription;
use semel_core::{Event, Failure, LaneKey, Receipt};

/// A topic, queue or stream of dead letters. What was there when it was opened is looked at, and
/// nothing that comes later: letters that die again meanwhile would go round for ever.
///
/// **Looking.** Nothing is taken out until it is [removed](Self::remove). A broker that gives a
/// message to one reader at a time hides letters from others until they are removed, or it is
/// [closed](Self::close).
///
/// **Order.** Letters of one [lane](DeadLetter::lane) come in the order of the queue.
///
/// ```
/// use semel_backends::DeadQueue;
/// use semel_core::Failure;
///
/// async fn errors(letters: &mut dyn DeadQueue) -> Result<Vec<String>, Failure> {
///     let some = letters.next(100).await?;
///     letters.close().await;
///     Ok(some.into_iter().filter_map(|letter| Some(letter.said?.error)).collect())
/// }
/// # let _ = errors;
/// ```
#[async_trait]
pub trait DeadQueue: Send + Sync {
    /// How many letters there were when it was opened; some brokers know only about.
    fn count(&self) -> usize;

    /// The next letters, about `most`; none at the end. Those from before may then be out of hand: what
    /// is to be sent or removed of them is so before.
    ///
    /// # Errors
    /// `Unavailable` when the broker cannot be reached, `Misconfigured` when the user may not read.
    async fn next(&mut self, most: usize) -> Result<Vec<DeadLetter>, Failure>;

    /// Sends a letter to a topic, queue, stream or subject, as the message that it was, and waits
    /// until it is there.
    ///
    /// # Errors
    /// `Unavailable` when the broker cannot be reached; anything else is about this letter.
    async fn send(&self, letter: &DeadLetter, to: &str) -> Result<(), Failure>;

    /// Takes letters out for good. With none, it finds out whether it may, if the broker tells.
    ///
    /// # Errors
    /// `Unavailable` when the broker cannot be reached, `Misconfigured` when the user may not.
    async fn remove(&mut self, letters: &[Receipt]) -> Result<(), Failure>;

    /// Gives back what was looked at and not removed, as it was and where it was.
    async fn close(&mut self);
}

/// A message in a queue of dead letters.
///
/// ```
/// use semel_backends::DeadLetter;
/// use semel_core::Receipt;
///
/// let stranger = DeadLetter::new(Receipt(1), None, None, None);
/// assert!(stranger.home.is_none(), "nobody knows where it came from");
/// ```
#[derive(Clone, Debug)]
pub struct DeadLetter {
    /// What its queue knows it by.
    pub receipt: Receipt,
    /// What must stay in order with it.
    pub lane: LaneKey,
    /// The event that it is; nothing for a message that is none.
    pub event: Option<Event>,
    /// Why it died; nothing where no consumer of semel put it there.
    pub said: Option<Inscription>,
    /// Where it came from: a topic, queue, stream or subject.
    pub home: Option<String>,
}

impl DeadLetter {
    /// A letter in the lane of its event. Those that are no events have one lane for each home.
    #[must_use]
    pub fn new(
        receipt: Receipt,
        event: Option<Event>,
        said: Option<Inscription>,
        home: Option<String>,
    ) -> Self {
        let stranger = || LaneKey::of_log(home.as_deref().unwrap_or_default());
        let lane = event.as_ref().map_or_else(stranger, Event::lane_key);
        Self { receipt, lane, event, said, home }
    }
}
