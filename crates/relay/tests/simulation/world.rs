//! One run: writers, relays, a broker, consumers, an operator; and everything that befalls them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use semel_core::admin::{AdminStore, Filter, Selection, State};
use semel_core::memory::{MemoryBroker, MemoryDatabase, MemoryTx};
use semel_core::{
    Clock, Event, EventId, Failure, LaneKey, Message, OutboxWriter, Published, Sink, Source,
    Timestamp, Verdict,
};
use semel_relay::{Consumer, Relay, Report, Settings, Stop, handler_fn};
use semel_testkit::clock::VirtualClock;
use semel_testkit::faults::{Chaos, FaultyInbox, FaultySink, FaultySource, Tally};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::check::check;
use crate::mutants::{Mutant, WrongInbox};
use crate::plan::Plan;

/// What came of a run, or of many.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) violations: Vec<String>,
    pub(crate) events: u64,
    pub(crate) crashes: u64,
    pub(crate) faults: Tally,
}

impl Outcome {
    pub(crate) fn add(&mut self, seed: u64, other: Self) {
        let named = other.violations.into_iter().map(|what| format!("seed {seed}: {what}"));
        self.violations.extend(named.take(3));
        self.events += other.events;
        self.crashes += other.crashes;
        self.faults = add(self.faults, other.faults);
    }
}

fn add(a: Tally, b: Tally) -> Tally {
    Tally {
        failed: a.failed + b.failed,
        lied: a.lied + b.lied,
        hung: a.hung + b.hung,
        doubled: a.doubled + b.doubled,
        stumbled: a.stumbled + b.stumbled,
        outages: a.outages + b.outages,
        repeatable: a.repeatable + b.repeatable,
    }
}

/// Everything there is in a run, shared by its tasks.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) mutant: Option<Mutant>,
    pub(crate) clock: Arc<VirtualClock>,
    pub(crate) orders: MemoryDatabase,
    pub(crate) broker: MemoryBroker,
    pub(crate) effects: MemoryDatabase,
    pub(crate) outward: Arc<Chaos>,
    pub(crate) inward: Arc<Chaos>,
    pub(crate) notes: Arc<Mutex<Notes>>,
}

/// The two uses of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Half {
    Relay = 1,
    Consumer = 2,
}

/// What the run knows and the engine does not.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// In commit order.
    pub(crate) committed: Vec<Arc<Event>>,
    /// Refused by the broker at some time, and still.
    pub(crate) poison: BTreeSet<EventId>,
    pub(crate) refused_by_broker: BTreeSet<EventId>,
    pub(crate) refused_by_handler: BTreeSet<EventId>,
    pub(crate) died: BTreeSet<EventId>,
    pub(crate) discarded: BTreeSet<EventId>,
    pub(crate) arrived_at: BTreeMap<EventId, Timestamp>,
    pub(crate) crashes: u64,
    /// Relays (not consumers) that ended without settling everything.
    pub(crate) unsettled_relays: u64,
    pub(crate) stuck: Option<&'static str>,
}

pub(crate) async fn run(plan: Plan, mutant: Option<Mutant>) -> Outcome {
    let clock = Arc::new(VirtualClock::start());
    let world = World {
        orders: MemoryDatabase::with_clock(clock.clone()),
        broker: MemoryBroker::new(),
        effects: MemoryDatabase::with_clock(clock.clone()),
        outward: Arc::new(Chaos::new(plan.seed, plan.odds)),
        inward: Arc::new(Chaos::new(!plan.seed, plan.odds)),
        notes: Arc::default(),
        clock,
        plan,
        mutant,
    };
    world.live_through_faults().await;
    world.settle_down().await;
    let faults = add(world.outward.tally(), world.inward.tally());
    let violations = check(&world);
    let notes = world.notes();
    let events = notes.committed.len() as u64;
    Outcome { violations, events, crashes: notes.crashes, faults }
}

impl World {
    pub(crate) fn notes(&self) -> std::sync::MutexGuard<'_, Notes> {
        self.notes.lock().expect("no task panics while it notes")
    }

    /// Writers write while relays and consumers come and go.
    async fn live_through_faults(&self) {
        let mut tasks = JoinSet::new();
        let (relays, consumers) = (self.clone(), self.clone());
        tasks.spawn(async move { relays.come_and_go(Half::Relay).await });
        tasks.spawn(async move { consumers.come_and_go(Half::Consumer).await });
        self.write().await;
        // Long enough for what is scheduled, so that a quiet run ends with nothing in flight.
        sleep(Duration::from_secs(4)).await;
    }

    async fn write(&self) {
        let mut random = StdRng::seed_from_u64(self.plan.seed ^ 0x0717);
        let mut numbers: BTreeMap<u64, u64> = BTreeMap::new();
        let mut made = 0;
        for _ in 0..self.plan.transactions {
            let mut events = Vec::new();
            let mut tx = self.orders.begin().await;
            for _ in 0..random.random_range(1..=3) {
                made += 1;
                let lane = random.random_range(0..self.plan.lanes);
                let number = numbers.entry(lane).or_default();
                *number += 1;
                let id = EventId::numbered(self.clock.now(), made);
                let mut event = Event::with_id(id, "order", lane.to_string(), "Changed")
                    .with_bytes("text/plain", format!("{lane}:{number}"));
                if random.random_ratio(1, 25) {
                    let wait = Duration::from_millis(random.random_range(0..3000));
                    event = event.available_at(semel_core::retry::later(self.clock.now(), wait));
                }
                events.push(event);
            }
            self.orders.append(&mut tx, &events).await.expect("new keys");
            sleep(Duration::from_millis(random.random_range(0..150))).await;
            if random.random_ratio(1, 7) {
                drop(tx);
                continue;
            }
            tx.commit();
            let mut notes = self.notes();
            for event in events {
                if random.random_range(0..1000) < self.plan.poison {
                    notes.refused_by_broker.insert(event.id);
                    notes.poison.insert(event.id);
                } else if random.random_range(0..1000) < self.plan.poison {
                    notes.refused_by_handler.insert(event.id);
                }
                notes.committed.push(Arc::new(event));
            }
        }
    }

    /// Starts relays one after another: each is killed, stopped, or left behind while the next one
    /// takes over.
    async fn come_and_go(&self, half: Half) {
        let mut random = StdRng::seed_from_u64(self.plan.seed ^ half as u64);
        let mut zombies = JoinSet::new();
        loop {
            let (stopper, stop) = Stop::new();
            let mut running: JoinSet<Result<Report, Failure>> = JoinSet::new();
            let relay = match half {
                Half::Relay => self.relay(),
                Half::Consumer => self.consumer(),
            };
            running.spawn(relay.run(stop));
            if !self.plan.crashes {
                running.join_next().await;
                self.notes().stuck = Some("a relay gave up");
                return;
            }
            sleep(Duration::from_millis(random.random_range(1..2500))).await;
            match random.random_range(0..4) {
                0 | 1 => {
                    running.abort_all();
                    self.ended_without_settling(half);
                }
                2 => {
                    stopper.stop();
                    let stopped = running.join_next().await.expect("one relay");
                    if let Ok(Ok(report)) = stopped
                        && report.abandoned > 0
                    {
                        self.ended_without_settling(half);
                    }
                }
                _ => {
                    let rest = Duration::from_millis(random.random_range(1..4000));
                    zombies.spawn(async move {
                        sleep(rest).await;
                        drop(running);
                    });
                    self.ended_without_settling(half);
                }
            }
        }
    }

    fn ended_without_settling(&self, half: Half) {
        let mut notes = self.notes();
        notes.crashes += 1;
        notes.unsettled_relays += u64::from(half == Half::Relay);
    }

    /// The faults are over: everything must come to rest, with an operator's help for the dead.
    async fn settle_down(&self) {
        const LONG: Duration = Duration::from_secs(3600);
        self.outward.calm();
        self.inward.calm();
        sleep(Duration::from_secs(5)).await;
        self.ended_without_settling(Half::Relay);
        for _ in 0..200 {
            if timeout(LONG, self.relay().drain(Stop::never())).await.is_err() {
                self.notes().stuck = Some("the relay made no progress");
                return;
            }
            if self.attend_to_the_dead().await == 0 && self.orders_are_quiet().await {
                break;
            }
            sleep(Duration::from_millis(500)).await;
        }
        if timeout(LONG, self.consumer().drain(Stop::never())).await.is_err() {
            self.notes().stuck = Some("the consumer made no progress");
        }
    }

    async fn orders_are_quiet(&self) -> bool {
        let stats = self.orders.stats().await.expect("memory");
        stats.count(State::Pending) + stats.count(State::Failed) == 0
    }

    /// Cures and retries some dead letters, discards the others.
    async fn attend_to_the_dead(&self) -> usize {
        let dead = Filter { state: Some(State::Dead), ..Filter::default() };
        let dead = self.orders.list(&dead, None, 1000).await.expect("memory").events;
        for view in &dead {
            let id = view.event.id;
            let one = Selection::Ids(vec![id]);
            self.notes().died.insert(id);
            if id.as_uuid().as_u128().is_multiple_of(2) {
                self.notes().discarded.insert(id);
                self.orders.discard(&one).await.expect("memory");
            } else {
                self.notes().refused_by_broker.remove(&id);
                self.orders.retry(&one).await.expect("memory");
            }
        }
        dead.len()
    }

    fn relay(&self) -> Relay {
        let source = FaultySource::new(self.orders.source(), Arc::clone(&self.outward));
        let broker = Broker { world: self.clone() };
        let sink = FaultySink::new(broker, Arc::clone(&self.outward));
        self.build("relay", Mutant::wrong_source(self.mutant, source), sink)
    }

    fn consumer(&self) -> Relay {
        let source = self.broker.subscribe("payments", &[]);
        let source = FaultySource::new(source, Arc::clone(&self.inward));
        let inbox = WrongInbox::new(self.effects.clone(), self.mutant);
        let inbox = FaultyInbox::new(inbox, Arc::clone(&self.inward));
        let world = self.clone();
        let handler = handler_fn(move |tx: &mut MemoryTx, message: &Message| {
            let result = world.take_effect(tx, message);
            Box::pin(std::future::ready(result.map_err(Into::into)))
        });
        let consumer = Consumer::new("payments", inbox, handler);
        self.build("consumer", Box::new(source), consumer)
    }

    fn build(&self, name: &str, source: Box<dyn Source>, sink: impl Sink + 'static) -> Relay {
        let settings = Settings {
            mutation: self.mutant.and_then(Mutant::in_engine),
            ..self.plan.settings.clone()
        };
        Relay::new(name, source, Mutant::wrong_sink(self.mutant, name, sink))
            .with_settings(settings)
            .with_clock(self.clock.clone())
    }

    /// Not idempotent: done twice, it shows.
    fn take_effect(&self, tx: &mut MemoryTx, message: &Message) -> Result<bytes::Bytes, Failure> {
        let id = message.event.id;
        if self.notes().refused_by_handler.contains(&id) {
            return Err(Failure::refused("E-POISON", "the handler refuses it"));
        }
        tx.add(format!("effect {id}"), 1);
        tx.add("effects", 1);
        let place = tx.get("effects");
        tx.add(format!("place {id}"), place);
        if self.inward.stumbles(id) {
            return Err(Failure::transient("E-CHAOS", "the handler stumbled"));
        }
        Ok(bytes::Bytes::new())
    }
}

/// The broker, which refuses poison and notes when things arrive.
struct Broker {
    world: World,
}

#[async_trait]
impl Sink for Broker {
    async fn publish(&self, batch: &[Message]) -> Published {
        let (mut sent, mut verdicts) = (Vec::new(), Vec::new());
        let mut stopped: BTreeSet<LaneKey> = BTreeSet::new();
        {
            let mut notes = self.world.notes();
            for message in batch {
                let (id, lane) = (message.event.id, message.event.lane_key());
                verdicts.push(if stopped.contains(&lane) {
                    Verdict::Behind
                } else if notes.refused_by_broker.contains(&id) {
                    stopped.insert(lane);
                    Verdict::Failed(Failure::refused("E-POISON", "the broker refuses it"))
                } else {
                    notes.arrived_at.entry(id).or_insert_with(|| self.world.clock.now());
                    sent.push(message.clone());
                    Verdict::Confirmed
                });
            }
        }
        self.world.broker.publish(&sent).await;
        Published::Each(verdicts)
    }

    async fn check(&self) -> Result<(), Failure> {
        Ok(())
    }
}
