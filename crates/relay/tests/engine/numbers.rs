//! What is emitted is what is documented.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use semel_core::memory::{MemoryBroker, MemoryDatabase, MemoryTx};
use semel_core::{Event, Failure, Message, OutboxWriter, Published, Verdict, telemetry};
use semel_relay::{Consumer, Relay, Stop, handler_fn};

use crate::scripted::Scripted;

/// Collects the names and labels of everything that is registered.
#[derive(Clone, Default)]
struct Names(Arc<Mutex<BTreeSet<NameAndLabels>>>);

type NameAndLabels = (String, Vec<String>);

impl Names {
    fn note(&self, key: &Key) {
        let labels = key.labels().map(|label| label.key().to_owned()).collect();
        self.0.lock().unwrap().insert((key.name().to_owned(), labels));
    }
}

impl Recorder for Names {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        self.note(key);
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        self.note(key);
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        self.note(key);
        Histogram::noop()
    }
}

#[test]
fn every_metric_of_the_engine_is_documented_and_emitted() {
    let names = Names::default();
    metrics::with_local_recorder(&names, || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(relay_and_consume());
    });
    let emitted = names.0.lock().unwrap().clone();
    // Sources tell the first three themselves, the page what the database counts. That these are emitted
    // too, and nothing else, is seen where the whole program runs: `crates/cli/tests/emitted`.
    let of_others = [
        telemetry::SOURCE_TAILING,
        telemetry::SOURCE_HANDOVERS,
        telemetry::MESSAGES_CARRIED,
        telemetry::BACKLOG_EVENTS,
        telemetry::OLDEST_PENDING_AGE,
        telemetry::PARKED_AGGREGATES,
        telemetry::SLOT_RETAINED_BYTES,
        telemetry::SLOT_LIMIT_BYTES,
    ];
    let documented: BTreeSet<NameAndLabels> = telemetry::ALL
        .iter()
        .filter(|metric| !of_others.contains(metric))
        .filter(|metric| metric.labels.iter().any(|label| ["pipeline", "consumer"].contains(label)))
        .map(|metric| {
            (metric.name.to_owned(), metric.labels.iter().map(ToString::to_string).collect())
        })
        .collect();
    assert_eq!(emitted, documented);
}

async fn relay_and_consume() {
    let (database, broker) = (MemoryDatabase::new(), MemoryBroker::new());
    let mut tx = database.begin().await;
    let events = [Event::new("order", "1", "Placed"), Event::new("order", "2", "Poison")];
    database.append(&mut tx, &events).await.unwrap();
    tx.commit();
    let relay = Relay::new("orders", database.source(), broker.clone());
    relay.drain(Stop::never()).await.unwrap();
    let handler = handler_fn(|_: &mut MemoryTx, message: &Message| {
        let poison = message.event.event_type == "Poison";
        Box::pin(async move {
            if poison { Err(Failure::refused("E-TEST", "poison").into()) } else { Ok(Bytes::new()) }
        })
    });
    let consumer = Consumer::new("payments", database, handler);
    let relay = Relay::new("payments", broker.subscribe("payments", &[]), consumer);
    relay.drain(Stop::never()).await.unwrap();
}

/// Keeps what is counted, by the name of the metric.
#[derive(Clone, Default)]
struct Counts(Arc<Mutex<BTreeMap<String, Arc<AtomicU64>>>>);

impl Counts {
    fn of(&self, name: &str) -> u64 {
        self.0.lock().unwrap().get(name).map_or(0, |count| count.load(Ordering::Relaxed))
    }
}

impl Recorder for Counts {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let mut counts = self.0.lock().unwrap();
        let count = counts.entry(key.name().to_owned()).or_default();
        Counter::from_arc(Arc::clone(count))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// An alert goes by this number: it rises with an event that dies, and with nothing else.
#[test]
fn the_number_of_dead_letters_rises_by_one_with_each() {
    let counts = Counts::default();
    metrics::with_local_recorder(&counts, || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let database = MemoryDatabase::new();
            let wanted = [("Placed", 0), ("Poison", 1), ("Paid", 1), ("Poison", 2)];
            for (lane, (event_type, dead)) in wanted.into_iter().enumerate() {
                let mut tx = database.begin().await;
                let event = Event::new("order", lane.to_string(), event_type);
                database.append(&mut tx, &[event]).await.unwrap();
                tx.commit();
                let relay = Relay::new("orders", database.source(), refusing_poison());
                relay.drain(Stop::never()).await.unwrap();
                assert_eq!(counts.of(telemetry::EVENTS_DEAD.name), dead, "{event_type} {lane}");
            }
        });
    });
}

fn refusing_poison() -> Scripted {
    let judge = |message: &Message| match &*message.event.event_type {
        "Poison" => Verdict::Failed(Failure::refused("E-TEST", "poison")),
        _ => Verdict::Confirmed,
    };
    Scripted::new(move |batch| async move { Published::Each(batch.iter().map(judge).collect()) })
}
