//! How often a source is asked that cannot wake the relay.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use semel_core::memory::MemoryOutbox;
use semel_core::{Batch, Failure, Guarantees, Holding, Limit, Settlement, Source};
use semel_relay::{Relay, Stop};
use tokio::time::{Instant, sleep};

use crate::scripted::{Bench, Scripted, commit};

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
