//! What one look at the tables found, and what is to be done with it.

use std::sync::Arc;

use semel_core::{Event, Failure, Limit, Publication, Timestamp};

use super::parking::{Aside, Standing};
use super::row::stored;

/// What was found to be handed out or put aside.
pub(super) struct Round {
    limit: Limit,
    pub(super) count: usize,
    bytes: usize,
    /// In the order in which they are handed out.
    pub(super) found: Vec<(u64, Found)>,
    /// Something was found for which there was no room.
    pub(super) more: bool,
    /// What cannot be read, and holds its lane from here on.
    pub(super) unreadable: Vec<Arc<Event>>,
}

pub(super) enum Found {
    /// Parked and due, after so many attempts.
    Parked(u32, Publication, Arc<Event>),
    /// In the log, and free to go.
    Free(Arc<Event>),
    /// In the log, and has to wait behind its lane.
    Held,
    /// In the log, and has to wait for something else.
    PutAside(Aside),
    /// In the log, but settled or parked before.
    Passed,
}

impl Round {
    pub(super) fn new(limit: Limit) -> Self {
        let (found, unreadable) = (Vec::new(), Vec::new());
        Self { limit, count: 0, bytes: 0, found, more: false, unreadable }
    }

    /// How many rows to ask for: one more than there is room for, to know whether there is more.
    pub(super) fn rows(&self) -> i64 {
        stored(self.limit.events.saturating_sub(self.count) as u64).saturating_add(1)
    }

    /// Takes up the room for an event, if there is any.
    pub(super) fn admit(&mut self, event: &Event) -> bool {
        let bytes = self.bytes.saturating_add(event.size());
        let room = self.count == 0 || (self.count < self.limit.events && bytes <= self.limit.bytes);
        if room {
            self.count += 1;
            self.bytes = bytes;
        }
        self.more |= !room;
        room
    }

    /// Whether an event is behind one that cannot be read, in its lane.
    pub(super) fn is_held(&self, event: &Event) -> bool {
        self.unreadable.iter().any(|before| before.lane() == event.lane())
    }
}

impl Found {
    /// How it is put aside, if it is.
    pub(super) fn aside((seq, found): &(u64, Self)) -> Option<(u64, &Aside)> {
        if let Self::PutAside(aside) = found { Some((*seq, aside)) } else { None }
    }
}

/// What to do with an event of the log that can be read.
pub(super) fn sort(event: Arc<Event>, standing: Standing, now: Timestamp) -> Found {
    match event.available_at {
        // Due or not: it takes its place when it falls due, and that is not where it was written.
        Some(time) if time > now || time > event.created_at => {
            Found::PutAside(Aside::scheduled(time.as_microsecond()))
        }
        _ if standing == Standing::Held => Found::Held,
        _ => Found::Free(event),
    }
}

/// A row that cannot be read is dead, and its lane waits, until somebody mends or discards it. No
/// sink ever sees it, so nobody else says so.
pub(super) fn unreadable(pipeline: &str, seq: u64, attempts: u32, fault: &Failure) -> Found {
    let (table, code) = ("semel_outbox", fault.code());
    tracing::error!(pipeline, table, seq, code, "a row cannot be read, and is dead: {fault}");
    Found::PutAside(Aside::dead(attempts, fault))
}
