//! From the commit to the sink, at a thousand transactions a second, with the default settings.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use semel_backends::postgres::PostgresStore;
use semel_core::{Event, EventId, Failure, Message, Published, Sink};
use semel_relay::{Relay, Stop};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::{Effort, Outcomes, fresh_store, median};

const WRITERS: u32 = 16;
const RATE: u32 = 1_000;

pub(super) async fn measure(server: &str, effort: Effort) -> Outcomes<()> {
    let (mut middles, mut lates, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..effort.rounds {
        let mut times = round(server, effort.seconds).await?;
        times.sort_unstable();
        let at = |part: f64| {
            // A place in the list.
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 1")]
            let place = (times.len() as f64 * part) as usize;
            times[place.min(times.len() - 1)].as_secs_f64() * 1e3
        };
        rates.push(times.len() as f64 / effort.seconds as f64);
        middles.push(at(0.5));
        lates.push(at(0.99));
    }
    println!(
        "commit to sink at {:.0} tx/s: p50 {:.1} ms (target 10), p99 {:.1} ms (target 40)",
        median(rates),
        median(middles),
        median(lates)
    );
    Ok(())
}

/// Writers in tasks of their own store, so that nothing wakes the relay.
async fn round(server: &str, seconds: u64) -> Outcomes<Vec<Duration>> {
    let store = fresh_store(server).await?;
    let writers_store = store.clone();
    let sink = Arrivals::default();
    let (stopper, stop) = Stop::new();
    let relay = Relay::new("latency", store.source("latency").await?, sink.clone());
    let relay = tokio::spawn(relay.run(stop));
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        writers.spawn(write(writers_store.clone(), Duration::from_secs(seconds)));
    }
    let mut committed = Vec::new();
    while let Some(written) = writers.join_next().await {
        committed.extend(written??);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    stopper.stop();
    relay.await??;
    store.close().await;
    let arrived = sink.0.lock().map_err(|_| "a panic elsewhere")?;
    let time = |(id, at): &(EventId, Instant)| arrived[id].saturating_duration_since(*at);
    Ok(committed.iter().map(time).collect())
}

async fn write(store: PostgresStore, time: Duration) -> Outcomes<Vec<(EventId, Instant)>> {
    let mut ticks = interval(Duration::from_secs(1) * WRITERS / RATE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let began = Instant::now();
    let mut committed = Vec::new();
    while began.elapsed() < time {
        ticks.tick().await;
        let event = Event::new("order", committed.len().to_string(), "OrderPlaced");
        let id = event.id;
        let mut tx = store.begin().await?;
        store.outbox().append(&mut tx, event).await?;
        tx.commit().await?;
        committed.push((id, Instant::now()));
    }
    Ok(committed)
}

/// When each event came.
#[derive(Clone, Default)]
struct Arrivals(Arc<Mutex<HashMap<EventId, Instant>>>);

#[async_trait]
impl Sink for Arrivals {
    async fn publish(&self, batch: &[Message]) -> Published {
        let now = Instant::now();
        if let Ok(mut arrived) = self.0.lock() {
            arrived.extend(batch.iter().map(|message| (message.event.id, now)));
        }
        Published::All
    }

    async fn check(&self) -> Result<(), Failure> {
        Ok(())
    }
}
