//! A pipeline in several shares: each event belongs to one of them, whatever happens to the others.

use std::time::Duration;

use semel_core::AdminStore;
use semel_core::coordination::Share;
use semel_testkit::workload::{delivered_numbers, events, lanes};

use super::windows::polls_until_counted;
use super::{Database, Relay, database};
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
    shares::a_lane_has_its_share_for_good(&database, [6, 16, 63, 43]).await;
}

#[tokio::test]
async fn an_idle_share_moves_along_with_the_busy_ones() {
    let database = database!();
    let behind = "select count(*) from semel.outbox o, semel.cursor c
        where c.share = 1 and not pg_visible_in_snapshot(o.txid, c.passed)";
    let moves = "select extract(epoch from moved_at)::bigint from semel.cursor where share = 1";
    shares::an_idle_share_moves_along_with_the_busy_ones(&database, behind, moves).await;
}

#[tokio::test]
async fn the_operator_is_not_told_the_number_of_shares() {
    let database = database!();
    let expected = [
        [20, 0, 24, 3, 3, 0],
        [4, 16, 24, 3, 3, 0],
        [20, 0, 24, 3, 3, 0],
        [24, 0, 24, 1, 1, 0],
        [24, 0, 24, 0, 0, 2],
        [25, 0, 23, 0, 0, 2],
        [0, 0, 48, 0, 0, 2],
    ];
    shares::the_operator_is_not_told_the_number_of_shares(&database, expected).await;
}

/// What is published in one share waits for no other; what is not stays.
#[tokio::test]
async fn cleaning_asks_the_share_of_each_event() {
    let database = database!();
    let [first, second] = lane_of_each::<2>(&database).await;
    let mut relays = database.all_shares(2).await;
    database.commit(&[events(&first, 0..3), events(&second, 0..4)].concat()).await;
    let admin = database.store.admin("orders");
    assert_eq!(admin.clean(Duration::ZERO, 100).await.unwrap(), 0);
    relays[0].deliver_all(10).await;
    assert_eq!(admin.clean(Duration::from_secs(60), 100).await.unwrap(), 0, "it is young");
    assert_eq!(admin.clean(Duration::ZERO, 100).await.unwrap(), 3);
    assert_eq!(delivered_numbers(&relays[1].deliver_all(10).await), [0, 1, 2, 3]);
    assert_eq!(admin.clean(Duration::ZERO, 100).await.unwrap(), 4);
}

/// Published rows are not looked at, neither those of this share nor those of others.
#[tokio::test]
async fn an_empty_poll_of_a_share_stays_cheap() {
    let database = database!();
    database
        .run(
            "insert into semel.outbox (aggregate_type, aggregate_id, event_type, payload)
            select 'order', (n % 500)::text, 'T', '1' from generate_series(1, 100000) n",
        )
        .await;
    // In connections that end, which is when they have counted everything.
    let store = database.again().await;
    let mut count = 0;
    for number in 0..4 {
        let share = Share::new(number, 4).unwrap();
        let mut relay = Relay { source: store.source_share("orders", share).await.unwrap() };
        count += relay.deliver_all(10_000).await.len();
    }
    assert_eq!(count, 100_000);
    store.close().await;
    let looked_at = "select coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::bigint
        from pg_stat_user_tables
        where relid in ('semel.outbox'::regclass, 'semel.parked'::regclass)";
    for statistics in ["", "analyze"] {
        database.run(statistics).await;
        let mut long = database.begin().await;
        database.append(&mut long, &lanes(10)).await;
        let mut relay = database.share(2, 4).await;
        polls_until_counted(&mut relay).await;
        let before = database.number(looked_at).await;
        for _ in 0..20 {
            assert!(relay.take(100).await.is_empty());
        }
        polls_until_counted(&mut relay).await;
        assert_eq!(database.number(looked_at).await - before, 0, "after {statistics:?}");
        long.rollback().await.unwrap();
    }
}
