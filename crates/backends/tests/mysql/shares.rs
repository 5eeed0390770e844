//! A pipeline in several shares: each event belongs to one of them, whatever happens to the others.

use std::time::Duration;

use semel_core::{AdminStore, Source};
use semel_testkit::workload::{delivered_numbers, events};

use super::{Database, database};
use crate::outboxes::shares::{self, lane_of_each};
use crate::outboxes::stamp;

stamp! { shares:
    every_event_goes_to_one_share_in_the_order_of_its_lane
    a_share_alone_gets_its_own_lanes_and_leaves_the_others
    a_late_commit_is_passed_by_no_share
    a_share_finds_its_rows_behind_many_of_others
    a_share_is_taken_over_and_the_others_do_not_notice
    what_is_parked_is_offered_by_its_own_share
}

#[tokio::test]
async fn a_lane_has_its_share_for_good() {
    let database = database!();
    shares::a_lane_has_its_share_for_good(&database, [45, 48, 22, 35]).await;
}

#[tokio::test]
async fn an_idle_share_moves_along_with_the_busy_ones() {
    let database = database!();
    let behind = "SELECT count(*) FROM semel_outbox o, semel_cursor c
        WHERE c.share = 1 AND o.position > c.position";
    let moves = "SELECT cast(unix_timestamp(moved_at) AS SIGNED) FROM semel_cursor WHERE share = 1";
    shares::an_idle_share_moves_along_with_the_busy_ones(&database, behind, moves).await;
}

#[tokio::test]
async fn the_operator_is_not_told_the_number_of_shares() {
    let database = database!();
    let expected = [
        [20, 0, 24, 3, 3, 0],
        [4, 16, 24, 3, 3, 0],
        // What came back untried still shows as the relay's.
        [4, 16, 24, 3, 3, 0],
        [8, 16, 24, 1, 1, 0],
        [8, 16, 24, 0, 0, 2],
        [9, 16, 23, 0, 0, 2],
        [0, 0, 48, 0, 0, 2],
    ];
    shares::the_operator_is_not_told_the_number_of_shares(&database, expected).await;
}

/// What is published in one share waits for the others, and an idle one goes along.
#[tokio::test]
async fn cleaning_waits_for_the_slowest_share() {
    let database = database!();
    let [first, second] = lane_of_each::<2>(&database).await;
    let mut relays = database.all_shares(2).await;
    database.commit(&[events(&first, 0..3), events(&second, 0..4)].concat()).await;
    let admin = database.store.admin("orders");
    assert_eq!(admin.clean(Duration::ZERO, 100).await.unwrap(), 0);
    relays[0].deliver_all(10).await;
    assert_eq!(admin.clean(Duration::ZERO, 100).await.unwrap(), 0, "not before the other one");
    assert_eq!(delivered_numbers(&relays[1].deliver_all(10).await), [0, 1, 2, 3]);
    for relay in &mut relays {
        relay.source.close().await;
    }
    assert_eq!(admin.clean(Duration::from_secs(60), 100).await.unwrap(), 0, "it is young");
    assert_eq!(admin.clean(Duration::ZERO, 100).await.unwrap(), 7);
}
