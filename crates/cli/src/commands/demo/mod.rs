//! `semel demo`: the whole story in one process, with real databases and real crashes.
//!
//! An order service, a relay and three consumers work as processes of their own would: each opens
//! its own files, and loses everything it had in memory when it is killed. At the end the rows are
//! counted ([`check`]), and the exit code says whether everything took effect once.
//!
//! | file | what it does |
//! |---|---|
//! | `service.rs` | orders and their events, in one transaction |
//! | `consumers.rs` | payments, inventory, notifications |
//! | `faults.rs` | kills, lost replies, repeated deliveries |
//! | `check.rs` | counts the rows and judges |
//! | `view.rs` | what the user sees |

mod check;
mod consumers;
mod databases;
mod faults;
mod service;
mod view;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use semel_core::memory::MemoryBroker;
use semel_core::{Clock, Failure, Sink, Source, SystemClock};
use semel_relay::{Consumer, Relay, Routed, Settings, Stop, Stopper};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use self::check::Judge;
use self::consumers::{Department, WitnessedInbox};
use self::databases::Databases;
use self::faults::{LastMishap, Mishaps, Repeating, Unreliable, survive};
use self::service::Customers;
use self::view::{Damage, View};
use crate::args::DemoOptions;
use crate::exit::{Exit, Problem};
use crate::signals::requests_to_end;

const RELAY: &str = "relay";

pub(crate) async fn run(options: &DemoOptions) -> Result<Exit, Problem> {
    let place = "semel demo, in a temporary folder";
    let effect = "no data of yours is involved";
    Box::pin(play(options)).await.map_err(|failure| Problem::new(failure, place, effect))
}

async fn play(options: &DemoOptions) -> Result<Exit, Failure> {
    let (start, started_at) = (Instant::now(), SystemClock.now());
    let (close, closing) = watch::channel(false);
    let stage = Arc::new(Stage::set_up(options, closing).await?);
    let mut view = View::new(start);
    view.opening(options, stage.databases.folder());

    let mut judge = Judge::open(&stage.databases).await?;
    let mut story = tokio::spawn(Arc::clone(&stage).tell());
    let mut requests = requests_to_end();
    let mut frames = interval(View::FRAME);
    frames.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            ended = &mut story => break ended.map_err(panicked)??,
            _ = frames.tick() => {
                let findings = judge.count(&stage.broker).await?;
                view.progress(&findings, options.orders, &stage.damage());
            }
            Some(()) = requests.recv() => {
                if close.send_replace(true) {
                    return Ok(Exit::Interrupted);
                }
                view.note("Closing: what is on its way is finished; ctrl-C again leaves at once.");
            }
        }
    }
    let findings = judge.judge(&stage.broker).await?;
    let delay = findings.first_delivery.map(|at| at - started_at.as_millisecond());
    view.finish(&findings, &stage.damage(), delay);
    if options.keep {
        view.note(&format!("\nThe databases are in {}", stage.databases.folder().display()));
    }
    Ok(if findings.are_good() { Exit::Done } else { Exit::Problems })
}

/// Everything that outlives the processes: files, broker, customers, and bad luck.
struct Stage {
    databases: Databases,
    broker: MemoryBroker,
    customers: Customers,
    service: Arc<Mishaps>,
    relay: Arc<Mishaps>,
    departments: [Arc<Mishaps>; 3],
    last: Arc<LastMishap>,
}

impl Stage {
    async fn set_up(
        options: &DemoOptions,
        closing: watch::Receiver<bool>,
    ) -> Result<Self, Failure> {
        let DemoOptions { orders, seed, faults, keep } = *options;
        let last = Arc::new(LastMishap::default());
        let mishaps = |name| Arc::new(Mishaps::new(name, faults, seed, &last));
        Ok(Self {
            databases: Databases::create(keep).await?,
            broker: MemoryBroker::new(),
            customers: Customers::new(seed, orders, keep, closing),
            service: mishaps("order service"),
            relay: mishaps(RELAY),
            departments: Department::ALL.map(|department| mishaps(department.name())),
            last,
        })
    }

    /// From the first order to the last effect. Whoever comes later in the chain ends later, so
    /// that nothing is left on the way.
    async fn tell(self: Arc<Self>) -> Result<(), Failure> {
        let (stop_relay, relay_stop) = Stop::new();
        let (stop_consumers, consumer_stop) = Stop::new();
        let service = spawn(Arc::clone(&self).run_service(), Some(stop_relay));
        let relay = spawn(Arc::clone(&self).run_relay(relay_stop), Some(stop_consumers));
        let [payments, inventory, notifications] = Department::ALL
            .map(|each| spawn(Arc::clone(&self).run_consumer(each, consumer_stop.clone()), None));
        tokio::try_join!(service, relay, payments, inventory, notifications)?;
        Ok(())
    }

    async fn run_service(self: Arc<Self>) -> Result<(), Failure> {
        survive(&self.service, || service::live(&self.databases, &self.customers, &self.service))
            .await
    }

    async fn run_relay(self: Arc<Self>, stop: Stop) -> Result<(), Failure> {
        let start = || async {
            let store = self.databases.open(service::NAME).await?;
            let topics = "{aggregate_type}.events".parse()?;
            let sink = Routed::new(self.broker.clone(), topics);
            let sink = Arc::new(Unreliable::new(sink, Arc::clone(&self.relay), "published"));
            relay(RELAY, store.source(RELAY).await?, Arc::clone(&sink)).run(stop.clone()).await?;
            relay(RELAY, store.source(RELAY).await?, sink).drain(Stop::never()).await.map(drop)
        };
        survive(&self.relay, start).await
    }

    async fn run_consumer(
        self: Arc<Self>,
        department: Department,
        stop: Stop,
    ) -> Result<(), Failure> {
        let name = department.name();
        let mishaps = &self.departments[department as usize];
        let source = || {
            let topic = format!("{}.events", service::AGGREGATE);
            Repeating::new(self.broker.subscribe(name, &[&topic]), Arc::clone(mishaps))
        };
        let start = || async {
            let store = self.databases.open(name).await?;
            let consumer = Consumer::new(name, WitnessedInbox(store.inbox()), department);
            let sink = Arc::new(Unreliable::new(consumer, Arc::clone(mishaps), "took effect"));
            relay(name, source(), Arc::clone(&sink)).run(stop.clone()).await?;
            relay(name, source(), sink).drain(Stop::never()).await.map(drop)
        };
        survive(mishaps, start).await
    }

    fn damage(&self) -> Damage {
        let processes = [&self.service, &self.relay].into_iter().chain(&self.departments);
        let kills = processes.map(|mishaps| (mishaps.process(), mishaps.kills()));
        Damage { kills: kills.collect(), last: self.last.read() }
    }
}

fn relay(name: &str, source: impl Source + 'static, sink: impl Sink + 'static) -> Relay {
    let settings = Settings {
        poll_interval: Duration::from_millis(10),
        batch_events: 50,
        in_flight_events: 200,
        ..Settings::default()
    };
    Relay::new(name, source, sink).with_settings(settings)
}

/// Runs a process on any thread; when it has ended, the next in the chain may.
async fn spawn(
    process: impl Future<Output = Result<(), Failure>> + Send + 'static,
    next: Option<Stopper>,
) -> Result<(), Failure> {
    tokio::spawn(process).await.map_err(panicked)??;
    if let Some(next) = next {
        next.stop();
    }
    Ok(())
}

fn panicked(error: tokio::task::JoinError) -> Failure {
    Failure::refused("E-DEMO-PANIC", "a process of the demo panicked").with_source(error)
}
