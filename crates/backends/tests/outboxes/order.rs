//! Two writers on one aggregate.

use std::time::Duration;

use semel_core::{Limit, Source, Timestamp};
use semel_testkit::workload::{delivered_numbers, event, retry};

use super::{Outbox, Relay};

/// Without a lock there is no order but that of the commits, and a look in between shows it.
pub(crate) async fn writers_without_a_lock_are_published_as_they_are_seen_to_commit(
    database: &impl Outbox,
) {
    let mut relay = database.relay().await;
    let mut late = database.begin().await;
    database.append(&mut late, &[event("a", 2)]).await;
    database.commit(&[event("a", 1)]).await;
    assert_eq!(delivered_numbers(&relay.deliver_all(10).await), [1]);
    late.commit().await.unwrap();
    assert_eq!(delivered_numbers(&relay.deliver_all(10).await), [2]);
}

/// What committed first has failed: what commits later waits behind it, though its number is lower.
/// Gives a relay of which the time of both, 1 and 2, has come.
pub(crate) async fn a_late_commit_waits_behind_a_failed_event_that_committed_before_it<
    O: Outbox,
>(
    database: &O,
) -> Relay<O::Source> {
    let mut relay = database.relay().await;
    let mut late = database.begin().await;
    database.append(&mut late, &[event("a", 2)]).await;
    database.commit(&[event("a", 1)]).await;
    let taken = relay.take(10).await;
    let soon = Timestamp::now() + Duration::from_secs(2);
    relay.settle(&taken, |_| retry(soon, 1)).await;
    late.commit().await.unwrap();
    assert!(relay.take(10).await.is_empty());
    let mut relay = database.relay().await;
    let batch = relay.source.next_batch(Limit::default()).await.unwrap();
    assert!(batch.deliveries.is_empty(), "after a restart too");
    assert!(batch.next_due.is_some(), "it waits for the failed one's time");
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    relay
}
