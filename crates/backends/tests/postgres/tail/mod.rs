//! Sources that the log tells of new events.

mod failures;
mod hearing;
mod idle;
mod set_up;
mod standby;
pub(super) mod storm;
mod suites;
#[cfg(feature = "tls")]
mod tls;

use std::time::{Duration, Instant};

use semel_backends::postgres::{PostgresSource, Tailing};
use semel_core::{Limit, Source};

use super::{Database, Relay};

/// Longer than any transaction of other tests on the same server is open.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

impl Database {
    /// A relay that tails.
    async fn tailing(&self) -> Relay {
        let source = self.store.tailing_source("orders", Tailing::WherePossible).await.unwrap();
        let mut relay = Relay { source };
        relay.until(true).await;
        relay
    }

    /// How many slots its relays have.
    async fn slots(&self) -> i64 {
        self.number(
            "select count(*) from pg_replication_slots
            where database = current_database() and slot_name like 'semel\\_%'",
        )
        .await
    }

    /// Ends what tails the log.
    pub(super) async fn cut_tail(&self) {
        self.run(
            "select pg_terminate_backend(active_pid) from pg_replication_slots
            where database = current_database()",
        )
        .await;
    }

    /// Waits until a query gives true.
    pub(super) async fn wait_for(&self, what: &str, sql: &str) {
        let began = Instant::now();
        loop {
            let query = sqlx::query_scalar(sqlx::AssertSqlSafe(sql));
            if query.fetch_one(self.pool()).await.unwrap() {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{what}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Relay {
    /// Waits until it tails, or polls; nothing is ready meanwhile.
    async fn until(&mut self, tails: bool) {
        let began = Instant::now();
        while self.source.is_tailing() != tails {
            assert!(
                began.elapsed() < PATIENCE,
                "it never {}",
                if tails { "tails" } else { "polls" }
            );
            let batch = self.source.next_batch(Limit::default()).await.unwrap();
            assert!(batch.deliveries.is_empty());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// A source that tails, opened as often as it needs while others have long transactions.
async fn tailing_source(database: &Database) -> PostgresSource {
    let began = Instant::now();
    loop {
        let source = database.store.tailing_source("orders", Tailing::Required).await.unwrap();
        if source.is_tailing() {
            return source;
        }
        assert!(began.elapsed() < PATIENCE, "it never tails");
    }
}
