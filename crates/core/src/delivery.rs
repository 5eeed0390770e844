//! One event on its way: what a source hands out, what a sink gets, and what became of it.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;

use crate::event::Event;
use crate::failure::Failure;

/// Where a message goes to or came from: a topic, subject, queue, stream or path.
///
/// ```
/// # use semel_core::Topic;
/// let topic = Topic::from("order.events");
/// assert_eq!(topic.as_str(), "order.events");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Topic(Arc<str>);

impl Topic {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Topic {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

impl Borrow<str> for Topic {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a sink gets: an event, where it goes, and the number of this attempt.
///
/// ```
/// # use semel_core::{Event, Message};
/// let message = Message::first("order.events", Event::new("order", "42", "OrderPlaced"));
/// assert_eq!(message.attempt, 1);
/// ```
#[derive(Clone, Debug)]
pub struct Message {
    /// Where it goes; for a consumer, where it came from.
    pub topic: Topic,
    /// What the broker keeps together, if not the aggregate id; see [`Message::key`].
    pub key: Option<Arc<str>>,
    /// The event itself.
    pub event: Arc<Event>,
    /// 1 for the first attempt. An outage does not count.
    pub attempt: u32,
    /// Whether it was published before. For a consumer: what its publisher said of it.
    pub publication: Publication,
    /// For a consumer: where it stands in the log that it was read from, if it was one.
    pub position: Option<Position>,
    /// For a consumer: the messaging system it came from, named as by
    /// [`Sink::system`](crate::Sink::system).
    pub system: Option<&'static str>,
}

impl Message {
    /// The first attempt at an event.
    pub fn first(topic: impl Into<Topic>, event: impl Into<Arc<Event>>) -> Self {
        let (topic, event, publication) = (topic.into(), event.into(), Publication::default());
        Self { topic, key: None, event, attempt: 1, publication, position: None, system: None }
    }

    /// What the broker keeps together and in order, where it has keys: the aggregate id, unless the
    /// route says else.
    #[must_use]
    pub fn key(&self) -> &str {
        self.key.as_deref().unwrap_or(&self.event.aggregate_id)
    }
}

/// Whether an event was published before, as far as that is known.
///
/// A source that knows says so; a sink that puts every event into its log once tells its readers,
/// so that they can go by [positions](Position).
///
/// ```
/// # use semel_core::delivery::Publication;
/// assert_eq!(Publication::default(), Publication::Unknown);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Publication {
    /// Nobody knows: a copy of it may be anywhere.
    #[default]
    Unknown,
    /// It was not; at most an attempt of unknown outcome was made. For a consumer: it is in its log
    /// once.
    First,
    /// It was, and an operator wants it published again.
    Again,
}

/// Where a message stands in the log that it was read from: a partition of a topic.
#[derive(Clone, Debug)]
pub struct Position {
    /// The log.
    pub log: Arc<dyn Log>,
    /// Its place there. Places rise, not always by one, and whoever reads the log again finds it at
    /// the same one.
    pub offset: u64,
}

impl Position {
    /// The log as a scope of [`Marks`](crate::Marks): no two logs share one, no
    /// [lane](crate::Lane::scope) has it, and none is longer than 255 characters.
    #[must_use]
    pub fn scope(&self) -> String {
        let scope = format!("log:{}", self.log.name());
        if scope.len() <= 255 { scope } else { format!("log:{}", blake3::hash(scope.as_bytes())) }
    }
}

/// A log of messages, as those who read it know it.
#[async_trait]
pub trait Log: fmt::Debug + Send + Sync {
    /// Its name: the same for all who read it, and no two logs of the world have the same one.
    fn name(&self) -> &str;

    /// Where it ends at present: above all offsets.
    ///
    /// # Errors
    /// `Unavailable` when nobody answers.
    async fn end(&self) -> Result<u64, Failure>;
}

/// What a source hands out: a message, and the receipt to settle it by.
///
/// ```
/// # use semel_core::{Delivery, Event, Message, Receipt};
/// let message = Message::first("order.events", Event::new("order", "42", "OrderPlaced"));
/// let delivery = Delivery { message, receipt: Receipt(7) };
/// assert_eq!(delivery.receipt, Receipt(7));
/// ```
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The message.
    pub message: Message,
    /// What the source recognises the delivery by.
    pub receipt: Receipt,
}

/// What a source recognises a delivery by: opaque to everyone else, unique among the deliveries
/// that it has handed out and that are not settled.
///
/// ```
/// # use semel_core::Receipt;
/// assert_ne!(Receipt(1), Receipt(2));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Receipt(pub u64);

/// What became of a delivery.
///
/// ```
/// # use semel_core::Outcome;
/// assert!(Outcome::Delivered.is_final());
/// assert!(!Outcome::Released.is_final());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The sink confirmed it.
    Delivered,
    /// It failed and is to be offered again at `at`, as attempt `attempts + 1`. Until then its
    /// lane waits behind it.
    Retry {
        /// Not before this time.
        at: Timestamp,
        /// Attempts made so far.
        attempts: u32,
        /// Why the last one failed.
        failure: Failure,
    },
    /// It was not tried, because an earlier event of its lane failed or the relay stops. Offer it
    /// again in its place; no attempt counts.
    Released,
    /// Its attempts are spent, or it was refused for good.
    Dead {
        /// Attempts made.
        attempts: u32,
        /// Why the last one failed.
        failure: Failure,
        /// Whether its lane waits until somebody retries or discards it.
        parks_lane: bool,
    },
}

impl Outcome {
    /// Whether nothing more will be tried without an operator.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::Delivered | Self::Dead { .. })
    }
}

/// The outcome of one delivery, on its way back to the source.
///
/// ```
/// # use semel_core::{Outcome, Receipt, Settlement};
/// let settlement = Settlement { receipt: Receipt(7), outcome: Outcome::Delivered };
/// assert_eq!(settlement.receipt, Receipt(7));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Settlement {
    /// Which delivery.
    pub receipt: Receipt,
    /// What became of it.
    pub outcome: Outcome,
}

/// Whether the caller still owns what it tried to change.
///
/// ```
/// # use semel_core::Holding;
/// assert!(Holding::Held.is_held());
/// ```
#[must_use = "a change by somebody who lost ownership did not happen"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holding {
    /// It did, and the change is recorded.
    Held,
    /// Somebody else took over; nothing was changed.
    Lost,
}

impl Holding {
    /// Whether the change is recorded.
    #[must_use]
    pub const fn is_held(self) -> bool {
        matches!(self, Self::Held)
    }
}
