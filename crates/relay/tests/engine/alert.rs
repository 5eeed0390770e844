//! Somebody is told about dead letters (R4), and nothing waits for that.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_core::memory::MemoryBroker;
use semel_core::{Event, Failure, Message, OutboxWriter, Published, Verdict};
use semel_relay::{OnDead, Settings, Stop};
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use crate::scripted::{Bench, Scripted, commit, settings};

/// Refuses everything.
fn refusing() -> Scripted {
    Scripted::new(|batch| async move {
        let refused = || Verdict::Failed(Failure::refused("E-TEST", "too large").with_fix("split"));
        Published::Each(batch.iter().map(|_| refused()).collect())
    })
}

fn content(message: &Message) -> Value {
    serde_json::from_slice(message.event.payload.bytes()).unwrap()
}

/// An alert sink that answers as told, and what it was asked when.
type Asked = Arc<Mutex<Vec<(Duration, Message)>>>;

fn alert_sink(answer: impl Fn(u32) -> Published + Send + Sync + 'static) -> (Scripted, Asked) {
    let (asked, start) = (Asked::default(), Instant::now());
    let calls = AtomicU32::new(0);
    let noted = Arc::clone(&asked);
    let sink = Scripted::new(move |batch| {
        noted.lock().unwrap().push((start.elapsed(), batch[0].clone()));
        let answer = answer(calls.fetch_add(1, Ordering::Relaxed));
        async move { answer }
    });
    (sink, asked)
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_is_told_without_its_payload() {
    let bench = Bench::with(&["a:1"]).await;
    let operators = MemoryBroker::new();
    let relay = bench.relay(&refusing()).with_alert(operators.clone());
    relay.drain(Stop::never()).await.unwrap();
    let [alert] = &operators.messages()[..] else { panic!("one alert") };
    assert_eq!(alert.event.lane().to_string(), "semel.dead_letter/test");
    assert_eq!(alert.event.event_type, "DeadLettered");
    let content = content(alert);
    assert_eq!((&content["pipeline"], &content["count"]), (&"test".into(), &1.into()));
    assert_eq!(content["list"], "semel dead list --pipeline test");
    let letter = &content["letters"][0];
    let id = letter["event_id"].as_str().unwrap();
    assert_eq!(letter["show"], format!("semel dead show {id} --pipeline test"));
    assert_eq!(letter["retry"], format!("semel dead retry {id} --pipeline test"));
    let expected = [
        ("aggregate_type", "order"),
        ("aggregate_id", "a"),
        ("event_type", "Changed"),
        ("code", "E-TEST"),
        ("error", "too large"),
        ("fix", "split"),
    ];
    for (name, value) in expected {
        assert_eq!(letter[name], value);
    }
    assert_eq!(letter["attempts"], 1);
    assert!(!content.to_string().contains("a:1"), "the payload");
}

#[tokio::test(start_paused = true)]
async fn thousands_of_dead_letters_are_few_messages() {
    const COUNT: u64 = 3000;
    let bench = Bench::with(&[]).await;
    let mut tx = bench.database.begin().await;
    let events: Vec<_> =
        (0..COUNT).map(|lane| Event::new("order", lane.to_string(), "Changed")).collect();
    bench.database.append(&mut tx, &events).await.unwrap();
    tx.commit();
    let sink = Scripted::new(|batch| async move {
        sleep(Duration::from_millis(100)).await;
        let refused = || Verdict::Failed(Failure::refused("E-TEST", "too large"));
        Published::Each(batch.iter().map(|_| refused()).collect())
    });
    let (alerts, asked) = alert_sink(|_| Published::All);
    let settings = Settings { on_dead: OnDead::SkipEvent, ..settings() };
    let relay = bench.relay(&sink).with_settings(settings).with_alert(alerts);
    let report = relay.drain(Stop::never()).await.unwrap();
    assert_eq!(report.dead, COUNT);
    let asked = asked.lock().unwrap();
    let counts: Vec<_> =
        asked.iter().map(|(_, it)| content(it)["count"].as_u64().unwrap()).collect();
    assert_eq!(counts.iter().sum::<u64>(), COUNT, "all are counted: {counts:?}");
    assert!(asked.iter().all(|(_, it)| content(it)["letters"].as_array().unwrap().len() <= 10));
    // The last one goes out when the relay ends.
    let times: Vec<_> = asked.iter().map(|(at, _)| *at).collect();
    for pair in times[..times.len() - 1].windows(2) {
        assert!(pair[1] - pair[0] >= Duration::from_secs(1), "{times:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_alert_waits_for_its_sink_and_the_pipeline_does_not() {
    let bench = Bench::with(&["a:1"]).await;
    let down = || Published::None(Failure::unavailable("E-TEST", "down"));
    let (alerts, asked) = alert_sink(move |call| if call < 10 { down() } else { Published::All });
    let sink = refusing();
    let (stopper, stop) = Stop::new();
    let running = tokio::spawn(bench.relay(&sink).with_alert(alerts).run(stop));
    sleep(Duration::from_secs(5)).await;
    commit(&bench.database, &["b:1", "c:1"]).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(sink.sent(), ["a:1", "b:1", "c:1"], "the pipeline goes on");
    sleep(Duration::from_secs(600)).await;
    stopper.stop();
    running.await.unwrap().unwrap();
    let asked = asked.lock().unwrap();
    assert!(asked[..11].iter().all(|(_, it)| it.event.id == asked[0].1.event.id), "the same alert");
    assert_eq!(content(&asked[11].1)["count"], 2, "what died meanwhile is in the next");
    assert_eq!(asked.len(), 12);
}

#[tokio::test(start_paused = true)]
async fn an_alert_sink_that_refuses_is_asked_once() {
    let bench = Bench::with(&["a:1"]).await;
    let (alerts, asked) =
        alert_sink(|_| Published::None(Failure::misconfigured("E-TEST", "no such endpoint")));
    let relay = bench.relay(&refusing()).with_alert(alerts);
    assert_eq!(relay.drain(Stop::never()).await.unwrap().dead, 1);
    assert_eq!(asked.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_alert_sink_that_hangs_or_panics_does_not_hold_the_relay() {
    let panics: fn() -> Scripted = || Scripted::new(|_| async { panic!("on purpose") });
    let hangs: fn() -> Scripted = || Scripted::new(|_| std::future::pending());
    for alerts in [panics, hangs] {
        let bench = Bench::with(&["a:1"]).await;
        let relay = bench.relay(&refusing()).with_alert(alerts());
        let drained = timeout(Duration::from_secs(6), relay.drain(Stop::never())).await;
        assert_eq!(drained.expect("it ends").unwrap().dead, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_leaves_at_once_does_not_wait_for_alerts() {
    let bench = Bench::with(&["a:1"]).await;
    let (stopper, stop) = Stop::new();
    let alerts = Scripted::new(|_| std::future::pending());
    let running = tokio::spawn(bench.relay(&refusing()).with_alert(alerts).run(stop));
    sleep(Duration::from_secs(1)).await;
    stopper.stop();
    stopper.stop();
    let left = timeout(Duration::from_millis(10), running).await;
    assert_eq!(left.expect("at once").unwrap().unwrap().dead, 1);
}
