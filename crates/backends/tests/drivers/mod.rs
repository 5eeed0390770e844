//! Events appended with the drivers of other people, in their own transactions.
//!
//! `docs/drivers.md` shows the lines of these files that a service copies.

#[cfg(feature = "sqlite")]
mod diesel;
#[cfg(feature = "postgres")]
mod diesel_async;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod sea_orm;
#[cfg(feature = "postgres")]
mod tokio_postgres;

use std::time::Duration;

use semel_core::{Event, Limit, Outcome, Settlement, Source, Timestamp};
use semel_testkit::workload::{assert_intact, awkward_events, event};
use tokio::time::timeout;

/// A service that writes with the driver under test.
trait Shop {
    /// Inserts a row into `orders` and appends the events, all in one transaction that ends as it is
    /// told. Says for each event whether it was new.
    async fn place(&mut self, events: &[Event], end: End) -> Vec<bool>;

    /// How many rows `orders` has.
    async fn orders(&self) -> i64;
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Commit,
    RollBack,
}

/// The order and its events are both there or both not; a duplicate is seen and stops nothing; the
/// source reads what was written.
async fn check(shop: &mut impl Shop, source: &mut impl Source) {
    in_time(both_or_neither(shop, source)).await;
}

async fn both_or_neither(shop: &mut impl Shop, source: &mut impl Source) {
    let written = events();
    assert!(shop.place(&written, End::RollBack).await.iter().all(|new| *new));
    assert_eq!(shop.orders().await, 0, "rolled back");
    assert!(take(source).await.is_empty(), "rolled back together");

    let (keyed, after) = (event("x", 1).with_idempotency_key(KEY), event("y", 2));
    let again = [written.clone(), vec![keyed.clone(), written[0].clone(), after.clone()]].concat();
    let new = shop.place(&again, End::Commit).await;
    let expected = [vec![true; written.len()], vec![false, false, true]].concat();
    assert_eq!(new, expected, "the key, and then the id, are taken by the same transaction");
    assert_eq!(shop.place(&[keyed], End::Commit).await, [false], "taken by another transaction");
    assert_eq!(shop.orders().await, 2, "both transactions went on and committed");

    let written = [written, vec![after]].concat();
    let mut arrived = Vec::new();
    while arrived.len() < written.len() {
        let batch = take(source).await;
        assert!(!batch.is_empty(), "{} of {} arrived", arrived.len(), written.len());
        arrived.extend(batch);
    }
    assert!(take(source).await.is_empty(), "nothing was written twice");
    for event in &written {
        let found = arrived.iter().find(|arrived| arrived.id == event.id).expect("it arrived");
        assert_intact(event, found);
        assert_eq!(found.available_at, event.available_at);
    }
}

/// The key of one of [`events`].
const KEY: &str = "order-42/paid";

/// Events whose content is easily damaged, and one with a key and with times to the microsecond.
fn events() -> Vec<Event> {
    let moment = |micros| Timestamp::from_microsecond(micros).unwrap();
    let mut exact =
        event("timed", 3).with_idempotency_key(KEY).available_at(moment(1_600_000_000_123_456));
    exact.created_at = moment(1_599_999_999_000_001);
    let mut events = awkward_events();
    events.push(exact);
    events
}

/// Delivers the next batch.
async fn take(source: &mut impl Source) -> Vec<Event> {
    let batch = source.next_batch(Limit::default()).await.unwrap();
    let settlement = |receipt| Settlement { receipt, outcome: Outcome::Delivered };
    let settled: Vec<_> = batch.deliveries.iter().map(|got| settlement(got.receipt)).collect();
    assert!(source.settle(&settled).await.unwrap().is_held());
    batch.deliveries.iter().map(|got| Event::clone(&got.message.event)).collect()
}

/// What a server is waited for.
async fn in_time<T>(work: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(60), work).await.expect("done in time")
}

/// The page shows what is tested, to the letter.
#[test]
fn the_page_shows_the_tested_lines() {
    let tested = [
        include_str!("diesel.rs"),
        include_str!("diesel_async.rs"),
        include_str!("sea_orm.rs"),
        include_str!("tokio_postgres.rs"),
    ]
    .concat();
    let page = include_str!("../../../../docs/drivers.md");
    let shown: Vec<_> = page.split("```rust\n").skip(1).collect();
    assert!(shown.len() >= 4, "every driver is shown");
    for shown in shown {
        let (lines, _) = shown.split_once("```").unwrap();
        // A service knows both packages as `semel`.
        let lines = lines.replace("semel::backends", "semel_backends");
        let lines = lines.replace("semel::", "semel_core::");
        for paragraph in lines.trim().split("\n\n") {
            assert!(tested.contains(paragraph), "not in the tests:\n{paragraph}");
        }
    }
}
