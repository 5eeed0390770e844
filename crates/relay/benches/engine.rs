//! How much the engine adds: events per second from a memory source to a memory sink, beside the
//! same calls in a bare loop without lanes, in the same run; and allocations per event.
//!
//! `./dev bench engine`

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a program that prints figures")]

use std::alloc::System;
use std::time::{Duration, Instant};

use semel_core::memory::{MemoryBroker, MemoryDatabase};
use semel_core::{Event, Limit, OutboxWriter, Outcome, Settlement, Sink, Source};
use semel_relay::{Relay, Settings, Stop};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const EVENTS: usize = 500_000;
const LANES: usize = 10_000;
const REPEATS: usize = 5;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_time().build().unwrap();
    println!("engine: {EVENTS} events of 200 bytes in {LANES} lanes, {REPEATS} runs, alternating");
    let mut rows = Vec::new();
    for batch in [100, 1_000, 5_000] {
        let (mut bare, mut engine) = (Vec::new(), Vec::new());
        for _ in 0..REPEATS {
            bare.push(runtime.block_on(measure(batch, Way::BareLoop)));
            engine.push(runtime.block_on(measure(batch, Way::Engine)));
        }
        rows.push((batch, median(bare), median(engine)));
    }
    println!(
        "{:>6} {:>14} {:>14} {:>7} {:>13}",
        "batch", "bare loop/s", "engine/s", "ratio", "allocs/event"
    );
    for (batch, bare, engine) in rows {
        println!(
            "{batch:>6} {:>14.0} {:>14.0} {:>7.2} {:>13.3}",
            bare.rate,
            engine.rate,
            engine.rate / bare.rate,
            engine.allocations
        );
    }
}

#[derive(Clone, Copy)]
enum Way {
    BareLoop,
    Engine,
}

#[derive(Clone, Copy)]
struct Figures {
    rate: f64,
    allocations: f64,
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
async fn measure(batch: usize, way: Way) -> Figures {
    let database = filled_database().await;
    let broker = MemoryBroker::new();
    let region = Region::new(ALLOCATOR);
    let start = Instant::now();
    match way {
        Way::BareLoop => bare_loop(database.source(), &broker, batch).await,
        Way::Engine => engine(database.source(), broker.clone(), batch).await,
    }
    let (took, change) = (start.elapsed(), region.change());
    assert_eq!(broker.len(), EVENTS);
    Figures {
        rate: EVENTS as f64 / took.as_secs_f64(),
        allocations: change.allocations as f64 / EVENTS as f64,
    }
}

async fn engine(source: impl Source + 'static, sink: impl Sink + 'static, batch: usize) {
    let settings = Settings {
        batch_events: batch,
        in_flight_events: batch * 8,
        in_flight_bytes: usize::MAX,
        poll_interval: Duration::from_millis(10),
        ..Settings::default()
    };
    Relay::new("bench", source, sink).with_settings(settings).drain(Stop::never()).await.unwrap();
}

async fn bare_loop(mut source: impl Source, sink: &impl Sink, batch: usize) {
    let limit = Limit { events: batch, bytes: usize::MAX };
    loop {
        let deliveries = source.next_batch(limit).await.unwrap().deliveries;
        if deliveries.is_empty() {
            return;
        }
        let (messages, receipts): (Vec<_>, Vec<_>) =
            deliveries.into_iter().map(|delivery| (delivery.message, delivery.receipt)).unzip();
        assert!(sink.publish(&messages).await.all_confirmed());
        let settlements: Vec<_> = receipts
            .into_iter()
            .map(|receipt| Settlement { receipt, outcome: Outcome::Delivered })
            .collect();
        assert!(source.settle(&settlements).await.unwrap().is_held());
    }
}

async fn filled_database() -> MemoryDatabase {
    let database = MemoryDatabase::new();
    let payload = bytes::Bytes::from(vec![b'x'; 200]);
    for chunk in 0..EVENTS / 10_000 {
        let events: Vec<Event> = (0..10_000)
            .map(|number| {
                let lane = (chunk * 7919 + number) % LANES;
                Event::new("order", format!("order-{lane}"), "OrderPlaced")
                    .with_bytes("application/json", payload.clone())
            })
            .collect();
        let mut tx = database.begin().await;
        for event in events {
            database.append(&mut tx, &[event]).await.unwrap();
        }
        tx.commit();
    }
    database
}

fn median(mut figures: Vec<Figures>) -> Figures {
    figures.sort_by(|a, b| a.rate.total_cmp(&b.rate));
    figures[figures.len() / 2]
}
