//! `topic`, `key`, `headers` and which events a pipeline is for.

use std::str::FromStr;

use semel_core::route::{Pattern, Template};
use semel_core::{Failure, Routing, TopicTemplate};

use super::{Limits, Section, Sink};

/// What somebody else's relay does, for those who come from there.
#[derive(Clone, Copy)]
enum Preset {
    Debezium,
}

/// Reads all that says where an event goes, and checks it against the sinks it goes to.
pub(super) fn read_routing(
    section: &mut Section<'_>,
    sinks: &[Sink],
    limits: &Limits,
) -> Option<Routing> {
    let preset = section.choice("routing", &[("debezium", Preset::Debezium)]);
    let topic = read_topic(section, preset, sinks);
    let key = section.optional("key").map(|key| parsed::<Template>(section, "key", &key));
    let headers = section.table("headers", |table| {
        let entries = table.entries();
        let template = |(name, text): (String, String)| {
            let template = parsed(table, &name, &text)?;
            check_header(table, &name, &template, sinks);
            Some((name, template))
        };
        entries.into_iter().map(template).collect::<Option<Vec<(String, Template)>>>()
    });
    let event_types = read_patterns(section, "event_types");
    let aggregate_types = read_patterns(section, "aggregate_types");

    let mut routing = Routing::new(topic?);
    if let Some(Preset::Debezium) = preset {
        routing = routing.with_header("id", parsed(section, "routing", "{id}")?);
    }
    for (name, value) in headers.into_iter().flatten() {
        routing = routing.with_header(name, value);
    }
    if let Some(key) = key {
        routing = routing.with_key(key?);
    }
    if let Some(limit) = limits.payload {
        routing = routing.with_payload_limit(limit);
    }
    Some(routing.only_event_types(event_types?).only_aggregate_types(aggregate_types?))
}

fn read_topic(
    section: &mut Section<'_>,
    preset: Option<Preset>,
    sinks: &[Sink],
) -> Option<TopicTemplate> {
    let text = match (section.optional("topic"), preset) {
        (Some(text), _) => text,
        // It was told what is wrong with it.
        (None, _) if section.has("topic") => return None,
        (None, Some(Preset::Debezium)) => "outbox.event.{aggregate_type}".into(),
        (None, None) => USUAL_TOPIC.into(),
    };
    let topic: TopicTemplate = parsed(section, "topic", &text)?;
    let characters: String = topic.template().literals().collect();
    for Sink { kind, connect, .. } in sinks {
        let name = kind.name;
        if let Some(illegal) =
            characters.chars().find(|character| !(kind.topic_may_hold)(*character))
        {
            let why = format!(
                "a topic of {name} cannot hold {illegal:?}; leave it out, or write a filter such \
                 as {{event_type|kebab}}"
            );
            section.wrong("topic", &why);
        } else if let Some(why) = (connect.no_topic)(&text) {
            section.wrong("topic", &format!("{text:?} cannot be a topic of {name}: {why}"));
        }
    }
    Some(topic)
}

/// What is the same for all events would make a dead letter of each.
fn check_header(table: &Section<'_>, name: &str, value: &Template, sinks: &[Sink]) {
    let constant: String = value.literals().collect();
    for Sink { kind, connect, .. } in sinks {
        if let Some(why) = (connect.no_header)(name, &constant) {
            table.wrong(name, &format!("{} cannot carry this header: {why}", kind.name));
        }
    }
}

/// As text, [`TopicTemplate::default`].
pub(super) const USUAL_TOPIC: &str = "{aggregate_type}.events";

/// Patterns of names; all names, if there are none.
fn read_patterns(section: &mut Section<'_>, key: &str) -> Option<Vec<Pattern>> {
    let Some(texts) = section.list(key) else {
        return (!section.has(key)).then(Vec::new);
    };
    if texts.is_empty() {
        section.wrong(key, "an empty list would pass over every event; leave the key out for all");
        return None;
    }
    texts.iter().map(|text| parsed(section, key, text)).collect()
}

fn parsed<T: FromStr<Err = Failure>>(section: &Section<'_>, key: &str, text: &str) -> Option<T> {
    text.parse()
        .map_err(|failure: Failure| {
            let fix = failure.fix().unwrap_or_default();
            section.wrong(key, &format!("{failure}; {fix}"));
        })
        .ok()
}
