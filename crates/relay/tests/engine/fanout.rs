//! One pipeline to several sinks.

use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use semel_core::admin::{AdminStore, Filter};
use semel_core::{Event, Failure, Fault, Message, Publication, Published, Sink, Verdict};
use semel_relay::{Fanout, Relay, Stop};

use crate::scripted::{Bench, Scripted, name};

/// Answers the first calls with `failure`, and confirms the later ones.
fn down_for(calls: u32, failure: Failure) -> Scripted {
    let made = AtomicU32::new(0);
    Scripted::new(move |_| {
        let is_down = made.fetch_add(1, Ordering::Relaxed) < calls;
        let answer = if is_down { Published::None(failure.clone()) } else { Published::All };
        async move { answer }
    })
}

fn relay(bench: &Bench, one: &Scripted, other: &Scripted) -> Relay {
    bench.relay_to(Fanout::new().with("one", one.clone()).with("other", other.clone()))
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_has_an_event_does_not_get_it_again() {
    let bench = Bench::with(&["a:1", "b:1", "a:2"]).await;
    let one = Scripted::confirming();
    let other = down_for(2, Failure::unavailable("E-TEST", "down"));
    let report = relay(&bench, &one, &other).drain(Stop::never()).await.unwrap();
    assert_eq!((report.published, report.dead), (3, 0));
    let mut sent = one.sent();
    sent.sort();
    assert_eq!(sent, ["a:1", "a:2", "b:1"], "each once");
    assert!(other.calls().len() >= 3);
}

/// Also when the other one says nothing at all, and the relay gives the call up.
#[tokio::test(start_paused = true)]
async fn a_sink_that_has_an_event_does_not_get_it_again_for_one_that_hangs() {
    let bench = Bench::with(&["a:1", "b:1", "a:2"]).await;
    let one = Scripted::confirming();
    let hangs = AtomicBool::new(true);
    let other = Scripted::new(move |_| {
        let hangs = hangs.swap(false, Ordering::Relaxed);
        async move { if hangs { pending().await } else { Published::All } }
    });
    let report = relay(&bench, &one, &other).drain(Stop::never()).await.unwrap();
    assert_eq!((report.published, report.dead), (3, 0));
    let mut sent = one.sent();
    sent.sort();
    assert_eq!(sent, ["a:1", "a:2", "b:1"], "each once");
    assert_eq!(other.sent().len(), 6, "it gets what it did not confirm");
}

#[tokio::test(start_paused = true)]
async fn a_lane_waits_for_the_sink_that_failed_and_other_lanes_go_on() {
    let bench = Bench::with(&["a:1", "a:2", "b:1"]).await;
    let one = Scripted::confirming();
    let failed = AtomicU32::new(0);
    let other = Scripted::new(move |batch| {
        let fails = batch.iter().any(|message| name(message) == "a:1")
            && failed.fetch_add(1, Ordering::Relaxed) == 0;
        let verdicts = batch.iter().map(|message| match (fails, &*name(message)) {
            (true, "a:1") => Verdict::Failed(Failure::transient("E-TEST", "busy")),
            (true, "a:2") => Verdict::Behind,
            _ => Verdict::Confirmed,
        });
        let verdicts = verdicts.collect();
        async move { Published::Each(verdicts) }
    });
    let report = relay(&bench, &one, &other).drain(Stop::never()).await.unwrap();
    assert_eq!((report.published, report.failed), (3, 1));
    let of_lane_a = |sink: &Scripted| {
        let mut sent = sink.sent();
        sent.retain(|name| name.starts_with('a'));
        sent
    };
    assert_eq!(of_lane_a(&one), ["a:1", "a:2"]);
    assert_eq!(of_lane_a(&other), ["a:1", "a:2", "a:1", "a:2"]);
}

#[tokio::test(start_paused = true)]
async fn what_one_refuses_is_a_dead_letter_that_names_it() {
    let bench = Bench::with(&["a:1"]).await;
    let refusing = Scripted::new(|_| async {
        Published::Each(vec![Verdict::Failed(Failure::refused("E-TEST", "too large"))])
    });
    let report =
        relay(&bench, &Scripted::confirming(), &refusing).drain(Stop::never()).await.unwrap();
    assert_eq!((report.published, report.dead), (0, 1));
    let view = &bench.database.list(&Filter::default(), None, 9).await.unwrap().events[0];
    assert_eq!(view.error.as_deref(), Some("sink other: too large"));
}

/// While this relay was frozen another one has published it to both, and nobody told this one.
#[tokio::test]
async fn what_is_published_again_reaches_every_sink() {
    let one = Scripted::confirming();
    let other = down_for(1, Failure::unavailable("E-TEST", "down"));
    let both = Fanout::new().with("one", one.clone()).with("other", other.clone());
    let event = message("a:1");
    let as_what = |publication| Message { publication, ..event.clone() };
    assert!(!both.publish(&[as_what(Publication::First)]).await.all_confirmed());
    assert!(both.publish(&[as_what(Publication::Again)]).await.all_confirmed());
    assert_eq!(one.sent(), ["a:1", "a:1"]);
    assert_eq!(other.sent(), ["a:1", "a:1"]);
}

/// Letters that were discarded are never confirmed by all.
#[tokio::test]
async fn the_oldest_is_forgotten_first() {
    let one = Scripted::confirming();
    let other = down_for(1, Failure::unavailable("E-TEST", "down"));
    let both = Fanout::new().with("one", one.clone()).with("other", other);
    let batch: Vec<_> = (0..=100_000).map(|number| message(&format!("a:{number}"))).collect();
    assert!(!both.publish(&batch).await.all_confirmed());
    let [oldest, .., latest] = &batch[..] else { panic!("there are many") };
    assert!(both.publish(&[oldest.clone(), latest.clone()]).await.all_confirmed());
    assert_eq!(one.calls()[1..], [["a:0"]]);
}

fn message(name: &str) -> Message {
    let event = Event::new("order", "a", "Changed").with_bytes("text/plain", name.to_owned());
    Message::first("t", event)
}

#[tokio::test(start_paused = true)]
async fn a_probe_names_the_sink_that_is_down() {
    let down = Scripted::confirming();
    down.set_reachable(Err(Failure::unavailable("E-TEST", "no answer")));
    let both = Fanout::new().with("broker", Scripted::confirming()).with("audit", down);
    let probe = tokio::time::timeout(Duration::from_secs(1), both.check()).await.unwrap();
    let failure = probe.unwrap_err();
    assert_eq!(
        (failure.fault(), failure.to_string()),
        (Fault::Unavailable, "sink audit: no answer".into())
    );
}
