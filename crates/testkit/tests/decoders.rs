//! What `semel-core` reads from outside: templates, patterns, ids, and messages of any broker.

use std::collections::BTreeMap;

use bytes::Bytes;
use semel_core::route::{Pattern, Template, TopicTemplate};
use semel_core::wire::{Binding, Format, decode};
use semel_core::{Event, EventId, Headers};
use semel_testkit::fuzz::{fuzz, fuzz_text};
use semel_testkit::workload::awkward_events;

#[test]
fn fuzzed_templates_are_refused_or_rendered() {
    let examples = [
        "{aggregate_type}.events",
        "{aggregate_type|kebab}.{event_type|snake|default:none}",
        "{header:tenant|default:x}-{{literal}}",
        "{aggregate_id}",
    ];
    let events = awkward_events();
    fuzz_text(&examples, |text| {
        if let Ok(template) = text.parse::<Template>() {
            template.literals().for_each(drop);
            events.iter().for_each(|event| drop(template.render(event)));
        }
        if let Ok(topic) = text.parse::<TopicTemplate>() {
            events.iter().for_each(|event| drop(topic.topic(event)));
        }
    });
}

#[test]
fn fuzzed_a_pattern_that_is_written_down_is_the_same_pattern() {
    fuzz_text(&["Order*", "*", "*.Placed.*", "a*b*c*d"], |text| {
        if let Ok(pattern) = text.parse::<Pattern>() {
            let again: Pattern = pattern.to_string().parse().expect("what was read once");
            for name in ["OrderPlaced", "", "aXbXc", text] {
                assert_eq!(pattern.matches(name), again.matches(name), "{text:?} {name:?}");
            }
        }
    });
}

#[test]
fn fuzzed_an_id_that_is_written_down_is_the_same_id() {
    fuzz_text(&["0190b6e8-7a3c-7def-8000-0123456789ab"], |text| {
        if let Ok(id) = text.parse::<EventId>() {
            assert_eq!(id.to_string().parse::<EventId>().expect("what was read once"), id);
        }
    });
}

#[test]
fn fuzzed_headers_are_refused_or_read() {
    let examples = [r#"{"tenant":"acme","b":"ü"}"#, r#"[["a","b"],["a","c"]]"#, "null"];
    fuzz(&examples, |json| {
        let read = |json: &[u8]| serde_json::from_slice::<Headers>(json).map(BTreeMap::from);
        if let Ok(headers) = read(json) {
            let written = serde_json::to_vec(&headers).expect("headers are text");
            assert_eq!(read(&written).expect("its own"), headers);
        }
    });
}

const BINDINGS: [Binding; 6] =
    [Binding::Kafka, Binding::Http, Binding::Amqp, Binding::Nats, Binding::Mqtt, Binding::Redis];

/// A message as bytes: which protocol, the content type, its headers, a line each, and the body.
fn written(binding: usize, format: Format, event: &Event) -> Vec<u8> {
    let mut text = format!("{binding}\n{}\n", format.content_type(event));
    format.headers(event, BINDINGS[binding], &mut |name, value| {
        if !name.contains(['\n', '\t']) && !value.contains('\n') {
            text += &format!("{name}\t{value}\n");
        }
    });
    [text.as_bytes(), b"\n", &format.body(event)].concat()
}

fn read(message: &[u8]) -> Option<Event> {
    let end = message.windows(2).position(|pair| pair == b"\n\n")?;
    let text = String::from_utf8_lossy(&message[..end]);
    let mut lines = text.lines();
    let binding = BINDINGS[lines.next()?.parse::<usize>().ok()? % BINDINGS.len()];
    let content_type = lines.next()?;
    let headers = lines.filter_map(|line| line.split_once('\t'));
    let body = Bytes::copy_from_slice(&message[end + 2..]);
    decode(binding, Some(content_type), headers, body).ok()
}

/// Of somebody who writes what the specification of CloudEvents wants, and no more.
const FOREIGN: &[u8] =
    b"0\ntext/plain\nce_specversion\t1.0\nce_id\tA234-1234\nce_source\t/till\nce_type\tSold\n\n{}";

/// Whatever was understood is understood again, in every format.
#[test]
fn fuzzed_messages_are_refused_or_understood() {
    let mut examples = Vec::new();
    for (number, event) in awkward_events().iter().enumerate() {
        for (_, format) in Format::NAMES {
            examples.push(written(number % BINDINGS.len(), format, event));
        }
    }
    examples.push(FOREIGN.to_vec());
    assert!(read(FOREIGN).is_some());
    assert!(examples.iter().filter(|message| read(message).is_some()).count() > 10);
    fuzz(&examples, |message| {
        let Some(event) = read(message) else { return };
        for (_, format) in Format::NAMES {
            let mut headers = Vec::new();
            format.headers(&event, Binding::Amqp, &mut |name, value| {
                headers.push((name.to_owned(), value.to_owned()));
            });
            let pairs = headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            let content_type = Some(format.content_type(&event));
            let again = decode(Binding::Amqp, content_type, pairs, format.body(&event));
            assert_eq!(again.map(|again| again.id).ok(), Some(event.id), "{format:?} {event:?}");
        }
    });
}
