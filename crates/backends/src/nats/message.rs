//! An event as headers and subject, and what NATS cannot carry.

use std::fmt::Write;
use std::str::FromStr;

use async_nats::{HeaderMap, HeaderName, HeaderValue, Subject};
use bytes::Bytes;
use semel_core::wire::{Binding, Epitaph, Format, decode};
use semel_core::{Event, EventId, Failure, Message, Publication};

use super::error::{bad_header, no_subject};

/// A message that is ready to be sent.
pub(super) struct Outgoing {
    pub(super) subject: Subject,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Outgoing {
    /// Encodes a message of a publish call, to be taken only right `behind` another one of it, if that is
    /// given.
    ///
    /// # Errors
    /// `Refused` when NATS cannot carry it.
    pub(super) fn encode(
        message: &Message,
        behind: Option<&Message>,
        format: Format,
        call: EventId,
    ) -> Result<Self, Failure> {
        let Message { topic, event, .. } = message;
        check_subject(topic.as_str())?;
        let mut headers = HeaderMap::new();
        let mut wrong = None;
        format.headers(event, Binding::Nats, &mut |name, value| match (
            HeaderName::from_str(name),
            HeaderValue::from_str(value),
        ) {
            (Ok(name), Ok(value)) => headers.append(name, value),
            _ => wrong = Some(bad_header(name)),
        });
        headers.insert(async_nats::header::NATS_MESSAGE_ID, message_id(message, call));
        if let Some(before) = behind {
            let before = message_id(before, call);
            headers.insert(async_nats::header::NATS_EXPECTED_LAST_MESSAGE_ID, before);
        }
        let subject = Subject::from(topic.as_str());
        wrong.map_or(Ok(Self { subject, headers, body: format.body(event) }), Err)
    }
}

/// The event of a message.
///
/// # Errors
/// `Refused` when it is none.
pub(super) fn event_of(headers: &HeaderMap, body: Bytes) -> Result<Event, Failure> {
    decode(Binding::Nats, None, pairs(headers), body)
}

/// Names and values.
pub(super) fn pairs(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str)> {
    headers.iter().flat_map(|(name, values)| {
        let name: &str = name.as_ref();
        values.iter().map(move |value| (name, value.as_str()))
    })
}

/// The headers that a message had of its own: nothing for the server, and nothing of its death.
pub(super) fn own_headers(headers: &HeaderMap) -> HeaderMap {
    let mut own = HeaderMap::new();
    for (name, values) in headers.iter() {
        let name_of: &str = name.as_ref();
        if !Epitaph::has(name_of) && !name_of.starts_with("Nats-") {
            values.iter().for_each(|value| own.append(name.clone(), value.clone()));
        }
    }
    own
}

/// Bytes of a subject.
const LONGEST: usize = 1024;

/// What a stream knows a message by: event id and subject. A stream looks for repetitions in all its
/// subjects, and an event that goes to two of them is no repetition. Nor is one that an operator wants
/// published again, however often: the stream must not know it.
fn message_id(message: &Message, call: EventId) -> String {
    let Message { topic, event, publication, .. } = message;
    let mut id = match publication {
        Publication::Again => format!("{}+{call}/", event.id),
        Publication::First | Publication::Unknown => format!("{}/", event.id),
    };
    // A longer topic is never sent; but what is behind it in its lane names it.
    for byte in topic.as_str().bytes().take(LONGEST) {
        if byte.is_ascii_graphic() && byte != b'%' {
            id.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(id, "%{byte:02X}");
        }
    }
    id
}

/// A topic may come from the fields of an event: it must not reach the server's own subjects, and
/// must not be so long that the server ends the connection.
pub(super) fn check_subject(topic: &str) -> Result<(), Failure> {
    let why = if topic.len() > LONGEST {
        "it has more than 1024 bytes"
    } else if topic.starts_with(['$', '_']) {
        "it begins with $ or _, which are the server's own"
    } else if topic.split('.').any(str::is_empty) {
        "a part of it is empty"
    } else if topic.split('.').any(|part| part == "*" || part == ">") {
        "it has a wildcard"
    } else if topic.chars().any(|char| char.is_whitespace() || char.is_control()) {
        "it has a space or a control character"
    } else {
        return Ok(());
    };
    Err(no_subject(topic, why))
}

#[cfg(test)]
mod tests {
    use semel_core::Fault;

    use super::*;

    fn encode(topic: &str) -> Result<Outgoing, Failure> {
        let event = Event::new("order", "42", "OrderPlaced");
        Outgoing::encode(&Message::first(topic, event), None, Format::Plain, EventId::now())
    }

    #[test]
    fn id_and_subject_travel_for_deduplication() {
        let event = Event::new("order", "42", "OrderPlaced");
        let id = event.id;
        let message = Message::first("a.b", event);
        let call = EventId::now();
        let outgoing = Outgoing::encode(&message, None, Format::Plain, call).unwrap();
        assert_eq!(outgoing.headers.get("Nats-Msg-Id").unwrap().as_str(), format!("{id}/a.b"));
        assert!(outgoing.headers.get("Nats-Expected-Last-Msg-Id").is_none());
        assert_eq!(outgoing.subject.as_str(), "a.b");

        let next = Message::first("c", Event::new("order", "42", "OrderPaid"));
        let outgoing = Outgoing::encode(&next, Some(&message), Format::Plain, call).unwrap();
        let behind = outgoing.headers.get("Nats-Expected-Last-Msg-Id").unwrap();
        assert_eq!(behind.as_str(), format!("{id}/a.b"), "as the one before it is called");
    }

    #[test]
    fn an_event_has_an_id_for_each_subject_short_and_in_ascii() {
        let event = Event::new("order", "42", "OrderPlaced");
        let id = |topic: &str| message_id(&Message::first(topic, event.clone()), EventId::now());
        assert_eq!(id("ß.%41"), format!("{}/%C3%9F.%2541", event.id));
        let (long, longer) = ("ß".repeat(LONGEST / 2), "ß".repeat(LONGEST));
        let topics = ["a", "a.b", "A", "ß", "%C3%9F", "%C3%9f", long.as_str()];
        let ids: std::collections::BTreeSet<_> = topics.map(id).into();
        assert_eq!(ids.len(), topics.len(), "{ids:?}");
        assert!(ids.iter().all(|id| id.bytes().all(|byte| byte.is_ascii_graphic())), "{ids:?}");
        assert_eq!(id(&longer).len(), 37 + 3 * LONGEST);
    }

    #[test]
    fn what_is_published_again_has_an_id_of_its_own_each_time() {
        let mut message = Message::first("a", Event::new("order", "42", "OrderPlaced"));
        message.publication = Publication::Again;
        let (call, later) = (EventId::now(), EventId::now());
        let id = message_id(&message, call);
        assert_eq!(id, format!("{}+{call}/a", message.event.id));
        assert_eq!(id, message_id(&message, call), "as the one behind it calls it");
        assert_ne!(id, message_id(&message, later));
        let outgoing = Outgoing::encode(&message, None, Format::Plain, call).unwrap();
        let event_id = outgoing.headers.get("semel-event-id").unwrap().as_str();
        assert_eq!(event_id, message.event.id.to_string());
    }

    #[test]
    fn a_content_type_cannot_break_out_of_its_header() {
        let event = Event::new("order", "42", "T").with_bytes("text/plain\r\nevil: two", "");
        let message = Message::first("a", event);
        let outcome = Outgoing::encode(&message, None, Format::Plain, EventId::now());
        let failure = outcome.err().unwrap();
        assert_eq!((failure.fault(), failure.code()), (Fault::Refused, "E-NATS-HEADER"));
    }

    #[test]
    fn what_is_no_subject_is_refused() {
        let long = "x".repeat(1025);
        let cases = [
            ("", "empty"),
            (".a", "empty"),
            ("a..b", "empty"),
            ("a.", "empty"),
            ("a.*", "wildcard"),
            (">", "wildcard"),
            ("a b", "space"),
            ("a\r\nPUB x 0", "control"),
            ("$JS.API.STREAM.DELETE.ORDERS", "server's own"),
            ("_INBOX.x", "server's own"),
            (long.as_str(), "1024"),
        ];
        for (topic, why) in cases {
            let failure = encode(topic).err().unwrap();
            assert_eq!((failure.fault(), failure.code()), (Fault::Refused, "E-NATS-SUBJECT"));
            assert!(failure.to_string().contains(why), "{failure}");
        }
        assert!(encode("Bestellung-ß.日本.a*b").is_ok());
    }
}
