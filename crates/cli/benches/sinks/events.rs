//! What is sent.

use std::fmt;

use bytes::Bytes;
use semel_core::{Event, Message};

/// How many events, of which size, in how many lanes.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) count: usize,
    pub(crate) bytes: usize,
    pub(crate) lanes: usize,
}

/// How many go together.
pub(crate) const BATCH: usize = 1_000;
/// How many batches may be under way.
pub(crate) const AT_ONCE: usize = 8;

impl Load {
    /// Batches of messages, made when they are asked for.
    pub(crate) fn batches(self, topic: &str) -> impl Iterator<Item = Vec<Message>> + Send + use<> {
        let (topic, payload) = (topic.to_owned(), self.payload());
        (0..self.count).step_by(BATCH).map(move |first| {
            let last = self.count.min(first + BATCH);
            let message = |number| Message::first(&*topic, event(number, self.lanes, &payload));
            (first..last).map(message).collect()
        })
    }

    pub(crate) fn payload(self) -> Bytes {
        vec![b'x'; self.bytes].into()
    }
}

impl Default for Load {
    fn default() -> Self {
        Self { count: 200_000, bytes: 200, lanes: 10_000 }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} events of {} bytes, {AT_ONCE} batches of {BATCH}", self.count, self.bytes)
    }
}

pub(crate) fn event(number: usize, lanes: usize, payload: &Bytes) -> Event {
    Event::new("order", (number % lanes).to_string(), "OrderPlaced")
        .with_bytes("text/plain", payload.clone())
}
