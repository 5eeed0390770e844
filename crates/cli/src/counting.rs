//! What a process counts, in the format of Prometheus.

use std::sync::{Mutex, PoisonError};

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use semel_core::Failure;
use semel_core::telemetry::{self, Kind};

/// Bounds for spans of time, in seconds.
const SPANS: &[f64] =
    &[0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0];

/// Begins to count, for this process as a whole; who asks again gets the same numbers.
pub(crate) fn install() -> Result<PrometheusHandle, Failure> {
    static COUNTING: Mutex<Option<PrometheusHandle>> = Mutex::new(None);
    let mut counting = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handle) = &*counting {
        return Ok(handle.clone());
    }
    let handle = begin()?;
    *counting = Some(handle.clone());
    Ok(handle)
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
