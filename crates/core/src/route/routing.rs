//! All that can be said about the way of an event.

use std::sync::Arc;

use super::{Pattern, Route, Template, TopicTemplate};
use crate::delivery::Message;
use crate::event::Event;
use crate::failure::Failure;

/// Topic, key, headers and choice of events.
///
/// ```
/// use semel_core::{Event, Message, Route, Routing};
///
/// let routing = Routing::new("{aggregate_type}.events".parse()?).with_payload_limit(10);
/// let small = Event::new("order", "42", "OrderPlaced");
/// assert!(routing.route(&Message::first("outbox", small.clone())).is_ok());
/// let large = small.with_bytes("text/plain", "more than ten bytes");
/// assert!(routing.route(&Message::first("outbox", large)).is_err());
/// # Ok::<(), semel_core::Failure>(())
/// ```
#[derive(Debug)]
pub struct Routing {
    topic: TopicTemplate,
    key: Option<Template>,
    headers: Vec<(String, Template)>,
    event_types: Vec<Pattern>,
    aggregate_types: Vec<Pattern>,
    payload_limit: Option<usize>,
}

impl Routing {
    /// All events, to this topic, with the aggregate id as key.
    #[must_use]
    pub fn new(topic: TopicTemplate) -> Self {
        Self {
            topic,
            key: None,
            headers: Vec::new(),
            event_types: Vec::new(),
            aggregate_types: Vec::new(),
            payload_limit: None,
        }
    }

    /// Replaces the key. Where the key decides about order, as in Kafka, events of one aggregate
    /// only keep theirs if the key is the same for all of them.
    #[must_use]
    pub fn with_key(mut self, key: Template) -> Self {
        self.key = Some(key);
        self
    }

    /// Adds or replaces a header.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: Template) -> Self {
        self.headers.push((name.into(), value));
        self
    }

    /// Passes over events whose type is none of these.
    #[must_use]
    pub fn only_event_types(mut self, types: impl IntoIterator<Item = Pattern>) -> Self {
        self.event_types.extend(types);
        self
    }

    /// Passes over events whose aggregate type is none of these.
    #[must_use]
    pub fn only_aggregate_types(mut self, types: impl IntoIterator<Item = Pattern>) -> Self {
        self.aggregate_types.extend(types);
        self
    }

    /// Refuses events with more bytes of payload.
    #[must_use]
    pub fn with_payload_limit(mut self, bytes: usize) -> Self {
        self.payload_limit = Some(bytes);
        self
    }

    fn is_for(&self, event: &Event) -> bool {
        let allows = |patterns: &[Pattern], name: &str| {
            patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(name))
        };
        allows(&self.event_types, &event.event_type)
            && allows(&self.aggregate_types, &event.aggregate_type)
    }

    fn check_size(&self, event: &Event) -> Result<(), Failure> {
        let size = event.payload.bytes().len();
        match self.payload_limit {
            Some(limit) if size > limit => Err(Failure::refused(
                "E-PAYLOAD-LIMIT",
                format!("the payload is larger than the limit of {limit} bytes"),
            )
            .with_fix("raise payload in [limits] and retry it, or discard it")),
            _ => Ok(()),
        }
    }

    /// The event with the headers of the route, which come from the event as it was written.
    fn with_headers(&self, event: &Arc<Event>) -> Result<Arc<Event>, Failure> {
        if self.headers.is_empty() {
            return Ok(Arc::clone(event));
        }
        let mut changed = Event::clone(event);
        for (name, value) in &self.headers {
            changed.headers.set(name, value.render(event)?);
        }
        Ok(Arc::new(changed))
    }
}

impl Route for Routing {
    fn route(&self, message: &Message) -> Result<Option<Message>, Failure> {
        let event = &message.event;
        if !self.is_for(event) {
            return Ok(None);
        }
        self.check_size(event)?;
        let key = self.key.as_ref().map(|key| key.render(event)).transpose()?;
        Ok(Some(Message {
            topic: self.topic.topic(event)?,
            key: key.map(Into::into),
            event: self.with_headers(event)?,
            ..message.clone()
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_from_the_event_as_it_was_written() {
        let routing = Routing::new("t".parse().unwrap())
            .with_header("a", "{header.b}".parse().unwrap())
            .with_header("b", "new".parse().unwrap());
        let event = Event::new("order", "42", "OrderPlaced").with_header("b", "old");
        let message = routing.route(&Message::first("outbox", event)).unwrap().unwrap();
        let headers: Vec<_> = message.event.headers.iter().collect();
        assert_eq!(headers, [("b", "new"), ("a", "old")]);
    }

    #[test]
    fn both_types_must_be_wanted() {
        let patterns = |texts: &[&str]| -> Vec<Pattern> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let routing = Routing::new("t".parse().unwrap())
            .only_event_types(patterns(&["Order*", "Paid"]))
            .only_aggregate_types(patterns(&["order"]));
        let is_sent = |aggregate: &str, kind: &str| {
            let event = Event::new(aggregate, "1", kind);
            routing.route(&Message::first("outbox", event)).unwrap().is_some()
        };
        assert!(is_sent("order", "OrderPlaced") && is_sent("order", "Paid"));
        assert!(!is_sent("order", "PaidBack") && !is_sent("invoice", "Paid"));
    }
}
