//! [`InboxStore`] in memory.

use std::collections::hash_map::Entry;
use std::time::Duration;

use bytes::Bytes;

use super::{MemoryDatabase, MemoryTx};
use crate::event::EventId;
use crate::failure::Failure;
use crate::inbox::{InboxStore, Seen, Tally};
use crate::retry::later;

impl InboxStore for MemoryDatabase {
    type Tx<'c> = MemoryTx;

    async fn begin(&self) -> Result<MemoryTx, Failure> {
        Ok(Self::begin(self).await)
    }

    async fn record(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        id: EventId,
    ) -> Result<Seen, Failure> {
        let key = (consumer.to_owned(), id);
        if let Some(seen) = self.committed().inbox.get(&key) {
            return Ok(Seen::Duplicate { result: seen.result.clone() });
        }
        match tx.inbox.entry(key) {
            Entry::Occupied(seen) => Ok(Seen::Duplicate { result: seen.get().clone() }),
            Entry::Vacant(free) => {
                free.insert(None);
                Ok(Seen::First)
            }
        }
    }

    async fn store_result(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        id: EventId,
        result: Bytes,
    ) -> Result<(), Failure> {
        tx.inbox.insert((consumer.to_owned(), id), Some(result));
        Ok(())
    }

    async fn commit(&self, tx: MemoryTx) -> Result<(), Failure> {
        tx.commit();
        Ok(())
    }

    async fn rollback(&self, tx: MemoryTx) {
        drop(tx);
    }

    async fn forget(&self, age: Duration, limit: usize) -> Result<usize, Failure> {
        let now = self.now();
        let mut committed = self.committed();
        let old: Vec<_> = committed
            .inbox
            .iter()
            .filter(|(_, seen)| later(seen.at, age) < now)
            .map(|(key, _)| key.clone())
            .take(limit)
            .collect();
        for key in &old {
            committed.inbox.remove(key);
        }
        Ok(old.len())
    }

    async fn count(&self, consumer: &str, tally: Tally) -> Result<(), Failure> {
        let mut committed = self.committed();
        for (name, number) in tally.named() {
            let counted = committed.marks.entry((name.to_owned(), consumer.to_owned()));
            *counted.or_default() += number;
        }
        Ok(())
    }
}
