//! Extra values that travel with an event.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

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
#[serde(from = "BTreeMap<String, String>")]
#[serde(into = "BTreeMap<String, String>")]
pub struct Headers(Vec<(String, String)>);

impl Headers {
    /// The name under which the W3C trace context travels.
    pub const TRACEPARENT: &'static str = "traceparent";

    /// The name under which the rest of the trace context travels.
    pub const TRACESTATE: &'static str = "tracestate";

    /// The id of the event from which this one follows.
    pub const CAUSATION_ID: &'static str = "causation_id";

    /// What all events of one story share: the id of the first of them, unless somebody chose
    /// another.
    pub const CORRELATION_ID: &'static str = "correlation_id";

    /// The number of the event among those of its aggregate; see
    /// [`Event::with_sequence`](crate::Event::with_sequence).
    pub const SEQUENCE: &'static str = "sequence";

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

    /// The id of the trace that these headers carry, for logs.
    ///
    /// ```
    /// # use semel_core::Headers;
    /// let mut headers = Headers::default();
    /// headers.set("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    /// assert_eq!(headers.trace_id(), Some("0af7651916cd43dd8448eb211c80319c"));
    /// ```
    #[must_use]
    pub fn trace_id(&self) -> Option<&str> {
        let id = self.get(Self::TRACEPARENT)?.split('-').nth(1)?;
        (id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(id)
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

    pub(super) fn size(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.len()).sum()
    }
}

impl From<BTreeMap<String, String>> for Headers {
    fn from(map: BTreeMap<String, String>) -> Self {
        let mut headers = Self::default();
        for (name, value) in map {
            headers.set(name, value);
        }
        headers
    }
}

impl From<Headers> for BTreeMap<String, String> {
    fn from(headers: Headers) -> Self {
        headers.0.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
