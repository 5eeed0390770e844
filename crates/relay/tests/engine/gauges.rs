//! What is said of the present ends with who said it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use semel_core::coordination::{Coordination, Coordinator, Share};
use semel_core::memory::{MemoryDatabase, MemoryGroup};
use semel_core::telemetry::{IN_FLIGHT_EVENTS, Metric, SINK_UP, SOURCE_UP};
use semel_core::{Failure, Published};
use semel_relay::{Group, Relay, Stop};
use semel_testkit::clock::VirtualClock;
use tokio::time::sleep;

use crate::group::CutOff;
use crate::scripted::{Scripted, commit};

const LEASE: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(1);

/// Keeps the gauges, by the name of the metric.
#[derive(Clone, Default)]
struct Gauges(Arc<Mutex<BTreeMap<String, Arc<AtomicU64>>>>);

impl Gauges {
    fn of(&self, metric: Metric) -> f64 {
        f64::from_bits(self.0.lock().unwrap()[metric.name].load(Ordering::Relaxed))
    }

    fn assert(&self, metric: Metric, expected: f64) {
        let told = self.of(metric);
        assert_eq!(told.to_string(), expected.to_string(), "{}", metric.name);
    }

    /// Runs something whose gauges these are.
    fn of_all_in(&self, work: impl Future<Output = ()>) {
        metrics::with_local_recorder(self, || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_time().start_paused(true).build().unwrap().block_on(work);
        });
    }
}

impl Recorder for Gauges {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        let mut gauges = self.0.lock().unwrap();
        Gauge::from_arc(Arc::clone(gauges.entry(key.name().to_owned()).or_default()))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

fn member(
    coordinator: impl Coordinator + 'static,
    coordination: Coordination,
    databases: &[MemoryDatabase],
    sink: &Scripted,
) -> Group {
    let (databases, sink) = (databases.to_vec(), sink.clone());
    Group::new("orders", coordinator, coordination, move |Share { number, .. }| {
        let relay = Relay::new("orders", databases[number as usize].source(), sink.clone());
        async move { Ok(relay) }
    })
}

#[test]
fn in_flight_is_the_sum_of_all_shares() {
    let gauges = Gauges::default();
    let told = gauges.clone();
    gauges.of_all_in(async move {
        let databases = [MemoryDatabase::new(), MemoryDatabase::new()];
        commit(&databases[0], &["a:1", "b:1"]).await;
        commit(&databases[1], &["c:1"]).await;
        let never = Scripted::new(|_| std::future::pending::<Published>());
        let coordination = Coordination::Partitioned { shares: 2 };
        let group = MemoryGroup::new().with_clock(Arc::new(VirtualClock::start()));
        let coordinator = group.join("orders", 2, LEASE);
        let (stopper, stop) = Stop::new();
        let running = tokio::spawn(member(coordinator, coordination, &databases, &never).run(stop));
        sleep(SECOND).await;
        told.assert(IN_FLIGHT_EVENTS, 3.0);
        stopper.stop();
        stopper.stop();
        assert_eq!(running.await.unwrap().unwrap().abandoned, 3);
        told.assert(IN_FLIGHT_EVENTS, 0.0);
    });
}

/// An alert goes by these: one for a relay that is not there any more would never end.
#[test]
fn who_stands_by_or_has_ended_says_nothing_of_the_sink() {
    let gauges = Gauges::default();
    let told = gauges.clone();
    gauges.of_all_in(async move {
        let (sink, cut) = (Scripted::confirming(), Arc::new(AtomicBool::new(false)));
        sink.set_reachable(Err(Failure::unavailable("E-TEST", "connection refused")));
        let group = MemoryGroup::new().with_clock(Arc::new(VirtualClock::start()));
        let mut other = group.join("orders", 1, LEASE);
        let coordinator =
            CutOff { member: group.join("orders", 1, LEASE), cut: Arc::clone(&cut), hangs: false };
        let databases = [MemoryDatabase::new()];
        let leader = member(coordinator, Coordination::Leader, &databases, &sink);
        let (stopper, stop) = Stop::new();
        let running = tokio::spawn(leader.run(stop));
        sleep(SECOND * 5).await;
        told.assert(SOURCE_UP, 1.0);
        told.assert(SINK_UP, 0.0);

        cut.store(true, Ordering::SeqCst);
        sleep(LEASE * 2).await;
        told.assert(SOURCE_UP, 0.0);
        told.assert(SINK_UP, f64::NAN);

        assert_eq!(other.claim(&[0]).await.unwrap(), [0]);
        cut.store(false, Ordering::SeqCst);
        sleep(SECOND * 5).await;
        told.assert(SOURCE_UP, 1.0);
        told.assert(SINK_UP, f64::NAN);

        stopper.stop();
        running.await.unwrap().unwrap();
        told.assert(SOURCE_UP, f64::NAN);
        told.assert(SINK_UP, f64::NAN);
    });
}
