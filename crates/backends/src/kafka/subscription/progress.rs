//! How far a member of a group is with one partition.

use std::collections::BTreeSet;

/// What came of a partition, what of it is settled, and what the broker knows of that.
///
/// The broker keeps one position per partition. Messages are settled in any order, so the position
/// is the first one that is not.
#[derive(Debug)]
pub(super) struct Progress {
    /// Came, and is not settled.
    open: BTreeSet<i64>,
    /// Everything before this came, or never will.
    next: i64,
    committed: i64,
}

impl Progress {
    /// Nothing came yet; the first message will be this one, which the broker knows.
    pub(super) const fn starting_at(offset: i64) -> Self {
        Self { open: BTreeSet::new(), next: offset, committed: offset }
    }

    pub(super) fn receive(&mut self, offset: i64) {
        self.open.insert(offset);
        self.next = self.next.max(offset + 1);
    }

    pub(super) fn settle(&mut self, offset: i64) {
        self.open.remove(&offset);
    }

    /// What the broker is to be told, if it does not know it.
    pub(super) fn uncommitted(&self) -> Option<i64> {
        let position = self.position();
        (position > self.committed).then_some(position)
    }

    pub(super) fn commit(&mut self, offset: i64) {
        self.committed = self.committed.max(offset);
    }

    /// How much came behind the first message that is not settled: so much comes again after a
    /// crash.
    pub(super) fn ahead(&self) -> i64 {
        self.next - self.position()
    }

    fn position(&self) -> i64 {
        self.open.first().copied().unwrap_or(self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_position_stays_at_the_first_that_is_not_settled() {
        let mut progress = Progress::starting_at(5);
        for offset in [5, 6, 9] {
            progress.receive(offset);
        }
        assert_eq!(progress.uncommitted(), None);
        progress.settle(6);
        assert_eq!((progress.uncommitted(), progress.ahead()), (None, 5));
        progress.settle(5);
        assert_eq!(progress.uncommitted(), Some(9), "7 and 8 never were messages");
        progress.commit(9);
        assert_eq!(progress.uncommitted(), None);
        progress.settle(9);
        progress.settle(9);
        assert_eq!((progress.uncommitted(), progress.ahead()), (Some(10), 0));
        progress.commit(7);
        assert_eq!(progress.uncommitted(), Some(10), "a late answer takes nothing back");
    }
}
