//! Which slots of a cluster the node had: one that it has no more is a failover, one that it never had
//! is a mistake in the set-up.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Slots that were written to, and since when another node has them.
#[derive(Default)]
pub(super) struct Owned(Mutex<HashMap<u16, Option<Instant>>>);

/// How long an address may take to lead to the node that took over.
const FAILOVER: Duration = Duration::from_secs(60);

impl Owned {
    /// The node has the slot.
    pub(super) fn note(&self, slot: u16) {
        self.slots().insert(slot, None);
    }

    /// Another node has the slot. Whether this one had it, until a moment ago.
    pub(super) fn was_just_lost(&self, slot: u16) -> bool {
        let mut slots = self.slots();
        let Some(lost) = slots.get_mut(&slot) else { return false };
        lost.get_or_insert_with(Instant::now).elapsed() < FAILOVER
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<u16, Option<Instant>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_slot_that_was_there_may_be_away_for_a_while() {
        let owned = Owned::default();
        assert!(!owned.was_just_lost(1), "it was never there");
        owned.note(1);
        tokio::time::advance(FAILOVER * 10).await;
        assert!(owned.was_just_lost(1));
        assert!(!owned.was_just_lost(2));
        tokio::time::advance(FAILOVER).await;
        assert!(!owned.was_just_lost(1), "nobody takes over");
        owned.note(1);
        assert!(owned.was_just_lost(1), "it came back");
    }
}
