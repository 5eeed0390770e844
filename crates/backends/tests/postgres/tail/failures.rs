//! Whatever happens to the slot, events come, and the source tails again when it can.

use std::time::{Duration, Instant};

use semel_backends::postgres::{PostgresConfig, Tailing};
use semel_core::diagnosis::{Diagnose, Needs, Severity};
use semel_core::{Limit, Source};
use semel_testkit::services::{Private, Service};
use semel_testkit::workload::{event, events};

use super::super::{Relay, database};
use super::PATIENCE;

#[tokio::test]
async fn the_connection_is_cut() {
    let database = database!();
    let mut relay = database.tailing().await;
    for round in 0..3 {
        database.cut_tail().await;
        database.commit(&events("a", 0..3)).await;
        assert_eq!(relay.deliver_all(10).await.len(), 3, "round {round}");
        relay.until(false).await;
        relay.until(true).await;
    }
}

#[tokio::test]
async fn the_publication_is_dropped() {
    let database = database!();
    let mut relay = database.tailing().await;
    database.run("drop publication semel_outbox").await;
    database.commit(&[event("a", 1)]).await;
    assert_eq!(relay.deliver_all(10).await.len(), 1);
    relay.until(false).await;
    relay.until(true).await;
    let there = database.number("select count(*) from pg_publication").await;
    assert_eq!(there, 1, "made again");
}

/// It stays silent then, and nobody waits for it.
#[tokio::test]
async fn the_publication_is_of_another_table_now() {
    let database = database!();
    database.run("create table other (n integer)").await;
    let mut relay = database.tailing().await;
    database.run("alter publication semel_outbox set table other").await;
    let began = Instant::now();
    let mut number = 0;
    while relay.source.is_tailing() {
        assert!(began.elapsed() < PATIENCE, "it never noticed");
        number += 1;
        database.commit(&[event("a", number)]).await;
        assert_eq!(relay.deliver_all(10).await.len(), 1);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    database.run("alter publication semel_outbox set table semel.outbox").await;
    let began = Instant::now();
    relay.until(true).await;
    assert!(began.elapsed() < PATIENCE / 2, "it polls for longer than it has to");
}

/// A slot is made when all transactions that were open have ended; events come in the meantime.
#[tokio::test]
async fn a_transaction_is_open_for_long() {
    let database = database!();
    let mut long = database.begin().await;
    sqlx::query("select pg_current_xact_id()").execute(&mut *long).await.unwrap();
    let source = database.store.tailing_source("orders", Tailing::WherePossible).await.unwrap();
    let mut relay = Relay { source };
    for number in 0..20 {
        database.commit(&[event("a", number)]).await;
        assert_eq!(relay.deliver_all(10).await.len(), 1);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(!relay.source.is_tailing());
    long.rollback().await.unwrap();
    relay.until(true).await;
}

/// Every slot holds back the log since the beginning of the oldest transaction: beyond its budget
/// this one is given back, and made again when the transaction is over.
#[tokio::test]
async fn more_log_is_held_back_than_may_be() {
    const BUDGET: u64 = 2 * 1024 * 1024;
    let Some(server) = Private::start(Service::Postgres) else { return };
    let config = PostgresConfig::new(server.address()).unwrap().log_budget(BUDGET);
    let store = config.connect().await.unwrap();
    store.migrate().await.unwrap();
    sqlx::raw_sql("create table other (content text)").execute(store.pool()).await.unwrap();
    let source = store.tailing_source("orders", Tailing::Required).await.unwrap();
    let mut relay = Relay { source };
    relay.until(true).await;
    let mut open = store.begin().await.unwrap();
    sqlx::raw_sql("insert into other values ('long')").execute(&mut *open).await.unwrap();
    let busy =
        "insert into other select repeat(md5(random()::text), 50) from generate_series(1, 6000)";
    sqlx::raw_sql(busy).execute(store.pool()).await.unwrap();
    sqlx::raw_sql("checkpoint").execute(store.pool()).await.unwrap();
    let needs = Needs { log_budget: Some(BUDGET), ..Needs::default() };
    let findings = store.diagnose(&needs).await.unwrap();
    let found = findings.iter().find(|finding| finding.code == "log-budget").unwrap();
    assert_eq!(found.severity, Severity::Advice, "{found:?}");
    relay.until(false).await;
    let mut tx = store.begin().await.unwrap();
    store.outbox().append(&mut tx, event("a", 1)).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(relay.deliver_all(10).await.len(), 1, "events come all the same");
    let slots: i64 = sqlx::query_scalar("select count(*) from pg_replication_slots where active")
        .fetch_one(store.pool())
        .await
        .unwrap();
    assert!(!relay.source.is_tailing() && slots <= 1, "one may be in the making");
    open.rollback().await.unwrap();
    relay.until(true).await;
}

/// The server may be told to let any slot go that holds back too much log: it ends the session, and
/// the slot with it.
#[tokio::test]
async fn the_slot_is_invalidated() {
    const SLOT: &str = "select slot_name::text from pg_replication_slots where active";
    let Some(server) = Private::start(Service::Postgres) else { return };
    let store = PostgresConfig::new(server.address()).unwrap().connect().await.unwrap();
    store.migrate().await.unwrap();
    let source = store.tailing_source("orders", Tailing::WherePossible).await.unwrap();
    let mut relay = Relay { source };
    relay.until(true).await;
    let slot: String = sqlx::query_scalar(SLOT).fetch_one(store.pool()).await.unwrap();
    for sql in [
        "alter system set max_slot_wal_keep_size = '1MB'",
        "alter system set max_wal_size = '32MB'",
        "select pg_reload_conf()",
        "create table other (content text)",
    ] {
        sqlx::raw_sql(sql).execute(store.pool()).await.unwrap();
    }
    // Holds back the log of every slot.
    let mut open = store.begin().await.unwrap();
    sqlx::raw_sql("insert into other values ('long')").execute(&mut *open).await.unwrap();
    let mut number = 0;
    let began = Instant::now();
    while relay.source.is_tailing() {
        assert!(began.elapsed() < PATIENCE, "the slot {slot} is never lost");
        for sql in [
            "insert into other select repeat(md5(n::text), 100) from generate_series(1, 10000) n",
            "select pg_switch_wal()",
            "checkpoint",
        ] {
            sqlx::raw_sql(sql).execute(store.pool()).await.unwrap();
        }
        number += 1;
        let mut tx = store.begin().await.unwrap();
        store.outbox().append(&mut tx, event("a", number)).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(relay.deliver_all(10).await.len(), 1, "events come all the same");
    }
    let slots: Vec<String> = sqlx::query_scalar(SLOT).fetch_all(store.pool()).await.unwrap();
    assert!(!slots.contains(&slot), "{slot} is there: {slots:?}");
    open.rollback().await.unwrap();
    relay.until(true).await;
}

#[tokio::test]
async fn the_server_is_killed_and_comes_back() {
    let Some(server) = Private::start(Service::Postgres) else { return };
    let config = PostgresConfig::new(server.address()).unwrap();
    let store = config.connect().await.unwrap();
    store.migrate().await.unwrap();
    let source = store.tailing_source("orders", Tailing::Required).await.unwrap();
    let mut relay = Relay { source };
    relay.until(true).await;
    for round in 0..2 {
        server.kill();
        assert!(relay.source.next_batch(Limit::default()).await.is_err(), "round {round}");
        server.restart();
        let writer = config.connect().await.unwrap();
        let mut tx = writer.begin().await.unwrap();
        writer.outbox().append(&mut tx, event("a", round)).await.unwrap();
        tx.commit().await.unwrap();
        let began = Instant::now();
        let mut delivered = 0;
        while delivered == 0 {
            assert!(began.elapsed() < PATIENCE);
            if let Ok(batch) = relay.source.next_batch(Limit::default()).await {
                relay.settle(&batch.deliveries, |_| semel_core::Outcome::Delivered).await;
                delivered = batch.deliveries.len();
            }
        }
        assert_eq!(delivered, 1);
        relay.until(true).await;
    }
}
