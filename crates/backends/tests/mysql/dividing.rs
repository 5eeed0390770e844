//! Another number of shares, in the middle of the work.

use semel_core::coordination::Share;
use semel_core::{Fault, Source};
use semel_testkit::workload::event;

use super::{Database, database};
use crate::outboxes::shares::lane_of_each;
use crate::outboxes::{deliver_all, dividing, stamp};

stamp! { dividing:
    another_number_of_shares_loses_and_doubles_nothing
    owners_of_former_shares_are_fenced_off_from_the_new_ones
}

#[tokio::test]
async fn of_many_that_divide_at_once_one_does_it() {
    let database = database!();
    let cursors = "SELECT count(*) FROM semel_cursor WHERE shares = 8";
    dividing::of_many_that_divide_at_once_one_does_it(&database, cursors).await;
}

/// A share that nobody works on is left behind, so far that the others' way cannot be told.
#[tokio::test]
async fn a_share_that_is_far_behind_must_be_drained_first() {
    let database = database!();
    let mut relays = database.all_shares(2).await;
    let [busy, idle] = lane_of_each::<2>(&database).await;
    database.commit(&[event(&idle, 1), event(&busy, 1)]).await;
    for _ in 0..17 {
        let double = format!(
            "INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload)
            SELECT aggregate_type, aggregate_id, event_type, payload FROM semel_outbox
            WHERE aggregate_id = '{busy}'"
        );
        database.run(&double).await;
    }
    assert_eq!(relays[0].deliver_all(5_000).await.len(), 1 << 17);
    let share = Share::new(1, 3).unwrap();
    let failure = database.store.source_share("orders", share).await.unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-SHARES"));
    assert!(failure.fix().unwrap().contains("drain the pipeline first, then change shares"));
    assert_eq!(relays[1].deliver_all(10).await.len(), 1, "its owner goes on");
    relays[1].source.close().await;
    assert!(deliver_all(&mut database.all_shares(3).await).await.is_empty());
}
