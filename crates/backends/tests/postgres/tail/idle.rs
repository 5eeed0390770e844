//! An idle outbox beside a busy table: the slot must not hold back the log of others.
//!
//! A slot moves when the server tells of the transactions that run: every fifteen seconds, and when the
//! relay has it do so, because the others write much. Some 2 MiB a second, so that fifteen would be too
//! many; `SEMEL_IDLE_SECONDS=600` for as long as that.

use std::time::{Duration, Instant};

use semel_backends::postgres::{PgPool, PostgresConfig, PostgresStore, Tailing};
use semel_testkit::services::{Private, Service};
use tokio::time::{MissedTickBehavior, interval};

use super::super::Relay;

const MOST: i64 = 16 * 1024 * 1024;
const HELD_BACK: &str = "\
    select coalesce(max(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)), 0)::bigint
    from pg_replication_slots";
const WRITTEN: &str = "select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint";
/// Every tenth of a second, of 1600 bytes each.
const ROWS: i32 = 120;
const WRITE: &str = "insert into other select repeat(md5(random()::text), 50)
    from generate_series(1, $1)";

#[tokio::test]
async fn the_log_of_a_busy_neighbour_is_not_held_back() {
    let Some((_server, store)) = beside_another_table().await else { return };
    let source = store.tailing_source("orders", Tailing::Required).await.unwrap();
    let mut relay = Relay { source };
    relay.until(true).await;
    let told = write_much(store.pool(), async || drop(relay.take(1).await)).await;
    println!("{told}");
    assert!(relay.source.is_tailing());
}

/// Nor where messages are carried, whose slot is the only place where they are.
#[tokio::test]
async fn nor_is_it_for_messages() {
    let Some((_server, store)) = beside_another_table().await else { return };
    store.prepare_messages().await.unwrap();
    let carrying = store.carry_messages("orders").await.unwrap();
    let told = write_much(store.pool(), async || ()).await;
    println!("messages: {told}");
    carrying.caught_up().await.unwrap();
}

async fn beside_another_table() -> Option<(Private, PostgresStore)> {
    let server = Private::start(Service::Postgres)?;
    let store = PostgresConfig::new(server.address()).unwrap().connect().await.unwrap();
    store.migrate().await.unwrap();
    sqlx::raw_sql("create table other (content text)").execute(store.pool()).await.unwrap();
    Some((server, store))
}

/// Writes for a while, and looks how much log is held back. Says how much.
async fn write_much(pool: &PgPool, mut meanwhile: impl AsyncFnMut()) -> String {
    let seconds = std::env::var("SEMEL_IDLE_SECONDS").ok().and_then(|text| text.parse().ok());
    let duration = Duration::from_secs(seconds.unwrap_or(25));
    let number =
        async |sql: &'static str| -> i64 { sqlx::query_scalar(sql).fetch_one(pool).await.unwrap() };
    let (began, before, mut most) = (Instant::now(), number(WRITTEN).await, 0);
    let mut next = interval(Duration::from_millis(100));
    next.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while began.elapsed() < duration {
        next.tick().await;
        sqlx::query(WRITE).bind(ROWS).execute(pool).await.unwrap();
        meanwhile().await;
        most = most.max(number(HELD_BACK).await);
    }
    let written = number(WRITTEN).await - before;
    assert!(written > 2 * MOST, "too little was written to show anything");
    assert!(most < MOST, "{most} bytes of log were held back");
    let [held, all] = [most, written].map(|bytes| bytes / 1024);
    format!("{all} KiB were written, {held} KiB of log were held back at most")
}
