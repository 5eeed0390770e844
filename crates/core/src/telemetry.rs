//! Every metric semel emits, as a constant with its meaning: the only place with metric names.
//!
//! Names are in base units; labels are bounded (no event ids, no aggregate ids).
//!
//! ```
//! use semel_core::telemetry::{ALL, EVENTS_PUBLISHED};
//! assert!(ALL.contains(&EVENTS_PUBLISHED));
//! assert!(ALL.iter().all(|metric| metric.name.starts_with("semel_")));
//! ```

/// A metric: its name, kind, labels and meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// The name, as it is exported.
    pub name: &'static str,
    /// Counter, gauge or histogram.
    pub kind: Kind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// What it counts or measures.
    pub help: &'static str,
}

/// What kind of metric it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only goes up.
    Counter,
    /// Goes up and down.
    Gauge,
    /// A distribution.
    Histogram,
}

macro_rules! metrics {
    ($($constant:ident, $kind:ident, $name:literal, [$($label:literal),*], $help:literal;)*) => {
        $(#[doc = $help]
        pub const $constant: Metric = Metric {
            name: $name, kind: Kind::$kind, labels: &[$($label),*], help: $help,
        };)*

        /// All metrics, in the order of the documentation.
        pub const ALL: &[Metric] = &[$($constant),*];
    };
}

metrics! {
    EVENTS_READ, Counter, "semel_events_read_total", ["pipeline"],
        "Deliveries taken from the source, repeated ones included.";
    EVENTS_PUBLISHED, Counter, "semel_events_published_total", ["pipeline"],
        "Events the sink confirmed.";
    EVENTS_FAILED, Counter, "semel_events_failed_total", ["pipeline", "fault"],
        "Attempts that failed, by fault.";
    EVENTS_DEAD, Counter, "semel_events_dead_total", ["pipeline"],
        "Events that became dead letters.";
    EVENTS_RELEASED, Counter, "semel_events_released_total", ["pipeline"],
        "Deliveries given back untried, behind a failed event of their lane.";
    BACKLOG_EVENTS, Gauge, "semel_backlog_events", ["pipeline", "state"],
        "Events of the outbox that are not published, by state; as the database counts them, while the page is served.";
    OLDEST_PENDING_AGE, Gauge, "semel_oldest_pending_age_seconds", ["pipeline"],
        "How long the oldest event waits that could be published now, 0 if none does: not one behind a failed or dead event, nor one whose time has not come; while the page is served.";
    PARKED_AGGREGATES, Gauge, "semel_parked_aggregates", ["pipeline"],
        "Aggregates that wait behind a failed or dead event; while the page is served.";
    SLOT_RETAINED_BYTES, Gauge, "semel_slot_retained_bytes", ["pipeline"],
        "Log that the server keeps back for the slot of this pipeline, or for that of messages where the pipeline has none, 0 once there is none; while the page is served.";
    SLOT_LIMIT_BYTES, Gauge, "semel_slot_limit_bytes", ["pipeline"],
        "How much of it there may be before the relay gives the slot back and polls, or before the server removes messages with it; while the page is served.";
    IN_FLIGHT_EVENTS, Gauge, "semel_in_flight_events", ["pipeline"],
        "Events taken from the source and not settled yet, in all shares of this process.";
    IN_FLIGHT_BYTES, Gauge, "semel_in_flight_bytes", ["pipeline"],
        "Bytes of the events taken from the source and not settled yet, in all shares of this process.";
    END_TO_END_LATENCY, Histogram, "semel_end_to_end_latency_seconds", ["pipeline"],
        "From the making of an event to its confirmation by the sink.";
    PUBLISH_DURATION, Histogram, "semel_publish_duration_seconds", ["pipeline"],
        "Time one publish call took.";
    SINK_UP, Gauge, "semel_sink_up", ["pipeline"],
        "1 while the sink can be reached, 0 during an outage, NaN while this process does not work on the pipeline.";
    SOURCE_UP, Gauge, "semel_source_up", ["pipeline"],
        "1 while the source can be reached, 0 during an outage; also where another relay works on the pipeline.";
    SOURCE_TAILING, Gauge, "semel_source_tailing", ["pipeline"],
        "1 while the log tells the source of new events, 0 while it only polls, NaN while this process does not work on the pipeline.";
    SOURCE_HANDOVERS, Counter, "semel_source_handovers_total", ["pipeline", "to"],
        "Changes between the two, by what it changed to: tail or poll.";
    MESSAGES_CARRIED, Gauge, "semel_messages_carried", ["pipeline"],
        "With outbox = \"messages\": 1 while this process carries messages from the log into the outbox, 0 while it should and cannot, NaN while another relay does.";
    OWNERSHIP_LOST, Counter, "semel_ownership_lost_total", ["pipeline"],
        "Times another relay had taken over while this one still held deliveries.";
    INBOX_APPLIED, Counter, "semel_inbox_applied_total", ["consumer"],
        "Messages that took effect.";
    INBOX_DUPLICATES, Counter, "semel_inbox_duplicates_total", ["consumer"],
        "Messages that had taken effect before and were dropped.";
    HANDLER_FAILED, Counter, "semel_handler_failed_total", ["consumer", "fault"],
        "Handler calls that failed, by fault.";
    IDEMPOTENCY_REQUESTS, Counter, "semel_idempotency_requests_total", ["outcome"],
        "Requests that have or need an idempotency key, by outcome; each is counted once.";
    IDEMPOTENCY_OBSERVED, Counter, "semel_idempotency_observed_total", ["outcome"],
        "Requests with an idempotency key that were only observed, by what would have been done.";
    IDEMPOTENCY_RUNNING, Gauge, "semel_idempotency_running_operations", [],
        "Operations under an idempotency key that run now.";
    PROXY_REQUESTS, Counter, "semel_proxy_requests_total", ["class"],
        "Requests the proxy answered, by the first digit of the status.";
    PROXY_UPSTREAM_FAILED, Counter, "semel_proxy_upstream_failed_total", ["how"],
        "Requests the upstream did not answer: unreachable, timeout or lost.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_conventions() {
        for metric in ALL {
            let counter = metric.kind == Kind::Counter;
            assert_eq!(counter, metric.name.ends_with("_total"), "{}", metric.name);
            assert!(metric.help.ends_with('.'), "{}", metric.name);
            assert!(metric.labels.len() <= 2, "{}", metric.name);
        }
    }
}
