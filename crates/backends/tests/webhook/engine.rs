//! The sink under the engine: throttling, dead letters, and the alert about them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use semel_core::memory::MemoryDatabase;
use semel_core::{OutboxWriter, Schedule, Secret};
use semel_relay::{Relay, Settings, Stop};
use semel_testkit::workload;
use serde_json::Value;
use tokio::time::timeout;

use super::endpoint::{Endpoint, status, with};

async fn database(lanes: &[&str]) -> MemoryDatabase {
    let database = MemoryDatabase::new();
    let mut tx = database.begin().await;
    let events: Vec<_> = lanes.iter().flat_map(|lane| workload::events(lane, 0..3)).collect();
    database.append(&mut tx, &events).await.unwrap();
    tx.commit();
    database
}

fn settings() -> Settings {
    let waits = [0, 10, 10].map(Duration::from_millis).to_vec();
    Settings { schedule: Schedule::new(waits), ..Settings::default() }
}

#[tokio::test]
async fn a_throttled_pipeline_waits_and_loses_nothing() {
    let calls = Arc::new(AtomicU32::new(0));
    let endpoint = Endpoint::start(move |_| {
        let throttled = calls.fetch_add(1, Ordering::SeqCst) == 2;
        if throttled { with(429, "retry-after", "1") } else { status(200) }
    })
    .await;
    let sink = endpoint.config().concurrency(1).connect().await.unwrap();
    let relay = Relay::new("orders", database(&["a", "b", "c"]).await.source(), sink);
    let began = Instant::now();
    let draining = relay.with_settings(settings()).drain(Stop::never());
    let report = timeout(Duration::from_secs(20), draining).await.unwrap().unwrap();
    assert_eq!((report.published, report.dead), (9, 0));
    assert!(began.elapsed() >= Duration::from_secs(1), "as long as was asked for");
    let taken = endpoint.taken();
    for lane in ["a", "b", "c"] {
        let numbers: Vec<_> = taken.iter().filter(|(of, _)| of == lane).map(|it| it.1).collect();
        assert_eq!(numbers, [0, 1, 2], "{lane}");
    }
}

#[tokio::test]
async fn operators_are_told_about_dead_letters_by_a_signed_webhook() {
    let endpoint =
        Endpoint::start(|seen| status(if seen.event().aggregate_id == "bad" { 410 } else { 200 }))
            .await;
    let operators = Endpoint::start(|_| status(204)).await;
    let secret = Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    let alerts = operators.config().secret(&secret).unwrap().connect().await.unwrap();
    let sink = endpoint.config().connect().await.unwrap();
    let relay = Relay::new("orders", database(&["a", "bad"]).await.source(), sink);
    let draining = relay.with_settings(settings()).with_alert(alerts).drain(Stop::never());
    let report = timeout(Duration::from_secs(20), draining).await.unwrap().unwrap();
    assert_eq!((report.published, report.dead), (3, 1));
    let [alert] = &operators.seen()[..] else { panic!("one alert") };
    assert!(alert.header("webhook-signature").starts_with("v1,"));
    let content: Value = serde_json::from_slice(&alert.body).unwrap();
    assert_eq!((&content["pipeline"], &content["count"]), (&"orders".into(), &1.into()));
    assert_eq!(content["letters"][0]["aggregate_id"], "bad");
    assert_eq!(content["letters"][0]["code"], "E-WEBHOOK-REFUSED");
}
