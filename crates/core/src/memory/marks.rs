//! [`Marks`] in memory.

use async_trait::async_trait;

use super::{MemoryDatabase, MemoryTx};
use crate::failure::Failure;
use crate::marks::{Marks, Step};

#[async_trait]
impl Marks<MemoryTx> for MemoryDatabase {
    async fn mark(
        &self,
        tx: &mut MemoryTx,
        consumer: &str,
        scope: &str,
    ) -> Result<Option<u64>, Failure> {
        let key = (consumer.to_owned(), scope.to_owned());
        let own = tx.marks.get(&key).copied();
        Ok(own.or_else(|| self.committed().marks.get(&key).copied()))
    }

    async fn advance(
        &self,
        tx: &mut MemoryTx,
        consumer: &str,
        scope: &str,
        to: u64,
    ) -> Result<bool, Failure> {
        let below = self.mark(tx, consumer, scope).await?.is_none_or(|mark| mark < to);
        if below {
            tx.marks.insert((consumer.to_owned(), scope.to_owned()), to);
        }
        Ok(below)
    }

    async fn step_all(
        &self,
        tx: &mut MemoryTx,
        consumer: &str,
        steps: &[Step<'_>],
    ) -> Result<Vec<bool>, Failure> {
        let mut moved = Vec::with_capacity(steps.len());
        for Step { scope, from, to } in steps {
            let is_there = self.mark(tx, consumer, scope).await? == Some(*from);
            if is_there {
                tx.marks.insert((consumer.to_owned(), (*scope).to_owned()), *to);
            }
            moved.push(is_there);
        }
        Ok(moved)
    }

    fn is_beside_inbox(&self) -> bool {
        true
    }
}
