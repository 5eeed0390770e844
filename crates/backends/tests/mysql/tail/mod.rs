//! Sources that the binary log tells of new events.

mod failures;
mod hearing;
mod logs;
mod set_up;
mod storm;
mod suites;

use std::time::{Duration, Instant};

use semel_backends::mysql::{MysqlConfig, MysqlStore, Tailing};
use semel_core::{Limit, Source};
use semel_testkit::services::{Private, Service};
use semel_testkit::workload::{delivered_numbers, event};
use tokio::time::timeout;

use super::{Database, Relay};

const PATIENCE: Duration = Duration::from_secs(60);

impl Database {
    /// A relay that tails.
    async fn tailing(&self) -> Relay {
        tailing(&self.store).await
    }

    /// Connections on which the log is read.
    async fn tails(&self) -> Vec<u64> {
        tails(&self.store).await
    }

    /// Ends what tails the log.
    async fn cut_tail(&self) {
        for id in self.tails().await {
            // It may have ended by itself.
            sqlx::raw_sql(sqlx::AssertSqlSafe(format!("KILL {id}")))
                .execute(self.pool())
                .await
                .ok();
        }
    }
}

async fn tailing(store: &MysqlStore) -> Relay {
    let source = store.tailing_source("orders", Tailing::Required).await.unwrap();
    assert!(source.is_tailing());
    Relay { source }
}

async fn tails(store: &MysqlStore) -> Vec<u64> {
    sqlx::query_scalar(
        "SELECT cast(id AS UNSIGNED) FROM information_schema.processlist
        WHERE db = database() AND command LIKE 'Binlog Dump%'",
    )
    .fetch_all(store.pool())
    .await
    .unwrap()
}

/// A server of the test's own, with the tables of semel.
async fn private(options: &[&str]) -> Option<(Private, MysqlStore)> {
    let server = Private::start_with(Service::Mysql, options)?;
    let store = MysqlConfig::new(server.address()).unwrap().connect().await.unwrap();
    store.migrate().await.unwrap();
    Some((server, store))
}

async fn run(store: &MysqlStore, sql: &str) {
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(store.pool()).await.unwrap();
}

/// Writes one event, of which nobody in this process is told.
async fn commit_one(store: &MysqlStore, number: u64) {
    let mut tx = store.begin().await.unwrap();
    store.outbox().append(&mut tx, event("a", number)).await.unwrap();
    tx.commit().await.unwrap();
}

impl Relay {
    /// Waits until it tails, or polls; nothing is ready meanwhile.
    async fn until(&mut self, tails: bool) {
        let began = Instant::now();
        while self.source.is_tailing() != tails {
            let what = if tails { "tails" } else { "polls" };
            assert!(began.elapsed() < PATIENCE, "it never {what}");
            let batch = self.source.next_batch(Limit::default()).await.unwrap();
            assert!(batch.deliveries.is_empty());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Whether the source is woken in time.
    async fn is_woken(&mut self, wait: Duration) -> bool {
        timeout(wait, self.source.wakeup()).await.is_ok()
    }

    /// It is woken, and finds these.
    async fn expect_news(&mut self, numbers: &[u64]) {
        let began = Instant::now();
        let mut got = Vec::new();
        while got.len() < numbers.len() {
            assert!(began.elapsed() < PATIENCE);
            assert!(self.is_woken(PATIENCE).await, "the log told nothing");
            got.extend(self.deliver_all(10).await);
        }
        assert_eq!(delivered_numbers(&got), numbers);
    }

    /// Looks until it is not asked to look again.
    async fn settle_down(&mut self) {
        while self.is_woken(Duration::from_millis(700)).await {
            assert!(self.take(1).await.is_empty());
        }
    }
}
