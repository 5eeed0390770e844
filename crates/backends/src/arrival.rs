//! What is in a broker, read without taking it out.

use semel_core::EventId;

/// An event that is in a broker. One that is there twice is two of these.
///
/// ```
/// use semel_backends::Arrival;
/// use semel_core::EventId;
///
/// let first = Arrival { id: EventId::now(), queue: 0, place: 7 };
/// let then = Arrival { id: EventId::now(), queue: 0, place: 8 };
/// assert!(first.queue == then.queue && first.place < then.place, "in this order");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Which event.
    pub id: EventId,
    /// What it is in that has an order: a partition, a stream. Between two of them there is none.
    pub queue: usize,
    /// Where in it; later is greater.
    pub place: i64,
}
