//! Many writers, while the relay is handed from the log to polling and back all the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use semel_backends::mysql::{MysqlSource, MysqlStore, Tailing};
use semel_core::Event;
use tokio::time::timeout;

use super::super::storm::{LANES, WRITERS, check, write};
use super::super::{Database, database};
use super::PATIENCE;
use crate::outboxes::tailing::read_through_hand_overs;

const STORM: Duration = Duration::from_secs(8);

async fn relay(store: MysqlStore, stop: Arc<AtomicBool>, changes: Arc<AtomicU64>) -> Vec<Event> {
    let source = store.tailing_source("orders", Tailing::WherePossible).await.unwrap();
    read_through_hand_overs(source, MysqlSource::is_tailing, stop, changes).await
}

/// Cuts the tail whenever the relay tails.
async fn disturb(database: &Database, changes: &AtomicU64) {
    let began = Instant::now();
    let mut cuts = 0;
    while began.elapsed() < STORM || cuts < 3 {
        assert!(began.elapsed() < PATIENCE * 2, "tailing was cut {cuts} times only");
        tokio::time::sleep(Duration::from_millis(300)).await;
        if changes.load(Ordering::Relaxed) % 2 == 1 {
            database.cut_tail().await;
            cuts += 1;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hand_overs_under_many_writers_lose_double_and_reorder_nothing() {
    let database = database!();
    database.run("CREATE TABLE lanes (lane BIGINT PRIMARY KEY, version BIGINT)").await;
    database.run(&format!("INSERT INTO lanes SELECT seq, 0 FROM seq_0_to_{LANES}")).await;
    let (writing, reading) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (written, changes) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let relay =
        tokio::spawn(relay(database.again().await, Arc::clone(&reading), Arc::clone(&changes)));
    let writers: Vec<_> = (1..=WRITERS)
        .map(|seed| {
            let (stop, written) = (Arc::clone(&writing), Arc::clone(&written));
            tokio::spawn(write(database.store.clone(), seed, stop, written))
        })
        .collect();
    disturb(&database, &changes).await;
    writing.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
    reading.store(true, Ordering::Relaxed);
    let delivered = timeout(PATIENCE, relay).await.unwrap().unwrap();
    let written = written.load(Ordering::Relaxed);
    check("orders", &delivered, written);
    assert!(written > 200, "only {written} events: no storm");
}
