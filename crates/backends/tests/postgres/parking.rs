//! Events that are parked whatever their names and errors are.

use std::hash::BuildHasher;

use semel_core::admin::{AdminStore, Filter, Selection};
use semel_core::event::EventLimits;
use semel_core::{Failure, Outcome};
use semel_testkit::workload::{by_lane, dead, delivered_numbers, event, events, number, retry};

use super::{Database, database};

/// Longer than an entry of an index can be, and nothing that could be compressed.
fn long_name() -> String {
    let random = std::hash::RandomState::new();
    (0..300).map(|part| format!("{:016x}", random.hash_one(part))).collect()
}

/// As a plain INSERT could before its names were measured.
async fn write_long(database: &Database, lane: &str, numbers: std::ops::Range<u64>) {
    let limits = EventLimits { name_chars: usize::MAX, ..EventLimits::default() };
    let outbox = database.store.outbox().with_limits(limits);
    let mut tx = database.begin().await;
    outbox.append_all(&mut tx, &events(lane, numbers)).await.unwrap();
    tx.commit().await.unwrap();
}

#[tokio::test]
async fn names_that_are_too_long_for_an_index_hold_nobody_back() {
    let database = database!();
    let (long, other) = (long_name(), long_name());
    assert!(long.len() > 4_000);
    write_long(&database, &long, 0..3).await;
    write_long(&database, &other, 10..11).await;
    database.commit(&[event("short", 20)]).await;
    let mut relay = database.relay().await;
    let batch = relay.take(1).await;
    relay.settle(&batch, |_| retry(semel_core::Timestamp::now(), 1)).await;
    write_long(&database, &long, 3..4).await;
    let rest = by_lane(&relay.deliver_all(10).await);
    assert_eq!(rest[&format!("order/{long}")], [0, 1, 2, 3]);
    assert_eq!(rest[&format!("order/{other}")], [10]);
    assert_eq!(rest["order/short"], [20]);
}

/// The lane keeps its order and its share when the pipeline is divided anew.
#[tokio::test]
async fn a_dead_letter_with_a_long_name_is_found_and_moved_with_its_lane() {
    let database = database!();
    let long = long_name();
    write_long(&database, &long, 0..3).await;
    let mut relay = database.relay().await;
    let batch = relay.take(1).await;
    relay.settle(&batch, |_| dead(true)).await;
    assert!(relay.take(10).await.is_empty(), "its lane waits");
    let admin = database.store.admin("orders");
    let of_lane = Filter { aggregate_id: Some(long.clone()), ..Filter::default() };
    let mut relays = database.all_shares(5).await;
    let misplaced = "select count(*) from semel.parked p join semel.outbox o on o.seq = p.seq
        where p.share <> semel.share_of(o.aggregate_type, o.aggregate_id, 5)";
    assert_eq!(database.number(misplaced).await, 0);
    assert_eq!(admin.retry(&Selection::Matching(of_lane)).await.unwrap(), 1);
    let delivered = crate::outboxes::deliver_all(&mut relays).await;
    assert_eq!(delivered_numbers(&delivered), [0, 1, 2]);
}

/// What was parked before the tables knew what to do with long names: an index has room for what can be
/// compressed.
#[tokio::test]
async fn long_names_that_were_parked_before_are_found_after_the_migration() {
    let database = database!();
    database
        .run(concat!(
            include_str!("../../src/postgres/migrations/0006_outages_beside_0003.down.sql"),
            include_str!("../../src/postgres/migrations/0005_long_names_beside_0003.down.sql"),
            "delete from semel.migrations where version > 4;"
        ))
        .await;
    let long = "x".repeat(5_000);
    write_long(&database, &long, 0..1).await;
    database
        .run(
            "insert into semel.cursor (pipeline, share, shares, epoch, server, passed)
            select 'orders', 0, 1, 1, system_identifier || '/' || oid, pg_current_snapshot()
            from pg_control_system(), pg_database where datname = current_database();
            insert into semel.parked (pipeline, seq, share, place, aggregate_type, aggregate_id,
                state, holds, head)
            select 'orders', seq, 0, 1, aggregate_type, aggregate_id, 'dead', true, true
            from semel.outbox",
        )
        .await;
    database.store.migrate().await.unwrap();
    write_long(&database, &long, 1..2).await;
    let mut relay = database.relay().await;
    assert!(relay.take(10).await.is_empty(), "it waits behind the dead letter");
    let all = Selection::Matching(Filter::default());
    assert_eq!(database.store.admin("orders").retry(&all).await.unwrap(), 1);
    assert_eq!(delivered_numbers(&relay.deliver_all(10).await), [0, 1]);
}

/// An event that cannot be parked would be published again and again, and all others of its window with it.
#[tokio::test]
async fn an_error_for_which_the_database_has_no_letters_is_stored_without_them() {
    let Some(database) = Database::latin1().await else { return };
    database.commit(&events("a", 0..2)).await;
    let mut relay = database.relay().await;
    let batch = relay.take(2).await;
    let failure = Failure::refused("E-X", "no room for \u{1f680}, but for more");
    let outcome = |event: &semel_core::Event| match number(event) {
        0 => Outcome::Dead { attempts: 1, failure: failure.clone(), parks_lane: false },
        _ => Outcome::Delivered,
    };
    relay.settle(&batch, outcome).await;
    let stored = "select count(*) from semel.parked where error = 'no room for ?, but for more'";
    assert_eq!(database.number(stored).await, 1);
    assert!(database.relay().await.take(10).await.is_empty(), "all of it is settled");
}
