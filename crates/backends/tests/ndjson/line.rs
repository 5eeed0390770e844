//! A line as an event again.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use semel_core::{Event, Headers, Payload};
use serde_json::Value;

pub(super) fn event(line: &str) -> Event {
    let value: Value = serde_json::from_str(line).unwrap();
    let text = |name: &str| value[name].as_str().map(str::to_owned);
    let id = text("id").unwrap().parse().unwrap();
    let name = |name| text(name).unwrap();
    assert_eq!(text("key"), text("aggregate_id"));
    let mut event =
        Event::with_id(id, name("aggregate_type"), name("aggregate_id"), name("event_type"));
    event.headers = serde_json::from_value::<Headers>(value["headers"].clone()).unwrap();
    event.created_at = name("created_at").parse().unwrap();
    event.custom_key = text("idempotency_key");
    let content_type = text("content_type").unwrap_or_else(|| Payload::JSON.into());
    let bytes = match (text("payload_base64"), text("payload")) {
        (Some(encoded), _) => STANDARD.decode(encoded).unwrap(),
        (None, Some(text)) if content_type != Payload::JSON => text.into_bytes(),
        _ => json_bytes(line),
    };
    event.payload = Payload::new(content_type, bytes);
    event
}

/// The payload as it stands in the line: parsing would change its order and its numbers.
fn json_bytes(line: &str) -> Vec<u8> {
    let (_, rest) = line.split_once("\"payload\":").unwrap();
    let (payload, _) = rest.split_once(",\"headers\":").unwrap();
    payload.as_bytes().to_vec()
}
