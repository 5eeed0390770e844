//! Which trace an operation ran in, so that its replays can point there.

use http::{HeaderMap, HeaderValue};
use semel_core::Headers;

/// The trace of the request that ran: what a W3C `traceparent` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FirstTrace(HeaderValue);

impl FirstTrace {
    /// Longer ones are of a version that is not known here.
    const MAX_BYTES: usize = 255;

    /// The trace that a request says it belongs to.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        headers.get(Headers::TRACEPARENT).cloned().and_then(Self::from_value)
    }

    pub(crate) fn from_value(value: HeaderValue) -> Option<Self> {
        let is_plain = value.len() <= Self::MAX_BYTES && value.to_str().is_ok();
        is_plain.then_some(Self(value))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Leaves a span for a replay, in the trace of the request that asked for it, which points to
    /// the trace of the first.
    #[cfg(feature = "trace")]
    pub(crate) fn replayed_for(&self, request: &HeaderMap) {
        let span = tracing::debug_span!(
            target: "semel_trace",
            "replay",
            otel.name = "replay of a stored response",
        );
        if span.is_disabled() {
            return;
        }
        if let Some(Self(own)) = Self::of(request) {
            carried(&own).continue_trace(&span);
        }
        carried(&self.0).link_trace(&span);
    }
}

#[cfg(feature = "trace")]
fn carried(trace: &HeaderValue) -> Headers {
    let mut headers = Headers::default();
    headers.set(Headers::TRACEPARENT, trace.to_str().unwrap_or_default());
    headers
}
