//! Retries, dead letters and what they do to their lane (R4, R6, R7).

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use semel_core::admin::{AdminStore, Filter, Selection, State};
use semel_core::{Failure, Published, Verdict};
use semel_relay::{OnDead, Settings, Stop};
use tokio::time::Instant;

use crate::scripted::{Bench, Scripted, name, settings};

/// Confirms everything but `bad`, which gets `failure`; the rest of its lane is behind it.
fn failing(bad: &'static str, failure: Failure) -> Scripted {
    Scripted::new(move |batch| {
        let failure = failure.clone();
        async move {
            let lane = bad.split(':').next().unwrap();
            let mut failed = false;
            let verdicts = batch.iter().map(|message| {
                if name(message) == bad {
                    failed = true;
                    Verdict::Failed(failure.clone())
                } else if failed && name(message).starts_with(lane) {
                    Verdict::Behind
                } else {
                    Verdict::Confirmed
                }
            });
            Published::Each(verdicts.collect())
        }
    })
}

#[tokio::test(start_paused = true)]
async fn an_event_is_tried_five_times_by_the_schedule_and_then_dies() {
    let bench = Bench::with(&["a:1"]).await;
    let start = Instant::now();
    let sink = failing("a:1", Failure::transient("E-TEST", "busy"));
    let report = bench.relay(&sink).drain(Stop::never()).await.unwrap();
    assert_eq!((report.failed, report.dead, report.published), (5, 1, 0));
    assert_eq!(sink.calls().len(), 5);
    let waited = start.elapsed().as_secs_f64();
    assert!((156.0..157.0).contains(&waited), "1 + 5 + 30 + 120 s, was {waited}");
    let view = &bench.database.list(&Filter::default(), None, 9).await.unwrap().events[0];
    assert_eq!((view.state, view.attempts), (State::Dead, 5));
    assert_eq!(view.error.as_deref(), Some("busy"));
}

#[tokio::test(start_paused = true)]
async fn a_refused_event_dies_at_once_and_parks_only_its_lane() {
    let bench = Bench::with(&["a:1", "b:1", "a:2", "b:2"]).await;
    let sink = failing("a:1", Failure::refused("E-TEST", "too large"));
    let report = bench.relay(&sink).drain(Stop::never()).await.unwrap();
    assert_eq!((report.published, report.dead), (2, 1));
    let stats = bench.database.stats().await.unwrap();
    assert_eq!((stats.count(State::Dead), stats.count(State::Pending)), (1, 1));
    assert_eq!(stats.parked_lanes, 1);
}

#[tokio::test(start_paused = true)]
async fn a_discarded_letter_lets_its_lane_go_on() {
    let bench = Bench::with(&["a:1", "a:2", "a:3"]).await;
    let sink = failing("a:1", Failure::refused("E-TEST", "too large"));
    bench.relay(&sink).drain(Stop::never()).await.unwrap();
    let dead = Filter { state: Some(State::Dead), ..Filter::default() };
    assert_eq!(bench.database.discard(&Selection::Matching(dead)).await.unwrap(), 1);
    let sink = Scripted::confirming();
    bench.relay(&sink).drain(Stop::never()).await.unwrap();
    assert_eq!(sink.sent(), ["a:2", "a:3"]);
}

#[tokio::test(start_paused = true)]
async fn skipping_dead_letters_lets_the_lane_go_on_at_once() {
    let bench = Bench::with(&["a:1", "a:2", "a:3"]).await;
    let sink = failing("a:1", Failure::refused("E-TEST", "too large"));
    let settings = Settings { on_dead: OnDead::SkipEvent, ..settings() };
    let report = bench.relay(&sink).with_settings(settings).drain(Stop::never()).await.unwrap();
    assert_eq!((report.published, report.dead), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn the_rest_of_a_lane_waits_behind_a_retry_and_other_lanes_go_on() {
    let bench = Bench::with(&["a:1", "a:2", "b:1"]).await;
    let tries = AtomicU32::new(0);
    let sink = Scripted::new(move |batch| {
        let stumbles = name(&batch[0]) == "a:1" && tries.fetch_add(1, Ordering::Relaxed) == 0;
        async move {
            if !stumbles {
                return Published::All;
            }
            let busy = Failure::transient("E-TEST", "busy");
            Published::Each(vec![Verdict::Failed(busy), Verdict::Behind, Verdict::Confirmed])
        }
    });
    let report = bench.relay(&sink).drain(Stop::never()).await.unwrap();
    assert_eq!((report.published, report.failed), (3, 1));
    assert_eq!(sink.calls(), [vec!["a:1", "a:2", "b:1"], vec!["a:1", "a:2"]]);
}

#[tokio::test(start_paused = true)]
async fn a_retry_survives_the_relay() {
    let bench = Bench::with(&["a:1", "a:2"]).await;
    let sink = failing("a:1", Failure::transient("E-TEST", "busy"));
    let relay = bench.relay(&sink).run(Stop::never());
    assert!(tokio::time::timeout(Duration::from_millis(500), relay).await.is_err());
    assert_eq!(sink.calls().len(), 1);
    let sink = Scripted::new(|batch| async move {
        assert_eq!(batch.iter().map(|message| message.attempt).collect::<Vec<_>>(), [2, 1]);
        Published::All
    });
    let report = bench.relay(&sink).drain(Stop::never()).await.unwrap();
    assert_eq!(report.published, 2);
}
