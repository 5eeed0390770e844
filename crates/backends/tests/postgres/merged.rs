//! All shares of a pipeline together are a source like any other: the shared suites.

use std::collections::HashMap;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use semel_backends::postgres::{Postgres, PostgresAdmin, PostgresSource, Transaction};
use semel_core::outbox::AppendError;
use semel_core::{
    Batch, Event, Failure, Guarantees, Holding, Limit, Receipt, Settlement, Source, Timestamp,
};
use semel_testkit::probe::{Probe, Ran, WriteProbe};
use semel_testkit::suites::admin::AdminProbe;
use semel_testkit::suites::source::SourceProbe;

use super::suites::PostgresProbe;

semel_testkit::source_suite!(MergedProbe);
semel_testkit::admin_suite!(MergedProbe);

const SHARES: u32 = 3;

/// Asks one share after the other, as if they were one source.
struct Merged {
    shares: Vec<PostgresSource>,
    /// Which one is asked first.
    turn: usize,
    /// What each of them said last.
    next_due: Vec<Option<Timestamp>>,
    /// Which share a receipt is from, and what it is there.
    receipts: HashMap<u64, (usize, Receipt)>,
}

#[async_trait]
impl Source for Merged {
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

struct MergedProbe(PostgresProbe);

impl Probe for MergedProbe {
    const BACKEND: &'static str = "PostgreSQL, three shares";

    async fn fresh() -> Option<Self> {
        PostgresProbe::fresh().await.map(Self)
    }
}

impl WriteProbe for MergedProbe {
    type Tx = Transaction<'static, Postgres>;

    async fn begin(&self) -> Self::Tx {
        self.0.begin().await
    }

    async fn append(&self, tx: &mut Self::Tx, events: &[Event]) -> Result<(), AppendError> {
        WriteProbe::append(&self.0, tx, events).await
    }

    async fn commit(&self, tx: Self::Tx) {
        self.0.commit(tx).await;
    }

    async fn roll_back(&self, tx: Self::Tx) {
        self.0.roll_back(tx).await;
    }
}

impl SourceProbe for MergedProbe {
    type Source = Merged;

    async fn open(&self) -> Merged {
        let relays = self.0.database.all_shares(SHARES).await.into_iter();
        let shares: Vec<_> = relays.map(|relay| relay.source).collect();
        let next_due = vec![None; shares.len()];
        Merged { shares, turn: 0, next_due, receipts: HashMap::new() }
    }

    fn wakes(&self) -> Ran {
        Ok(())
    }
}

impl AdminProbe for MergedProbe {
    type Admin = PostgresAdmin;

    fn admin(&self) -> &PostgresAdmin {
        self.0.admin()
    }
}
