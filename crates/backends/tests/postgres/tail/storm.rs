//! Many writers, while the relay is handed from the log to polling and back all the time.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use semel_backends::postgres::{PostgresOutbox, PostgresSource, PostgresStore, Tailing};
use semel_core::Event;
use semel_testkit::workload::number;
use tokio::time::timeout;

use super::super::{Database, database};
use super::PATIENCE;
use crate::outboxes::tailing::read_through_hand_overs;

const WRITERS: u64 = 16;
pub(in super::super) const LANES: i64 = 12;
const STORM: Duration = Duration::from_secs(10);

/// Changes aggregates under their locks, with an event for each new version, in transactions of any
/// length; some of them end in vain, or are undone in part.
pub(in super::super) async fn write(
    store: PostgresStore,
    outbox: PostgresOutbox,
    seed: u64,
    stop: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
) {
    let mut dice = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut below = move |end: u64| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        dice % end
    };
    while !stop.load(Ordering::Relaxed) {
        let mut tx = store.begin().await.unwrap();
        let lane = i64::try_from(below(LANES.unsigned_abs())).unwrap();
        let mut kept = 0;
        for _ in 0..=below(4) {
            sqlx::raw_sql("savepoint here").execute(&mut *tx).await.unwrap();
            let version: i64 = sqlx::query_scalar(
                "update lanes set version = version + 1 where lane = $1 returning version",
            )
            .bind(lane)
            .fetch_one(&mut *tx)
            .await
            .unwrap();
            let event = Event::new("order", lane.to_string(), "Changed");
            let event = event.with_bytes("application/json", version.to_string());
            outbox.append(&mut tx, event).await.unwrap();
            kept += 1;
            if below(5) == 0 {
                sqlx::raw_sql("rollback to here").execute(&mut *tx).await.unwrap();
                kept -= 1;
            }
            if below(8) == 0 {
                tokio::time::sleep(Duration::from_millis(below(60))).await;
            }
        }
        if below(5) == 0 {
            tx.rollback().await.unwrap();
        } else {
            tx.commit().await.unwrap();
            written.fetch_add(kept, Ordering::Relaxed);
        }
        tokio::time::sleep(Duration::from_millis(below(10))).await;
    }
}

async fn relay(store: PostgresStore, stop: Arc<AtomicBool>, changes: Arc<AtomicU64>) -> Vec<Event> {
    let source = store.tailing_source("orders", Tailing::WherePossible).await.unwrap();
    read_through_hand_overs(source, PostgresSource::is_tailing, stop, changes).await
}

/// Cuts the tail or takes its publication away, whenever the relay tails.
async fn disturb(database: &Database, changes: &AtomicU64) {
    let began = Instant::now();
    let mut cuts = 0;
    while began.elapsed() < STORM || cuts < 3 {
        assert!(began.elapsed() < PATIENCE * 2, "tailing was cut {cuts} times only");
        tokio::time::sleep(Duration::from_millis(300)).await;
        let tails = changes.load(Ordering::Relaxed) % 2 == 1;
        match cuts % 3 {
            _ if !tails => continue,
            1 => database.run("drop publication if exists semel_outbox").await,
            _ => database.cut_tail().await,
        }
        cuts += 1;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hand_overs_under_sixteen_writers_lose_double_and_reorder_nothing() {
    let database = database!();
    database.run("create table lanes (lane bigint primary key, version bigint)").await;
    let lanes = format!("insert into lanes select n, 0 from generate_series(0, {LANES}) n");
    database.run(&lanes).await;
    let (writing, reading) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (written, changes) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let relay =
        tokio::spawn(relay(database.again().await, Arc::clone(&reading), Arc::clone(&changes)));
    let writers: Vec<_> = (1..=WRITERS)
        .map(|seed| {
            let (stop, written) = (Arc::clone(&writing), Arc::clone(&written));
            tokio::spawn(write(
                database.store.clone(),
                database.store.outbox(),
                seed,
                stop,
                written,
            ))
        })
        .collect();
    disturb(&database, &changes).await;
    writing.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
    reading.store(true, Ordering::Relaxed);
    let delivered = timeout(PATIENCE, relay).await.unwrap().unwrap();

    let mut versions: HashMap<&str, u64> = HashMap::new();
    for event in &delivered {
        let version = versions.entry(&event.aggregate_id).or_default();
        *version += 1;
        assert_eq!(number(event), *version, "lane {}", event.aggregate_id);
    }
    assert_eq!(delivered.len() as u64, written.load(Ordering::Relaxed), "none lost or invented");
    assert!(delivered.len() > 500, "only {} events: no storm", delivered.len());
}
