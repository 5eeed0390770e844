//! Many writers and relays that keep dying: nothing lost, invented, doubled or out of order.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use semel_backends::mysql::MysqlStore;
use semel_core::coordination::Share;
use semel_core::{Event, Limit, Outcome, Settlement, Source};
use semel_testkit::workload::{number, retry};

use super::database;

pub(super) const WRITERS: u64 = 8;
pub(super) const LANES: u64 = 12;
const STORM: Duration = Duration::from_secs(4);

/// Numbers that look random.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Changes some aggregates under their locks, with an event for each new version; sometimes slowly,
/// sometimes in vain.
pub(super) async fn write(
    store: MysqlStore,
    seed: u64,
    stop: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
) {
    let mut dice = Dice(seed);
    while !stop.load(Ordering::Relaxed) {
        let mut tx = store.begin().await.unwrap();
        let mut lanes: Vec<u64> = (0..=dice.below(3)).map(|_| dice.below(LANES)).collect();
        // In this order, so that writers never wait for each other in a circle.
        lanes.sort_unstable();
        let count = lanes.len() as u64;
        for lane in lanes {
            let change = sqlx::query(
                "UPDATE lanes SET version = last_insert_id(version + 1) WHERE lane = ?",
            );
            let version = change.bind(lane).execute(&mut *tx).await.unwrap().last_insert_id();
            let event = Event::new("order", lane.to_string(), "Changed");
            let event = event.with_bytes("application/json", version.to_string());
            store.outbox().append(&mut tx, event).await.unwrap();
            if dice.below(6) == 0 {
                tokio::time::sleep(Duration::from_millis(dice.below(40))).await;
            }
        }
        if dice.below(5) == 0 {
            tx.rollback().await.unwrap();
        } else {
            tx.commit().await.unwrap();
            written.fetch_add(count, Ordering::Relaxed);
        }
    }
}

/// Reads its share until told to stop and nothing is left; dies now and then with events in flight.
async fn relay(
    store: MysqlStore,
    pipeline: &str,
    share: Share,
    stop: Arc<AtomicBool>,
) -> Vec<Event> {
    let mut dice = Dice(0xd1ce + u64::from(share.number));
    let mut delivered = Vec::new();
    let mut source = store.source_share(pipeline, share).await.unwrap();
    loop {
        let was_over = stop.load(Ordering::Relaxed);
        let limit =
            Limit { events: usize::try_from(dice.below(60) + 1).unwrap(), ..Limit::default() };
        let batch = source.next_batch(limit).await.unwrap().deliveries;
        if batch.is_empty() && was_over {
            return delivered;
        }
        if dice.below(15) == 0 {
            source = store.source_share(pipeline, share).await.unwrap();
            continue;
        }
        // Of each lane the beginning is confirmed; then one fails or nothing was tried any more.
        let mut stopped = HashSet::new();
        let mut settlements = Vec::new();
        for got in &batch {
            let lane = &got.message.event.aggregate_id;
            let outcome = match dice.below(30) {
                _ if stopped.contains(lane) => Outcome::Released,
                0 => Outcome::Released,
                1 => retry(semel_core::Timestamp::now(), got.message.attempt),
                _ => Outcome::Delivered,
            };
            if outcome == Outcome::Delivered {
                delivered.push(Event::clone(&got.message.event));
            } else {
                stopped.insert(lane.clone());
            }
            settlements.push(Settlement { receipt: got.receipt, outcome });
        }
        assert!(source.settle(&settlements).await.unwrap().is_held());
    }
}

/// Every version of every aggregate, once and in order.
pub(super) fn check(pipeline: &str, delivered: &[Event], written: u64) {
    let mut versions: HashMap<&str, u64> = HashMap::new();
    for event in delivered {
        let version = versions.entry(&event.aggregate_id).or_default();
        *version += 1;
        assert_eq!(number(event), *version, "{pipeline}, lane {}", event.aggregate_id);
    }
    assert_eq!(delivered.len() as u64, written, "{pipeline}: none lost or invented");
}

/// What the obvious reader, which is wrong, sees of the same storm.
async fn read_by_number(store: MysqlStore, stop: Arc<AtomicBool>) -> u64 {
    let (mut last, mut seen) = (0, 0);
    loop {
        let was_over = stop.load(Ordering::Relaxed);
        let found: Vec<u64> =
            sqlx::query_scalar("SELECT seq FROM semel_outbox WHERE seq > ? ORDER BY seq")
                .bind(last)
                .fetch_all(store.pool())
                .await
                .unwrap();
        last = found.last().copied().unwrap_or(last);
        seen += found.len() as u64;
        if was_over {
            return seen;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_writers_and_dying_relays() {
    let database = database!();
    database.run("CREATE TABLE lanes (lane BIGINT PRIMARY KEY, version BIGINT)").await;
    for lane in 0..LANES {
        database.run(&format!("INSERT INTO lanes VALUES ({lane}, 0)")).await;
    }
    let (writing, reading) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let written = Arc::new(AtomicU64::new(0));
    let writers: Vec<_> = (1..=WRITERS)
        .map(|seed| {
            let (stop, written) = (Arc::clone(&writing), Arc::clone(&written));
            tokio::spawn(write(database.store.clone(), seed, stop, written))
        })
        .collect();
    let orders =
        tokio::spawn(relay(database.again().await, "orders", Share::WHOLE, Arc::clone(&reading)));
    let audit =
        tokio::spawn(relay(database.again().await, "audit", Share::WHOLE, Arc::clone(&reading)));
    let others = database.again().await;
    let shared: Vec<_> = (0..3)
        .map(|number| Share::new(number, 3).unwrap())
        .map(|share| tokio::spawn(relay(others.clone(), "shared", share, Arc::clone(&reading))))
        .collect();
    let wrong = tokio::spawn(read_by_number(database.again().await, Arc::clone(&reading)));
    let began = Instant::now();
    while began.elapsed() < STORM {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    writing.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
    reading.store(true, Ordering::Relaxed);
    let written = written.load(Ordering::Relaxed);
    check("orders", &orders.await.unwrap(), written);
    check("audit", &audit.await.unwrap(), written);
    let mut in_shares = Vec::new();
    for share in shared {
        in_shares.extend(share.await.unwrap());
    }
    check("shared", &in_shares, written);
    assert!(written > 200, "only {written} events: no storm");
    let seen = wrong.await.unwrap();
    assert!(seen < written, "a cursor over the numbers lost nothing of {written}: no storm");
}
