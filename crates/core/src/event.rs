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

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

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
    /// An event with a new id, made now, with an empty JSON payload.
    #[must_use]
    pub fn new(
        aggregate_type: impl Into<String>,
        aggregate_id: impl Into<String>,
        event_type: impl Into<String>,
    ) -> Self {
        Self::with_id(EventId::now(), aggregate_type, aggregate_id, event_type)
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
        if self.headers.len() > limits.headers {
            return Err(refused(format!(
                "{} headers, the limit is {}",
                self.headers.len(),
                limits.headers
            )));
        }
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
    /// Characters of aggregate type, aggregate id, event type and idempotency key.
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

/// The identity of an event: a UUID, version 7 when semel makes it, so that ids sort by time.
///
/// ```
/// # use semel_core::EventId;
/// let id = EventId::now();
/// assert_eq!(id.to_string().parse::<EventId>()?, id);
/// # Ok::<(), semel_core::Failure>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EventId(Uuid);

impl EventId {
    /// A new id of this moment.
    #[must_use]
    pub fn now() -> Self {
        Self(Uuid::now_v7())
    }

    /// An id somebody else made; any UUID version is accepted.
    #[must_use]
    pub const fn from_uuid(uuid: Uuid) -> Self {
        Self(uuid)
    }

    /// A reproducible id: version 7 of this time, with `number` in place of the random part.
    #[must_use]
    pub fn numbered(time: Timestamp, number: u64) -> Self {
        let millis = u64::try_from(time.as_millisecond()).unwrap_or(0);
        let mut random = [0; 10];
        random[2..].copy_from_slice(&number.to_be_bytes());
        Self(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid())
    }

    /// The UUID itself.
    #[must_use]
    pub const fn as_uuid(&self) -> &Uuid {
        &self.0
    }

    /// The time inside a version 7 id; none for other versions.
    #[must_use]
    pub fn timestamp(&self) -> Option<Timestamp> {
        if self.0.get_version_num() != 7 {
            return None;
        }
        let (seconds, nanos) = self.0.get_timestamp()?.to_unix();
        Timestamp::new(i64::try_from(seconds).ok()?, i32::try_from(nanos).ok()?).ok()
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for EventId {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        Uuid::parse_str(text).map(Self).map_err(|error| {
            refused(format!("{text:?} is not an event id: {error}"))
                .with_fix("give the id as a UUID, such as 0190b6e8-7a3c-7def-8000-0123456789ab")
        })
    }
}

/// The content of an event and what kind of content it is.
///
/// ```
/// # use semel_core::Payload;
/// let payload = Payload::json(&[1, 2])?;
/// assert_eq!(payload.bytes().as_ref(), b"[1,2]");
/// assert!(payload.is_json());
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    content_type: Cow<'static, str>,
    bytes: Bytes,
}

impl Payload {
    /// The content type of JSON payloads.
    pub const JSON: &'static str = "application/json";

    /// Raw bytes of a content type.
    #[must_use]
    pub fn new(content_type: impl Into<Cow<'static, str>>, bytes: impl Into<Bytes>) -> Self {
        Self { content_type: content_type.into(), bytes: bytes.into() }
    }

    /// `value` written as JSON.
    ///
    /// # Errors
    /// When `value` cannot be written as JSON.
    pub fn json<T: Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        Ok(Self::new(Self::JSON, serde_json::to_vec(value)?))
    }

    /// What kind of content the bytes are.
    #[must_use]
    pub fn content_type(&self) -> &str {
        &self.content_type
    }

    /// The content.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Whether the content is JSON, by its type.
    #[must_use]
    pub fn is_json(&self) -> bool {
        let essence = self.content_type.split(';').next().unwrap_or_default().trim();
        essence == Self::JSON || essence.ends_with("+json")
    }
}

impl Default for Payload {
    /// The JSON value `null`.
    fn default() -> Self {
        Self::new(Self::JSON, Bytes::from_static(b"null"))
    }
}

/// Extra values that travel with an event, in the order they were set, names in lower case.
///
/// ```
/// # use semel_core::Headers;
/// let mut headers = Headers::default();
/// headers.set("Tenant", "acme");
/// headers.set("tenant", "globex");
/// assert_eq!(headers.iter().collect::<Vec<_>>(), [("tenant", "globex")]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "std::collections::BTreeMap<String, String>")]
#[serde(into = "std::collections::BTreeMap<String, String>")]
pub struct Headers(Vec<(String, String)>);

impl Headers {
    /// The name under which the W3C trace context travels.
    pub const TRACEPARENT: &'static str = "traceparent";

    /// Adds a header, or replaces the one of the same name.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        let mut name: String = name.into();
        name.make_ascii_lowercase();
        let value = value.into();
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name, value)),
        }
    }

    /// The value of a header, by its name in lower case.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// All headers in the order they were set.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn size(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.len()).sum()
    }
}

impl From<std::collections::BTreeMap<String, String>> for Headers {
    fn from(map: std::collections::BTreeMap<String, String>) -> Self {
        let mut headers = Self::default();
        for (name, value) in map {
            headers.set(name, value);
        }
        headers
    }
}

impl From<Headers> for std::collections::BTreeMap<String, String> {
    fn from(headers: Headers) -> Self {
        headers.0.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_version_7_carry_their_time() {
        let time = Timestamp::from_millisecond(1_700_000_000_123).unwrap();
        let id = EventId::numbered(time, 7);
        assert_eq!(id.timestamp(), Some(time));
        assert!(EventId::numbered(time, 8) > id);
        assert_eq!(EventId::from_uuid(Uuid::nil()).timestamp(), None);
    }

    #[test]
    fn a_wrong_id_says_what_to_write() {
        let failure = "42".parse::<EventId>().unwrap_err();
        assert!(failure.to_string().contains("\"42\" is not an event id"));
        assert!(failure.fix().unwrap().contains("UUID"));
    }

    #[test]
    fn names_are_checked() {
        let limits = EventLimits::default();
        let cases = [
            (Event::new("", "1", "T"), "aggregate_type is empty"),
            (Event::new("a", "x".repeat(256), "T"), "aggregate_id has 256 characters"),
            (Event::new("a", "1", "T\0"), "event_type contains a NUL"),
            (Event::new("a", "1", "T").with_idempotency_key(""), "idempotency_key is empty"),
        ];
        for (event, expected) in cases {
            let failure = event.check(&limits).unwrap_err();
            assert!(failure.to_string().contains(expected), "{failure}");
        }
    }

    #[test]
    fn headers_survive_json() {
        let mut headers = Headers::default();
        headers.set("b", "2");
        headers.set("A", "1");
        let json = serde_json::to_string(&headers).unwrap();
        assert_eq!(json, r#"{"a":"1","b":"2"}"#);
        let back: Headers = serde_json::from_str(&json).unwrap();
        assert_eq!(back.get("a"), Some("1"));
    }
}
