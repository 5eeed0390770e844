//! All shares of a pipeline together, as a source like any other.

use std::collections::HashMap;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use semel_core::{
    Batch, Failure, Guarantees, Holding, Limit, Receipt, Settlement, Source, Timestamp,
};

/// Asks one share after the other, as if they were one source.
pub(crate) struct Merged<S> {
    shares: Vec<S>,
    /// Which one is asked first.
    turn: usize,
    /// What each of them said last.
    next_due: Vec<Option<Timestamp>>,
    /// Which share a receipt is from, and what it is there.
    receipts: HashMap<u64, (usize, Receipt)>,
}

impl<S: Source> Merged<S> {
    pub(crate) fn new(shares: Vec<S>) -> Self {
        let next_due = vec![None; shares.len()];
        Self { shares, turn: 0, next_due, receipts: HashMap::new() }
    }
}

#[async_trait]
impl<S: Source> Source for Merged<S> {
    fn guarantees(&self) -> Guarantees {
        self.shares[0].guarantees()
    }

    async fn next_batch(&mut self, limit: Limit) -> Result<Batch, Failure> {
        let mut batch = Batch::default();
        for _ in 0..self.shares.len() {
            self.turn = (self.turn + 1) % self.shares.len();
            batch = self.shares[self.turn].next_batch(limit).await?;
            self.next_due[self.turn] = batch.next_due;
            if !batch.deliveries.is_empty() {
                // Those that were not asked may have more.
                batch.more = true;
                break;
            }
        }
        for delivery in &mut batch.deliveries {
            let receipt = self.receipts.len() as u64 + 1;
            self.receipts.insert(receipt, (self.turn, delivery.receipt));
            delivery.receipt = Receipt(receipt);
        }
        batch.next_due = self.next_due.iter().copied().flatten().min();
        Ok(batch)
    }

    fn wakeup(&mut self) -> BoxFuture<'static, ()> {
        self.shares[0].wakeup()
    }

    async fn settle(&mut self, settlements: &[Settlement]) -> Result<Holding, Failure> {
        let mut held = Holding::Held;
        for (index, share) in self.shares.iter_mut().enumerate() {
            let of_share = |Settlement { receipt, outcome }: &Settlement| {
                let (share, receipt) = *self.receipts.get(&receipt.0)?;
                let outcome = outcome.clone();
                (share == index).then_some(Settlement { receipt, outcome })
            };
            let settlements: Vec<_> = settlements.iter().filter_map(of_share).collect();
            if !share.settle(&settlements).await?.is_held() {
                held = Holding::Lost;
            }
        }
        Ok(held)
    }
}
