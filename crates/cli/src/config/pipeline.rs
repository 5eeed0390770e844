//! `[source.NAME]`, `[sink.NAME]` and `[pipeline.NAME]`.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use semel_backends::mapped::Mapping;
use semel_core::coordination::Coordination;
use semel_core::{Schedule, Secret, TopicTemplate};
use semel_relay::Settings;

use super::mapping::read_mapping;
use super::retry::read_retry;
use super::team::{Team, read_team};
use super::{Limits, Section, hint};
use crate::wiring::{ConnectSink, DatabaseKind, Mode, SINKS, is_left_out, shown};

/// A way from a source to a sink.
#[derive(Debug)]
pub(crate) struct Pipeline {
    pub(crate) name: String,
    pub(crate) source: Source,
    pub(crate) sink: Sink,
    pub(crate) topic: TopicTemplate,
    pub(crate) settings: Settings,
    /// How several relays divide it.
    pub(crate) team: Team,
    /// Who is told about dead letters.
    pub(crate) alert: Option<Sink>,
    /// Events with more bytes of payload become dead letters.
    pub(crate) payload_limit: Option<usize>,
}

impl Pipeline {
    /// Where to look when something is wrong with it.
    pub(crate) fn place(&self) -> String {
        let (name, url) = (&self.name, shown(self.source.url.reveal()));
        format!("pipeline.{name} (from {url} to sink.{})", self.sink.name)
    }
}

/// A database with an outbox.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) kind: &'static DatabaseKind,
    pub(crate) url: Secret,
    /// A table of somebody else's shape, if it is not semel's own.
    pub(crate) mapping: Option<Mapping>,
    /// How it learns of new events.
    pub(crate) mode: Mode,
    poll_interval: Option<Duration>,
    batch: Option<usize>,
}

/// Where events go.
#[derive(Clone)]
pub(crate) struct Sink {
    pub(crate) name: String,
    pub(crate) connect: ConnectSink,
    /// When it is tried again, unless the pipeline says else.
    schedule: fn() -> Schedule,
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sink").field("name", &self.name).finish_non_exhaustive()
    }
}

pub(super) fn read_source(section: &mut Section<'_>) -> Option<Source> {
    let url = section.required_secret("url");
    let interval = Duration::from_millis(10)..=Duration::from_secs(60);
    let poll_interval = section.duration("poll_interval", interval);
    let batch = section.integer("batch", 1..=10_000);
    let mapping = read_mapping(section);
    let mode = section.choice("mode", Mode::ALL).unwrap_or_default();
    let url = url?;
    match DatabaseKind::of_url(url.reveal()) {
        Ok(kind) => {
            if mode == Mode::Tail && (!kind.tails || mapping.is_some()) {
                section.wrong("mode", "only PostgreSQL's own outbox can be tailed");
            }
            Some(Source { kind, url, mapping, mode, poll_interval, batch })
        }
        Err(why) => {
            section.wrong("url", &why);
            None
        }
    }
}

pub(super) fn read_sink(section: &mut Section<'_>) -> Option<Sink> {
    let Some(kind) = section.required("type") else {
        section.skip_the_rest();
        return None;
    };
    let Some(found) = SINKS.iter().find(|known| known.name == kind) else {
        let names: Vec<_> = SINKS.iter().map(|kind| kind.name).collect();
        let hint = if is_left_out(&kind) {
            format!(" here: this program was built without the feature {kind:?}")
        } else {
            hint(&kind, &names)
        };
        section.wrong("type", &format!("there is no sink of type {kind:?}{hint}"));
        section.skip_the_rest();
        return None;
    };
    let connect = (found.parse)(section)?;
    Some(Sink { name: section.name().to_owned(), connect, schedule: found.schedule })
}

pub(super) fn read_pipeline(
    section: &mut Section<'_>,
    sources: &BTreeMap<String, Option<Source>>,
    sinks: &BTreeMap<String, Option<Sink>>,
    limits: &Limits,
) -> Option<Pipeline> {
    let source = find(section, "from", "source", sources);
    let sink = find(section, "to", "sink", sinks);
    let topic = read_topic(section);
    let usual = sink.as_ref().map_or(Schedule::broker as fn() -> Schedule, |sink| sink.schedule);
    let retry = read_retry(section, usual);
    let team = read_team(section);
    let alert =
        section.optional("alert").and_then(|name| named(section, "alert", "sink", &name, sinks));
    let (source, sink, topic, retry) = (source?, sink?, topic?, retry?);

    let usual = Settings::default();
    let batch_events = source.batch.unwrap_or(usual.batch_events);
    let settings = Settings {
        batch_events,
        // A batch that is asked for has to fit.
        in_flight_events: limits
            .in_flight_events
            .unwrap_or(usual.in_flight_events.max(batch_events)),
        in_flight_bytes: limits.in_flight_bytes.unwrap_or(usual.in_flight_bytes),
        poll_interval: source.poll_interval.unwrap_or(usual.poll_interval),
        schedule: retry.schedule,
        on_dead: retry.on_dead,
        ..usual
    };
    if settings.in_flight_events < batch_events {
        let limit = settings.in_flight_events;
        let why = format!(
            "its batch of {batch_events} is more than in_flight_events = {limit} of [limits]; \
             raise one or lower the other"
        );
        section.wrong("from", &why);
    }
    let team = team?;
    if source.mapping.is_some() && team.coordination != Coordination::Leader {
        section.wrong("coordination", "a mapped table can only have a leader");
    }
    if source.mode == Mode::Tail && team.coordination != Coordination::Leader {
        section.wrong("coordination", "a source with mode = \"tail\" can only have a leader");
    }
    let (name, payload_limit) = (section.name().to_owned(), limits.payload);
    Some(Pipeline { name, source, sink, topic, settings, team, alert, payload_limit })
}

fn read_topic(section: &mut Section<'_>) -> Option<TopicTemplate> {
    match section.optional("topic").map(|topic| topic.parse::<TopicTemplate>()) {
        None => Some(TopicTemplate::default()),
        Some(Ok(topic)) => Some(topic),
        Some(Err(failure)) => {
            let fix = failure.fix().unwrap_or_default();
            section.wrong("topic", &format!("{failure}; {fix}"));
            None
        }
    }
}

/// What a key of a pipeline refers to.
fn find<T: Clone>(
    section: &mut Section<'_>,
    key: &str,
    what: &str,
    all: &BTreeMap<String, Option<T>>,
) -> Option<T> {
    let name = section.required(key)?;
    named(section, key, what, &name, all)
}

fn named<T: Clone>(
    section: &Section<'_>,
    key: &str,
    what: &str,
    name: &str,
    all: &BTreeMap<String, Option<T>>,
) -> Option<T> {
    if let Some(found) = all.get(name) {
        return found.clone();
    }
    let names: Vec<_> = all.keys().map(String::as_str).collect();
    section.wrong(key, &format!("there is no [{what}.{name}]{}", hint(name, &names)));
    None
}
