//! Many writers and a relay that keeps dying: nothing lost, invented, doubled or out of order.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use semel_backends::postgres::PostgresStore;
use semel_core::coordination::Share;
use semel_core::{Event, Limit, Outcome, Settlement, Source};
use semel_testkit::workload::number;

use super::{Database, database};

const WRITERS: u64 = 8;
const LANES: u64 = 12;
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
async fn write(store: PostgresStore, seed: u64, stop: Arc<AtomicBool>, written: Arc<AtomicU64>) {
    let mut dice = Dice(seed);
    while !stop.load(Ordering::Relaxed) {
        let mut tx = store.begin().await.unwrap();
        let mut lanes: Vec<u64> = (0..=dice.below(3)).map(|_| dice.below(LANES)).collect();
        // In this order, so that writers never wait for each other in a circle.
        lanes.sort_unstable();
        let mut events = Vec::new();
        for lane in lanes {
            let version: i64 = sqlx::query_scalar(
                "update lanes set version = version + 1 where lane = $1 returning version",
            )
            .bind(i64::try_from(lane).unwrap())
            .fetch_one(&mut *tx)
            .await
            .unwrap();
            let event = Event::new("order", lane.to_string(), "Changed");
            let event = event.with_bytes("application/json", version.to_string());
            store.outbox().append(&mut tx, event.clone()).await.unwrap();
            events.push(event);
            if dice.below(6) == 0 {
                tokio::time::sleep(Duration::from_millis(dice.below(40))).await;
            }
        }
        if dice.below(5) == 0 {
            tx.rollback().await.unwrap();
        } else {
            tx.commit().await.unwrap();
            written.fetch_add(events.len() as u64, Ordering::Relaxed);
        }
    }
}

/// When a relay ends.
#[derive(Clone, Copy, PartialEq)]
enum Until {
    /// It is told to.
    Told,
    /// It is told to and nothing is left.
    Drained,
}

/// Reads its share until the end; dies now and then with events in flight.
async fn relay(
    store: PostgresStore,
    share: Share,
    stop: Arc<AtomicBool>,
    until: Until,
) -> Vec<Event> {
    let mut dice = Dice(0xd1ce + u64::from(share.number));
    let mut delivered = Vec::new();
    let mut source = store.source_share("orders", share).await.unwrap();
    loop {
        let was_over = stop.load(Ordering::Relaxed);
        let limit =
            Limit { events: usize::try_from(dice.below(60) + 1).unwrap(), ..Limit::default() };
        let batch = source.next_batch(limit).await.unwrap().deliveries;
        if was_over && (batch.is_empty() || until == Until::Told) {
            return delivered;
        }
        if dice.below(15) == 0 {
            source = store.source_share("orders", share).await.unwrap();
            continue;
        }
        // Of each lane the beginning is confirmed, the rest comes back untried.
        let mut released = HashSet::new();
        let mut settlements = Vec::new();
        for got in &batch {
            let lane = &got.message.event.aggregate_id;
            let stops_here = dice.below(20) == 0;
            if stops_here {
                released.insert(lane.clone());
            }
            let outcome = if released.contains(lane) {
                Outcome::Released
            } else {
                delivered.push(Event::clone(&got.message.event));
                Outcome::Delivered
            };
            settlements.push(Settlement { receipt: got.receipt, outcome });
        }
        assert!(source.settle(&settlements).await.unwrap().is_held());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_writers_and_a_dying_relay() {
    storm(database!(), &[1]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_writers_and_three_dying_relays_with_a_share_each() {
    storm(database!(), &[3]).await;
}

/// What a relay has in flight when the number of shares changes belongs to the new ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_writers_while_the_number_of_shares_changes() {
    storm(database!(), &[1, 4, 2]).await;
}

/// What the relays of all shares deliver while something else happens.
async fn relays(
    store: &PostgresStore,
    of: u32,
    until: Until,
    meanwhile: impl Future<Output = ()>,
) -> Vec<Event> {
    let stop = Arc::new(AtomicBool::new(false));
    let start = |number| {
        let share = Share::new(number, of).unwrap();
        tokio::spawn(relay(store.clone(), share, Arc::clone(&stop), until))
    };
    let relays: Vec<_> = (0..of).map(start).collect();
    meanwhile.await;
    stop.store(true, Ordering::Relaxed);
    let mut delivered = Vec::new();
    for relay in relays {
        delivered.extend(relay.await.unwrap());
    }
    delivered
}

/// Writers, and relays for each of these numbers of shares, one after the other.
async fn storm(database: Database, shares: &[u32]) {
    database.run("create table lanes (lane bigint primary key, version bigint)").await;
    database
        .run(&format!("insert into lanes select n, 0 from generate_series(0, {LANES}) n"))
        .await;
    let writing = Arc::new(AtomicBool::new(false));
    let written = Arc::new(AtomicU64::new(0));
    let writers: Vec<_> = (1..=WRITERS)
        .map(|seed| {
            let (stop, written) = (Arc::clone(&writing), Arc::clone(&written));
            tokio::spawn(write(database.store.clone(), seed, stop, written))
        })
        .collect();
    let others = database.again().await;
    let (last, changing) = shares.split_last().unwrap();
    let mut delivered = Vec::new();
    for of in changing {
        delivered.extend(relays(&others, *of, Until::Told, tokio::time::sleep(STORM / 3)).await);
    }
    let end_of_writing = async {
        tokio::time::sleep(STORM / (3 - 2 * u32::from(changing.is_empty()))).await;
        writing.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.await.unwrap();
        }
    };
    delivered.extend(relays(&others, *last, Until::Drained, end_of_writing).await);

    let mut versions: HashMap<&str, u64> = HashMap::new();
    for event in &delivered {
        let version = versions.entry(&event.aggregate_id).or_default();
        *version += 1;
        assert_eq!(number(event), *version, "lane {}", event.aggregate_id);
    }
    assert_eq!(delivered.len() as u64, written.load(Ordering::Relaxed), "none lost or invented");
    assert!(delivered.len() > 200, "only {} events: no storm", delivered.len());
}
