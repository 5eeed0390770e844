//! The consumer runtime: typed handlers, what follows from them, letters, order, forgetting.

mod batches;
mod handlers;
mod letters;
mod order;
mod positions;
mod silence;

use std::sync::Arc;
use std::time::Duration;

use semel_core::insight::{ConsumerView, Insight};
use semel_core::memory::{MemoryBroker, MemoryDatabase, MemoryTx};
use semel_core::{Event, EventId, HandlerError, Message, Schedule, Sink};
use semel_relay::{Consumer, ConsumerBuilder, Report, Settings, Stop};
use semel_testkit::clock::VirtualClock;
use serde::Deserialize;

#[tokio::test(start_paused = true)]
async fn what_was_applied_and_dropped_is_counted_in_the_database() {
    let world = World::new();
    let placed = world.event("a", 1);
    for event in [placed.clone(), placed.clone(), placed, world.event("b", 2)] {
        world.publish(event).await;
    }
    world.drain(world.builder()).await;
    let counted = |views: Vec<ConsumerView>| (views[0].applied, views[0].duplicates);
    assert_eq!(counted(world.database.consumers().await.unwrap()), (2, 2));

    // One that runs tells it too, before it ends.
    let (stopper, stop) = Stop::new();
    let subscription = world.broker.subscribe("payments", &["orders"]);
    let running = tokio::spawn(world.builder().build().run(subscription, stop));
    world.place("c", 3).await;
    while counted(world.database.consumers().await.unwrap()) != (3, 2) {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    stopper.stop();
    running.await.unwrap().unwrap();
}

/// A broker, a consumer's database, and a clock that both go by.
struct World {
    broker: MemoryBroker,
    database: MemoryDatabase,
    clock: Arc<VirtualClock>,
    numbers: std::cell::Cell<u64>,
}

#[derive(Deserialize)]
struct Order {
    cents: i64,
}

/// Charges an order; some orders cannot be charged.
async fn charge(tx: &mut MemoryTx, order: Order, message: &Message) -> Result<(), HandlerError> {
    let lane = &message.event.aggregate_id;
    tx.add(format!("{lane}:{}", order.cents), 1);
    if order.cents == 13 && tx.get("repaired") == 0 {
        return Err(HandlerError::retry("unlucky"));
    }
    tx.add(format!("last of {lane}"), order.cents - tx.get(&format!("last of {lane}")));
    Ok(())
}

impl World {
    fn new() -> Self {
        let clock = Arc::new(VirtualClock::start());
        let database = MemoryDatabase::with_clock(Arc::clone(&clock) as _);
        Self { broker: MemoryBroker::new(), database, clock, numbers: 1.into() }
    }

    fn event(&self, lane: &str, cents: i64) -> Event {
        let number = self.numbers.replace(self.numbers.get() + 1);
        let id = EventId::numbered(VirtualClock::START, number);
        Event::with_id(id, "order", lane, "OrderPlaced")
            .with_json(&serde_json::json!({ "cents": cents }))
            .unwrap()
    }

    async fn publish(&self, event: Event) -> EventId {
        let id = event.id;
        self.broker.publish(&[Message::first("orders", event)]).await;
        id
    }

    async fn place(&self, lane: &str, cents: i64) -> EventId {
        self.publish(self.event(lane, cents)).await
    }

    fn builder(&self) -> ConsumerBuilder<MemoryDatabase> {
        let schedule = Schedule::broker().without_jitter();
        Consumer::builder("payments", self.database.clone())
            .on("OrderPlaced", charge)
            .settings(Settings { schedule, ..Settings::default() })
            .clock(Arc::clone(&self.clock) as _)
    }

    async fn drain(&self, builder: ConsumerBuilder<MemoryDatabase>) -> Report {
        let subscription = self.broker.subscribe("payments", &["orders"]);
        builder.build().drain(subscription, Stop::never()).await.unwrap()
    }

    /// Takes the cause away for which 13 cannot be charged.
    async fn repair(&self) {
        let mut tx = self.database.begin().await;
        tx.add("repaired", 1);
        tx.commit();
    }

    fn effects<const N: usize>(&self, names: [&str; N]) -> [i64; N] {
        names.map(|name| self.database.get(name))
    }
}

const LONG: Duration = Duration::from_secs(600);
