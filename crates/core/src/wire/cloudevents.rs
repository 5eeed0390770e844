//! CloudEvents 1.0, in both modes.
//!
//! | attribute | value |
//! |---|---|
//! | `id`, `type`, `time` | those of the event |
//! | `source` | `/` and the aggregate type |
//! | `subject`, `partitionkey` | the aggregate id |
//! | `aggregatetype` | the aggregate type |
//! | `idempotencykey` | the idempotency key, if it is not the id |
//! | `datacontenttype` | the content type, where the binding has it as an attribute: in NATS |
//! | a header whose name is a legal attribute name | its value |
//! | `semelheaders` | all other headers, as a JSON object |
//!
//! Others need not write all of that: `id`, `source` and `type` are enough. An `id` that is no UUID
//! is the idempotency key, and the event's id is [made of it and the source](made_of); without a
//! `subject` the event is about its `partitionkey`, the key of the message, or itself.

use std::borrow::Cow;
use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;
use sha1::{Digest, Sha1};
use uuid::Uuid;

use super::{Binding, Found, escape, foreign, parsed};
use crate::event::{Event, EventId, Payload};
use crate::failure::Failure;

/// The content type of a document in structured mode.
pub(super) const STRUCTURED: &str = "application/cloudevents+json; charset=utf-8";

const VERSION: &str = "1.0";
const HEADERS: &str = "semelheaders";
const DATA_CONTENT_TYPE: &str = "datacontenttype";
/// Names that a header of the event cannot have as an attribute.
const TAKEN: [&str; 13] = [
    "specversion",
    "id",
    "source",
    "type",
    "subject",
    "time",
    DATA_CONTENT_TYPE,
    "dataschema",
    "partitionkey",
    "aggregatetype",
    "idempotencykey",
    "data",
    HEADERS,
];

pub(super) fn is_structured(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/cloudevents+json")
}

pub(super) fn headers(event: &Event, binding: Binding, each: &mut dyn FnMut(&str, &str)) {
    for (name, value) in attributes(event) {
        each(&binding.attribute(name), &binding.escape_attribute(&value));
    }
    if binding == Binding::Nats {
        let content_type = binding.escape_attribute(event.payload.content_type());
        each(&binding.attribute(DATA_CONTENT_TYPE), &content_type);
    }
}

/// Everything but the data and its content type.
fn attributes(event: &Event) -> Vec<(&str, Cow<'_, str>)> {
    let source = format!("/{}", escape::name(&event.aggregate_type));
    let mut all = vec![
        ("specversion", Cow::Borrowed(VERSION)),
        ("id", event.id.to_string().into()),
        ("source", source.into()),
        ("type", (&*event.event_type).into()),
        ("subject", (&*event.aggregate_id).into()),
        ("time", event.created_at.to_string().into()),
        ("partitionkey", (&*event.aggregate_id).into()),
        ("aggregatetype", (&*event.aggregate_type).into()),
    ];
    all.extend(event.custom_key.as_deref().map(|key| ("idempotencykey", key.into())));
    let mut others = BTreeMap::new();
    for (name, value) in event.headers.iter() {
        if is_attribute(name) {
            all.push((name, value.into()));
        } else {
            others.insert(name, value);
        }
    }
    if !others.is_empty() {
        all.push((HEADERS, serde_json::json!(others).to_string().into()));
    }
    all
}

/// Whether a header can be an attribute: lower-case letters and digits, and not too many.
fn is_attribute(name: &str) -> bool {
    let legal = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    legal && (1..=20).contains(&name.len()) && !TAKEN.contains(&name)
}

pub(super) fn document(event: &Event) -> Bytes {
    #[derive(Serialize)]
    struct Document<'a> {
        specversion: &'a str,
        #[serde(flatten)]
        attributes: BTreeMap<&'a str, &'a str>,
        datacontenttype: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        data: Option<Cow<'a, RawValue>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        data_base64: Option<String>,
    }
    let attributes = attributes(event);
    let attributes = attributes.iter().map(|(name, value)| (*name, &**value));
    let data = readable(&event.payload);
    let document = Document {
        specversion: VERSION,
        attributes: attributes.filter(|(name, _)| *name != "specversion").collect(),
        datacontenttype: event.payload.content_type(),
        data_base64: data.is_none().then(|| STANDARD.encode(event.payload.bytes())),
        data,
    };
    // Strings and JSON that was checked can always be written.
    serde_json::to_vec(&document).unwrap_or_default().into()
}

/// The payload as JSON: as it is if it is JSON, as a string if it is other text.
fn readable(payload: &Payload) -> Option<Cow<'_, RawValue>> {
    let text = std::str::from_utf8(payload.bytes()).ok()?;
    if payload.is_json() {
        // Outer space would not come back.
        let fits = text.trim() == text;
        serde_json::from_str(text).ok().filter(|_| fits).map(Cow::Borrowed)
    } else {
        serde_json::value::to_raw_value(text).ok().map(Cow::Owned)
    }
}

pub(super) fn from_headers(
    found: &Found<'_>,
    binding: Binding,
    body: Bytes,
) -> Result<Event, Failure> {
    let prefix = binding.attribute("");
    let own = found.pairs.iter().filter_map(|(name, value)| {
        let (start, rest) = name.split_at_checked(prefix.len())?;
        start.eq_ignore_ascii_case(&prefix).then(|| (binding.attribute_of(rest), value.to_string()))
    });
    let mut attributes: BTreeMap<_, _> = own.collect();
    let stated = attributes.remove(DATA_CONTENT_TYPE);
    let content_type = found.content_type.clone().or(stated);
    let content_type = content_type.unwrap_or_else(|| Payload::JSON.to_owned());
    from_attributes(attributes, Payload::new(content_type, body), found.key)
}

pub(super) fn from_document(body: &[u8], key: Option<&str>) -> Result<Event, Failure> {
    let mut fields: BTreeMap<String, &RawValue> = serde_json::from_slice(body).map_err(foreign)?;
    let data = fields.remove("data");
    let data_base64 = fields.remove("data_base64");
    // An attribute that is null is not there.
    fields.retain(|_, value| value.get() != "null");
    let text = |(name, value): (String, &RawValue)| {
        // An attribute may be a number or a boolean as well as a string.
        let text = serde_json::from_str(value.get()).unwrap_or_else(|_| value.get().to_owned());
        (name, text)
    };
    let mut attributes: BTreeMap<String, String> = fields.into_iter().map(text).collect();
    let content_type =
        attributes.remove(DATA_CONTENT_TYPE).unwrap_or_else(|| Payload::JSON.to_owned());
    let bytes = match (data, data_base64) {
        (_, Some(encoded)) => {
            let encoded: String = serde_json::from_str(encoded.get()).map_err(foreign)?;
            STANDARD.decode(encoded).map_err(foreign)?
        }
        (Some(data), None) => {
            let json = Payload::new(content_type.clone(), Bytes::new()).is_json();
            let text = (!json).then(|| serde_json::from_str::<String>(data.get()).ok()).flatten();
            text.unwrap_or_else(|| data.get().to_owned()).into_bytes()
        }
        (None, None) => Vec::new(),
    };
    from_attributes(attributes, Payload::new(content_type, bytes), key)
}

/// `key` is that of the message, if it has one.
fn from_attributes(
    mut attributes: BTreeMap<String, String>,
    payload: Payload,
    key: Option<&str>,
) -> Result<Event, Failure> {
    let mut take = |name: &str| {
        attributes.remove(name).ok_or_else(|| foreign(format!("it has no attribute {name}")))
    };
    let version = take("specversion")?;
    if version != VERSION {
        return Err(foreign(format!("specversion {version:?} is not {VERSION}")));
    }
    let (own_id, source) = (take("id")?, take("source")?);
    if own_id.is_empty() {
        return Err(foreign("its attribute id is empty"));
    }
    let known = own_id.parse::<EventId>().ok();
    let id = known.unwrap_or_else(|| made_of(&source, &own_id));
    let aggregate_type = take("aggregatetype").unwrap_or(source);
    let event_type = take("type")?;
    let keys = [take("partitionkey").ok(), key.map(str::to_owned)];
    let kept_together = keys.into_iter().flatten().find(|key| !key.is_empty());
    let aggregate_id = take("subject").ok().or(kept_together).unwrap_or_else(|| own_id.clone());
    let mut event = Event::with_id(id, aggregate_type, aggregate_id, event_type);
    if let Ok(time) = take("time") {
        event.created_at = parsed("time", &time)?;
    }
    event.custom_key = take("idempotencykey").ok().or(known.is_none().then_some(own_id));
    event.payload = payload;
    if let Ok(others) = take(HEADERS) {
        event.headers = serde_json::from_str(&others).map_err(foreign)?;
    }
    for (name, value) in attributes {
        if !TAKEN.contains(&&*name) {
            event.headers.set(name, value);
        }
    }
    Ok(event)
}

/// The id of an event whose own is no UUID. Source and id together tell CloudEvents apart, so it is
/// the UUID of version 5 of the id, in the namespace that is the one of the source as a URL.
fn made_of(source: &str, id: &str) -> EventId {
    EventId::from_uuid(version_5(&version_5(&Uuid::NAMESPACE_URL, source), id))
}

fn version_5(namespace: &Uuid, name: &str) -> Uuid {
    let hash = Sha1::new().chain_update(namespace.as_bytes()).chain_update(name).finalize();
    let mut bytes = uuid::Bytes::default();
    bytes.copy_from_slice(&hash[..size_of::<uuid::Bytes>()]);
    uuid::Builder::from_sha1_bytes(bytes).into_uuid()
}

#[cfg(test)]
mod tests {
    use super::super::{Format, decode, decode_keyed};
    use super::*;

    const ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

    fn event(aggregate_id: &str, event_type: &str) -> Event {
        let id: EventId = ID.parse().unwrap();
        Event::with_id(id, "order", aggregate_id, event_type).with_bytes("text/plain", "hello")
    }

    fn told(event: &Event, binding: Binding) -> Vec<(String, String)> {
        let mut told = Vec::new();
        Format::CloudEventsBinary.headers(event, binding, &mut |name, value| {
            told.push((name.to_owned(), value.to_owned()));
        });
        told
    }

    /// As the specifications spell them: what is wrong when writing and when reading goes unnoticed
    /// otherwise.
    #[test]
    fn every_binding_has_the_names_of_its_specification() {
        let with_underscore = "content-type ce_specversion ce_id ce_source ce_type ce_subject \
                               ce_time ce_partitionkey ce_aggregatetype";
        let cases = [
            (Binding::Kafka, with_underscore),
            (
                Binding::Http,
                "ce-specversion ce-id ce-source ce-type ce-subject ce-time ce-partitionkey \
                 ce-aggregatetype",
            ),
            (
                Binding::Amqp,
                "cloudEvents_specversion cloudEvents_id cloudEvents_source cloudEvents_type \
                 cloudEvents_subject cloudEvents_time cloudEvents_partitionkey \
                 cloudEvents_aggregatetype",
            ),
            (
                Binding::Nats,
                "content-type ce-specversion ce-id ce-source ce-type ce-subject ce-time \
                 ce-partitionkey ce-aggregatetype ce-datacontenttype",
            ),
            (Binding::Mqtt, "specversion id source type subject time partitionkey aggregatetype"),
            // There is none for Redis.
            (Binding::Redis, with_underscore),
        ];
        for (binding, expected) in cases {
            let told = told(&event("42", "OrderPlaced"), binding);
            let names: Vec<_> = told.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names.join(" "), expected, "{binding:?}");
        }
    }

    #[test]
    fn values_are_escaped_where_headers_are_ascii() {
        let event = event("Euro € 😀", "Order Placed").with_header("tenant", "50% \"off\"");
        let value = |binding: Binding, name: &str| {
            let told = told(&event, binding);
            told.into_iter().find(|(known, _)| known == name).expect(name).1
        };
        for binding in [Binding::Http, Binding::Nats] {
            let cases = [
                ("ce-specversion", "1.0"),
                ("ce-id", ID),
                ("ce-source", "/order"),
                ("ce-type", "Order%20Placed"),
                ("ce-subject", "Euro%20%E2%82%AC%20%F0%9F%98%80"),
                ("ce-time", "2023-06-30T03:34:18.518Z"),
                ("ce-tenant", "50%25%20%22off%22"),
            ];
            for (name, expected) in cases {
                assert_eq!(value(binding, name), expected, "{binding:?} {name}");
            }
        }
        assert_eq!(value(Binding::Kafka, "ce_subject"), "Euro € 😀");
        assert_eq!(value(Binding::Amqp, "cloudEvents_type"), "Order Placed");
        assert_eq!(value(Binding::Mqtt, "tenant"), "50% \"off\"");
    }

    /// We write no `cloudEvents:`, no bare spaces, and `ce-datacontenttype` never alone.
    #[test]
    fn what_others_write_by_the_specification_is_read() {
        let read = |binding, prefix: &str, kind: &str, content_type: Option<(&str, &str)>| {
            let names = ["specversion", "id", "source", "type", "subject"];
            let names = names.map(|name| format!("{prefix}{name}"));
            let values = ["1.0", ID, "/shop", kind, "42"];
            let pairs = names.iter().map(String::as_str).zip(values).chain(content_type);
            decode(binding, None, pairs, Bytes::from_static(b"hello")).unwrap()
        };
        for kind in ["Order Placed", "Order%20Placed"] {
            let stated = Some(("ce-datacontenttype", "text/plain"));
            let event = read(Binding::Nats, "ce-", kind, stated);
            assert_eq!((&*event.event_type, &*event.aggregate_id), ("Order Placed", "42"));
            assert_eq!(event.payload.content_type(), "text/plain");
            assert!(event.headers.is_empty(), "{event:?}");
            assert_eq!(read(Binding::Http, "ce-", kind, None).event_type, "Order Placed");
        }
        for prefix in ["cloudEvents:", "cloudEvents_"] {
            let event = read(Binding::Amqp, prefix, "Order Placed", None);
            assert_eq!((event.id.to_string().as_str(), &*event.event_type), (ID, "Order Placed"));
        }
    }

    type Pairs<'a> = &'a [(&'a str, &'a str)];

    /// The first example of the specification, as far as it must be there.
    const EXAMPLE: [(&str, &str); 4] = [
        ("ce_specversion", "1.0"),
        ("ce_id", "A234-1234"),
        ("ce_source", "https://github.com/cloudevents/spec/pull"),
        ("ce_type", "com.github.pull_request.opened"),
    ];

    /// What consumers have seen must never change: this value is part of the contract. Any tool for
    /// UUIDs makes it: `uuidgen --sha1 --namespace @url --name SOURCE`, and from that the id.
    const MADE: &str = "adf22e3f-ac04-5fed-8a4e-a62a57504143";

    #[test]
    fn an_id_that_is_no_uuid_makes_one_with_its_source() {
        let read = |source: &str, id: &str| {
            let [version, _, _, kind] = EXAMPLE;
            let pairs = [version, ("ce_id", id), ("ce_source", source), kind];
            decode(Binding::Kafka, None, pairs, Bytes::new()).unwrap()
        };
        let event = read(EXAMPLE[2].1, EXAMPLE[1].1);
        assert_eq!(event.id.to_string(), MADE);
        assert_eq!(event.custom_key.as_deref(), Some("A234-1234"));
        assert_eq!(event.aggregate_type, EXAMPLE[2].1);
        assert_eq!(event.created_at, crate::Timestamp::UNIX_EPOCH, "it does not say when");
        assert_eq!(read(EXAMPLE[2].1, EXAMPLE[1].1), event);
        assert_ne!(read("/other", EXAMPLE[1].1).id, event.id);
        assert_ne!(read(EXAMPLE[2].1, "A234-1235").id, event.id);
        let known = read("/other", ID);
        assert_eq!((known.id.to_string().as_str(), known.custom_key), (ID, None));
    }

    #[test]
    fn without_a_subject_it_is_about_its_key_or_itself() {
        let partition = ("ce_partitionkey", "order 42");
        let subject = ("ce_subject", "42");
        let cases: [(Pairs<'_>, Option<&str>, &str); 5] = [
            (&[], None, "A234-1234"),
            (&[], Some(""), "A234-1234"),
            (&[], Some("key"), "key"),
            (&[partition], Some("key"), "order 42"),
            (&[partition, subject], Some("key"), "42"),
        ];
        for (more, key, expected) in cases {
            let pairs = EXAMPLE.iter().chain(more).copied();
            let event = decode_keyed(Binding::Kafka, None, key, pairs, Bytes::new()).unwrap();
            assert_eq!(event.aggregate_id, expected);
            assert!(event.headers.is_empty(), "{event:?}");
        }
        let document = r#"{"specversion":"1.0","id":"A234-1234","source":"/s","type":"T"}"#;
        let content_type = Some("application/cloudevents+json");
        let event = decode_keyed(Binding::Amqp, content_type, Some("key"), [], document.into());
        assert_eq!(event.unwrap().aggregate_id, "key");
        let with_null = document.replace('}', r#","subject":null,"time":null}"#);
        for document in [document, &with_null] {
            let body = Bytes::copy_from_slice(document.as_bytes());
            let event = decode(Binding::Amqp, content_type, [], body).unwrap();
            assert_eq!(event.aggregate_id, "A234-1234");
        }
    }

    /// As a dead letter that goes back, say.
    #[test]
    fn what_others_made_stays_the_same_in_our_formats() {
        let event = decode(Binding::Kafka, None, EXAMPLE, Bytes::from_static(b"{}")).unwrap();
        for (name, format) in Format::NAMES {
            let mut told = Vec::new();
            format.headers(&event, Binding::Kafka, &mut |name, value| {
                told.push((name.to_owned(), value.to_owned()));
            });
            let pairs = told.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            let again = decode(Binding::Kafka, None, pairs, format.body(&event)).unwrap();
            assert_eq!(again, event, "{name}");
        }
    }

    #[test]
    fn what_is_no_cloud_event_is_refused() {
        for (place, missing) in EXAMPLE.iter().enumerate().skip(1) {
            let pairs = EXAMPLE.iter().enumerate().filter(|(other, _)| *other != place);
            let pairs = pairs.map(|(_, pair)| *pair);
            let failure = decode(Binding::Kafka, None, pairs, Bytes::new()).unwrap_err();
            let name = missing.0.trim_start_matches("ce_");
            assert!(failure.to_string().contains(&format!("no attribute {name}")), "{failure}");
        }
        let pairs = EXAMPLE.map(|(name, value)| (name, if name == "ce_id" { "" } else { value }));
        assert!(decode(Binding::Kafka, None, pairs, Bytes::new()).is_err());
    }

    #[test]
    fn the_case_of_header_names_means_nothing_where_it_means_nothing_to_the_protocol() {
        let pairs = EXAMPLE.map(|(name, value)| (name.replace("ce_", "Ce-"), value));
        let pairs = pairs.each_ref().map(|(name, value)| (name.replace("-i", "-I"), *value));
        let pairs = pairs.iter().map(|(name, value)| (name.as_str(), *value));
        let event = decode(Binding::Http, None, pairs, Bytes::new()).unwrap();
        assert_eq!(event.id.to_string(), MADE);
    }
}
