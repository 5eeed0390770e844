//! Two writers on one aggregate.

use std::time::Duration;

use semel_backends::mysql::{MySql, Transaction};
use semel_testkit::workload::{delivered_numbers, event};

use super::{Database, database};
use crate::outboxes::{order, stamp};

async fn with_aggregate(database: &Database) {
    database.run("CREATE TABLE aggregate (id VARCHAR(9) PRIMARY KEY, version BIGINT)").await;
    database.run("INSERT INTO aggregate VALUES ('a', 0)").await;
}

async fn change_aggregate(tx: &mut Transaction<'_, MySql>) {
    sqlx::query("UPDATE aggregate SET version = version + 1 WHERE id = 'a'")
        .execute(&mut **tx)
        .await
        .unwrap();
}

/// The second transaction began first and waited for the first.
#[tokio::test]
async fn writers_that_lock_the_aggregate_are_published_in_the_order_of_their_commits() {
    let database = database!();
    with_aggregate(&database).await;
    let mut relay = database.relay().await;
    let mut second = database.begin().await;
    database.append(&mut second, &[event("other", 0)]).await;
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
    assert_eq!(delivered_numbers(&relay.deliver_all(10).await), [0, 1, 2]);
}

/// A transaction that holds the aggregate for long has low numbers; the one after it has not
/// passed it, however small the batches are.
#[tokio::test]
async fn a_long_transaction_stays_before_the_one_that_waited_for_it() {
    let database = database!();
    with_aggregate(&database).await;
    let mut relay = database.relay().await;
    let mut long = database.begin().await;
    change_aggregate(&mut long).await;
    database.append(&mut long, &[event("a", 1)]).await;
    for number in 0..5 {
        database.commit(&[event("other", number)]).await;
        assert_eq!(delivered_numbers(&relay.deliver_all(1).await), [number]);
    }
    long.commit().await.unwrap();
    let mut next = database.begin().await;
    change_aggregate(&mut next).await;
    database.append(&mut next, &[event("a", 2)]).await;
    next.commit().await.unwrap();
    assert_eq!(delivered_numbers(&relay.deliver_all(1).await), [1, 2]);
}

stamp! { order: writers_without_a_lock_are_published_as_they_are_seen_to_commit }

#[tokio::test]
async fn a_late_commit_waits_behind_a_failed_event_that_committed_before_it() {
    let database = database!();
    let mut relay =
        order::a_late_commit_waits_behind_a_failed_event_that_committed_before_it(&database).await;
    assert_eq!(delivered_numbers(&relay.deliver_all(10).await), [1, 2]);
}
