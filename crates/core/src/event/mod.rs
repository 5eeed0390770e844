//! What happened: an [`Event`], its identity, payload and headers.
//!
//! An event is made once, by the writer, inside the business transaction. Its id never changes on
//! the way: it is what every consumer recognises a duplicate by.
//!
//! ```
//! use semel_core::Event;
//!
//! let event = Event::new("order", "42", "OrderPlaced")
//!     .with_json(&serde_json::json!({ "total": 99 }))?
//!     .with_header("tenant", "acme");
//! assert_eq!(event.idempotency_key(), event.id.to_string());
//! assert_eq!(event.headers.get("tenant"), Some("acme"));
//! event.check(&Default::default())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cause;
mod headers;
mod id;
mod payload;
#[cfg(feature = "trace")]
mod trace;

pub use cause::within;
pub use headers::Headers;
pub use id::EventId;
pub use payload::Payload;

use std::borrow::Cow;

use bytes::Bytes;
use jiff::Timestamp;
use serde::Serialize;

use crate::failure::Failure;
use crate::lane::{Lane, LaneKey};

/// A fact that was committed in a service's database.
///
/// ```
/// # use semel_core::Event;
/// let event = Event::new("order", "42", "OrderPlaced").with_bytes("application/avro", vec![1, 2]);
/// assert_eq!(event.payload.content_type(), "application/avro");
/// assert_eq!(event.lane().to_string(), "order/42");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// Unique and ordered by time; made once and never changed.
    pub id: EventId,
    /// The kind of thing the event is about, such as `order`.
    pub aggregate_type: String,
    /// Which one of that kind. Events of one aggregate keep their order.
    pub aggregate_id: String,
    /// What happened, such as `OrderPlaced`.
    pub event_type: String,
    /// The content, opaque to semel.
    pub payload: Payload,
    /// Extra values that travel with the event; `traceparent` among them.
    pub headers: Headers,
    /// The writer's own deduplication key; see [`Event::idempotency_key`].
    pub custom_key: Option<String>,
    /// When the writer made it.
    pub created_at: Timestamp,
    /// Not published before this time, if set. A scheduled event takes its place in its lane when
    /// it falls due, not when it was written.
    pub available_at: Option<Timestamp>,
}

impl Event {
    /// An event with a new id, made now, with an empty JSON payload. With the feature `trace` it
    /// belongs to the trace of the current span. In a handler of a consumer it is
    /// [caused by](Event::caused_by) what is handled.
    #[must_use]
    pub fn new(
        aggregate_type: impl Into<String>,
        aggregate_id: impl Into<String>,
        event_type: impl Into<String>,
    ) -> Self {
        let mut event = Self::with_id(EventId::now(), aggregate_type, aggregate_id, event_type);
        #[cfg(feature = "trace")]
        trace::capture(&mut event.headers);
        cause::capture(&mut event.headers);
        event
    }

    /// An event whose id is known already: read back from a table or a broker.
    #[must_use]
    pub fn with_id(
        id: EventId,
        aggregate_type: impl Into<String>,
        aggregate_id: impl Into<String>,
        event_type: impl Into<String>,
    ) -> Self {
        Self {
            id,
            aggregate_type: aggregate_type.into(),
            aggregate_id: aggregate_id.into(),
            event_type: event_type.into(),
            payload: Payload::default(),
            headers: Headers::default(),
            custom_key: None,
            created_at: id.timestamp().unwrap_or(Timestamp::UNIX_EPOCH),
            available_at: None,
        }
    }

    /// Sets the payload to `value` as JSON.
    ///
    /// # Errors
    /// When `value` cannot be written as JSON.
    pub fn with_json<T: Serialize + ?Sized>(
        mut self,
        value: &T,
    ) -> Result<Self, serde_json::Error> {
        self.payload = Payload::json(value)?;
        Ok(self)
    }

    /// Sets the payload to raw bytes of the given content type.
    #[must_use]
    pub fn with_bytes(
        mut self,
        content_type: impl Into<Cow<'static, str>>,
        bytes: impl Into<Bytes>,
    ) -> Self {
        self.payload = Payload::new(content_type, bytes);
        self
    }

    /// Adds or replaces a header.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.set(name, value);
        self
    }

    /// Sets the idempotency key: a second event with this key is refused by the outbox.
    #[must_use]
    pub fn with_idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.custom_key = Some(key.into());
        self
    }

    /// Numbers the event among those of its aggregate: its version, say. Numbers rise by one, so
    /// that a consumer can tell what is stale and what is missing.
    ///
    /// ```
    /// # use semel_core::Event;
    /// let event = Event::new("order", "42", "OrderPlaced").with_sequence(3);
    /// assert_eq!(event.sequence(), Some(3));
    /// ```
    #[must_use]
    pub fn with_sequence(self, number: u64) -> Self {
        self.with_header(Headers::SEQUENCE, number.to_string())
    }

    /// The number of the event among those of its aggregate, if it has one.
    #[must_use]
    pub fn sequence(&self) -> Option<u64> {
        self.headers.get(Headers::SEQUENCE)?.parse().ok()
    }

    /// Holds the event back until `time`.
    #[must_use]
    pub fn available_at(mut self, time: Timestamp) -> Self {
        self.available_at = Some(time);
        self
    }

    /// The key that makes the event unique in the outbox: the writer's own, or the id.
    #[must_use]
    pub fn idempotency_key(&self) -> Cow<'_, str> {
        self.custom_key.as_deref().map_or_else(|| Cow::Owned(self.id.to_string()), Cow::Borrowed)
    }

    /// The events that must stay in order with this one.
    #[must_use]
    pub fn lane(&self) -> Lane<'_> {
        Lane { aggregate_type: &self.aggregate_type, aggregate_id: &self.aggregate_id }
    }

    /// The lane as one number, for grouping.
    #[must_use]
    pub fn lane_key(&self) -> LaneKey {
        self.lane().key()
    }

    /// Bytes this event occupies, near enough to bound memory by.
    #[must_use]
    pub fn size(&self) -> usize {
        const FIXED: usize = 200;
        FIXED
            + self.aggregate_type.len()
            + self.aggregate_id.len()
            + self.event_type.len()
            + self.payload.bytes().len()
            + self.headers.size()
    }

    /// Checks names and sizes before the event is written.
    ///
    /// # Errors
    /// A [`Fault::Refused`](crate::Fault::Refused) failure that names the field and the limit.
    pub fn check(&self, limits: &EventLimits) -> Result<(), Failure> {
        let names = [
            ("aggregate_type", &self.aggregate_type),
            ("aggregate_id", &self.aggregate_id),
            ("event_type", &self.event_type),
        ];
        for (field, value) in names {
            check_name(field, value, limits.name_chars)?;
        }
        if let Some(key) = &self.custom_key {
            check_name("idempotency_key", key, limits.name_chars)?;
        }
        self.check_content_type(limits)?;
        self.check_headers(limits)?;
        let size = self.payload.bytes().len();
        if size > limits.payload_bytes {
            return Err(refused(format!(
                "the payload has {size} bytes, the limit is {}",
                limits.payload_bytes
            ))
            .with_fix("store the content elsewhere and put a reference into the event"));
        }
        Ok(())
    }

    /// Brokers carry it among the headers of a message, where a line must not end.
    fn check_content_type(&self, limits: &EventLimits) -> Result<(), Failure> {
        let content_type = self.payload.content_type();
        check_name("the content type", content_type, limits.name_chars)?;
        if content_type.contains(char::is_control) {
            return Err(refused("the content type contains a control character".into()));
        }
        Ok(())
    }

    fn check_headers(&self, limits: &EventLimits) -> Result<(), Failure> {
        if self.headers.len() > limits.headers {
            let (count, limit) = (self.headers.len(), limits.headers);
            return Err(refused(format!("{count} headers, the limit is {limit}")));
        }
        for (name, value) in self.headers.iter() {
            check_name("a header's name", name, limits.name_chars)?;
            if value.contains('\0') {
                return Err(refused(format!("header {name} contains a NUL character")));
            }
        }
        Ok(())
    }
}

fn check_name(field: &str, value: &str, limit: usize) -> Result<(), Failure> {
    let chars = value.chars().count();
    if chars == 0 {
        return Err(refused(format!("{field} is empty")));
    }
    if chars > limit {
        return Err(refused(format!("{field} has {chars} characters, the limit is {limit}")));
    }
    if value.contains('\0') {
        return Err(refused(format!("{field} contains a NUL character")));
    }
    Ok(())
}

fn refused(what: String) -> Failure {
    Failure::refused("E-EVENT-INVALID", what)
}

/// How large an event may be.
///
/// ```
/// # use semel_core::{Event, event::EventLimits};
/// let limits = EventLimits { payload_bytes: 3, ..EventLimits::default() };
/// let event = Event::new("order", "42", "OrderPlaced").with_bytes("text/plain", "four");
/// assert!(event.check(&limits).unwrap_err().to_string().contains("the limit is 3"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventLimits {
    /// Characters of aggregate type, aggregate id, event type, idempotency key, content type and
    /// the names of headers.
    pub name_chars: usize,
    /// How many headers.
    pub headers: usize,
    /// Bytes of the payload.
    pub payload_bytes: usize,
}

impl Default for EventLimits {
    fn default() -> Self {
        Self { name_chars: 255, headers: 64, payload_bytes: 1024 * 1024 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        let limits = EventLimits::default();
        let of_type = |kind: &str| Event::new("a", "1", "T").with_bytes(kind.to_owned(), "");
        let cases = [
            (Event::new("", "1", "T"), "aggregate_type is empty"),
            (Event::new("a", "x".repeat(256), "T"), "aggregate_id has 256 characters"),
            (Event::new("a", "1", "T\0"), "event_type contains a NUL"),
            (Event::new("a", "1", "T").with_idempotency_key(""), "idempotency_key is empty"),
            (Event::new("a", "1", "T").with_header("", "v"), "a header's name is empty"),
            (Event::new("a", "1", "T").with_header("h", "\0"), "header h contains a NUL"),
            (of_type(""), "the content type is empty"),
            (of_type(&"x".repeat(256)), "the content type has 256 characters"),
            (of_type("text/plain\0"), "the content type contains a NUL"),
            (of_type("text/plain\r\nx: y"), "the content type contains a control character"),
            (of_type("text/plain\u{85}"), "the content type contains a control character"),
        ];
        for (event, expected) in cases {
            let failure = event.check(&limits).unwrap_err();
            assert!(failure.to_string().contains(expected), "{failure}");
        }
        of_type("text/plain; charset=\"utf-8\"").check(&limits).unwrap();
        of_type(&"x".repeat(255)).check(&limits).unwrap();
    }
}
