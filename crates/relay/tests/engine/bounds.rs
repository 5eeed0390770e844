//! What the engine holds is bounded, in events and in bytes; up to there it is under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use semel_core::memory::{MemoryBroker, MemoryDatabase};
use semel_core::{
    Batch, Event, Failure, Guarantees, Holding, Limit, Message, OutboxWriter, Published,
    Settlement, Sink, Source,
};
use semel_relay::{Relay, Settings, Stop};

use crate::scripted::Scripted;

const HOUR: Duration = Duration::from_secs(3_600);

/// Counts what is out.
struct Counting<S> {
    inner: S,
    events: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

#[async_trait]
impl<S: Source> Source for Counting<S> {
    fn guarantees(&self) -> Guarantees {
        self.inner.guarantees()
    }

    async fn next_batch(&mut self, limit: Limit) -> Result<Batch, Failure> {
        let batch = self.inner.next_batch(limit).await?;
        let out = self.events.fetch_add(batch.deliveries.len(), Ordering::Relaxed);
        self.most.fetch_max(out + batch.deliveries.len(), Ordering::Relaxed);
        Ok(batch)
    }

    async fn settle(&mut self, settlements: &[Settlement]) -> Result<Holding, Failure> {
        self.events.fetch_sub(settlements.len(), Ordering::Relaxed);
        self.inner.settle(settlements).await
    }
}

/// The most events that were out, and the most calls that ran at once.
async fn most_in_flight(settings: Settings, payload: usize) -> (usize, usize) {
    let database = MemoryDatabase::new();
    let mut tx = database.begin().await;
    for number in 0..2_000 {
        let event = Event::new("order", number.to_string(), "Changed")
            .with_bytes("text/plain", vec![b'x'; payload]);
        database.append(&mut tx, &[event]).await.unwrap();
    }
    tx.commit();
    let (calls, most_calls) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let most_seen = Arc::clone(&most_calls);
    let sink = Scripted::new(move |_| {
        let calls = Arc::clone(&calls);
        most_seen.fetch_max(calls.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            calls.fetch_sub(1, Ordering::Relaxed);
            Published::All
        }
    });
    let most = Arc::new(AtomicUsize::new(0));
    let source =
        Counting { inner: database.source(), events: Arc::default(), most: Arc::clone(&most) };
    let relay = Relay::new("test", source, sink).with_settings(settings);
    assert_eq!(relay.drain(Stop::never()).await.unwrap().published, 2_000);
    (most.load(Ordering::Relaxed), most_calls.load(Ordering::Relaxed))
}

#[tokio::test(start_paused = true)]
async fn in_events() {
    let settings = Settings { batch_events: 30, in_flight_events: 100, ..Settings::default() };
    let (most, _) = most_in_flight(settings, 10).await;
    assert!((90..=100).contains(&most), "{most}");
}

#[tokio::test(start_paused = true)]
async fn in_bytes() {
    let settings = Settings { in_flight_bytes: 100_000, ..Settings::default() };
    let (most, _) = most_in_flight(settings, 10_000).await;
    assert!((9..=11).contains(&most), "{most} events of 10 kB in 100 kB");
}

/// Where the source does not park, the engine holds it.
#[tokio::test(start_paused = true)]
async fn what_waits_for_a_retry_is_bounded_in_bytes_alone() {
    let broker = MemoryBroker::new();
    for _ in 0..2_000 {
        let event = Event::new("order", "a", "Changed").with_bytes("text/plain", vec![b'x'; 1_000]);
        broker.publish(&[Message::first("orders", event)]).await;
    }
    let (inner, most) = (broker.subscribe("test", &[]), Arc::new(AtomicUsize::new(0)));
    let source = Counting { inner, events: Arc::default(), most: Arc::clone(&most) };
    let sink = Scripted::new(|_| async {
        Published::None(Failure::transient("E-TEST", "not today").with_retry_after(HOUR))
    });
    let few = Settings { batch_events: 10, in_flight_events: 20, ..Settings::default() };
    let settings = Settings { in_flight_bytes: 100_000, ..few };
    let (stopper, stop) = Stop::new();
    let running = tokio::spawn(Relay::new("test", source, sink).with_settings(settings).run(stop));
    tokio::time::sleep(Duration::from_secs(60)).await;
    stopper.stop();
    running.await.unwrap().unwrap();
    let most = most.load(Ordering::Relaxed);
    assert!((70..=84).contains(&most), "{most} events of 1.2 kB in 100 kB");
}

#[tokio::test(start_paused = true)]
async fn as_many_calls_as_batches_in_flight() {
    for (batch_events, in_flight_events, calls) in [(100, 800, 8), (100, 100, 1), (500, 1000, 2)] {
        let settings = Settings { batch_events, in_flight_events, ..Settings::default() };
        let most = most_in_flight(settings, 10).await;
        assert_eq!(most, (in_flight_events, calls), "batches of {batch_events}");
    }
}

#[tokio::test(start_paused = true)]
async fn as_many_calls_as_are_allowed() {
    let few = Settings { concurrency: Some(2), ..Settings::default() };
    let few = Settings { batch_events: 100, in_flight_events: 800, ..few };
    assert_eq!(most_in_flight(few, 10).await, (800, 2));
    let small = Settings { batch_events: 2, in_flight_events: 800, ..Settings::default() };
    assert_eq!(most_in_flight(small, 10).await.1, 32);
}
