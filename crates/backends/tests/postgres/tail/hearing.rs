//! What the log tells, and what it costs the server.

use std::time::Duration;

use semel_core::{Limit, Outcome, Source};
use semel_testkit::workload::{delivered_numbers, event, events};
use tokio::time::timeout;

use super::super::{Database, Relay, database};
use super::PATIENCE;

/// Whether the source is woken within a second or so.
async fn is_woken(relay: &mut Relay, wait: Duration) -> bool {
    timeout(wait, relay.source.wakeup()).await.is_ok()
}

async fn expect_news(relay: &mut Relay, numbers: &[u64]) {
    assert!(is_woken(relay, PATIENCE).await);
    let mut got = Vec::new();
    while got.len() < numbers.len() {
        got.extend(relay.deliver_all(10).await);
    }
    assert_eq!(delivered_numbers(&got), numbers);
    // What was heard is forgotten with the look that found it, or with the next.
    relay.take(1).await;
}

#[tokio::test]
async fn every_kind_of_commit_is_heard() {
    let database = database!();
    let mut relay = database.tailing().await;
    database.commit(&events("a", 0..2)).await;
    expect_news(&mut relay, &[0, 1]).await;

    let mut tx = database.begin().await;
    sqlx::raw_sql("savepoint one").execute(&mut *tx).await.unwrap();
    database.append(&mut tx, &[event("a", 2)]).await;
    sqlx::raw_sql("rollback to one; savepoint two").execute(&mut *tx).await.unwrap();
    database.append(&mut tx, &[event("a", 3)]).await;
    tx.commit().await.unwrap();
    expect_news(&mut relay, &[3]).await;

    let mut tx = database.begin().await;
    database.append(&mut tx, &[event("a", 4)]).await;
    sqlx::raw_sql("prepare transaction 'later'").execute(&mut *tx).await.unwrap();
    drop(tx);
    assert!(!is_woken(&mut relay, Duration::from_millis(300)).await);
    database.run("commit prepared 'later'").await;
    expect_news(&mut relay, &[4]).await;
}

#[tokio::test]
async fn only_commits_of_events_are_news() {
    let database = database!();
    database.run("create table business (change text)").await;
    let mut relay = database.tailing().await;
    let mut tx = database.begin().await;
    database.append(&mut tx, &events("a", 0..3)).await;
    tx.rollback().await.unwrap();
    database.run("insert into business values ('changed')").await;
    database.run("delete from semel.outbox").await;
    assert!(!is_woken(&mut relay, Duration::from_millis(500)).await);
    assert!(relay.source.is_tailing());
}

#[tokio::test]
async fn a_column_that_is_added_changes_nothing() {
    let database = database!();
    let mut relay = database.tailing().await;
    database.commit(&[event("a", 0)]).await;
    expect_news(&mut relay, &[0]).await;
    database.run("alter table semel.outbox add column tenant text").await;
    database.commit(&[event("a", 1)]).await;
    expect_news(&mut relay, &[1]).await;
}

/// The slot goes with its source, at once and without anybody's help.
#[tokio::test]
async fn nothing_is_left_behind() {
    let database = database!();
    let mut closed = database.tailing().await;
    assert_eq!(database.slots().await, 1);
    assert!(database.store.is_tailed("orders").await.unwrap());
    assert!(!database.store.is_tailed("order").await.unwrap());
    closed.source.close().await;
    let none = "select count(*) = 0 from pg_replication_slots where database = current_database()";
    database.wait_for("the slot of a closed source is dropped", none).await;
    assert!(!database.store.is_tailed("orders").await.unwrap());

    drop(database.tailing().await);
    database.wait_for("the slot of a source that is gone is dropped", none).await;
}

/// Neither a busy neighbour nor a broker that is down keeps the server from removing its log.
#[tokio::test]
async fn the_slot_holds_back_no_log() {
    let database = database!();
    database.run("create table other (content text)").await;
    let mut relay = database.tailing().await;
    database.commit(&events("a", 0..5)).await;
    assert!(is_woken(&mut relay, PATIENCE).await);
    let unsettled = relay.take(10).await;
    assert_eq!(unsettled.len(), 5);
    for _ in 0..8 {
        database
            .run("insert into other select repeat(md5(n::text), 100) from generate_series(1, 3000) n")
            .await;
        database.commit(&events("b", 0..1)).await;
    }
    let written = "select pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint from \
        pg_replication_slots where database = current_database()";
    // A checkpoint tells which transactions run, which is what lets a slot move.
    let mut retained = i64::MAX;
    for _ in 0..300 {
        database.run("checkpoint").await;
        retained = database.number(written).await;
        if retained < 16 * 1024 * 1024 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(retained < 16 * 1024 * 1024, "{retained} bytes of log are held back");
    assert!(relay.source.is_tailing());
    relay.settle(&unsettled, |_| Outcome::Delivered).await;
    assert_eq!(relay.deliver_all(10).await.len(), 8);
}

/// One transaction of many rows is one piece of news.
#[tokio::test]
async fn a_large_transaction_is_heard_once_and_read_in_parts() {
    const ROWS: usize = 50_000;
    let database = database!();
    let mut relay = database.tailing().await;
    database
        .run(&format!(
            "insert into semel.outbox (aggregate_type, aggregate_id, event_type, payload)
            select 'order', n % 100, 'Placed', n from generate_series(1, {ROWS}) n"
        ))
        .await;
    assert!(is_woken(&mut relay, PATIENCE).await);
    assert_eq!(relay.deliver_all(5_000).await.len(), ROWS);
    assert_eq!(relay.source.next_batch(Limit::default()).await.unwrap().deliveries.len(), 0);
}

/// Whoever comes next goes on where the other stopped, whichever way each of them hears.
#[tokio::test]
async fn tailing_and_polling_sources_take_turns() {
    let database = database!();
    for round in 0..3 {
        let mut tailing = database.tailing().await;
        database.commit(&events(&format!("tailed {round}"), 0..3)).await;
        let flight = tailing.take(2).await;
        tailing.settle(&flight[..1], |_| Outcome::Delivered).await;
        let mut polling: Relay = Database::relay(&database).await;
        assert_eq!(delivered_numbers(&polling.take(10).await), [1, 2], "round {round}");
        drop(polling);
        let mut polling = database.relay().await;
        assert_eq!(delivered_numbers(&polling.deliver_all(10).await), [1, 2]);
    }
}
