//! A message as one line of JSON.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use semel_core::{EventId, Headers, Message, Payload, Timestamp};
use serde::Serialize;
use serde_json::value::RawValue;

/// How every line begins.
pub(super) const PREFIX: &[u8] = b"{\"id\":\"";

/// The lines of a batch, each with its line break.
pub(super) fn lines(batch: &[Message]) -> Result<Vec<u8>, serde_json::Error> {
    let mut lines = Vec::with_capacity(batch.iter().map(|message| message.event.size() + 64).sum());
    for message in batch {
        serde_json::to_writer(&mut lines, &Line::of(message))?;
        lines.push(b'\n');
    }
    Ok(lines)
}

#[derive(Serialize)]
struct Line<'a> {
    id: EventId,
    topic: &'a str,
    key: &'a str,
    aggregate_type: &'a str,
    aggregate_id: &'a str,
    event_type: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Content<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    headers: &'a Headers,
    created_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Content<'a> {
    Json(&'a RawValue),
    SpreadJson(Box<RawValue>),
    Text(&'a str),
}

impl<'a> Line<'a> {
    fn of(message: &'a Message) -> Self {
        let Message { topic, event, .. } = message;
        let content_type = event.payload.content_type();
        let payload = readable(&event.payload);
        Self {
            id: event.id,
            topic: topic.as_str(),
            key: message.key(),
            aggregate_type: &event.aggregate_type,
            aggregate_id: &event.aggregate_id,
            event_type: &event.event_type,
            payload_base64: payload.is_none().then(|| STANDARD.encode(event.payload.bytes())),
            payload,
            headers: &event.headers,
            created_at: event.created_at,
            content_type: (content_type != Payload::JSON).then_some(content_type),
            idempotency_key: event.custom_key.as_deref(),
        }
    }
}

/// The payload as JSON or text, if it can be told from the content type which of them it is.
fn readable(payload: &Payload) -> Option<Content<'_>> {
    let text = std::str::from_utf8(payload.bytes()).ok()?;
    if !payload.is_json() {
        return Some(Content::Text(text));
    }
    match on_one_line(text) {
        Cow::Borrowed(json) => serde_json::from_str(json).ok().map(Content::Json),
        Cow::Owned(json) => RawValue::from_string(json).ok().map(Content::SpreadJson),
    }
}

/// JSON without line breaks. Inside strings JSON has none, so every one is space between parts.
fn on_one_line(json: &str) -> Cow<'_, str> {
    if json.contains(['\n', '\r']) {
        Cow::Owned(json.replace(['\n', '\r'], " "))
    } else {
        Cow::Borrowed(json)
    }
}

#[cfg(test)]
mod tests {
    use semel_core::Event;

    use super::*;

    fn line(event: Event) -> String {
        let lines = lines(&[Message::first("order.events", event)]).unwrap();
        assert!(lines.starts_with(PREFIX));
        String::from_utf8(lines).unwrap()
    }

    fn event() -> Event {
        let id = EventId::numbered("2026-01-02T03:04:05.006Z".parse().unwrap(), 7);
        Event::with_id(id, "order", "42", "OrderPlaced")
    }

    #[test]
    fn a_line_has_exactly_the_promised_fields() {
        let event =
            event().with_header("tenant", "acme").with_bytes(Payload::JSON, r#"{"b":1.50}"#);
        assert_eq!(
            line(event),
            "{\"id\":\"019b7ca9-8c8e-7000-8000-000000000007\",\"topic\":\"order.events\",\
             \"key\":\"42\",\"aggregate_type\":\"order\",\"aggregate_id\":\"42\",\
             \"event_type\":\"OrderPlaced\",\"payload\":{\"b\":1.50},\
             \"headers\":{\"tenant\":\"acme\"},\"created_at\":\"2026-01-02T03:04:05.006Z\"}\n"
        );
    }

    #[test]
    fn json_that_is_spread_over_lines_is_put_on_one() {
        let json = "{\r\n  \"text\": \"a\\nb\",\n  \"big\": 12345678901234567890123\n}";
        let line = line(event().with_bytes(Payload::JSON, json));
        assert_eq!(line.matches('\n').count(), 1, "{line}");
        assert!(line.contains("\"text\": \"a\\nb\",   \"big\": 12345678901234567890123"), "{line}");
    }

    #[test]
    fn what_only_claims_to_be_json_is_kept_byte_for_byte() {
        let line = line(event().with_bytes(Payload::JSON, "{\"half\": "));
        assert!(line.contains("\"payload_base64\":\"eyJoYWxmIjog\""), "{line}");
        assert!(!line.contains("\"payload\":"), "{line}");
    }

    /// One event is one line of JSON, whatever its payload is and says it is.
    #[test]
    fn fuzzed_any_payload_is_one_line() {
        let examples = ["{\"a\":1}", "{ \"a\" :\n 1.50 }", "\"\u{2028}\"", "[1e999]", "text"];
        semel_testkit::fuzz::fuzz(&examples, |payload| {
            for content_type in ["application/json", "text/plain"] {
                let event = event().with_bytes(content_type, payload.to_vec());
                let text = line(event);
                assert_eq!(text.matches('\n').count(), 1, "{text}");
                serde_json::from_str::<serde::de::IgnoredAny>(&text).unwrap();
            }
        });
    }
}
