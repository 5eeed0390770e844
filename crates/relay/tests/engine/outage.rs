//! Outages: nothing is lost, no attempt is counted, and events flow again soon (R5).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use semel_core::admin::{AdminStore, Filter};
use semel_core::{Batch, Failure, Guarantees, Holding, Limit, Published, Settlement, Source};
use semel_relay::{Relay, Stop};
use tokio::time::{Instant, sleep, timeout};

use crate::scripted::{Bench, Scripted, commit};

fn down() -> Failure {
    Failure::unavailable("E-TEST", "connection refused")
}

#[tokio::test(start_paused = true)]
async fn an_outage_burns_no_attempt_and_ends_within_two_seconds() {
    let bench = Bench::with(&["a:1", "a:2", "b:1"]).await;
    let back_at = Instant::now() + Duration::from_secs(3600);
    let sink = Scripted::new(move |batch| async move {
        assert!(batch.iter().all(|message| message.attempt == 1));
        if Instant::now() < back_at { Published::None(down()) } else { Published::All }
    });
    sink.set_reachable(Err(down()));
    let running = tokio::spawn(bench.relay(&sink).drain(Stop::never()));
    sleep(Duration::from_secs(3600)).await;
    assert!(sink.calls().is_empty(), "nothing is sent while the probe fails");
    let stats = bench.database.stats().await.unwrap();
    assert_eq!(stats.counts.iter().sum::<u64>(), 3);
    sink.set_reachable(Ok(()));
    let report = timeout(Duration::from_secs(2), running).await.unwrap().unwrap().unwrap();
    assert_eq!((report.published, report.dead), (3, 0));
    let views = bench.database.list(&Filter::default(), None, 9).await.unwrap().events;
    assert!(views.iter().all(|view| view.attempts == 0));
}

#[tokio::test(start_paused = true)]
async fn an_outage_in_the_middle_keeps_the_order() {
    let bench = Bench::with(&["a:1", "a:2"]).await;
    let back_at = Instant::now() + Duration::from_secs(60);
    let sink = Scripted::new(move |_| async move {
        if Instant::now() < back_at { Published::None(down()) } else { Published::All }
    });
    let running = tokio::spawn(bench.relay(&sink).drain(Stop::never()));
    sleep(Duration::from_secs(30)).await;
    commit(&bench.database, &["a:3"]).await;
    let report = running.await.unwrap().unwrap();
    assert_eq!((report.published, report.dead), (3, 0));
    let calls = sink.calls();
    assert!(calls.len() < 130, "{} calls in a minute: it must back off", calls.len());
    let last = &calls[calls.len() - 1];
    assert_eq!(last.last().map(String::as_str), Some("a:3"));
    assert!(sink.sent().ends_with(&["a:1".into(), "a:2".into(), "a:3".into()]));
}

/// Throttling: as long as was asked for, and a minute at most.
#[tokio::test(start_paused = true)]
async fn a_sink_that_asks_to_be_left_alone_in_an_outage_is() {
    let bench = Bench::with(&["a:1"]).await;
    let start = Instant::now();
    let calls = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&calls);
    let sink = Scripted::new(move |_| {
        let mut calls = noted.lock().unwrap();
        calls.push(start.elapsed().as_secs());
        let asked = [7, 3600].get(calls.len() - 1).copied().map(Duration::from_secs);
        async move {
            let throttled = |wait| Published::None(down().with_retry_after(wait));
            asked.map_or(Published::All, throttled)
        }
    });
    let report = bench.relay(&sink).drain(Stop::never()).await.unwrap();
    assert_eq!((report.published, report.dead), (1, 0));
    assert_eq!(*calls.lock().unwrap(), [0, 7, 67]);
}

/// What a probe is told counts too.
#[tokio::test(start_paused = true)]
async fn a_probe_that_is_asked_to_come_back_later_does() {
    let bench = Bench::with(&["a:1"]).await;
    let (start, sink) = (Instant::now(), Scripted::confirming());
    sink.set_reachable(Err(down().with_retry_after(Duration::from_secs(20))));
    let running = tokio::spawn(bench.relay(&sink).drain(Stop::never()));
    sleep(Duration::from_secs(1)).await;
    sink.set_reachable(Ok(()));
    let report = running.await.unwrap().unwrap();
    assert_eq!((report.published, start.elapsed().as_secs()), (1, 20));
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_is_set_up_wrongly_ends_the_relay_with_its_advice() {
    let bench = Bench::with(&["a:1"]).await;
    let wrong = Failure::misconfigured("E-TEST", "no such topic").with_fix("create it");
    let sink = Scripted::confirming();
    sink.set_reachable(Err(wrong.clone()));
    let failure = bench.relay(&sink).run(Stop::never()).await.unwrap_err();
    assert_eq!((failure.code(), failure.fix()), ("E-TEST", Some("create it")));

    let sink = Scripted::new(move |_| {
        let wrong = wrong.clone();
        async { Published::None(wrong) }
    });
    let failure = bench.relay(&sink).run(Stop::never()).await.unwrap_err();
    assert_eq!(failure.fix(), Some("create it"));
    assert_eq!(bench.database.stats().await.unwrap().counts.iter().sum::<u64>(), 1);
}

/// A source that is out of reach for its first calls.
struct ComingUp<S> {
    inner: S,
    failures: u32,
}

#[async_trait]
impl<S: Source> Source for ComingUp<S> {
    fn guarantees(&self) -> Guarantees {
        self.inner.guarantees()
    }

    async fn next_batch(&mut self, limit: Limit) -> Result<Batch, Failure> {
        if self.failures > 0 {
            self.failures -= 1;
            return Err(down());
        }
        self.inner.next_batch(limit).await
    }

    async fn settle(&mut self, settlements: &[Settlement]) -> Result<Holding, Failure> {
        self.inner.settle(settlements).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_source_that_is_down_is_asked_again_with_backoff() {
    let bench = Bench::with(&["a:1"]).await;
    let sink = Scripted::confirming();
    let source = ComingUp { inner: bench.database.source(), failures: 10 };
    let start = Instant::now();
    let report = Relay::new("test", source, sink.clone()).drain(Stop::never()).await.unwrap();
    assert_eq!(report.published, 1);
    let waited = start.elapsed().as_secs();
    assert!((3..=5).contains(&waited), "backed off for {waited} s");
}
