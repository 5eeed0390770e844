//! [`InboxStore`] in memory.

use std::collections::hash_map::Entry;
use std::time::Duration;

use bytes::Bytes;

use super::{MemoryDatabase, MemoryTx};
use crate::event::EventId;
use crate::failure::Failure;
use crate::inbox::{InboxStore, Opening, Seen, Tally};
use crate::letters::DeadLetters;
use crate::marks::Marks;
use crate::retry::later;

impl InboxStore for MemoryDatabase {
    type Tx<'c> = MemoryTx;

    async fn begin(&self) -> Result<MemoryTx, Failure> {
        Ok(Self::begin(self).await)
    }

    async fn begin_with(
        &self,
        consumer: &str,
        opening: Opening<'_>,
    ) -> Result<(MemoryTx, bool), Failure> {
        let mut tx = Self::begin(self).await;
        let is_as_expected = !opening.is_empty()
            && self.step_all(&mut tx, consumer, opening.steps).await?.iter().all(|moved| *moved)
            && !(opening.no_letters && self.any(&mut tx, consumer).await?)
            && self.record_all(&mut tx, consumer, opening.ids).await?.iter().all(|new| *new);
        if !is_as_expected {
            drop(tx);
            tx = Self::begin(self).await;
        }
        Ok((tx, is_as_expected))
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
