//! Records what [`semel_core::telemetry`] names.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram};
use semel_core::telemetry::{self, Metric};
use semel_core::{Fault, Message, Timestamp};

/// The numbers of one pipeline.
pub(crate) struct PipelineMetrics {
    pipeline: String,
    read: Counter,
    published: Counter,
    dead: Counter,
    released: Counter,
    ownership_lost: Counter,
    in_flight_events: Gauge,
    in_flight_bytes: Gauge,
    sink_up: Gauge,
    source_up: Gauge,
    latency: Histogram,
    publish_duration: Histogram,
}

impl PipelineMetrics {
    pub(crate) fn new(pipeline: &str) -> Self {
        let pipeline = pipeline.to_owned();
        let counter =
            |metric: Metric| metrics::counter!(metric.name, "pipeline" => pipeline.clone());
        let gauge = |metric: Metric| metrics::gauge!(metric.name, "pipeline" => pipeline.clone());
        let histogram =
            |metric: Metric| metrics::histogram!(metric.name, "pipeline" => pipeline.clone());
        Self {
            read: counter(telemetry::EVENTS_READ),
            published: counter(telemetry::EVENTS_PUBLISHED),
            dead: counter(telemetry::EVENTS_DEAD),
            released: counter(telemetry::EVENTS_RELEASED),
            ownership_lost: counter(telemetry::OWNERSHIP_LOST),
            in_flight_events: gauge(telemetry::IN_FLIGHT_EVENTS),
            in_flight_bytes: gauge(telemetry::IN_FLIGHT_BYTES),
            sink_up: gauge(telemetry::SINK_UP),
            source_up: gauge(telemetry::SOURCE_UP),
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

    #[expect(clippy::cast_precision_loss, reason = "gauges are doubles")]
    pub(crate) fn in_flight(&self, events: usize, bytes: usize) {
        self.in_flight_events.set(events as f64);
        self.in_flight_bytes.set(bytes as f64);
    }

    pub(crate) fn sink_up(&self, up: bool) {
        self.sink_up.set(f64::from(u8::from(up)));
    }

    pub(crate) fn source_up(&self, up: bool) {
        self.source_up.set(f64::from(u8::from(up)));
    }
}
