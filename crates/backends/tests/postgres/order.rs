//! Two writers on one aggregate.

use std::time::Duration;

use semel_backends::postgres::{Postgres, Transaction};
use semel_core::Outcome;
use semel_testkit::workload::{delivered_numbers, event};

use super::{Database, database};
use crate::outboxes::{order, stamp};

async fn with_aggregate(database: &Database) {
    database.run("create table aggregate (id text primary key, version bigint)").await;
    database.run("insert into aggregate values ('a', 0)").await;
    database.run("create table other (n int)").await;
}

async fn change_aggregate(tx: &mut Transaction<'_, Postgres>) {
    sqlx::query("update aggregate set version = version + 1 where id = 'a'")
        .execute(&mut **tx)
        .await
        .unwrap();
}

/// The second transaction got its transaction id first and waited for the first: neither the order
/// of transaction ids nor that of `now()` is the order of the commits.
#[tokio::test]
async fn writers_that_lock_the_aggregate_are_published_in_the_order_of_their_commits() {
    let database = database!();
    with_aggregate(&database).await;
    let mut relay = database.relay().await;
    let mut second = database.begin().await;
    sqlx::query("insert into other values (1)").execute(&mut *second).await.unwrap();
    let mut first = database.begin().await;
    change_aggregate(&mut first).await;
    database.append(&mut first, &[event("a", 1)]).await;

    let outbox = database.store.outbox();
    let waiting = tokio::spawn(async move {
        change_aggregate(&mut second).await;
        outbox.append(&mut second, event("a", 2)).await.unwrap();
        second.commit().await.unwrap();
    });
    // However long this is, the second writer waits for the lock of the first.
    tokio::time::sleep(Duration::from_millis(50)).await;
    first.commit().await.unwrap();
    waiting.await.unwrap();

    let by_transaction = "select payload::bigint from semel.outbox order by txid limit 1";
    assert_eq!(database.number(by_transaction).await, 2, "the schedule must be able to fool");
    assert_eq!(delivered_numbers(&relay.deliver_all(10).await), [1, 2]);
}

stamp! { order: writers_without_a_lock_are_published_as_they_are_seen_to_commit }

#[tokio::test]
async fn a_late_commit_waits_behind_a_failed_event_that_committed_before_it() {
    let database = database!();
    let mut relay =
        order::a_late_commit_waits_behind_a_failed_event_that_committed_before_it(&database).await;
    let taken = relay.take(10).await;
    assert_eq!(delivered_numbers(&taken), [1, 2]);
    relay.settle(&taken, |_| Outcome::Delivered).await;
}

/// A session that took numbers in advance writes low ones late: nothing is lost, but the order of
/// an aggregate cannot be kept, so a relay refuses to start.
#[tokio::test]
async fn a_cached_sequence_loses_nothing_and_is_refused() {
    let database = database!();
    let mut relay = database.relay().await;
    database.run("alter table semel.outbox alter column seq set cache 50").await;
    let (one, two) = (database.again().await, database.again().await);
    for round in 0..10 {
        for (name, store) in [("one", &one), ("two", &two)] {
            let mut tx = store.begin().await.unwrap();
            let lane = format!("{name}-{round}");
            store.outbox().append(&mut tx, event(&lane, 0)).await.unwrap();
            tx.commit().await.unwrap();
            assert_eq!(relay.lanes().await, [lane]);
        }
    }
    let seqs = "select count(distinct seq / 50) from semel.outbox";
    assert!(database.number(seqs).await > 1, "the numbers of the sessions lie apart");
    let refused = database.store.source("orders").await.unwrap_err();
    assert_eq!(refused.code(), "E-POSTGRES-SEQUENCE");
    database.run("alter table semel.outbox alter column seq set cache 1").await;
    assert!(database.relay().await.lanes().await.is_empty());
}
