//! Panics, hangs and broken promises of a sink or source stay where they happen.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use semel_core::admin::{AdminStore, State};
use semel_core::{
    Batch, Failure, Guarantees, Holding, Limit, Published, Settlement, Source, Verdict,
};
use semel_relay::{Relay, Stop};
use tokio::time::Instant;

use crate::scripted::{Bench, Scripted, name};

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_sink_is_a_failed_attempt() {
    let bench = Bench::with(&["a:1"]).await;
    let calls = AtomicU32::new(0);
    let sink = Scripted::new(move |_| {
        assert!(calls.fetch_add(1, Ordering::Relaxed) > 0, "the first call panics");
        async { Published::All }
    });
    let report = bench.relay(&sink).drain(Stop::never()).await.unwrap();
    assert_eq!((report.published, report.failed), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_hang_of_a_reachable_sink_counts_as_an_attempt() {
    let bench = Bench::with(&["a:1"]).await;
    let sink = Scripted::new(|_| std::future::pending());
    let report = bench.relay(&sink).drain(Stop::never()).await.unwrap();
    assert_eq!((report.failed, report.dead), (5, 1));
}

#[tokio::test(start_paused = true)]
async fn a_hang_of_an_unreachable_sink_is_an_outage() {
    let bench = Bench::with(&["a:1"]).await;
    let back_at = Instant::now() + Duration::from_secs(1000);
    let sink = Scripted::new(move |_| async move {
        if Instant::now() < back_at {
            std::future::pending::<()>().await;
        }
        Published::All
    });
    let running = tokio::spawn(bench.relay(&sink).drain(Stop::never()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    sink.set_reachable(Err(Failure::unavailable("E-TEST", "silence")));
    tokio::time::sleep(Duration::from_secs(1000)).await;
    sink.set_reachable(Ok(()));
    let report = running.await.unwrap().unwrap();
    assert_eq!((report.published, report.dead), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_slow_lane_does_not_hold_the_others() {
    let bench = Bench::with(&["slow:1", "a:1", "b:1", "slow:2"]).await;
    let sink = Scripted::new(|batch| async move {
        if name(&batch[0]).starts_with("slow") {
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
        Published::All
    });
    let settings = semel_relay::Settings { batch_events: 1, ..Default::default() };
    let start = Instant::now();
    bench.relay(&sink).with_settings(settings).drain(Stop::never()).await.unwrap();
    assert_eq!(sink.sent(), ["slow:1", "a:1", "b:1", "slow:2"]);
    assert_eq!(start.elapsed().as_secs(), 6, "one lane after itself, the others meanwhile");
}

#[tokio::test(start_paused = true)]
async fn missing_verdicts_are_never_confirmations() {
    let bench = Bench::with(&["a:1", "b:1"]).await;
    let calls = AtomicU32::new(0);
    let sink = Scripted::new(move |_| {
        let first = calls.fetch_add(1, Ordering::Relaxed) == 0;
        async move { if first { Published::Each(vec![Verdict::Confirmed]) } else { Published::All } }
    });
    let report = bench.relay(&sink).drain(Stop::never()).await.unwrap();
    assert_eq!((report.published, report.failed), (2, 1));
    assert_eq!(sink.sent(), ["a:1", "b:1", "b:1"]);
}

struct Panicking;

#[async_trait]
impl Source for Panicking {
    fn guarantees(&self) -> Guarantees {
        Guarantees { lane_order: true, parking: true }
    }

    async fn next_batch(&mut self, _: Limit) -> Result<Batch, Failure> {
        panic!("a bug in the source")
    }

    async fn settle(&mut self, _: &[Settlement]) -> Result<Holding, Failure> {
        Ok(Holding::Held)
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_source_ends_the_relay_with_an_error() {
    let relay = Relay::new("test", Panicking, Scripted::confirming());
    let failure = relay.run(Stop::never()).await.unwrap_err();
    assert_eq!(failure.code(), "E-SOURCE-PANIC");
}

#[tokio::test(start_paused = true)]
async fn settings_that_make_no_sense_are_refused() {
    let bench = Bench::with(&["a:1"]).await;
    let settings = semel_relay::Settings { in_flight_events: 1, ..Default::default() };
    let relay = bench.relay(&Scripted::confirming()).with_settings(settings);
    assert_eq!(relay.run(Stop::never()).await.unwrap_err().code(), "E-SETTINGS");
    assert_eq!(bench.database.stats().await.unwrap().count(State::Pending), 1);
}
