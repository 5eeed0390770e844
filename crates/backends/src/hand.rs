//! What a reader of dead letters has in hand: messages that were looked at and not removed. Where they
//! need not be given back one by one, only the last of them: a queue may be larger than the memory.

use std::collections::BTreeMap;

use semel_core::{Failure, Receipt};

/// Messages that were looked at, as they were on the wire.
pub(crate) struct Hand<T> {
    last: u64,
    held: BTreeMap<Receipt, T>,
}

impl<T> Hand<T> {
    pub(crate) const fn new() -> Self {
        Self { last: 0, held: BTreeMap::new() }
    }

    pub(crate) fn take(&mut self, message: T) -> Receipt {
        self.last += 1;
        self.held.insert(Receipt(self.last), message);
        Receipt(self.last)
    }

    /// A message in hand.
    ///
    /// # Errors
    /// `Refused` when it is not.
    pub(crate) fn get(&self, receipt: Receipt) -> Result<&T, Failure> {
        self.held.get(&receipt).ok_or_else(|| {
            Failure::refused("E-DEAD-GONE", "this letter is not in hand any more")
                .with_fix("look again: semel dead list")
        })
    }

    /// Those of these that are in hand.
    pub(crate) fn all<'a>(&'a self, receipts: &'a [Receipt]) -> impl Iterator<Item = &'a T> {
        receipts.iter().filter_map(|receipt| self.held.get(receipt))
    }

    /// What is left, in the order in which it came.
    pub(crate) fn rest(&self) -> impl Iterator<Item = &T> {
        self.held.values()
    }

    pub(crate) fn forget(&mut self, receipts: &[Receipt]) {
        for receipt in receipts {
            self.held.remove(receipt);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.held.clear();
    }
}
