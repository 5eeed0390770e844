//! What one look at a mapped table found, within the room that there is.

use std::sync::Arc;

use semel_core::{Event, Limit};

/// What one look at the tables found.
pub(super) struct Round {
    limit: Limit,
    pub(super) bytes: usize,
    pub(super) found: Vec<Found>,
    /// The rows that are in flight, and those that were found.
    pub(super) out: Vec<String>,
    /// Something was found for which there was no room, or could have been.
    pub(super) more: bool,
}

pub(super) struct Found {
    pub(super) row_id: String,
    pub(super) event: Arc<Event>,
    pub(super) attempts: u32,
    pub(super) parked: bool,
}

impl Round {
    pub(super) fn new(limit: Limit, out: Vec<String>) -> Self {
        Self { limit, bytes: 0, found: Vec::new(), out, more: false }
    }

    /// How many bytes there is room for.
    pub(super) fn room(&self) -> usize {
        self.limit.bytes.saturating_sub(self.bytes)
    }

    /// How many rows to ask for: one more than there is room for, to know whether there is more.
    pub(super) fn rows(&self, average: usize) -> usize {
        let room = self.room() / average;
        self.limit.events.saturating_sub(self.found.len()).min(room).saturating_add(1)
    }

    /// Takes an event, if there is room for it.
    pub(super) fn add(
        &mut self,
        row_id: &str,
        event: Arc<Event>,
        attempts: u32,
        parked: bool,
    ) -> bool {
        let bytes = self.bytes.saturating_add(event.size());
        let room = self.found.is_empty()
            || (self.found.len() < self.limit.events && bytes <= self.limit.bytes);
        if room {
            self.bytes = bytes;
            self.out.push(row_id.to_owned());
            self.found.push(Found { row_id: row_id.to_owned(), event, attempts, parked });
        }
        self.more |= !room;
        room
    }
}
