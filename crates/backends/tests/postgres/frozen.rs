//! An operator who is stopped inside a transaction keeps nobody waiting for long.

use std::time::Duration;

use semel_core::AdminStore;
use semel_core::admin::{Filter, Selection};
use semel_testkit::proxy::Proxy;
use tokio::time::{sleep, timeout};

use super::{Database, connect, database};

pub(super) const SOON: Duration = Duration::from_secs(10);

/// Waits until a connection of the database waits for a lock.
pub(super) async fn somebody_waits(database: &Database) {
    let waiting = "select count(*) from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock'";
    let waits = async {
        while database.number(waiting).await == 0 {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(SOON, waits).await.unwrap();
}

/// The server has given it the lock of the cursor, and it never learns that.
#[tokio::test]
async fn the_retry_of_a_frozen_operator_is_ended() {
    let database = database!();
    drop(database.relay().await);
    let address = database.address();
    let proxy = Proxy::start(address).await;
    let frozen = connect(&database.url().replace(address, &proxy.address())).await;

    let mut lock = database.begin().await;
    let cursor = "select from semel.cursor for update";
    sqlx::query(cursor).fetch_one(&mut *lock).await.unwrap();
    let admin = frozen.admin("orders");
    let everything = Selection::Matching(Filter::default());
    let stuck = tokio::spawn(async move { admin.retry(&everything).await });
    somebody_waits(&database).await;
    proxy.swallow_replies(true);
    lock.rollback().await.unwrap();

    let taken_over = timeout(SOON, database.store.source("orders")).await;
    taken_over.expect("the lock was given up").unwrap();
    stuck.abort();
}
