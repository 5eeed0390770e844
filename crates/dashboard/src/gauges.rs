//! What the database counts, for those who watch by metrics.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use metrics::Gauge;
use semel_core::admin::{State, Stats};
use semel_core::insight::LogView;
use semel_core::telemetry::{self, Metric};

use crate::pipeline::Pipeline;

/// What is told of each pipeline in this process. After another configuration two tell of it for a
/// moment.
static KNOWN: Mutex<BTreeMap<String, Known>> = Mutex::new(BTreeMap::new());

#[derive(Default)]
struct Known {
    tellers: usize,
    gauges: BTreeMap<(&'static str, Option<State>), Gauge>,
}

/// One who tells of some pipelines. With the last who does, what was told of a pipeline becomes NaN:
/// nobody knows it any more, and no alert takes that for a number.
pub(crate) struct Gauges(Vec<String>);

impl Gauges {
    pub(crate) fn of(pipelines: &[Pipeline]) -> Self {
        let names: Vec<_> = pipelines.iter().map(|pipeline| pipeline.name.clone()).collect();
        let mut known = known();
        for name in &names {
            known.entry(name.clone()).or_default().tellers += 1;
        }
        Self(names)
    }

    pub(crate) fn tell(&self, pipeline: &str, stats: &Stats, log: Option<&LogView>) {
        if let Some(known) = known().get_mut(pipeline) {
            known.count(pipeline, stats);
            known.measure(pipeline, log);
        }
    }
}

impl Drop for Gauges {
    fn drop(&mut self) {
        let mut known = known();
        for name in &self.0 {
            let Some(told) = known.get_mut(name) else { continue };
            told.tellers -= 1;
            if told.tellers == 0 {
                told.gauges.values().for_each(|gauge| gauge.set(f64::NAN));
                known.remove(name);
            }
        }
    }
}

impl Known {
    fn count(&mut self, pipeline: &str, stats: &Stats) {
        for state in [State::Pending, State::Publishing, State::Failed, State::Dead] {
            self.set(pipeline, telemetry::BACKLOG_EVENTS, Some(state), stats.count(state) as f64);
        }
        let oldest = stats.oldest_pending.unwrap_or_default();
        self.set(pipeline, telemetry::OLDEST_PENDING_AGE, None, oldest.as_secs_f64());
        self.set(pipeline, telemetry::PARKED_AGGREGATES, None, stats.parked_lanes as f64);
    }

    /// A slot that was given back keeps nothing any more; where there never was one, nothing is said.
    fn measure(&mut self, pipeline: &str, log: Option<&LogView>) {
        const RETAINED: Metric = telemetry::SLOT_RETAINED_BYTES;
        let Some(log) = log else {
            if self.gauges.contains_key(&(RETAINED.name, None)) {
                self.set(pipeline, RETAINED, None, 0.0);
            }
            return;
        };
        self.set(pipeline, RETAINED, None, log.retained_bytes.unwrap_or(0) as f64);
        if let Some(limit) = log.limit_bytes {
            self.set(pipeline, telemetry::SLOT_LIMIT_BYTES, None, limit as f64);
        }
    }

    fn set(&mut self, pipeline: &str, metric: Metric, state: Option<State>, value: f64) {
        let named = || {
            let (name, pipeline) = (metric.name, pipeline.to_owned());
            match state {
                None => metrics::gauge!(name, "pipeline" => pipeline),
                Some(state) => {
                    metrics::gauge!(name, "pipeline" => pipeline, "state" => state.as_str())
                }
            }
        };
        self.gauges.entry((metric.name, state)).or_insert_with(named).set(value);
    }
}

fn known() -> MutexGuard<'static, BTreeMap<String, Known>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}
