//! Records what [`semel_core::telemetry`] names.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram};
use semel_core::telemetry::{self, Metric};
use semel_core::{Fault, Message, Timestamp};

/// The numbers of one pipeline, as one relay knows them. When it ends, what it said of the present
/// is taken back: what it had in flight, and whether it reached both sides.
pub(crate) struct PipelineMetrics {
    pipeline: String,
    read: Counter,
    published: Counter,
    dead: Counter,
    released: Counter,
    ownership_lost: Counter,
    in_flight_events: Part,
    in_flight_bytes: Part,
    sink: Witness,
    source: Witness,
    latency: Histogram,
    publish_duration: Histogram,
}

impl PipelineMetrics {
    pub(crate) fn new(pipeline: &str, reach: &Reach) -> Self {
        let pipeline = pipeline.to_owned();
        let counter =
            |metric: Metric| metrics::counter!(metric.name, "pipeline" => pipeline.clone());
        let histogram =
            |metric: Metric| metrics::histogram!(metric.name, "pipeline" => pipeline.clone());
        Self {
            read: counter(telemetry::EVENTS_READ),
            published: counter(telemetry::EVENTS_PUBLISHED),
            dead: counter(telemetry::EVENTS_DEAD),
            released: counter(telemetry::EVENTS_RELEASED),
            ownership_lost: counter(telemetry::OWNERSHIP_LOST),
            in_flight_events: Part::of(gauge(telemetry::IN_FLIGHT_EVENTS, &pipeline)),
            in_flight_bytes: Part::of(gauge(telemetry::IN_FLIGHT_BYTES, &pipeline)),
            sink: reach.sink(&pipeline),
            source: reach.source(&pipeline),
            latency: histogram(telemetry::END_TO_END_LATENCY),
            publish_duration: histogram(telemetry::PUBLISH_DURATION),
            pipeline,
        }
    }

    pub(crate) fn read(&self, count: usize) {
        self.read.increment(count as u64);
    }

    pub(crate) fn published(&self, messages: &[Message], now: Timestamp) {
        self.published.increment(messages.len() as u64);
        for message in messages {
            let age = now.duration_since(message.event.created_at);
            self.latency.record(age.as_secs_f64().max(0.0));
        }
    }

    pub(crate) fn publish_took(&self, time: Duration) {
        self.publish_duration.record(time);
    }

    pub(crate) fn failed(&self, fault: Fault) {
        let name = telemetry::EVENTS_FAILED.name;
        let pipeline = self.pipeline.clone();
        metrics::counter!(name, "pipeline" => pipeline, "fault" => fault.as_str()).increment(1);
    }

    pub(crate) fn dead(&self) {
        self.dead.increment(1);
    }

    pub(crate) fn released(&self, count: usize) {
        self.released.increment(count as u64);
    }

    pub(crate) fn ownership_lost(&self) {
        self.ownership_lost.increment(1);
    }

    pub(crate) fn in_flight(&mut self, events: usize, bytes: usize) {
        self.in_flight_events.becomes(events);
        self.in_flight_bytes.becomes(bytes);
    }

    pub(crate) fn sink_up(&mut self, up: bool) {
        self.sink.says(up);
    }

    pub(crate) fn source_up(&mut self, up: bool) {
        self.source.says(up);
    }
}

fn gauge(metric: Metric, pipeline: &str) -> Gauge {
    metrics::gauge!(metric.name, "pipeline" => pipeline.to_owned())
}

/// What one relay adds to a gauge that several share.
struct Part {
    gauge: Gauge,
    added: f64,
}

impl Part {
    const fn of(gauge: Gauge) -> Self {
        Self { gauge, added: 0.0 }
    }

    #[expect(clippy::cast_precision_loss, reason = "gauges are doubles")]
    fn becomes(&mut self, amount: usize) {
        let amount = amount as f64;
        self.gauge.increment(amount - self.added);
        self.added = amount;
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.becomes(0);
    }
}

/// Whether both sides of a pipeline are reached, as all in this process say who work on it.
#[derive(Clone, Default)]
pub(crate) struct Reach {
    sink: Arc<Mutex<Said>>,
    source: Arc<Mutex<Said>>,
}

impl Reach {
    fn sink(&self, pipeline: &str) -> Witness {
        Witness::new(gauge(telemetry::SINK_UP, pipeline), &self.sink)
    }

    pub(crate) fn source(&self, pipeline: &str) -> Witness {
        Witness::new(gauge(telemetry::SOURCE_UP, pipeline), &self.source)
    }
}

/// How many say that something is reached, and how many that it is not.
#[derive(Default)]
struct Said {
    up: usize,
    down: usize,
}

impl Said {
    fn count(&mut self, up: bool) -> &mut usize {
        if up { &mut self.up } else { &mut self.down }
    }

    /// One who does not reach it is enough for an alert, and nobody who knows is enough for none: NaN
    /// is neither 0 nor 1.
    const fn value(&self) -> f64 {
        match (self.up, self.down) {
            (0, 0) => f64::NAN,
            (_, 0) => 1.0,
            _ => 0.0,
        }
    }
}

/// One who says whether something is reached; with it goes what it said.
pub(crate) struct Witness {
    gauge: Gauge,
    all: Arc<Mutex<Said>>,
    said: Option<bool>,
}

impl Witness {
    fn new(gauge: Gauge, all: &Arc<Mutex<Said>>) -> Self {
        let mut witness = Self { gauge, all: Arc::clone(all), said: None };
        witness.tell(None);
        witness
    }

    pub(crate) fn says(&mut self, up: bool) {
        if self.said != Some(up) {
            self.tell(Some(up));
        }
    }

    fn tell(&mut self, now: Option<bool>) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = std::mem::replace(&mut self.said, now) {
            *all.count(before) -= 1;
        }
        if let Some(up) = now {
            *all.count(up) += 1;
        }
        self.gauge.set(all.value());
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.tell(None);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicU64, Ordering};

    use metrics::{Key, KeyName, Metadata, Recorder, SharedString, Unit};

    use super::*;

    /// Keeps the gauges, by the name of the metric.
    #[derive(Default)]
    struct Gauges(Mutex<BTreeMap<String, Arc<AtomicU64>>>);

    impl Gauges {
        fn of(&self, metric: Metric) -> f64 {
            f64::from_bits(self.0.lock().unwrap()[metric.name].load(Ordering::Relaxed))
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

    /// The shares of a pipeline in one process have one gauge.
    #[test]
    fn in_flight_is_what_all_shares_have() {
        let gauges = Gauges::default();
        metrics::with_local_recorder(&gauges, || {
            let reach = Reach::default();
            let [mut one, mut other] = [(); 2].map(|()| PipelineMetrics::new("orders", &reach));
            let told =
                || (gauges.of(telemetry::IN_FLIGHT_EVENTS), gauges.of(telemetry::IN_FLIGHT_BYTES));
            one.in_flight(3, 300);
            other.in_flight(4, 40);
            assert_eq!(told(), (7.0, 340.0));
            one.in_flight(1, 100);
            assert_eq!(told(), (5.0, 140.0));
            drop(one);
            assert_eq!(told(), (4.0, 40.0));
            drop(other);
            assert_eq!(told(), (0.0, 0.0));
        });
    }

    #[test]
    fn a_side_is_down_while_one_says_so_and_unknown_when_nobody_is_left() {
        let gauges = Gauges::default();
        metrics::with_local_recorder(&gauges, || {
            let reach = Reach::default();
            let [mut one, mut other] = [(); 2].map(|()| PipelineMetrics::new("orders", &reach));
            let told = || (gauges.of(telemetry::SINK_UP), gauges.of(telemetry::SOURCE_UP));
            assert!(told().0.is_nan() && told().1.is_nan(), "{:?}", told());
            one.source_up(true);
            one.sink_up(false);
            other.sink_up(true);
            assert_eq!(told(), (0.0, 1.0));
            other.source_up(false);
            assert_eq!(told(), (0.0, 0.0));
            drop(one);
            assert_eq!(told(), (1.0, 0.0), "what one said went with it");
            drop(other);
            assert!(told().0.is_nan() && told().1.is_nan(), "{:?}", told());
        });
    }
}
