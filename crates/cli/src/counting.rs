//! What a process counts, in the format of Prometheus.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use semel_core::Failure;
use semel_core::telemetry::{self, Kind};
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// Bounds for spans of time, in seconds.
const SPANS: &[f64] =
    &[0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0];

/// The numbers, and who keeps them small for as long as somebody counts: whether or not they are read.
static COUNTING: Mutex<Option<(PrometheusHandle, JoinHandle<()>)>> = Mutex::new(None);

/// Begins to count, for this process as a whole; who asks again gets the same numbers. Only what is
/// made afterwards is counted. Asked for in a runtime, which lives as long as the process.
pub(crate) fn install() -> Result<PrometheusHandle, Failure> {
    let mut counting = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((handle, _)) = &*counting {
        return Ok(handle.clone());
    }
    let handle = begin()?;
    *counting = Some((handle.clone(), tokio::spawn(tidy(handle.clone()))));
    Ok(handle)
}

/// What was measured long ago must not fill the memory.
async fn tidy(metrics: PrometheusHandle) {
    loop {
        sleep(Duration::from_secs(5)).await;
        metrics.run_upkeep();
    }
}

#[cfg(all(test, feature = "page"))]
pub(crate) fn is_tidied() -> bool {
    let counting = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    counting.as_ref().is_some_and(|(_, tidying)| !tidying.is_finished())
}

fn begin() -> Result<PrometheusHandle, Failure> {
    let failed = |error| Failure::misconfigured("E-METRICS", "cannot count").with_source(error);
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), SPANS)
        .map_err(failed)?;
    let handle = builder.install_recorder().map_err(failed)?;
    for metric in telemetry::ALL {
        match metric.kind {
            Kind::Counter => metrics::describe_counter!(metric.name, metric.help),
            Kind::Gauge => metrics::describe_gauge!(metric.name, metric.help),
            Kind::Histogram => metrics::describe_histogram!(metric.name, metric.help),
        }
    }
    Ok(handle)
}
