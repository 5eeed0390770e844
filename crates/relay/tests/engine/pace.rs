//! How often a source is asked that cannot wake the relay.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use semel_core::memory::MemoryOutbox;
use semel_core::{Batch, Failure, Guarantees, Holding, Limit, Settlement, Source};
use semel_relay::{Relay, Settings, Stop};
use tokio::time::{Instant, sleep};

use crate::scripted::{Bench, Scripted, commit, settings};

/// Hears of nothing, and remembers when it was asked.
struct Deaf {
    inner: MemoryOutbox,
    asked: Arc<Mutex<Vec<Instant>>>,
}

#[async_trait]
impl Source for Deaf {
    fn guarantees(&self) -> Guarantees {
        self.inner.guarantees()
    }

    async fn next_batch(&mut self, limit: Limit) -> Result<Batch, Failure> {
        self.asked.lock().unwrap().push(Instant::now());
        self.inner.next_batch(limit).await
    }

    async fn settle(&mut self, settlements: &[Settlement]) -> Result<Holding, Failure> {
        self.inner.settle(settlements).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_busy_source_is_asked_often_and_an_idle_one_at_the_interval() {
    let bench = Bench::with(&[]).await;
    let asked: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let source = Deaf { inner: bench.database.source(), asked: Arc::clone(&asked) };
    let sink = Scripted::confirming();
    let running = tokio::spawn(Relay::new("test", source, sink.clone()).run(Stop::never()));
    let count = || asked.lock().unwrap().len();

    sleep(Duration::from_secs(10)).await;
    assert!((100..=106).contains(&count()), "idle: once per 100 ms, {}", count());

    commit(&bench.database, &["a:0"]).await;
    sleep(Duration::from_millis(105)).await;
    for number in 1..200 {
        commit(&bench.database, &[&format!("a:{number}")]).await;
        sleep(Duration::from_millis(10)).await;
        assert_eq!(sink.sent().len(), number + 1, "within 10 ms");
    }
    let before = count();
    sleep(Duration::from_secs(10)).await;
    assert!((100..=106).contains(&(count() - before)), "idle again, {}", count() - before);
    running.abort();
}

/// Whether there is room for all of it at once, or for one batch at a time.
#[tokio::test(start_paused = true)]
async fn a_full_batch_is_followed_by_the_next_at_once() {
    for in_flight_events in [1000, 10] {
        let names: Vec<_> = (0..95).map(|lane| format!("{lane}:0")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let bench = Bench::with(&names).await;
        let asked: Arc<Mutex<Vec<Instant>>> = Arc::default();
        let source = Deaf { inner: bench.database.source(), asked: Arc::clone(&asked) };
        let sink = Scripted::confirming();
        let settings = Settings { batch_events: 10, in_flight_events, ..settings() };
        let relay = Relay::new("test", source, sink.clone()).with_settings(settings);
        let running = tokio::spawn(relay.run(Stop::never()));
        sleep(Duration::from_secs(1)).await;
        running.abort();
        assert_eq!(sink.sent().len(), 95);
        let asked = asked.lock().unwrap();
        let since: Vec<_> = asked.iter().map(|at| at.duration_since(asked[0])).collect();
        assert_eq!(since[..10], [Duration::ZERO; 10], "nine full batches and the rest");
        assert!(since[10] > Duration::ZERO, "a pause after a batch that is not full: {since:?}");
    }
}
