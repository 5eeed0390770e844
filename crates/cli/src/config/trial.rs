//! `[[test]]`: what the user expects of the routing, for `semel config test`.

use std::sync::Arc;

use semel_core::{Event, Message, Route};

use super::{Pipeline, Section, hint};

/// An event, the pipeline that gets it, and what is expected to become of it.
#[derive(Debug)]
pub(crate) struct Trial {
    pub(crate) name: String,
    pipeline: String,
    event: Event,
    expected: Expected,
}

/// What is not said is not compared.
#[derive(Debug, Default)]
struct Expected {
    outcome: Option<Outcome>,
    topic: Option<String>,
    key: Option<String>,
    sinks: Option<Vec<String>>,
    headers: Vec<(String, String)>,
}

/// What becomes of an event on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Sent,
    PassedOver,
    Dead,
}

impl Outcome {
    const ALL: &[(&'static str, Self)] =
        &[("sent", Self::Sent), ("passed_over", Self::PassedOver), ("dead", Self::Dead)];

    fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(_, each)| *each == self).map_or("", |(word, _)| word)
    }
}

pub(super) fn read_trial(section: &mut Section<'_>, pipelines: &[String]) -> Option<Trial> {
    let name = section.required("name");
    let pipeline = read_pipeline_name(section, pipelines);
    let event = section.table("given", read_event);
    if !section.has("given") {
        section.wrong("given", "needs an event: { aggregate_type, aggregate_id, event_type }");
    }
    let expected = section.table("expect", read_expected);
    if !section.has("expect") {
        section.wrong("expect", "needs what becomes of it, such as { topic = \"order.events\" }");
    }
    Some(Trial { name: name?, pipeline: pipeline?, event: event?, expected: expected? })
}

fn read_pipeline_name(section: &mut Section<'_>, pipelines: &[String]) -> Option<String> {
    let names: Vec<_> = pipelines.iter().map(String::as_str).collect();
    match (section.optional("pipeline"), &names[..]) {
        (Some(name), _) if names.contains(&name.as_str()) => Some(name),
        (None, [only]) => Some((*only).to_owned()),
        (Some(name), _) => {
            let hint = hint(&name, &names);
            section.wrong("pipeline", &format!("there is no [pipeline.{name}]{hint}"));
            None
        }
        (None, _) => {
            // Without any, that is what is wrong.
            section.wrong("pipeline", &format!("say which one: {}", names.join(", ")));
            None
        }
    }
}

fn read_event(given: &mut Section<'_>) -> Option<Event> {
    let [kind, id, what] =
        ["aggregate_type", "aggregate_id", "event_type"].map(|key| given.required(key));
    let payload = given.optional("payload");
    let headers = given.table("headers", |table| Some(table.entries()));
    let mut event = Event::new(kind?, id?, what?);
    if let Some(payload) = payload {
        event = event.with_bytes("application/json", payload);
    }
    for (name, value) in headers.into_iter().flatten() {
        event.headers.set(&name, &value);
    }
    Some(event)
}

fn read_expected(expect: &mut Section<'_>) -> Option<Expected> {
    let sinks = if expect.holds_list("to") {
        expect.list("to")
    } else {
        expect.optional("to").map(|name| vec![name])
    };
    Some(Expected {
        outcome: expect.choice("outcome", Outcome::ALL),
        topic: expect.optional("topic"),
        key: expect.optional("key"),
        sinks,
        headers: expect.table("headers", |table| Some(table.entries())).unwrap_or_default(),
    })
}

impl Trial {
    /// What is not as expected; nothing if all is.
    pub(crate) fn run(&self, pipelines: &[Pipeline]) -> Vec<String> {
        let Some(pipeline) = pipelines.iter().find(|each| each.name == self.pipeline) else {
            return vec![format!("there is no pipeline {:?}", self.pipeline)];
        };
        let routed = pipeline.routing.route(&Message::first("", Arc::new(self.event.clone())));
        let (outcome, message, why) = match routed {
            Ok(Some(message)) => (Outcome::Sent, Some(message), String::new()),
            Ok(None) => (Outcome::PassedOver, None, String::new()),
            Err(failure) => (Outcome::Dead, None, format!(" ({}: {failure})", failure.code())),
        };
        let expected = self.expected.outcome.unwrap_or(Outcome::Sent);
        let mut wrong = Vec::new();
        if outcome != expected {
            let (is, should) = (outcome.as_str(), expected.as_str());
            wrong.push(format!("the event is {is}{why}, not {should}"));
        }
        if let Some(message) = message {
            self.compare(pipeline, &message, &mut wrong);
        }
        wrong
    }

    fn compare(&self, pipeline: &Pipeline, message: &Message, wrong: &mut Vec<String>) {
        let Expected { topic, key, sinks, headers, .. } = &self.expected;
        let mut differ = |what: &str, is: &str, should: &str| {
            if is != should {
                wrong.push(format!("{what} is {is:?}, not {should:?}"));
            }
        };
        if let Some(topic) = topic {
            differ("the topic", message.topic.as_str(), topic);
        }
        if let Some(key) = key {
            differ("the key", message.key(), key);
        }
        if let Some(sinks) = sinks {
            let names: Vec<_> = pipeline.sinks.iter().map(|sink| sink.name.as_str()).collect();
            differ("the sink", &names.join(", "), &sinks.join(", "));
        }
        for (name, value) in headers {
            let is = message.event.headers.get(&name.to_ascii_lowercase()).unwrap_or("(missing)");
            differ(&format!("header {name}"), is, value);
        }
    }
}
