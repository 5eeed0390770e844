//! A message as one JSON document, for a column of a table.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::delivery::{Message, Topic};
use crate::event::{Event, EventId, Headers, Payload};
use crate::failure::Failure;

#[derive(Deserialize, Serialize)]
struct Stored {
    topic: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    id: EventId,
    aggregate_type: String,
    aggregate_id: String,
    event_type: String,
    content_type: String,
    /// The payload where it is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    headers: Headers,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<String>,
    created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    available_at: Option<Timestamp>,
}

/// A message as text.
///
/// # Errors
/// `Refused`, which cannot happen with text and numbers.
///
/// ```
/// use semel_core::letters::{from_stored, to_stored};
/// use semel_core::{Event, Message};
///
/// let event = Event::new("order", "42", "OrderPlaced").with_bytes("image/png", vec![0x89, 0xff]);
/// let message = Message::first("order.events", event);
/// assert_eq!(from_stored(&to_stored(&message)?)?.event, message.event);
/// # Ok::<(), semel_core::Failure>(())
/// ```
pub fn to_stored(message: &Message) -> Result<String, Failure> {
    let event = &message.event;
    let bytes = event.payload.bytes();
    // A NUL is text that not every database takes.
    let text = std::str::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
    let stored = Stored {
        topic: message.topic.as_str().to_owned(),
        key: message.key.as_deref().map(str::to_owned),
        id: event.id,
        aggregate_type: event.aggregate_type.clone(),
        aggregate_id: event.aggregate_id.clone(),
        event_type: event.event_type.clone(),
        content_type: event.payload.content_type().to_owned(),
        payload: text.map(str::to_owned),
        payload_base64: text.is_none().then(|| STANDARD.encode(bytes)),
        headers: event.headers.clone(),
        idempotency_key: event.custom_key.clone(),
        created_at: event.created_at,
        available_at: event.available_at,
    };
    serde_json::to_string(&stored)
        .map_err(|error| Failure::refused("E-LETTER", "cannot be written").with_source(error))
}

/// The message that was written by [`to_stored`], as a first attempt.
///
/// # Errors
/// `Refused` when somebody else wrote it.
pub fn from_stored(text: &str) -> Result<Message, Failure> {
    let broken = || Failure::refused("E-LETTER", "a dead letter of a consumer cannot be read");
    let stored: Stored = serde_json::from_str(text).map_err(|error| broken().with_source(error))?;
    let bytes = match (stored.payload, stored.payload_base64) {
        (Some(text), _) => Bytes::from(text),
        (None, Some(coded)) => {
            STANDARD.decode(coded).map_err(|error| broken().with_source(error))?.into()
        }
        (None, None) => Bytes::new(),
    };
    let Stored { id, aggregate_type, aggregate_id, event_type, .. } = stored;
    let mut event = Event::with_id(id, aggregate_type, aggregate_id, event_type);
    event.payload = Payload::new(stored.content_type, bytes);
    event.headers = stored.headers;
    event.custom_key = stored.idempotency_key;
    event.created_at = stored.created_at;
    event.available_at = stored.available_at;
    let mut message = Message::first(Topic::from(stored.topic.as_str()), event);
    message.key = stored.key.map(Into::into);
    Ok(message)
}
