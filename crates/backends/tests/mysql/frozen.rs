//! A relay that is stopped inside a transaction keeps nobody waiting for long.

use std::time::Duration;

use semel_backends::mysql::MysqlAdmin;
use semel_core::admin::{Filter, Selection};
use semel_core::{AdminStore, Failure, Limit, Outcome, Source};
use semel_testkit::proxy::Proxy;
use semel_testkit::workload::{delivered_numbers, lanes};
use tokio::time::timeout;

use super::{Database, connect, database};

/// Far below what InnoDB lets others wait for a lock.
pub(super) const SOON: Duration = Duration::from_secs(10);

/// Waits until so many connections of the database wait for a lock.
pub(super) async fn somebody_waits(database: &Database) {
    let waiting = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'
        AND trx_mysql_thread_id IN (
            SELECT id FROM information_schema.processlist WHERE db = database())";
    let waits = async {
        while database.number(waiting).await == 0 {
            // The server's list is not made anew for whoever asks more often than every 100 ms.
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    };
    timeout(SOON, waits).await.unwrap();
}

/// The server has given it the lock of the counter, and it never learns that.
#[tokio::test]
async fn the_numbering_of_a_frozen_relay_is_ended() {
    let database = database!();
    let (_, address) = database.server.split_once('@').unwrap();
    let address = address.split('/').next().unwrap();
    let proxy = Proxy::start(address).await;
    let frozen = connect(&database.url().replace(address, &proxy.address())).await;
    let mut source = frozen.source("frozen").await.unwrap();
    database.commit(&lanes(3)).await;

    let mut lock = database.begin().await;
    sqlx::query("SELECT last FROM semel_counter FOR UPDATE").fetch_one(&mut *lock).await.unwrap();
    let stuck = tokio::spawn(async move { source.next_batch(Limit::default()).await });
    somebody_waits(&database).await;
    proxy.swallow_replies(true);
    lock.rollback().await.unwrap();

    let mut relay = database.relay().await;
    let delivered = timeout(SOON, relay.deliver_all(10)).await.expect("the lock was given up");
    assert_eq!(delivered_numbers(&delivered), [0, 1, 2]);
    stuck.abort();
}

/// It has the cursors of all pipelines.
#[tokio::test]
async fn the_retention_of_a_frozen_relay_is_ended() {
    let clean = async |admin: MysqlAdmin| admin.clean(Duration::ZERO, 100).await;
    a_frozen_change_lets_others_take_over(clean).await;
}

#[tokio::test]
async fn the_retry_of_a_frozen_operator_is_ended() {
    let everything = || Selection::Matching(Filter::default());
    let retry = async move |admin: MysqlAdmin| admin.retry(&everything()).await;
    a_frozen_change_lets_others_take_over(retry).await;
}

#[tokio::test]
async fn the_discard_of_a_frozen_operator_is_ended() {
    let everything = || Selection::Matching(Filter::default());
    let discard = async move |admin: MysqlAdmin| admin.discard(&everything()).await;
    a_frozen_change_lets_others_take_over(discard).await;
}

/// The server has given it the lock of the cursor, and it never learns that.
async fn a_frozen_change_lets_others_take_over(
    change: impl AsyncFnOnce(MysqlAdmin) -> Result<usize, Failure>,
) {
    let database = database!();
    drop(database.relay().await);
    let (_, address) = database.server.split_once('@').unwrap();
    let address = address.split('/').next().unwrap();
    let proxy = Proxy::start(address).await;
    let frozen = connect(&database.url().replace(address, &proxy.address())).await;

    let mut lock = database.begin().await;
    let cursor = "SELECT epoch FROM semel_cursor FOR UPDATE";
    sqlx::query(cursor).fetch_one(&mut *lock).await.unwrap();
    let others = async {
        somebody_waits(&database).await;
        proxy.swallow_replies(true);
        lock.rollback().await.unwrap();
        timeout(SOON, database.store.source("orders")).await.expect("the lock was given up")
    };
    let (changed, taken_over) = tokio::join!(change(frozen.admin("orders")), others);
    taken_over.unwrap();
    assert!(changed.is_err(), "its transaction was ended: {changed:?}");
}

/// A transaction of the application may take as long as it likes.
#[tokio::test]
async fn other_transactions_are_left_alone() {
    let database = database!();
    let mut relay = database.relay().await;
    let mut slow = database.begin().await;
    database.append(&mut slow, &lanes(1)).await;
    tokio::time::sleep(Duration::from_millis(3_500)).await;
    slow.commit().await.unwrap();
    let batch = relay.take(10).await;
    assert_eq!(batch.len(), 1);
    relay.settle(&batch, |_| Outcome::Delivered).await;
}
