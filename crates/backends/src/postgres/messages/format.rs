//! An event as the text of a message.

use std::borrow::Cow;
use std::fmt::Display;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use semel_core::event::EventLimits;
use semel_core::{Event, Failure, Headers, Payload};
use serde::{Deserialize, Serialize};

/// The fields are named after the columns of the outbox, so that a writer in any language can make
/// one.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Message<'a> {
    id: Cow<'a, str>,
    aggregate_type: Cow<'a, str>,
    aggregate_id: Cow<'a, str>,
    event_type: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload_base64: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content_type: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    headers: Option<Cow<'a, Headers>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    created_at: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    available_at: Option<Cow<'a, str>>,
}

pub(super) fn encode(event: &Event) -> String {
    let payload = std::str::from_utf8(event.payload.bytes()).ok();
    let content_type = event.payload.content_type();
    let message = Message {
        id: event.id.to_string().into(),
        aggregate_type: (&*event.aggregate_type).into(),
        aggregate_id: (&*event.aggregate_id).into(),
        event_type: (&*event.event_type).into(),
        payload_base64: payload.is_none().then(|| STANDARD.encode(event.payload.bytes()).into()),
        payload: payload.map(Cow::Borrowed),
        content_type: (content_type != Payload::JSON).then_some(content_type.into()),
        headers: (!event.headers.is_empty()).then_some(Cow::Borrowed(&event.headers)),
        idempotency_key: event.custom_key.as_deref().map(Cow::Borrowed),
        created_at: Some(event.created_at.to_string().into()),
        available_at: event.available_at.map(|time| time.to_string().into()),
    };
    // Strings always make JSON.
    serde_json::to_string(&message).unwrap_or_default()
}

/// # Errors
/// `Refused` when it is no event.
pub(super) fn decode(content: &[u8]) -> Result<Event, Failure> {
    let message: Message<'_> = serde_json::from_slice(content).map_err(wrong)?;
    let mut event = Event::with_id(
        parsed(&message.id)?,
        message.aggregate_type,
        message.aggregate_id,
        message.event_type,
    );
    let bytes = match (message.payload, message.payload_base64) {
        (Some(text), None) => text.into_owned().into_bytes(),
        (None, Some(encoded)) => STANDARD.decode(&*encoded).map_err(wrong)?,
        _ => return Err(wrong("it has no payload, or two")),
    };
    let content_type = message.content_type.map(Cow::into_owned);
    event.payload = Payload::new(content_type.map_or(Payload::JSON.into(), Cow::Owned), bytes);
    event.headers = message.headers.map(Cow::into_owned).unwrap_or_default();
    event.custom_key = message.idempotency_key.map(Cow::into_owned);
    if let Some(time) = message.created_at {
        event.created_at = parsed(&time)?;
    }
    event.available_at = message.available_at.map(|time| parsed(&time)).transpose()?;
    check(&event)?;
    Ok(event)
}

/// Whether an event can be carried: the outbox has room for any payload and any headers. Its trigger
/// refuses longer names, which would hold back all other messages.
pub(super) fn check(event: &Event) -> Result<(), Failure> {
    let usual = EventLimits::default();
    event.check(&EventLimits { headers: usize::MAX, payload_bytes: usize::MAX, ..usual })
}

fn parsed<T: FromStr<Err: Display>>(text: &str) -> Result<T, Failure> {
    text.parse().map_err(|error| wrong(format!("{text:?}: {error}")))
}

pub(super) fn wrong(why: impl Display) -> Failure {
    Failure::refused("E-MESSAGE", format!("PostgreSQL: a message in the log is no event: {why}"))
        .with_fix("write messages with the library, or as docs/backends/postgres.md shows")
}

#[cfg(test)]
mod tests {
    use semel_testkit::workload::{assert_intact, awkward_events};

    use super::*;

    #[test]
    fn every_event_comes_back_as_it_was() {
        for event in awkward_events() {
            let text = encode(&event);
            assert!(!text.contains('\0'), "no text of PostgreSQL: {text}");
            assert_intact(&event, &decode(text.as_bytes()).unwrap());
        }
    }

    #[test]
    fn a_writer_needs_little() {
        let text = r#"{"id":"01890a5d-ac96-774b-bcce-b302099a8057","aggregate_type":"order",
            "aggregate_id":"42","event_type":"OrderPlaced","payload":"{\"total\": 99}"}"#;
        let event = decode(text.as_bytes()).unwrap();
        assert_eq!(&event.payload.bytes()[..], br#"{"total": 99}"#);
        assert_eq!(event.created_at, event.id.timestamp().unwrap());
    }

    #[test]
    fn what_is_no_event_is_refused() {
        let whole = r#"{"id":"01890a5d-ac96-774b-bcce-b302099a8057","aggregate_type":"order",
            "aggregate_id":"42","event_type":"OrderPlaced","payload":"{}"}"#;
        let wrong = [
            "",
            "{}",
            "[1]",
            &whole.replace("01890a5d", "x"),
            &whole.replace("\"order\"", "\"\""),
            &whole.replace("\"payload\"", "\"playload\""),
            &whole.replace("\"payload\":\"{}\"", "\"payload_base64\":\"*\""),
            &whole.replace("\"payload\":\"{}\"", "\"content_type\":\"text/plain\""),
            &whole.replace("\"{}\"", "\"{}\",\"created_at\":\"yesterday\""),
            &whole.replace("\"{}\"", "\"{}\",\"content_type\":\"\""),
            &whole.replace("\"{}\"", "\"{}\",\"content_type\":\"text/plain\\u0000\""),
            &whole.replace("\"{}\"", "\"{}\",\"content_type\":\"text/plain\\r\\n\""),
        ];
        assert!(decode(whole.as_bytes()).is_ok());
        for text in wrong {
            assert!(decode(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn fuzzed_any_message_is_an_event_or_refused() {
        let examples: Vec<String> = awkward_events().iter().map(encode).collect();
        semel_testkit::fuzz::fuzz(&examples, |content| {
            if let Ok(event) = decode(content) {
                assert_intact(&event, &decode(encode(&event).as_bytes()).unwrap());
            }
        });
    }
}
