//! Rows that somebody deletes while a relay has given them back.

use std::time::Duration;

use semel_core::Outcome;
use semel_testkit::workload::{delivered_numbers, events};
use tokio::time::timeout;

use super::{Relay, database};

/// Looks once, and does not look for ever.
async fn take(relay: &mut Relay, events: usize) -> Vec<u64> {
    let taken = timeout(Duration::from_secs(30), relay.take(events)).await;
    let taken = taken.expect("a look comes to an end");
    relay.settle(&taken, |_| Outcome::Delivered).await;
    delivered_numbers(&taken)
}

#[tokio::test]
async fn released_rows_that_were_deleted_hold_nobody_up() {
    let database = database!();
    let mut relay = database.relay().await;
    database.commit(&events("a", 0..6)).await;
    let taken = relay.take(10).await;
    relay.settle(&taken, |_| Outcome::Released).await;
    database.run("DELETE FROM semel_outbox WHERE position <> 5").await;
    database.commit(&events("a", 6..8)).await;
    assert_eq!(take(&mut relay, 1).await, [4], "the only one that is left of them");
    assert_eq!(take(&mut relay, 10).await, [6, 7]);
    let passed = "SELECT cast(position AS SIGNED) FROM semel_cursor";
    assert_eq!(database.number(passed).await, 8, "the cursor goes on as well");
}
