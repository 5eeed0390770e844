//! What gauges say during a test.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    with_local_recorder,
};
use semel_core::telemetry::Metric;

use super::tail::PATIENCE;

/// The gauges of all pipelines.
#[derive(Clone, Default)]
pub(super) struct Gauges(Arc<Mutex<ByName>>);

/// By metric and pipeline.
type ByName = BTreeMap<(String, String), Arc<AtomicU64>>;

impl Gauges {
    /// Runs a test, in one thread: others have numbers of their own.
    pub(super) fn of<F: Future<Output = ()>>(test: impl FnOnce(Self) -> F) {
        let gauges = Self::default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        with_local_recorder(&gauges, || runtime.block_on(test(gauges.clone())));
    }

    /// None if nothing was ever said.
    pub(super) fn told(&self, metric: Metric, pipeline: &str) -> Option<f64> {
        let all = self.0.lock().unwrap();
        let gauge = all.get(&(metric.name.to_owned(), pipeline.to_owned()))?;
        Some(f64::from_bits(gauge.load(Ordering::Relaxed)))
    }

    pub(super) async fn until(&self, metric: Metric, pipeline: &str, value: f64) {
        let began = Instant::now();
        while self.told(metric, pipeline) != Some(value) {
            let told = self.told(metric, pipeline);
            assert!(began.elapsed() < PATIENCE, "{pipeline}: {told:?} and never {value}");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
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
        let pipeline = key.labels().find(|label| label.key() == "pipeline");
        let pipeline = pipeline.map(|label| label.value().to_owned()).unwrap_or_default();
        let mut all = self.0.lock().unwrap();
        Gauge::from_arc(Arc::clone(all.entry((key.name().to_owned(), pipeline)).or_default()))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
