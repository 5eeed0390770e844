//! Another number of shares, in the middle of the work.

use std::collections::HashSet;

use semel_core::coordination::Share;
use semel_core::{Fault, Limit, Outcome, Source};
use semel_testkit::workload::ids;

use super::restore::copy;
use super::{Database, database, unmigrated};
use crate::outboxes::dividing::{self, in_the_middle_of_its_work};
use crate::outboxes::{deliver_all, stamp};

stamp! { dividing:
    another_number_of_shares_loses_and_doubles_nothing
    owners_of_former_shares_are_fenced_off_from_the_new_ones
}

#[tokio::test]
async fn of_many_that_divide_at_once_one_does_it() {
    let database = database!();
    let cursors = "select count(*) from semel.cursor where shares = 8";
    dividing::of_many_that_divide_at_once_one_does_it(&database, cursors).await;
}

#[tokio::test]
async fn too_large_a_backlog_must_be_drained_first() {
    let database = database!();
    let mut owner = database.relay().await;
    database
        .run(
            "insert into semel.outbox (aggregate_type, aggregate_id, event_type, payload)
            select 'order', n::text, 'T', '1' from generate_series(1, 100001) n",
        )
        .await;
    let share = Share::new(1, 2).unwrap();
    let failure = database.store.source_share("orders", share).await.unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-SHARES"));
    assert!(failure.fix().unwrap().contains("drain the pipeline first, then change shares"));
    let batch = owner.take(1_000).await;
    assert_eq!(batch.len(), 1_000);
    owner.settle(&batch, |_| Outcome::Delivered).await;
    let mut delivered = database.all_shares(2).await;
    let limit = Limit { events: 5_000, ..Limit::default() };
    let mut count = 0;
    for relay in &mut delivered {
        count += relay.source.next_batch(limit).await.unwrap().deliveries.len();
    }
    assert_eq!(count, 10_000);
    assert_eq!(database.number("select count(*) from semel.parked").await, 99_001);
}

/// Parked, passed and unread events of all shares go on in another database.
#[tokio::test]
async fn a_dump_goes_on_in_another_database_share_by_share() {
    let (original, restored) = (database!(), unmigrated!());
    let mut delivered = in_the_middle_of_its_work(&original, 3, 0).await;
    copy(&original, &restored);
    delivered.extend(deliver_all(&mut restored.all_shares(3).await).await);
    let distinct: HashSet<_> = ids(&delivered).into_iter().collect();
    assert_eq!((delivered.len(), distinct.len()), (56, 56), "all but the dead and the scheduled");
}
