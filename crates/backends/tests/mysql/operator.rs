//! Several pipelines, and what an operator does to long lanes and old events.

use std::time::{Duration, Instant};

use semel_core::admin::{Filter, Selection, State};
use semel_core::{AdminStore, Outcome};
use semel_testkit::workload::{dead, delivered_numbers, event, events};

use super::{Relay, database};
use crate::outboxes;

fn everything() -> Selection {
    Selection::Matching(Filter::default())
}

/// Each pipeline has its own cursor, dead letters and operator.
#[tokio::test]
async fn pipelines_do_not_touch_each_other() {
    let database = database!();
    database.commit(&events("a", 0..3)).await;
    let mut orders = database.relay().await;
    let batch = orders.take(1).await;
    orders.settle(&batch, |_| dead(true)).await;
    let mut audit = Relay { source: database.store.source("audit").await.unwrap() };
    assert_eq!(delivered_numbers(&audit.deliver_all(10).await), [0, 1, 2]);
    assert!(orders.deliver_all(10).await.is_empty(), "the lane is parked here");
    let (here, there) = (database.store.admin("orders"), database.store.admin("audit"));
    assert_eq!(there.retry(&everything()).await.unwrap(), 0);
    assert_eq!(here.stats().await.unwrap().count(State::Dead), 1);
    assert_eq!(there.stats().await.unwrap().count(State::Published), 3);
    assert_eq!(here.discard(&everything()).await.unwrap(), 1);
    assert_eq!(delivered_numbers(&orders.deliver_all(10).await), [1, 2]);
}

/// An event goes once every pipeline is done with it.
#[tokio::test]
async fn cleaning_waits_for_every_pipeline() {
    let database = database!();
    database.commit(&events("a", 0..3)).await;
    let mut audit = Relay { source: database.store.source("audit").await.unwrap() };
    database.relay().await.deliver_all(10).await;
    let admin = database.store.admin("orders");
    assert_eq!(admin.clean(Duration::ZERO, 10).await.unwrap(), 0, "audit has not read them");
    audit.deliver_all(10).await;
    assert_eq!(admin.clean(Duration::from_secs(3_600), 10).await.unwrap(), 0, "too young");
    assert_eq!(admin.clean(Duration::ZERO, 2).await.unwrap(), 2);
    assert_eq!(admin.clean(Duration::ZERO, 2).await.unwrap(), 1);
    assert_eq!(database.number("SELECT count(*) FROM semel_outbox").await, 0);
    database.commit(&events("a", 3..5)).await;
    assert_eq!(delivered_numbers(&audit.deliver_all(10).await), [3, 4], "positions go on");
}

/// Twenty thousand events behind a dead letter cost the other lanes nothing, and go on in order.
#[tokio::test]
async fn a_long_lane_waits_and_goes_on() {
    let database = database!();
    let mut relay = database.relay().await;
    database.commit(&[event("long", 0)]).await;
    let head = relay.take(1).await;
    relay.settle(&head, |_| dead(true)).await;
    database.commit(&events("long", 1..20_001)).await;
    assert!(relay.deliver_all(5_000).await.is_empty());
    let began = Instant::now();
    for number in 0..20 {
        database.commit(&[event("other", number)]).await;
        assert_eq!(delivered_numbers(&relay.deliver_all(100).await), [number]);
    }
    assert!(began.elapsed() < Duration::from_secs(5), "{:?} for 20 polls", began.elapsed());
    let admin = database.store.admin("orders");
    assert_eq!(admin.stats().await.unwrap().parked_lanes, 1);
    assert_eq!(admin.retry(&everything()).await.unwrap(), 1);
    let long = relay.deliver_all(1_000).await;
    assert_eq!(delivered_numbers(&long), (0..20_001).collect::<Vec<_>>());
}

/// A whole backlog of heads fails and is retried by hand.
#[tokio::test]
async fn a_thousand_lanes_fail_and_are_retried() {
    let database = database!();
    let all: Vec<_> = (0..1_000).flat_map(|n| events(&format!("lane-{n}"), [0, 1])).collect();
    database.commit(&all).await;
    let mut relay = database.relay().await;
    let batch = relay.take(3_000).await;
    relay
        .settle(&batch, |event| match event.payload.bytes().as_ref() {
            b"0" => dead(true),
            _ => Outcome::Released,
        })
        .await;
    assert!(relay.take(10).await.is_empty());
    let admin = database.store.admin("orders");
    let stats = admin.stats().await.unwrap();
    assert_eq!((stats.count(State::Dead), stats.count(State::Pending)), (1_000, 1_000));
    assert_eq!(admin.retry(&everything()).await.unwrap(), 1_000);
    assert_eq!(relay.deliver_all(100).await.len(), 2_000);
    assert_eq!(admin.stats().await.unwrap().count(State::Published), 2_000);
    assert_eq!(admin.replay(&everything()).await.unwrap(), 2_000);
    assert_eq!(relay.deliver_all(500).await.len(), 2_000);
}

#[tokio::test]
async fn what_consumers_did_is_told() {
    let database = database!();
    let (store, inbox) = (&database.store, database.store.inbox());
    semel_testkit::suites::insight::consumers_are_known_by_what_they_did(store, &inbox).await;
}

#[tokio::test]
async fn outages_are_known_while_they_last() {
    let database = database!();
    let silence = async || {
        database.run("UPDATE semel_outages SET seen_at = seen_at - INTERVAL 31 SECOND").await;
    };
    semel_testkit::suites::insight::outages_are_known_while_they_last(&database.store, silence)
        .await;
}

/// The log of changes, and how far a pipeline is.
#[tokio::test]
async fn what_is_known_of_the_work_is_told() {
    let database = database!();
    semel_testkit::suites::insight::the_log_of_changes_is_kept(&database.store).await;
    database.commit(&events("a", 0..3)).await;
    database.relay().await.deliver_all(10).await;
    let member = database.store.member("orders", 2, Duration::from_secs(10)).unwrap();
    outboxes::what_is_known_of_the_work_is_told(&database.store, member).await;
}

#[tokio::test]
async fn old_progress_is_thinned_out() {
    let database = database!();
    database.commit(&[event("a", 0)]).await;
    let mut relay = database.relay().await;
    let batch = relay.take(1).await;
    relay.settle(&batch, |_| dead(true)).await;
    let notes = outboxes::progress::notes(|age| {
        let position = 100_000 - age;
        format!("('orders', 0, {position}, utc_timestamp(6) - INTERVAL {age} SECOND)")
    });
    database.run(&format!("INSERT INTO semel_progress VALUES {notes}")).await;
    let admin = database.store.admin("orders");
    let count = async || database.number("SELECT count(*) FROM semel_progress").await;
    outboxes::progress::old_progress_is_thinned_out_while_an_event_stays(&admin, &count).await;
    database.run("UPDATE semel_counter SET last = 100000").await;
    let at_once = async || ();
    outboxes::progress::no_progress_is_kept_for_events_that_are_gone(&admin, &count, at_once).await;
}

/// Relays that were killed could not say that they are gone.
#[tokio::test]
async fn members_that_have_been_silent_for_long_are_forgotten() {
    let database = database!();
    database
        .run(
            "INSERT INTO semel_member VALUES
                ('orders', 'killed', 1, utc_timestamp(6) - INTERVAL 2 HOUR),
                ('orders', 'late', 1, utc_timestamp(6) - INTERVAL 2 MINUTE),
                ('other', 'killed', 1, utc_timestamp(6) - INTERVAL 2 HOUR)",
        )
        .await;
    let member = database.store.member("orders", 1, Duration::from_secs(10)).unwrap();
    let count = async |which: &str| {
        database.number(&format!("SELECT count(*) FROM semel_member WHERE {which}")).await
    };
    outboxes::members_that_have_been_silent_for_long_are_forgotten(member, count).await;
}
