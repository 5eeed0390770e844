//! An event as body and attributes, and what AWS cannot carry.
//!
//! SQS takes ten attributes and no empty text. So what semel says about an event has attributes of
//! its own, and the event's headers share one.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use semel_core::wire::{Binding, Format};
use semel_core::{Event, EventId, Failure, Headers, Message, Publication};
use serde_json::{Map, Value};

use super::error::no_text;

/// A message that is ready to be sent.
pub(super) struct Entry<'a> {
    pub(super) message: &'a Message,
    pub(super) body: String,
    pub(super) attributes: Vec<(String, String)>,
}

/// All headers of the event, as one JSON object.
pub(super) const HEADERS: &str = "semel-headers";
/// How the body was made into text, where the payload is none.
pub(super) const ENCODING: &str = "semel-encoding";
/// A body must not be empty.
pub(super) const EMPTY: &str = "empty";

impl<'a> Entry<'a> {
    /// Encodes a message.
    ///
    /// # Errors
    /// `Refused` when a name has characters that AWS does not take.
    pub(super) fn encode(message: &'a Message, format: Format) -> Result<Self, Failure> {
        let mut attributes = Vec::with_capacity(9);
        let mut headers = Map::new();
        format.headers(&message.event, Binding::Kafka, &mut |name, value| {
            let is_ours = name.starts_with("semel-") && !name.starts_with("semel-header-");
            if is_ours || name == "content-type" {
                attributes.push((name.to_owned(), value.to_owned()));
            } else {
                headers.insert(name.to_owned(), Value::from(value));
            }
        });
        if !headers.is_empty() {
            attributes.push((HEADERS.to_owned(), Value::Object(headers).to_string()));
        }
        let (body, encoding) = text(&format.body(&message.event));
        if let Some(encoding) = encoding {
            attributes.push((ENCODING.to_owned(), encoding.to_owned()));
        }
        if let Some((name, _)) = attributes.iter().find(|(_, value)| !is_text(value)) {
            return Err(no_text(name));
        }
        Ok(Self { message, body, attributes })
    }

    /// As SQS and SNS count: the body, and name, type and value of every attribute.
    pub(super) fn size(&self) -> usize {
        let attribute = |(name, value): &(String, String)| name.len() + TYPE.len() + value.len();
        self.body.len() + self.attributes.iter().map(attribute).sum::<usize>()
    }

    /// Whether it goes to a queue or topic that keeps order.
    pub(super) fn is_fifo(&self) -> bool {
        self.message.topic.as_str().ends_with(".fifo")
    }

    /// By what a FIFO queue or topic knows it: the event id. What an operator wants published again it
    /// must not know, however often.
    pub(super) fn deduplication_id(&self) -> String {
        let Message { event, publication, .. } = self.message;
        match publication {
            Publication::Again => format!("{}+{}", event.id, EventId::now()),
            Publication::First | Publication::Unknown => event.id.to_string(),
        }
    }

    /// The lane, as far as a message group can be named so. Lanes that share a group only wait for
    /// each other.
    pub(super) fn group(&self) -> String {
        const LONGEST: usize = 128;
        let event = &self.message.event;
        let name = event.lane().to_string();
        if name.len() <= LONGEST && name.bytes().all(|byte| byte.is_ascii_graphic()) {
            name
        } else {
            format!("lane-{:016x}", event.lane_key().0)
        }
    }
}

/// The type of every attribute.
pub(super) const TYPE: &str = "String";

/// The trace of an event in the words of X-Ray.
pub(super) fn x_ray(event: &Event) -> Option<String> {
    let (_, trace) = event.headers.iter().find(|(name, _)| *name == Headers::TRACEPARENT)?;
    let mut parts = trace.split('-').skip(1);
    let (trace, parent, flags) = (parts.next()?, parts.next()?, parts.next()?);
    let (time, rest) = trace.split_at_checked(8).filter(|_| trace.len() == 32)?;
    let sampled = u8::from(u8::from_str_radix(flags, 16).ok()? & 1 == 1);
    Some(format!("Root=1-{time}-{rest};Parent={parent};Sampled={sampled}"))
}

fn text(body: &[u8]) -> (String, Option<&'static str>) {
    match std::str::from_utf8(body) {
        Ok("") => (EMPTY.to_owned(), Some(EMPTY)),
        Ok(body) if is_text(body) => (body.to_owned(), None),
        _ => (STANDARD.encode(body), Some("base64")),
    }
}

/// What XML 1.0 calls characters, and at least one of them.
fn is_text(text: &str) -> bool {
    let is_allowed = |char: char| matches!(char, '\t' | '\n' | '\r' | '\u{20}'..='\u{fffd}' | '\u{10000}'..='\u{10ffff}');
    !text.is_empty() && text.chars().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use semel_core::Fault;

    use super::*;

    fn encode(event: Event) -> Result<(String, Vec<(String, String)>), Failure> {
        let message = Message::first("orders", event);
        Entry::encode(&message, Format::Plain).map(|entry| (entry.body, entry.attributes))
    }

    fn event() -> Event {
        Event::new("order", "42", "OrderPlaced")
    }

    #[test]
    fn however_many_headers_there_are_ten_attributes_are_enough() {
        let mut event =
            event().with_bytes("application/avro", vec![0xff]).with_idempotency_key("k");
        for number in 0..50 {
            event = event.with_header(format!("h{number}"), "");
        }
        let (body, attributes) = encode(event).unwrap();
        assert_eq!(body, "/w==");
        assert!(attributes.len() <= 10, "{}", attributes.len());
        assert!(attributes.contains(&("semel-encoding".into(), "base64".into())));
        let (_, headers) = attributes.iter().find(|(name, _)| name == HEADERS).unwrap();
        assert!(headers.contains("\"h49\":\"\""), "{headers}");
    }

    #[test]
    fn text_stays_text_and_the_rest_is_marked() {
        let cases = [
            ("{\"a\":\"ü 🚀\"}\n", "{\"a\":\"ü 🚀\"}\n", None),
            ("", "empty", Some("empty")),
            ("a\0b", "YQBi", Some("base64")),
            ("\u{fffe}", "77++", Some("base64")),
        ];
        for (payload, body, encoding) in cases {
            assert_eq!(text(payload.as_bytes()), (body.to_owned(), encoding), "{payload:?}");
        }
    }

    #[test]
    fn names_with_control_characters_are_refused() {
        let failure = encode(Event::new("order", "4\u{1}2", "T")).unwrap_err();
        assert_eq!((failure.fault(), failure.code()), (Fault::Refused, "E-AWS-CONTENT"));
        assert!(encode(event().with_header("note", "a\0b")).is_ok(), "JSON escapes it");
    }

    #[test]
    fn the_group_is_the_lane_or_its_number() {
        let group = |id: &str| {
            let message = Message::first("orders.fifo", Event::new("order", id, "T"));
            let entry = Entry::encode(&message, Format::Plain).unwrap();
            assert!(entry.is_fifo());
            entry.group()
        };
        assert_eq!(group("42"), "order/42");
        for id in ["日本", "with space", &"x".repeat(128)] {
            let name = group(id);
            assert!(name.starts_with("lane-") && name.len() == 21, "{name}");
        }
        assert_ne!(group("日本"), group("with space"));
    }

    #[test]
    fn what_is_published_again_has_an_id_of_its_own_each_time() {
        let mut message = Message::first("orders.fifo", event());
        let id = |message: &Message| {
            let entry = Entry::encode(message, Format::Plain).unwrap();
            let event_id = ("semel-event-id".to_owned(), message.event.id.to_string());
            assert!(entry.attributes.contains(&event_id), "{:?}", entry.attributes);
            entry.deduplication_id()
        };
        assert_eq!(id(&message), message.event.id.to_string());
        message.publication = Publication::Again;
        let (first, second) = (id(&message), id(&message));
        assert!(first.starts_with(&message.event.id.to_string()) && first.len() <= 128, "{first}");
        assert_ne!(first, second);
    }

    #[test]
    fn a_trace_is_told_as_x_ray_does() {
        let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let expected = "Root=1-0af76519-16cd43dd8448eb211c80319c;Parent=b7ad6b7169203331;Sampled=1";
        let told = |value: &str| x_ray(&event().with_header("traceparent", value));
        assert_eq!(told(trace).unwrap(), expected);
        assert_eq!(x_ray(&event()), None);
        for broken in ["", "00-1-2-3", "00-ü-b7ad6b7169203331-01"] {
            assert_eq!(told(broken), None);
        }
    }
}
