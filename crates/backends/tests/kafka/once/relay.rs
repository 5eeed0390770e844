//! With the engine: relays that end at any moment, and a window that is small.

use std::time::Duration;

use semel_core::coordination::Share;
use semel_core::memory::MemoryDatabase;
use semel_core::{Event, OutboxWriter};
use semel_relay::{Relay, Routed, Settings, Stop};
use semel_testkit::services::{Service, service};
use semel_testkit::workload::{event, numbers};
use tokio::time::timeout;

use super::random_id;
use crate::kafka::{config, topics};

/// Dropping a relay is a crash: what it had in flight comes again. The window is 20 events, and far
/// more than that pass by.
#[tokio::test]
async fn relays_that_crash_at_any_moment_send_every_event_once() {
    const EVENTS: u64 = 2_000;
    let Some(brokers) = service(Service::Kafka) else { return };
    let (id, topic) = (random_id(), topics::random_topic());
    topics::create(&brokers, &topic, &[]).await;
    let database = MemoryDatabase::new();
    let mut tx = database.begin().await;
    let lanes = LANES.iter().cycle();
    let all: Vec<Event> =
        (0..EVENTS).zip(lanes).map(|(number, lane)| event(lane, number)).collect();
    database.append(&mut tx, &all).await.unwrap();
    tx.commit();
    let settings = Settings { batch_events: 5, in_flight_events: 20, ..Settings::default() };
    let mut crashes = 0;
    for millis in (20..).step_by(17) {
        let sink = config(&brokers).connect_exactly_once(&id, Share::WHOLE).await.unwrap();
        let routed = Routed::new(sink, topic.parse().unwrap());
        let relay = Relay::new("test", database.source(), routed).with_settings(settings.clone());
        let drained = timeout(Duration::from_millis(millis), relay.drain(Stop::never())).await;
        if let Ok(report) = drained {
            report.expect("drained");
            break;
        }
        crashes += 1;
    }
    assert!(crashes > 5, "{crashes}");
    let arrived = topics::read(&brokers, &[&topic]).await;
    for (lane, name) in (0..).zip(LANES) {
        let got = numbers(arrived.iter().filter(|event| event.aggregate_id == name));
        assert_eq!(got, (0..EVENTS).filter(|number| number % 4 == lane).collect::<Vec<_>>());
    }
}

const LANES: [&str; 4] = ["a", "b", "c", "d"];
