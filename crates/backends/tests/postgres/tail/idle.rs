//! An idle outbox beside a busy table: the slot must not hold back the log of others.
//!
//! `SEMEL_IDLE_SECONDS` says for how long: 600 for the promise in full.

use std::time::{Duration, Instant};

use semel_backends::postgres::{PostgresConfig, Tailing};
use semel_testkit::services::{Private, Service};
use tokio::time::sleep;

use super::super::Relay;

fn duration() -> Duration {
    let seconds = std::env::var("SEMEL_IDLE_SECONDS").ok();
    Duration::from_secs(seconds.and_then(|seconds| seconds.parse().ok()).unwrap_or(30))
}

#[tokio::test]
async fn the_log_of_a_busy_neighbour_is_not_held_back() {
    const MOST: i64 = 16 * 1024 * 1024;
    const HELD_BACK: &str = "\
        select coalesce(max(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)), 0)::bigint
        from pg_replication_slots";
    const WRITTEN: &str = "select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint";
    let Some(server) = Private::start(Service::Postgres) else { return };
    let store = PostgresConfig::new(server.address()).unwrap().connect().await.unwrap();
    store.migrate().await.unwrap();
    let pool = store.pool();
    sqlx::raw_sql("create table other (content text)").execute(pool).await.unwrap();
    let source = store.tailing_source("orders", Tailing::Required).await.unwrap();
    let mut relay = Relay { source };
    relay.until(true).await;
    let number =
        async |sql: &'static str| -> i64 { sqlx::query_scalar(sql).fetch_one(pool).await.unwrap() };
    let (began, before, mut most) = (Instant::now(), number(WRITTEN).await, 0);
    while began.elapsed() < duration() {
        // Some 600 KiB a second. The server tells of the transactions that run, which is what lets a
        // slot move, every fifteen.
        let write = "insert into other select repeat(md5(random()::text), 50)
            from generate_series(1, 35)";
        sqlx::raw_sql(write).execute(pool).await.unwrap();
        relay.take(1).await;
        most = most.max(number(HELD_BACK).await);
        sleep(Duration::from_millis(100)).await;
    }
    let written = number(WRITTEN).await - before;
    let [held, all] = [most, written].map(|bytes| bytes / 1024);
    println!("{all} KiB were written, {held} KiB of log were held back at most");
    assert!(most < MOST, "{most} bytes of log were held back");
    assert!(relay.source.is_tailing());
}
