//! What is told of a pipeline ends with the last who looks at it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use semel_core::telemetry::{BACKLOG_EVENTS, PARKED_AGGREGATES, SLOT_RETAINED_BYTES};
use semel_dashboard::{Dashboard, Pipeline};
use tokio::time::timeout;

use crate::orders;

/// Keeps the gauges, by name and labels.
#[derive(Default)]
struct Gauges(Mutex<BTreeMap<String, Arc<AtomicU64>>>);

impl Gauges {
    fn of(&self, name: &str, labels: &str) -> Option<f64> {
        let gauges = self.0.lock().unwrap();
        gauges
            .get(&format!("{name}{labels}"))
            .map(|gauge| f64::from_bits(gauge.load(Ordering::Relaxed)))
    }

    async fn wait_for(&self, name: &str, labels: &str, is_it: impl Fn(f64) -> bool) {
        let told = async {
            while !self.of(name, labels).is_some_and(&is_it) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let patience = Duration::from_secs(60);
        assert!(timeout(patience, told).await.is_ok(), "{name}: {:?}", self.of(name, labels));
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
        let labels: String = key.labels().map(|label| format!(" {}", label.value())).collect();
        let mut gauges = self.0.lock().unwrap();
        Gauge::from_arc(Arc::clone(gauges.entry(format!("{}{labels}", key.name())).or_default()))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// Alerts go by these: one about a pipeline that left with a reload would never end, and one about a
/// pipeline that stayed must not end for a moment.
#[test]
fn a_pipeline_that_left_is_not_told_of_and_one_that_stays_is() {
    let gauges = Gauges::default();
    metrics::with_local_recorder(&gauges, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (database, _) = orders().await;
            let database = Arc::new(database);
            let shown = |names: &[&str]| {
                let all = names.iter().map(|name| Pipeline::new(*name, database.clone()));
                all.fold(Dashboard::new(|| async { Ok(()) }), Dashboard::with)
            };
            let (dead, parked) = (BACKLOG_EVENTS.name, PARKED_AGGREGATES.name);
            let both = shown(&["stays", "leaves"]);
            let before = tokio::spawn(both.watch());
            for name in ["stays", "leaves"] {
                gauges.wait_for(parked, &format!(" {name}"), |parked| parked == 1.0).await;
                gauges.wait_for(dead, &format!(" {name} dead"), |dead| dead == 1.0).await;
            }
            // As after a reload: the new one is asked before the old one ends.
            let after = shown(&["stays"]);
            let watching = after.watch();
            before.abort();
            gauges.wait_for(parked, " leaves", f64::is_nan).await;
            gauges.wait_for(dead, " leaves dead", f64::is_nan).await;
            assert_eq!(gauges.of(dead, " stays dead"), Some(1.0));
            drop(watching);
            gauges.wait_for(dead, " stays dead", f64::is_nan).await;
            assert_eq!(gauges.of(SLOT_RETAINED_BYTES.name, " stays"), None, "there is no log");
        });
    });
}
