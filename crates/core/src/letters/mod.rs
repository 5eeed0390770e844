//! Dead letters of a consumer, in its own database: the [`DeadLetters`] contract.
//!
//! A message whose attempts are spent leaves the broker for good and waits here, with the error, in
//! the database of the effect. So do, in order, the later messages of its lane, if they are to wait
//! for it. An operator tries them again or gives them up; the consumer takes up what is due.

mod admin;
mod stored;

use std::fmt;

use async_trait::async_trait;
use jiff::Timestamp;

pub use self::admin::LettersAdmin;
pub use self::stored::{from_stored, to_stored};
use crate::delivery::Message;
use crate::event::{Event, EventId};
use crate::failure::Failure;

/// Keeps the dead letters of consumers, and what waits behind them. `Tx` is the transaction of the
/// effect.
///
/// **Order.** Letters of one lane go in the order in which they were put, those with a
/// [sequence](Event::sequence) by that. A letter is due when somebody asked for it and it is the
/// first of its lane; when it is removed, the next becomes due if it is only waiting.
///
/// **Concurrency.** [`standing`](Self::standing) locks the letters of the lane until the
/// transaction ends, so that nobody is put behind a letter that is just leaving.
///
/// **Durability.** What is done in a transaction counts if, and only if, it commits.
///
/// ```
/// use semel_core::letters::{DeadLetters, Letter, LetterBook, Standing};
/// use semel_core::memory::MemoryDatabase;
/// use semel_core::{Event, Failure, Message};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let database = MemoryDatabase::new();
/// let message = Message::first("orders", Event::new("order", "42", "OrderPlaced"));
/// let mut tx = database.begin().await;
/// let letter = Letter::dead(message.clone(), &Failure::refused("E-NO", "no such product"));
/// database.put(&mut tx, "payments", &letter).await?;
/// assert_eq!(database.standing(&mut tx, "payments", &message.event).await?, Standing::Own);
/// tx.commit();
///
/// assert!(database.due("payments", 10).await?.is_empty());
/// database.retry("payments", &[message.event.id]).await?;
/// assert_eq!(database.due("payments", 10).await?[0].event.id, message.event.id);
/// # Ok::<(), Failure>(()) }).unwrap();
/// ```
#[async_trait]
pub trait DeadLetters<Tx>: LetterBook {
    /// Whether the consumer has any letter at all. Cheap: it is asked in every transaction.
    ///
    /// # Errors
    /// A failure leaves the transaction fit only for rolling back, here and below.
    async fn any(&self, tx: &mut Tx, consumer: &str) -> Result<bool, Failure>;

    /// Where a message stands: whether it is a letter itself, or others of its lane are.
    async fn standing(
        &self,
        tx: &mut Tx,
        consumer: &str,
        event: &Event,
    ) -> Result<Standing, Failure>;

    /// Of each of these events, whether it may be a letter, or others of its lane may be.
    /// [`standing`](Self::standing) is asked for those alone: once there is a letter, this is asked for
    /// whatever comes. One round trip for all, and nothing is locked. By default all may be.
    async fn concerned(
        &self,
        tx: &mut Tx,
        consumer: &str,
        events: &[&Event],
    ) -> Result<Vec<bool>, Failure>
    where
        Tx: Send,
    {
        let _ = (tx, consumer);
        Ok(vec![true; events.len()])
    }

    /// Puts a letter, or replaces what is known of it; it keeps its place.
    async fn put(&self, tx: &mut Tx, consumer: &str, letter: &Letter) -> Result<(), Failure>;

    /// Removes a letter that has taken effect; the next of its lane becomes due if it is only
    /// waiting.
    async fn remove(&self, tx: &mut Tx, consumer: &str, event: &Event) -> Result<(), Failure>;

    /// The letter of the lane of `event` with the next sequence is held back no longer.
    async fn release(&self, tx: &mut Tx, consumer: &str, event: &Event) -> Result<(), Failure>;

    /// Whether these are the letters that the inbox of the same transactions knows of, so that
    /// [`begin_with`](crate::InboxStore::begin_with) may look whether there are any. By default they
    /// are not.
    fn is_beside_inbox(&self) -> bool {
        false
    }
}

/// The letters of consumers outside their transactions: for what is due, and for operators.
#[async_trait]
pub trait LetterBook: Send + Sync {
    /// Messages that are due, oldest first, at most `limit`; one of each lane. What was held back
    /// for too long is due too.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached, here and below.
    async fn due(&self, consumer: &str, limit: usize) -> Result<Vec<Message>, Failure>;

    /// Letters with a higher number than `after`, by number.
    async fn page(
        &self,
        consumer: &str,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Numbered>, Failure>;

    /// One letter.
    async fn find(&self, consumer: &str, id: EventId) -> Result<Option<Letter>, Failure>;

    /// Dead letters become due, each when it is the first of its lane. Says how many.
    async fn retry(&self, consumer: &str, ids: &[EventId]) -> Result<usize, Failure>;

    /// Letters are given up for good: they count as taken effect for. Says how many.
    async fn discard(&self, consumer: &str, ids: &[EventId]) -> Result<usize, Failure>;
}

/// A letter and its number.
pub type Numbered = (u64, Letter);

/// A message that left the straight path.
#[derive(Clone, Debug)]
pub struct Letter {
    /// The message.
    pub message: Message,
    /// What it waits for.
    pub state: LetterState,
    /// Attempts that failed.
    pub attempts: u32,
    /// Why the last one failed, beginning with its code.
    pub error: Option<String>,
}

impl Letter {
    /// Its attempts are spent, or it was refused for good.
    #[must_use]
    pub fn dead(message: Message, failure: &Failure) -> Self {
        let error = Some(storable(format!("{}: {failure}", failure.code())));
        let attempts = message.attempt;
        Self { message, state: LetterState::Dead, attempts, error }
    }

    /// It waits behind another of its lane.
    #[must_use]
    pub fn behind(message: Message) -> Self {
        Self { message, state: LetterState::Behind, attempts: 0, error: None }
    }

    /// One that was stored; `until` is in microseconds since 1970.
    ///
    /// # Errors
    /// `Refused` when the message cannot be read.
    pub fn from_row(
        state: &str,
        until: Option<i64>,
        attempts: u32,
        error: Option<String>,
        message: &str,
    ) -> Result<Self, Failure> {
        let until = until.and_then(|micros| Timestamp::from_microsecond(micros).ok());
        let state = LetterState::from_stored(state, until);
        Ok(Self { message: from_stored(message)?, state, attempts, error })
    }

    /// It waits until what is missing before it has come, or until then.
    #[must_use]
    pub fn held(message: Message, until: Timestamp) -> Self {
        Self { message, state: LetterState::Held { until }, attempts: 0, error: None }
    }
}

/// An error as every table takes it: what cannot be stored would keep its message from being buried.
fn storable(mut error: String) -> String {
    /// A column of MySQL has room for four times as much.
    const MOST: usize = 16 * 1024;
    error.truncate(error.floor_char_boundary(MOST));
    // PostgreSQL stores no NUL characters in text.
    error.replace('\0', "\u{fffd}")
}

/// What a letter waits for.
///
/// ```
/// # use semel_core::letters::LetterState;
/// assert_eq!(LetterState::Dead.to_string(), "dead");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LetterState {
    /// For an operator.
    Dead,
    /// For those before it in its lane.
    Behind,
    /// For the consumer, who may take it up.
    Due,
    /// For an earlier sequence of its lane, or for the end of its patience.
    Held {
        /// When that is.
        until: Timestamp,
    },
}

impl LetterState {
    /// The state as it is stored.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Dead => "dead",
            Self::Behind => "behind",
            Self::Due => "due",
            Self::Held { .. } => "held",
        }
    }

    /// The state as it was stored. `until` counts for what is held back.
    #[must_use]
    pub fn from_stored(name: &str, until: Option<Timestamp>) -> Self {
        match name {
            "behind" => Self::Behind,
            "due" => Self::Due,
            "held" => Self::Held { until: until.unwrap_or(Timestamp::MAX) },
            _ => Self::Dead,
        }
    }

    /// When it is taken up whatever happens.
    #[must_use]
    pub const fn until(self) -> Option<Timestamp> {
        match self {
            Self::Held { until } => Some(until),
            Self::Dead | Self::Behind | Self::Due => None,
        }
    }
}

impl fmt::Display for LetterState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where a message stands among the letters of a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Neither it nor its lane is among them. What is held back does not count.
    Free,
    /// It is a letter itself.
    Own,
    /// Others of its lane are.
    Behind,
}
