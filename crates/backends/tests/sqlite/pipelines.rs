//! Several pipelines, processes and writers on one file.

use std::collections::BTreeMap;
use std::time::Duration;

use semel_backends::sqlite::{SqliteSource, SqliteStore};
use semel_core::admin::{AdminStore, Selection, State};
use semel_core::retry::later;
use semel_core::{Clock, Delivery, Event, Holding, Limit, Outcome, Settlement, Source};
use semel_testkit::workload::{dead, delivered_numbers, event, events, number, retry, settlements};

use super::Database;
use crate::outboxes;

#[tokio::test]
async fn two_pipelines_have_their_own_cursors() {
    let database = Database::new().await;
    append(&database.store, &events("a", 0..4)).await;
    let mut orders = database.store.source("orders").await.unwrap();
    let mut audit = database.store.source("audit").await.unwrap();
    let got = ask(&mut orders).await;
    settle(&mut orders, &got, Outcome::Delivered).await;

    assert_eq!(delivered_numbers(&ask(&mut audit).await), [0, 1, 2, 3], "audit has its own");
    let mut audit = database.store.source("audit").await.unwrap();
    let got = ask(&mut audit).await;
    settle(&mut audit, &got[..1], dead(true)).await;
    append(&database.store, &events("a", 4..5)).await;
    assert_eq!(delivered_numbers(&ask(&mut orders).await), [4], "a lane parked there is free here");
}

#[tokio::test]
async fn what_was_unsettled_when_the_process_died_comes_again_in_another() {
    let database = Database::new().await;
    append(&database.store, &[events("a", 0..3), events("b", 10..13)].concat()).await;
    let mut source = database.store.source("orders").await.unwrap();
    let got = ask(&mut source).await;
    let parked = got.iter().find(|got| number(&got.message.event) == 10).unwrap().clone();
    // All of lane a but its first, out of order with lane b's retry.
    settle(&mut source, &got[1..3], Outcome::Delivered).await;
    settle(&mut source, &[parked], retry(semel_core::Timestamp::UNIX_EPOCH, 1)).await;
    std::mem::forget(source);
    database.store.close().await;

    let other = database.again().await;
    let mut successor = other.source("orders").await.unwrap();
    let mut again = Vec::new();
    while let got = ask(&mut successor).await
        && !got.is_empty()
    {
        settle(&mut successor, &got, Outcome::Delivered).await;
        again.extend(delivered_numbers(&got));
    }
    again.sort_unstable();
    assert_eq!(again, [0, 10, 11, 12], "what was settled does not come again");
}

#[tokio::test]
async fn an_owner_in_another_process_fences_this_one_off() {
    let database = Database::new().await;
    append(&database.store, &events("a", 0..2)).await;
    let mut old = database.store.source("orders").await.unwrap();
    let got = ask(&mut old).await;
    let mut new = database.again().await.source("orders").await.unwrap();
    let late = settlements([(got[0].receipt, retry(semel_core::Timestamp::UNIX_EPOCH, 1))]);
    assert_eq!(old.settle(&late).await.unwrap(), Holding::Lost);
    assert!(ask(&mut old).await.is_empty());
    let got = ask(&mut new).await;
    assert_eq!(got[0].message.attempt, 1, "nothing of the old one was recorded");
    settle(&mut new, &got, Outcome::Delivered).await;
}

/// Two processes write, a third reads: nothing is lost, doubled or out of order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_on_two_connections_and_a_reader() {
    const EACH: u64 = 300;
    let database = Database::new().await;
    let mut writers = Vec::new();
    for lane in ["left", "right"] {
        let store = database.again().await;
        writers.push(tokio::spawn(write_and_roll_back(store, lane, EACH)));
    }
    let mut source = database.store.source("orders").await.unwrap();
    let mut seen: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    loop {
        let finished = writers.iter().all(tokio::task::JoinHandle::is_finished);
        let got = ask(&mut source).await;
        if finished && got.is_empty() {
            break;
        }
        for got in &got {
            let event = &got.message.event;
            seen.entry(event.aggregate_id.clone()).or_default().push(number(event));
        }
        settle(&mut source, &got, Outcome::Delivered).await;
        tokio::task::yield_now().await;
    }
    for writer in writers {
        writer.await.unwrap();
    }
    let committed: Vec<u64> = (0..EACH).filter(|number| number % 7 != 3).collect();
    assert_eq!(seen["left"], committed);
    assert_eq!(seen["right"], committed);
    let mut shared = seen["shared"].clone();
    shared.sort_unstable();
    assert_eq!(shared, committed.iter().flat_map(|number| [*number; 2]).collect::<Vec<_>>());
}

#[tokio::test]
async fn confirming_writes_one_row_however_many_events() {
    let database = Database::new().await;
    append(&database.store, &events("a", 0..1_000)).await;
    let mut source = database.store.source("orders").await.unwrap();
    let limit = Limit { events: 500, ..Limit::default() };
    for _ in 0..2 {
        let got = source.next_batch(limit).await.unwrap().deliveries;
        settle(&mut source, &got, Outcome::Delivered).await;
    }
    let count = async |sql: &'static str| -> i64 {
        sqlx::query_scalar(sql).fetch_one(database.store.pool()).await.unwrap()
    };
    assert_eq!(count("SELECT count(*) FROM semel_parked").await, 0);
    assert_eq!(count("SELECT count(*) FROM semel_cursor").await, 1);
    assert_eq!(count("SELECT position FROM semel_cursor").await, 1_000);
    assert!(count("SELECT count(*) FROM semel_progress").await <= 1);
    assert_eq!(count("SELECT count(*) FROM semel_outbox").await, 1_000, "nothing is deleted");
}

/// Whoever waits behind a dead letter costs a poll nothing, and comes in order in the end.
#[tokio::test]
async fn a_long_lane_goes_on_in_order() {
    const COUNT: u64 = 3_000;
    let database = Database::new().await;
    let mut source = database.store.source("orders").await.unwrap();
    append(&database.store, &events("a", 0..COUNT)).await;
    let got = ask(&mut source).await;
    fail_first(&mut source, &got, dead(true)).await;
    assert!(ask(&mut source).await.is_empty());
    let admin = database.store.admin("orders");
    let everything = Selection::Matching(semel_core::admin::Filter::default());
    assert_eq!(admin.stats().await.unwrap().count(State::Pending), COUNT - 1);
    assert_eq!(admin.discard(&everything).await.unwrap(), 1);
    let mut seen = Vec::new();
    while let got = ask(&mut source).await
        && !got.is_empty()
    {
        settle(&mut source, &got, Outcome::Delivered).await;
        seen.extend(delivered_numbers(&got));
    }
    assert_eq!(seen, (1..COUNT).collect::<Vec<_>>());
}

/// Those behind a failed event may be due already, since an earlier one left: they wait all the same.
#[tokio::test]
async fn a_lane_that_fails_again_waits_again() {
    let database = Database::new().await;
    let mut source = database.store.source("orders").await.unwrap();
    append(&database.store, &events("a", 0..5)).await;
    let got = ask(&mut source).await;
    let tomorrow = later(database.clock.now(), Duration::from_secs(86_400));
    fail_first(&mut source, &got, retry(database.clock.now(), 1)).await;
    let got = ask(&mut source).await;
    assert_eq!(delivered_numbers(&got), [0]);
    settle(&mut source, &got, Outcome::Delivered).await;
    let got = ask(&mut source).await;
    assert_eq!(delivered_numbers(&got), [1, 2, 3, 4]);
    fail_first(&mut source, &got, retry(tomorrow, 1)).await;
    assert!(ask(&mut source).await.is_empty(), "they wait behind number 1");
    database.clock.advance(Duration::from_secs(86_400));
    let got = ask(&mut source).await;
    assert_eq!(delivered_numbers(&got), [1, 2, 3, 4]);
    assert_eq!((got[0].message.attempt, got[1].message.attempt), (2, 1));
}

/// What is released beside a failed lane comes again at once, also if its own lane is free.
#[tokio::test]
async fn released_events_of_free_lanes_come_again_at_once() {
    let database = Database::new().await;
    let mut source = database.store.source("orders").await.unwrap();
    append(&database.store, &[event("a", 0), event("b", 10), event("a", 1), event("b", 11)]).await;
    let got = ask(&mut source).await;
    fail_first(&mut source, &got, dead(true)).await;
    assert_eq!(delivered_numbers(&ask(&mut source).await), [10, 11]);
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM semel_parked")
        .fetch_one(database.store.pool())
        .await
        .unwrap();
    assert_eq!(count, 2, "only the failed lane is parked");
}

/// A call that is dropped while it takes parked events does not keep them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_call_keeps_no_parked_event() {
    let database = Database::new().await;
    let mut source = database.store.source("orders").await.unwrap();
    for round in 0..60_u64 {
        append(&database.store, &[event("a", round)]).await;
        let got = ask(&mut source).await;
        settle(&mut source, &got, retry(semel_core::Timestamp::UNIX_EPOCH, 1)).await;
        let soon = Duration::from_micros(round * 20);
        let answered = tokio::time::timeout(soon, source.next_batch(Limit::default())).await;
        let got = match answered {
            Ok(batch) => batch.unwrap().deliveries,
            Err(_) => ask(&mut source).await,
        };
        assert_eq!(delivered_numbers(&got), [round], "after {soon:?}");
        settle(&mut source, &got, Outcome::Delivered).await;
    }
    assert!(ask(&mut source).await.is_empty());
}

#[tokio::test]
async fn only_what_all_pipelines_have_passed_is_cleaned() {
    let database = Database::new().await;
    append(&database.store, &events("a", 0..4)).await;
    let mut orders = database.store.source("orders").await.unwrap();
    let got = ask(&mut orders).await;
    settle(&mut orders, &got, Outcome::Delivered).await;
    let mut audit = database.store.source("audit").await.unwrap();
    let got = ask(&mut audit).await;
    settle(&mut audit, &got[..2], Outcome::Delivered).await;
    database.clock.advance(Duration::from_secs(60));
    let admin = database.store.admin("orders");
    assert_eq!(admin.clean(Duration::from_secs(30), 100).await.unwrap(), 2);
    assert_eq!(admin.stats().await.unwrap().count(State::Published), 2);
    settle(&mut audit, &got[2..], Outcome::Delivered).await;
    database.clock.advance(Duration::from_secs(60));
    assert_eq!(admin.clean(Duration::from_secs(30), 100).await.unwrap(), 2);
    append(&database.store, &events("a", 4..5)).await;
    assert_eq!(delivered_numbers(&ask(&mut orders).await), [4], "numbers are never used again");
}

/// An operator in another process sees what a relay has, from its first settle on.
#[tokio::test]
async fn another_process_sees_what_is_in_flight() {
    let database = Database::new().await;
    append(&database.store, &events("a", 0..3)).await;
    let mut source = database.store.source("orders").await.unwrap();
    let got = ask(&mut source).await;
    let here = database.store.admin("orders");
    let there = database.again().await.admin("orders");
    assert_eq!(here.stats().await.unwrap().counts, [0, 3, 0, 0, 0, 0]);
    assert_eq!(there.stats().await.unwrap().counts, [3, 0, 0, 0, 0, 0]);
    settle(&mut source, &got[1..2], Outcome::Delivered).await;
    for admin in [here, there] {
        assert_eq!(admin.stats().await.unwrap().counts, [0, 2, 1, 0, 0, 0]);
        let published = admin.get(got[1].message.event.id).await.unwrap().unwrap();
        assert_eq!(published.state, State::Published);
    }
}

/// Writes two events per transaction, and rolls every seventh back.
async fn write_and_roll_back(store: SqliteStore, lane: &'static str, count: u64) {
    for number in 0..count {
        let mut tx = store.begin().await.unwrap();
        store.outbox().append(&mut tx, event(lane, number)).await.unwrap();
        store.outbox().append(&mut tx, event("shared", number)).await.unwrap();
        if number % 7 == 3 {
            tx.rollback().await.unwrap();
        } else {
            tx.commit().await.unwrap();
        }
    }
}

async fn append(store: &SqliteStore, events: &[Event]) {
    let mut tx = store.begin().await.unwrap();
    store.outbox().append_all(&mut tx, events).await.unwrap();
    tx.commit().await.unwrap();
}

async fn ask(source: &mut SqliteSource) -> Vec<Delivery> {
    let limit = Limit { events: 10_000, bytes: usize::MAX };
    source.next_batch(limit).await.unwrap().deliveries
}

/// The first fails, the others were not tried.
async fn fail_first(source: &mut SqliteSource, got: &[Delivery], outcome: Outcome) {
    let outcomes = std::iter::once(outcome).chain(std::iter::repeat(Outcome::Released));
    let settled = settlements(got.iter().map(|got| got.receipt).zip(outcomes));
    assert_eq!(source.settle(&settled).await.unwrap(), Holding::Held);
}

async fn settle(source: &mut SqliteSource, got: &[Delivery], outcome: Outcome) {
    let settled: Vec<_> = got
        .iter()
        .map(|got| Settlement { receipt: got.receipt, outcome: outcome.clone() })
        .collect();
    assert_eq!(source.settle(&settled).await.unwrap(), Holding::Held);
}

#[tokio::test]
async fn what_consumers_did_is_told() {
    let database = Database::new().await;
    let (store, inbox) = (&database.store, database.store.inbox());
    semel_testkit::suites::insight::consumers_are_known_by_what_they_did(store, &inbox).await;
}

/// The log of changes, and how far a pipeline is.
#[tokio::test]
async fn what_is_known_of_the_work_is_told() {
    let database = Database::new().await;
    semel_testkit::suites::insight::the_log_of_changes_is_kept(&database.store).await;
}

#[tokio::test]
async fn outages_are_known_while_they_last() {
    let database = Database::new().await;
    let silence = async || database.clock.advance(Duration::from_secs(31));
    semel_testkit::suites::insight::outages_are_known_while_they_last(&database.store, silence)
        .await;
}

#[tokio::test]
async fn old_progress_is_thinned_out() {
    let database = Database::new().await;
    database.clock.advance(Duration::from_secs(100_000));
    append(&database.store, &[event("a", 0)]).await;
    let mut source = database.store.source("orders").await.unwrap();
    let got = ask(&mut source).await;
    settle(&mut source, &got, dead(true)).await;
    let now = database.clock.now().as_microsecond();
    let notes = outboxes::progress::notes(|age| {
        format!("('orders', {}, {})", 100_000 - age, now - age * 1_000_000)
    });
    run(&database, &format!("INSERT INTO semel_progress VALUES {notes}")).await;
    let admin = database.store.admin("orders");
    let count = async || number_of(&database, "SELECT count(*) FROM semel_progress").await;
    outboxes::progress::old_progress_is_thinned_out_while_an_event_stays(&admin, &count).await;
    run(&database, "UPDATE sqlite_sequence SET seq = 100000 WHERE name = 'semel_outbox'").await;
    let wait = async || database.clock.advance(Duration::from_secs(1));
    outboxes::progress::no_progress_is_kept_for_events_that_are_gone(&admin, &count, wait).await;
}

/// Relays that were killed could not say that they are gone.
#[tokio::test]
async fn members_that_have_been_silent_for_long_are_forgotten() {
    let database = Database::new().await;
    database.clock.advance(Duration::from_secs(100_000));
    let now = database.clock.now().as_microsecond();
    let ago = |seconds: i64| now - seconds * 1_000_000;
    run(
        &database,
        &format!(
            "INSERT INTO semel_member VALUES ('orders', 'killed', 1, {0}),
                ('orders', 'late', 1, {1}), ('other', 'killed', 1, {0})",
            ago(7_200),
            ago(120)
        ),
    )
    .await;
    let member = database.store.member("orders", 1, Duration::from_secs(10)).unwrap();
    let count = async |which: &str| {
        number_of(&database, &format!("SELECT count(*) FROM semel_member WHERE {which}")).await
    };
    outboxes::members_that_have_been_silent_for_long_are_forgotten(member, count).await;
}

async fn run(database: &Database, sql: &str) {
    let mut tx = database.store.begin().await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
}

async fn number_of(database: &Database, sql: &str) -> i64 {
    let pool = database.store.pool();
    sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(pool).await.unwrap()
}
