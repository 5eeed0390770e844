//! Many parked and scheduled events at once, and large ones.

use std::collections::BTreeMap;
use std::time::Duration;

use semel_backends::sqlite::SqliteSource;
use semel_core::retry::later;
use semel_core::{Batch, Clock, Delivery, Event, Limit, Outcome, Source};
use semel_testkit::workload::{
    by_lane, delivered_numbers, event, events, lanes, number, retry, settlements,
};

use super::Database;

const MINUTE: Duration = Duration::from_secs(60);

/// Each write lasts as long as a thousand of them take; what is written later stays behind them.
#[tokio::test]
async fn scheduled_events_of_the_same_time_are_woken_bit_by_bit() {
    const COUNT: u64 = 2_500;
    let database = Database::new().await;
    let mut source = database.store.source("orders").await.unwrap();
    let now = database.clock.now();
    // Their times are in another order than their numbers.
    let second = |number: u64| number * 7 % 5;
    let scheduled = |number: u64| {
        let due = later(now, MINUTE + Duration::from_secs(second(number)));
        event(&format!("lane-{}", number % 3), number).available_at(due)
    };
    append(&database, &(0..COUNT).map(scheduled).collect::<Vec<_>>()).await;
    assert!(source.next_batch(Limit::default()).await.unwrap().deliveries.is_empty());
    assert_eq!(scheduled_events(&database).await, 2_500);
    database.clock.advance(MINUTE * 2);
    append(&database, &[event("lane-0", COUNT), event("lane-9", COUNT)]).await;

    let first = source.next_batch(Limit::default()).await.unwrap();
    assert_eq!(scheduled_events(&database).await, 1_500, "a thousand at a time");
    assert!(first.more);
    settle(&mut source, &first.deliveries, Outcome::Delivered).await;
    let mut delivered = first.deliveries;
    delivered.extend(deliver_all(&mut source).await);

    let mut expected: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    let mut in_order: Vec<u64> = (0..COUNT).collect();
    in_order.sort_by_key(|number| (second(*number), *number));
    for number in in_order {
        expected.entry(format!("order/lane-{}", number % 3)).or_default().push(number);
    }
    for lane in ["order/lane-0", "order/lane-9"] {
        expected.entry(lane.into()).or_default().push(COUNT);
    }
    assert_eq!(by_lane(&delivered), expected);
}

/// The same for those that fell due before anybody read them.
#[tokio::test]
async fn scheduled_events_that_fell_due_unread_are_woken_bit_by_bit() {
    const COUNT: u64 = 1_500;
    let database = Database::new().await;
    let due = later(database.clock.now(), MINUTE);
    let scheduled = |number| event("a", number).available_at(due);
    let scheduled: Vec<Event> = (0..COUNT)
        .map(scheduled)
        .map(|mut event| {
            event.created_at = database.clock.now();
            event
        })
        .collect();
    append(&database, &scheduled).await;
    append(&database, &[event("a", COUNT)]).await;
    database.clock.advance(MINUTE * 2);
    let mut source = database.store.source("orders").await.unwrap();
    let all = Limit { events: 2_000, ..Limit::default() };
    let first = source.next_batch(all).await.unwrap();
    assert_eq!(scheduled_events(&database).await, 500, "a thousand at a time");
    assert!(first.more);
    settle(&mut source, &first.deliveries, Outcome::Delivered).await;
    let mut numbers = delivered_numbers(&first.deliveries);
    numbers.extend(delivered_numbers(&deliver_all(&mut source).await));
    let expected: Vec<u64> = std::iter::once(COUNT).chain(0..COUNT).collect();
    assert_eq!(numbers, expected, "behind what was written before they fell due");
}

/// What is due after a restart is read as far as there is room, and not all of it.
#[tokio::test]
async fn large_parked_events_come_as_there_is_room() {
    let database = Database::new().await;
    let large = |number: u64| {
        event(&format!("lane-{number}"), number).with_bytes("application/x", vec![7; 1 << 20])
    };
    append(&database, &(0..30).map(large).collect::<Vec<_>>()).await;
    let mut source = database.store.source("orders").await.unwrap();
    let got = ask(&mut source).await.deliveries;
    assert_eq!(got.len(), 30);
    settle(&mut source, &got, retry(database.clock.now(), 1)).await;
    let mut source = database.store.source("orders").await.unwrap();
    let mut seen = 0;
    while seen < 30 {
        let batch = source.next_batch(Limit::default()).await.unwrap();
        assert_eq!(batch.deliveries.len(), 3, "as many as fit");
        assert!(batch.deliveries.iter().all(|got| got.message.attempt == 2));
        seen += batch.deliveries.len();
        assert!(batch.more || seen == 30, "{seen} of 30, and no more is ready");
    }
    assert!(ask(&mut source).await.deliveries.is_empty());
}

/// After large events less is asked for; that must not look like all there is.
#[tokio::test]
async fn small_parked_events_after_a_large_one_are_not_forgotten() {
    let database = Database::new().await;
    append(&database, &lanes(10)).await;
    let mut source = database.store.source("orders").await.unwrap();
    let got = ask(&mut source).await.deliveries;
    settle(&mut source, &got, retry(later(database.clock.now(), MINUTE), 1)).await;
    append(&database, &[event("large", 99).with_bytes("application/x", vec![7; 1 << 20])]).await;
    let got = ask(&mut source).await.deliveries;
    settle(&mut source, &got, Outcome::Delivered).await;
    database.clock.advance(MINUTE);
    let limit = Limit { bytes: 2 << 20, ..Limit::default() };
    let mut seen = 0;
    while seen < 10 {
        let batch = source.next_batch(limit).await.unwrap();
        seen += batch.deliveries.len();
        assert!(batch.more || seen == 10, "{seen} of 10, and no more is ready");
    }
}

/// Nothing goes past what came back, be it more than is asked for at once; and nobody waits for what
/// is gone.
#[tokio::test]
async fn released_events_come_before_all_others_and_may_be_gone() {
    let database = Database::new().await;
    append(&database, &events("a", 0..20)).await;
    let mut source = database.store.source("orders").await.unwrap();
    let got = ask(&mut source).await.deliveries;
    settle(&mut source, &got, Outcome::Released).await;
    let mut tx = database.store.begin().await.unwrap();
    sqlx::raw_sql("DELETE FROM semel_outbox WHERE seq <= 8").execute(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
    append(&database, &events("a", 20..23)).await;
    let mut seen = Vec::new();
    while seen.len() < 15 {
        let batch = source.next_batch(Limit { events: 3, ..Limit::default() }).await.unwrap();
        assert!(!batch.deliveries.is_empty(), "only {seen:?}");
        settle(&mut source, &batch.deliveries, Outcome::Delivered).await;
        seen.extend(batch.deliveries.iter().map(|got| number(&got.message.event)));
    }
    assert_eq!(seen, (8..23).collect::<Vec<_>>());
    let position: i64 = sqlx::query_scalar("SELECT position FROM semel_cursor")
        .fetch_one(database.store.pool())
        .await
        .unwrap();
    assert_eq!(position, 23, "what is gone is passed");
}

async fn append(database: &Database, events: &[Event]) {
    let mut tx = database.store.begin().await.unwrap();
    database.store.outbox().append_all(&mut tx, events).await.unwrap();
    tx.commit().await.unwrap();
}

async fn ask(source: &mut SqliteSource) -> Batch {
    source.next_batch(Limit { events: 10_000, bytes: usize::MAX }).await.unwrap()
}

async fn deliver_all(source: &mut SqliteSource) -> Vec<Delivery> {
    let mut delivered = Vec::new();
    loop {
        let batch = source.next_batch(Limit::default()).await.unwrap();
        if batch.deliveries.is_empty() {
            assert!(!batch.more, "an empty batch says that more is ready");
            return delivered;
        }
        settle(source, &batch.deliveries, Outcome::Delivered).await;
        delivered.extend(batch.deliveries);
    }
}

async fn settle(source: &mut SqliteSource, got: &[Delivery], outcome: Outcome) {
    let outcomes = got.iter().map(|got| (got.receipt, outcome.clone()));
    assert!(source.settle(&settlements(outcomes)).await.unwrap().is_held());
}

async fn scheduled_events(database: &Database) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM semel_parked WHERE state = 'scheduled'")
        .fetch_one(database.store.pool())
        .await
        .unwrap()
}
