//! Counts what clients are answered.

use http::StatusCode;
use metrics::{Counter, counter};
use semel_core::telemetry::PROXY_REQUESTS;

/// A counter for each class of statuses. They are looked up once, and not for every answer.
pub(super) struct Answers([Counter; 5]);

impl Answers {
    /// Counted by the recorder that is installed now.
    pub(super) fn new() -> Self {
        let classes = ["1xx", "2xx", "3xx", "4xx", "5xx"];
        Self(classes.map(|class| counter!(PROXY_REQUESTS.name, "class" => class)))
    }

    pub(super) fn count(&self, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100).clamp(1, 5);
        self.0[class - 1].increment(1);
    }
}
