//! `[source.NAME]`, `[sink.NAME]` and `[pipeline.NAME]`.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use semel_backends::mapped::Mapping;
use semel_core::coordination::Coordination;
use semel_core::{Routing, Schedule, Secret};
use semel_relay::{Relay, Settings};

use super::mapping::read_mapping;
use super::retry::read_retry;
use super::routing::read_routing;
use super::team::{Team, read_team};
use super::{Limits, Section, hint};
use crate::wiring::{
    ConnectSink, DatabaseKind, Following, Messages, Mode, SINKS, SinkKind, missing_feature, shown,
};

/// A way from a source to its sinks.
#[derive(Debug)]
pub(crate) struct Pipeline {
    pub(crate) name: String,
    pub(crate) source: Source,
    /// All of them get each event; there is at least one.
    pub(crate) sinks: Vec<Sink>,
    pub(crate) routing: Routing,
    pub(crate) settings: Settings,
    /// How several relays divide it.
    pub(crate) team: Team,
    /// Who is told about dead letters.
    pub(crate) alert: Option<Sink>,
    /// Another number is another configuration.
    pub(crate) fingerprint: u64,
}

impl Pipeline {
    /// Where to look when something is wrong with it.
    pub(crate) fn place(&self) -> String {
        let (name, url) = (&self.name, shown(self.source.url.reveal()));
        let sinks: Vec<_> = self.sinks.iter().map(|sink| format!("sink.{}", sink.name)).collect();
        format!("pipeline.{name} (from {url} to {})", sinks.join(" and "))
    }
}

/// A database with an outbox.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) kind: &'static DatabaseKind,
    pub(crate) url: Secret,
    /// A table of somebody else's shape, if it is not semel's own.
    pub(crate) mapping: Option<Mapping>,
    /// Whether writers that notify are listened to.
    pub(crate) notify: bool,
    /// How it learns of new events.
    pub(crate) following: Following,
    /// Writers write messages into the log, if not rows into the table.
    pub(crate) messages: Option<&'static Messages>,
    poll_interval: Option<Duration>,
    batch: Option<usize>,
}

/// Where events go.
#[derive(Clone)]
pub(crate) struct Sink {
    pub(crate) name: String,
    pub(crate) connect: ConnectSink,
    pub(super) kind: &'static SinkKind,
}

impl Sink {
    /// What its type is called.
    pub(crate) fn technology(&self) -> &'static str {
        self.kind.name
    }

    /// Whether there is somebody else at the other end.
    pub(crate) fn is_remote(&self) -> bool {
        !["stdout", "file"].contains(&self.kind.name)
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sink").field(&self.name).field(&self.kind.name).field(&self.connect).finish()
    }
}

pub(super) fn read_source(section: &mut Section<'_>) -> Option<Source> {
    let url = section.required_secret("url");
    let interval = Duration::from_millis(10)..=Duration::from_secs(60);
    let poll_interval = section.duration("poll_interval", interval);
    let batch = section.integer("batch", 1..=10_000);
    let notify = section.boolean("notify").unwrap_or(false);
    let mapping = read_mapping(section);
    let mode = section.choice("mode", Mode::ALL).unwrap_or_default();
    let log_budget = section.size("log_budget", 16 * MIB..=1024 * 1024 * MIB);
    let is_messages = section.choice("outbox", &[("table", false), ("messages", true)]);
    let url = url?;
    let kind = match DatabaseKind::of_url(url.reveal()) {
        Ok(kind) => kind,
        Err(why) => {
            section.wrong("url", &why);
            return None;
        }
    };
    if notify && !kind.notifies {
        let why = format!(
            "{} has no notifications, only PostgreSQL does; leave it out, it polls",
            kind.name
        );
        section.wrong("notify", &why);
    }
    if mode == Mode::Tail && (!kind.tails || mapping.is_some()) {
        section.wrong(
            "mode",
            "only the outbox of PostgreSQL and of MySQL can be tailed; write \"auto\"",
        );
    }
    let log_budget = log_budget.and_then(|bytes| u64::try_from(bytes).ok());
    let following = Following { mode, log_budget };
    let messages = kind.messages.as_ref().filter(|_| is_messages == Some(true));
    check_log(
        section,
        &following,
        is_messages == Some(true),
        messages.is_some() && mapping.is_none(),
    );
    if log_budget.is_some() && kind.messages.is_none() {
        section.wrong("log_budget", "only PostgreSQL keeps log for those who tail it");
    }
    Some(Source { kind, url, mapping, following, messages, notify, poll_interval, batch })
}

const MIB: usize = 1024 * 1024;

/// Messages are in the log and nowhere else.
fn check_log(section: &Section<'_>, following: &Following, is_messages: bool, can: bool) {
    if !is_messages {
        return;
    }
    if !can {
        section.wrong("outbox", "only the outbox of PostgreSQL takes \"messages\"");
    }
    if following.mode == Mode::Poll {
        section.wrong("mode", "messages are in the log and nowhere else; leave it out");
    }
    if following.log_budget.is_some() {
        section.wrong("log_budget", "the slot of messages is never given back: they would be lost");
    }
}

pub(super) fn read_sink(section: &mut Section<'_>) -> Option<Sink> {
    let Some(kind) = section.required("type") else {
        if section.explores() {
            SINKS.iter().for_each(|kind| section.variant(kind.name, kind.parse));
        }
        section.skip_the_rest();
        return None;
    };
    let Some(found) = SINKS.iter().find(|known| known.name == kind) else {
        let names: Vec<_> = SINKS.iter().map(|kind| kind.name).collect();
        let hint = match missing_feature(&kind) {
            Some(feature) => {
                format!(" here: this program was built without the feature {feature:?}")
            }
            None => hint(&kind, &names),
        };
        section.wrong("type", &format!("there is no sink of type {kind:?}{hint}"));
        section.skip_the_rest();
        return None;
    };
    section.is_variant(found.name);
    let connect = (found.parse)(section)?;
    Some(Sink { name: section.name().to_owned(), connect, kind: found })
}

pub(super) fn read_pipeline(
    section: &mut Section<'_>,
    sources: &BTreeMap<String, Option<Source>>,
    sinks: &BTreeMap<String, Option<Sink>>,
    limits: &Limits,
) -> Option<Pipeline> {
    let source = find(section, "from", "source", sources);
    let to = read_sinks(section, sinks);
    let routing = read_routing(section, to.as_deref().unwrap_or_default(), limits);
    let usual = to.as_deref().and_then(<[Sink]>::first);
    let usual = usual.map_or(Schedule::broker as fn() -> Schedule, |sink| sink.kind.schedule);
    let retry = read_retry(section, usual);
    let team = read_team(section);
    let alert = read_alert(section, sinks);
    let (source, sinks, routing, retry) = (source?, to?, routing?, retry?);

    let usual = Settings::default();
    let all = sinks.iter().chain(&alert);
    let limits_of_calls = all.map(|sink| sink.connect.publish_limit(usual.publish_timeout));
    // What is not asked for gives way to what is.
    let most = limits.in_flight_events.unwrap_or(usize::MAX);
    let batch_events = source.batch.unwrap_or(usual.batch_events.min(most));
    let settings = Settings {
        batch_events,
        in_flight_events: limits
            .in_flight_events
            .unwrap_or(usual.in_flight_events.max(batch_events)),
        in_flight_bytes: limits.in_flight_bytes.unwrap_or(usual.in_flight_bytes),
        poll_interval: source.poll_interval.unwrap_or(usual.poll_interval),
        publish_timeout: limits_of_calls.max().unwrap_or(usual.publish_timeout),
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
    check_team(section, team, &source);
    let name = section.name().to_owned();
    // Known when everything has been read.
    let fingerprint = 0;
    Some(Pipeline { name, source, sinks, routing, settings, team, alert, fingerprint })
}

/// Not every source can be divided.
fn check_team(section: &Section<'_>, team: Team, source: &Source) {
    if team.coordination != Coordination::Leader {
        if source.mapping.is_some() {
            section
                .wrong("coordination", "a mapped table can only have a leader: write \"leader\"");
        } else if source.following.mode == Mode::Tail {
            section.wrong(
                "coordination",
                "a source with mode = \"tail\" can only have a leader: write \"leader\", or mode = \
                 \"poll\"",
            );
        } else if !source.kind.divides {
            let why = format!("{} takes one writer at a time: write \"leader\"", source.kind.name);
            section.wrong("coordination", &why);
        }
    }
}

/// `to = "out"`, or several: `to = ["out", "audit"]`.
fn read_sinks(
    section: &mut Section<'_>,
    sinks: &BTreeMap<String, Option<Sink>>,
) -> Option<Vec<Sink>> {
    if !section.holds_list("to") {
        return Some(vec![find(section, "to", "sink", sinks)?]);
    }
    let names = section.list("to")?;
    if names.is_empty() {
        section.wrong("to", "needs a sink: write the NAME of a [sink.NAME]");
    }
    for (place, name) in names.iter().enumerate() {
        if names[..place].contains(name) {
            section.wrong("to", &format!("{name:?} is there twice; name it once"));
        }
    }
    let found = names.iter().map(|name| named(section, "to", "sink", name, sinks));
    let found: Vec<Sink> = found.collect::<Vec<_>>().into_iter().collect::<Option<_>>()?;
    check_company(section, &found);
    Some(found)
}

/// What a sink has and another refuses is a dead letter, and may be sent again when the sink has
/// forgotten it.
fn check_company(section: &Section<'_>, sinks: &[Sink]) {
    let once = sinks.iter().find(|sink| sink.connect.is_exactly_once());
    if let Some(Sink { name, .. }) = once.filter(|_| sinks.len() > 1) {
        let why = format!(
            "{name:?} delivers exactly once, but not beside others: an event that another sink refuses \
             would be sent to it again; write two pipelines, one of them to {name:?} alone"
        );
        section.wrong("to", &why);
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

/// The sink that is told about dead letters, if it can take their topic.
fn read_alert(section: &mut Section<'_>, sinks: &BTreeMap<String, Option<Sink>>) -> Option<Sink> {
    let name = section.optional("alert")?;
    let sink = named(section, "alert", "sink", &name, sinks)?;
    if let Some(why) = (sink.connect.no_topic)(Relay::ALERTS) {
        let (kind, topic) = (sink.kind.name, Relay::ALERTS);
        let why =
            format!("alerts go to {topic:?}, which {kind} cannot take ({why}); name another sink");
        section.wrong("alert", &why);
    }
    Some(sink)
}
