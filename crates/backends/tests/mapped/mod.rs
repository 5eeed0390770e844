//! Tables of somebody else's shape: the shared suites, and what is particular to them.

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

use semel_backends::mapped::MappedSource;
use semel_core::{Delivery, Failure, Limit, Outcome, Settlement, Source, Timestamp};

/// What is ready, at most 100.
async fn take(source: &mut MappedSource) -> Vec<Delivery> {
    source.next_batch(Limit::default()).await.unwrap().deliveries
}

async fn settle(source: &mut MappedSource, got: &Delivery, outcome: Outcome) {
    let settlement = Settlement { receipt: got.receipt, outcome };
    assert!(source.settle(&[settlement]).await.unwrap().is_held());
}

async fn deliver_all(source: &mut MappedSource) -> Vec<Delivery> {
    let mut delivered = Vec::new();
    loop {
        let batch = take(source).await;
        if batch.is_empty() {
            return delivered;
        }
        let outcome = Outcome::Delivered;
        let settle = |got: &Delivery| Settlement { receipt: got.receipt, outcome: outcome.clone() };
        let settlements: Vec<_> = batch.iter().map(settle).collect();
        assert!(source.settle(&settlements).await.unwrap().is_held());
        delivered.extend(batch);
    }
}

fn retry_at(at: Timestamp, attempts: u32) -> Outcome {
    Outcome::Retry { at, attempts, failure: Failure::transient("E-TEST", "try again") }
}

/// Long ago: due at once.
fn retry_now(attempts: u32) -> Outcome {
    retry_at(Timestamp::UNIX_EPOCH, attempts)
}

fn dead() -> Outcome {
    let failure = Failure::refused("E-TEST", "never");
    Outcome::Dead { attempts: 5, failure, parks_lane: true }
}
