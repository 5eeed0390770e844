//! Which topic an event goes to.
//!
//! ```
//! use semel_core::{Event, Route, TopicTemplate};
//!
//! let template: TopicTemplate = "{aggregate_type}.{event_type}".parse()?;
//! let topic = template.topic(&Event::new("order", "42", "OrderPlaced"))?;
//! assert_eq!(topic.as_str(), "order.OrderPlaced");
//! # Ok::<(), semel_core::Failure>(())
//! ```

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use crate::delivery::Topic;
use crate::event::Event;
use crate::failure::Failure;

/// Chooses the topic of an event. Pure: the same event always goes to the same topic.
pub trait Route: Send + Sync {
    /// The topic.
    ///
    /// # Errors
    /// `Refused` when the event lacks what the route needs; it becomes a dead letter.
    fn topic(&self, event: &Event) -> Result<Topic, Failure>;
}

/// A topic name with fields of the event in braces: `{aggregate_type}`, `{aggregate_id}`,
/// `{event_type}` and `{header.NAME}`.
pub struct TopicTemplate {
    parts: Vec<Part>,
    known: Mutex<Known>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    AggregateType,
    AggregateId,
    EventType,
    Header(String),
}

/// Topics rendered before, so that an event of a known topic costs no allocation.
#[derive(Default)]
struct Known {
    buffer: String,
    topics: HashSet<Topic>,
}

impl TopicTemplate {
    const REMEMBERED: usize = 1024;

    fn render(&self, event: &Event, into: &mut String) -> Result<(), Failure> {
        for part in &self.parts {
            into.push_str(match part {
                Part::Text(text) => text,
                Part::AggregateType => &event.aggregate_type,
                Part::AggregateId => &event.aggregate_id,
                Part::EventType => &event.event_type,
                Part::Header(name) => event.headers.get(name).ok_or_else(|| {
                    Failure::refused(
                        "E-ROUTE-HEADER",
                        format!("the topic template needs header {name:?}, which the event lacks"),
                    )
                    .with_fix("set the header when the event is written, or change the template")
                })?,
            });
        }
        Ok(())
    }
}

impl Route for TopicTemplate {
    fn topic(&self, event: &Event) -> Result<Topic, Failure> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let Known { buffer, topics } = &mut *known;
        buffer.clear();
        self.render(event, buffer)?;
        if let Some(topic) = topics.get(buffer.as_str()) {
            return Ok(topic.clone());
        }
        let topic = Topic::from(buffer.as_str());
        if topics.len() < Self::REMEMBERED {
            topics.insert(topic.clone());
        }
        Ok(topic)
    }
}

impl Default for TopicTemplate {
    /// `{aggregate_type}.events`
    fn default() -> Self {
        Self {
            parts: vec![Part::AggregateType, Part::Text(".events".into())],
            known: Mutex::default(),
        }
    }
}

impl FromStr for TopicTemplate {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        let wrong = |why: String| {
            Failure::misconfigured("E-TEMPLATE", format!("topic template {text:?}: {why}")).with_fix(
                "write text with {aggregate_type}, {aggregate_id}, {event_type} or {header.NAME}",
            )
        };
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(open) = rest.find(['{', '}']) {
            if rest[open..].starts_with('}') {
                return Err(wrong("a } without its {".into()));
            }
            let close = rest[open..].find('}').ok_or_else(|| wrong("a { without its }".into()))?;
            if open > 0 {
                parts.push(Part::Text(rest[..open].into()));
            }
            let field = &rest[open + 1..open + close];
            parts.push(
                Part::of_field(field).ok_or_else(|| wrong(format!("unknown field {field:?}")))?,
            );
            rest = &rest[open + close + 1..];
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.into()));
        }
        if parts.is_empty() {
            return Err(wrong("it is empty".into()));
        }
        Ok(Self { parts, known: Mutex::default() })
    }
}

impl Part {
    fn of_field(field: &str) -> Option<Self> {
        match field {
            "aggregate_type" => Some(Self::AggregateType),
            "aggregate_id" => Some(Self::AggregateId),
            "event_type" => Some(Self::EventType),
            _ => {
                let name = field.strip_prefix("header.")?;
                (!name.is_empty()).then(|| Self::Header(name.to_ascii_lowercase()))
            }
        }
    }
}

impl fmt::Debug for TopicTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TopicTemplate").field(&self.parts).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_templates_say_what_to_write() {
        let cases = [
            ("", "it is empty"),
            ("{aggregate}", "unknown field \"aggregate\""),
            ("{header.}", "unknown field \"header.\""),
            ("a{b", "a { without its }"),
            ("a}b", "a } without its {"),
        ];
        for (text, why) in cases {
            let failure = text.parse::<TopicTemplate>().unwrap_err();
            assert!(failure.to_string().ends_with(why), "{failure}");
            assert!(failure.fix().unwrap().contains("{aggregate_type}"));
        }
    }

    #[test]
    fn a_missing_header_refuses_the_event() {
        let template: TopicTemplate = "{header.Tenant}.orders".parse().unwrap();
        let event = Event::new("order", "42", "OrderPlaced");
        let failure = template.topic(&event).unwrap_err();
        assert_eq!(failure.fault(), crate::Fault::Refused);
        let topic = template.topic(&event.with_header("tenant", "acme")).unwrap();
        assert_eq!(topic.as_str(), "acme.orders");
    }
}
