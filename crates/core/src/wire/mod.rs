//! How an event looks on a wire that has headers and a body.
//!
//! Every sink encodes and every subscription decodes through this module, so that an event comes
//! out of a broker as it went in, whichever broker that is.
//!
//! ```
//! use semel_core::wire::{Binding, Format, decode};
//! use semel_core::Event;
//!
//! let event = Event::new("order", "42", "OrderPlaced").with_header("tenant", "acme");
//! let mut headers = Vec::new();
//! Format::Plain.headers(&event, Binding::Kafka, &mut |name, value| {
//!     headers.push((name.to_owned(), value.to_owned()));
//! });
//! assert!(headers.contains(&("semel-event-type".into(), "OrderPlaced".into())));
//! let pairs = headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
//! let back = decode(Binding::Kafka, None, pairs, Format::Plain.body(&event))?;
//! assert_eq!(back, event);
//! # Ok::<(), semel_core::Failure>(())
//! ```

mod cloudevents;
mod epitaph;
mod escape;
mod plain;

pub use epitaph::{Epitaph, Inscription};

use std::borrow::Cow;
use std::str::FromStr;

use bytes::Bytes;

use crate::event::Event;
use crate::failure::Failure;

/// What a message carries beside the payload, and where.
///
/// ```
/// # use semel_core::{Event, wire::Format};
/// let format: Format = "cloudevents-structured".parse()?;
/// let body = format.body(&Event::new("order", "42", "OrderPlaced"));
/// assert!(body.starts_with(br#"{"specversion":"1.0","#));
/// # Ok::<(), semel_core::Failure>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// The payload as it is; everything else in headers whose names begin with `semel-`.
    #[default]
    Plain,
    /// CloudEvents 1.0: the payload as it is, attributes in headers.
    CloudEventsBinary,
    /// CloudEvents 1.0: one JSON document.
    CloudEventsStructured,
}

/// A protocol, and with it the names and the characters of its headers.
///
/// ```
/// # use semel_core::{Event, wire::{Binding, Format}};
/// let event = Event::new("order", "42", "OrderPlaced");
/// let mut names = Vec::new();
/// let format = Format::CloudEventsBinary;
/// format.headers(&event, Binding::Amqp, &mut |name, _| names.push(name.to_owned()));
/// assert!(names.contains(&"cloudEvents_subject".to_owned()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// Kafka: headers, with the content type among them.
    Kafka,
    /// HTTP: the content type has its own place; values are ASCII.
    Http,
    /// AMQP: application headers; the content type is a property.
    Amqp,
    /// NATS: headers, with the content type among them; values are ASCII.
    Nats,
    /// MQTT 5: user properties; the content type is a property.
    Mqtt,
    /// Redis: fields of an entry, with the content type among them.
    Redis,
}

impl Format {
    /// All formats, by the names they have in a configuration.
    pub const NAMES: [(&'static str, Self); 3] = [
        ("plain", Self::Plain),
        ("cloudevents-binary", Self::CloudEventsBinary),
        ("cloudevents-structured", Self::CloudEventsStructured),
    ];

    /// Calls `each` with the name and value of every header, ready for the protocol.
    pub fn headers(self, event: &Event, binding: Binding, each: &mut dyn FnMut(&str, &str)) {
        if binding.content_type_is_a_header() {
            each(CONTENT_TYPE, self.content_type(event));
        }
        match self {
            Self::Plain => plain::headers(event, binding, each),
            Self::CloudEventsBinary => cloudevents::headers(event, binding, each),
            Self::CloudEventsStructured => {}
        }
    }

    /// The body of the message.
    #[must_use]
    pub fn body(self, event: &Event) -> Bytes {
        match self {
            Self::Plain | Self::CloudEventsBinary => event.payload.bytes().clone(),
            Self::CloudEventsStructured => cloudevents::document(event),
        }
    }

    /// What kind of content the body is.
    #[must_use]
    pub fn content_type(self, event: &Event) -> &str {
        match self {
            Self::Plain | Self::CloudEventsBinary => event.payload.content_type(),
            Self::CloudEventsStructured => cloudevents::STRUCTURED,
        }
    }
}

impl FromStr for Format {
    type Err = Failure;

    fn from_str(name: &str) -> Result<Self, Failure> {
        let found = Self::NAMES.iter().find(|(known, _)| *known == name);
        found.map(|(_, format)| *format).ok_or_else(|| {
            let names = Self::NAMES.map(|(name, _)| name).join(", ");
            Failure::misconfigured("E-FORMAT", format!("there is no format {name:?}"))
                .with_fix(format!("write one of {names}"))
        })
    }
}

/// The event of a message, whatever its format is.
///
/// # Errors
/// `Refused` when it is no message of semel and no CloudEvent, or a broken one.
pub fn decode<'a>(
    binding: Binding,
    content_type: Option<&str>,
    headers: impl IntoIterator<Item = (&'a str, &'a str)>,
    body: Bytes,
) -> Result<Event, Failure> {
    decode_keyed(binding, content_type, None, headers, body)
}

/// As [`decode`], of a message with a key, by which its broker keeps it together with others. An
/// event that does not say what it is about is about that.
///
/// ```
/// use semel_core::wire::{Binding, decode_keyed};
///
/// let headers =
///     [("ce_specversion", "1.0"), ("ce_id", "7"), ("ce_source", "/till"), ("ce_type", "Sold")];
/// let event = decode_keyed(Binding::Kafka, None, Some("shop-3"), headers, "{}".into())?;
/// assert_eq!((&*event.aggregate_type, &*event.aggregate_id), ("/till", "shop-3"));
/// assert_eq!(event.idempotency_key(), "7");
/// # Ok::<(), semel_core::Failure>(())
/// ```
///
/// # Errors
/// As of [`decode`].
pub fn decode_keyed<'a>(
    binding: Binding,
    content_type: Option<&str>,
    key: Option<&'a str>,
    headers: impl IntoIterator<Item = (&'a str, &'a str)>,
    body: Bytes,
) -> Result<Event, Failure> {
    let content_type = content_type.map(str::to_owned);
    let mut found = Found { content_type, key, pairs: Vec::new() };
    for (name, value) in headers {
        if binding.is_the_servers_own(name) {
            continue;
        }
        let pair = (binding.unescape_name(name), binding.unescape(value));
        if binding.content_type_is_a_header() && pair.0.eq_ignore_ascii_case(CONTENT_TYPE) {
            found.content_type = Some(pair.1.into_owned());
        } else {
            found.pairs.push(pair);
        }
    }
    if found.content_type.as_deref().is_some_and(cloudevents::is_structured) {
        cloudevents::from_document(&body, found.key)
    } else if found.get(plain::ID).is_none()
        && found.get(&binding.attribute("specversion")).is_some()
    {
        cloudevents::from_headers(&found, binding, body)
    } else {
        plain::from_headers(&found, binding, body)
    }
}

const CONTENT_TYPE: &str = "content-type";

impl Binding {
    const fn content_type_is_a_header(self) -> bool {
        matches!(self, Self::Kafka | Self::Nats | Self::Redis)
    }

    const fn is_ascii(self) -> bool {
        matches!(self, Self::Http | Self::Nats)
    }

    /// Whether a header says something to the server, and nothing of the event. Headers of events
    /// are in lower case.
    fn is_the_servers_own(self, name: &str) -> bool {
        self == Self::Nats && name.starts_with("Nats-")
    }

    /// The name of the header that carries an attribute of a CloudEvent.
    fn attribute(self, name: &str) -> String {
        let prefix = match self {
            Self::Kafka | Self::Redis => "ce_",
            Self::Http | Self::Nats => "ce-",
            Self::Amqp => "cloudEvents_",
            Self::Mqtt => "",
        };
        format!("{prefix}{name}")
    }

    /// The attribute that a header carries, by its name without the prefix. Attributes are in lower
    /// case, and where headers are ASCII, clients write them as they please.
    fn attribute_of(self, name: &str) -> String {
        if self.is_ascii() { name.to_ascii_lowercase() } else { name.to_owned() }
    }

    fn escape_name<'a>(self, name: &'a str) -> Cow<'a, str> {
        if self.is_ascii() { escape::name(name) } else { Cow::Borrowed(name) }
    }

    fn escape_value<'a>(self, value: &'a str) -> Cow<'a, str> {
        if self.is_ascii() { escape::value(value) } else { Cow::Borrowed(value) }
    }

    fn escape_attribute<'a>(self, value: &'a str) -> Cow<'a, str> {
        if self.is_ascii() { escape::attribute(value) } else { Cow::Borrowed(value) }
    }

    /// In AMQP an attribute may be called `cloudEvents:id` as well as `cloudEvents_id`.
    fn unescape_name<'a>(self, name: &'a str) -> Cow<'a, str> {
        match name.strip_prefix("cloudEvents:") {
            Some(attribute) if self == Self::Amqp => Cow::Owned(self.attribute(attribute)),
            _ => self.unescape(name),
        }
    }

    fn unescape<'a>(self, text: &'a str) -> Cow<'a, str> {
        if self.is_ascii() { escape::unescape(text) } else { Cow::Borrowed(text) }
    }
}

/// What a message brought.
struct Found<'a> {
    content_type: Option<String>,
    key: Option<&'a str>,
    pairs: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl Found<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        let found = self.pairs.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_ref())
    }

    fn required(&self, name: &str) -> Result<&str, Failure> {
        self.get(name).ok_or_else(|| foreign(format!("it has no {name}")))
    }
}

fn foreign(why: impl std::fmt::Display) -> Failure {
    Failure::refused("E-WIRE", format!("this message cannot be read as an event: {why}"))
        .with_fix("check what else publishes to this place")
}

fn parsed<T: FromStr>(name: &str, value: &str) -> Result<T, Failure>
where
    T::Err: std::fmt::Display,
{
    value.parse().map_err(|error| foreign(format!("{name} {value:?}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Payload;

    const BINDINGS: [Binding; 6] = [
        Binding::Kafka,
        Binding::Http,
        Binding::Amqp,
        Binding::Nats,
        Binding::Mqtt,
        Binding::Redis,
    ];

    fn awkward() -> Vec<Event> {
        let made = |kind: &str| Event::new("Bestellung-ß", "日本/42 \"%41\"", kind);
        vec![
            made("null"),
            made("spaces in json").with_bytes(Payload::JSON, "{ \"a\" :\n 1.50 }"),
            made("broken json").with_bytes(Payload::JSON, "{"),
            made("empty").with_bytes(Payload::JSON, ""),
            made("binary").with_bytes("application/avro", vec![0, 0xff, 0xc3, 0x28]),
            made("text").with_bytes("text/plain; charset=utf-8", "Grüße\r\n\0"),
            made("key").with_idempotency_key("order-42/placed ü %0A"),
            made("headers")
                .with_header(
                    "traceparent",
                    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                )
                .with_header("Tenant-Id", "ACME & Söhne 🚀")
                .with_header("tenant", "50%25")
                .with_header("id", "not the id")
                .with_header("content-length", "7")
                .with_header("x.dotted_name-1 ü:", "a\r\nb: c")
                .with_header("empty", ""),
        ]
    }

    fn sorted(mut event: Event) -> Event {
        event.headers = std::collections::BTreeMap::from(event.headers).into();
        event
    }

    #[test]
    fn every_event_comes_out_as_it_went_in() {
        for binding in BINDINGS {
            for (name, format) in Format::NAMES {
                for event in awkward() {
                    let mut headers = Vec::new();
                    format.headers(&event, binding, &mut |name, value| {
                        if binding.is_ascii() {
                            let visible =
                                |text: &str| text.bytes().all(|b| (b' '..0x7f).contains(&b));
                            assert!(visible(name) && visible(value), "{name}: {value}");
                            assert!(!name.contains([' ', ':', '\"']), "{name}");
                        }
                        headers.push((name.to_owned(), value.to_owned()));
                    });
                    let content_type =
                        (!binding.content_type_is_a_header()).then(|| format.content_type(&event));
                    let pairs = headers.iter().map(|(name, value)| (&**name, &**value));
                    let back = decode(binding, content_type, pairs, format.body(&event));
                    let what = format!("{binding:?} {name} {}", event.event_type);
                    assert_eq!(sorted(back.expect(&what)), sorted(event), "{what}");
                }
            }
        }
    }

    #[test]
    fn http_headers_of_an_event_cannot_steer_the_request() {
        let event = Event::new("a", "1", "T").with_header("Host", "evil").with_header("te", "x");
        for (_, format) in Format::NAMES {
            format.headers(&event, Binding::Http, &mut |name, _| {
                assert!(name.starts_with("semel-") || name.starts_with("ce-"), "{name}");
            });
        }
    }

    #[test]
    fn a_dead_letter_is_still_the_event_that_it_was() {
        let failure = Failure::refused("E-TEST", format!("ü\r\n{}", "x".repeat(5_000)));
        let epitaph = Epitaph { failure: &failure, attempts: 3, consumer: "ß", origin: "t/0@1" };
        for binding in BINDINGS {
            for (_, format) in Format::NAMES {
                let event = Event::new("order", "42", "OrderPlaced").with_header("tenant", "acme");
                let mut headers = Vec::new();
                let mut add = |name: &str, value: &str| {
                    assert!(!binding.is_ascii() || value.is_ascii(), "{value}");
                    headers.push((name.to_owned(), value.to_owned()));
                };
                format.headers(&event, binding, &mut add);
                epitaph.headers(binding, &mut |name, value| add(name, value));
                let content_type =
                    (!binding.content_type_is_a_header()).then(|| format.content_type(&event));
                // In MQTT every property is an attribute of the CloudEvent.
                if binding == Binding::Mqtt && format == Format::CloudEventsBinary {
                    continue;
                }
                let pairs = headers.iter().map(|(name, value)| (&**name, &**value));
                let back = decode(binding, content_type, pairs, format.body(&event)).unwrap();
                assert_eq!(back, event, "{binding:?} {format:?}");
                let pairs = headers.iter().map(|(name, value)| (&**name, &**value));
                let said = Inscription::read(binding, pairs).unwrap();
                assert!(failure.to_string().starts_with(&said.error), "{binding:?} {said:?}");
                let rest = (&*said.code, said.attempts, &*said.consumer, &*said.origin);
                assert_eq!(rest, ("E-TEST", 3, "ß", "t/0@1"), "{binding:?}");
            }
        }
    }

    #[test]
    fn others_need_not_say_when_nor_by_which_key() {
        let headers = [
            ("semel-event-id", "01890a5d-ac96-774b-bcce-b302099a8057"),
            ("semel-event-type", "Sold"),
            ("semel-aggregate-type", "till"),
            ("semel-aggregate-id", "3"),
        ];
        let event = decode(Binding::Kafka, None, headers, "{}".into()).unwrap();
        assert_eq!(event.created_at.to_string(), "2023-06-30T03:34:18.518Z", "as its id says");
        assert_eq!((&event.custom_key, event.payload.is_json()), (&None, true));
        for place in 0..headers.len() {
            let all = headers.iter().enumerate().filter(|(other, _)| *other != place);
            let rest = all.map(|(_, header)| *header);
            let failure = decode(Binding::Kafka, None, rest, "{}".into()).unwrap_err();
            assert!(failure.to_string().contains(headers[place].0), "{failure}");
        }
    }

    #[test]
    fn foreign_and_broken_messages_are_refused() {
        let structured = ("content-type", "application/cloudevents+json");
        let cases = [
            (("x", "y"), "hello", "it has no semel-event-id"),
            (("semel-event-id", "7"), "", "semel-event-id \"7\""),
            (("ce_specversion", "0.3"), "", "specversion \"0.3\""),
            (structured, "{", "EOF"),
            (structured, "{}", "specversion"),
        ];
        for (header, body, expected) in cases {
            let failure = decode(Binding::Kafka, None, [header], body.into()).unwrap_err();
            assert!(failure.to_string().contains(expected), "{failure}: {expected}");
        }
    }
}
