//! `semel verify`: compares what the outbox says was published with what arrived.

use std::collections::{BTreeSet, HashMap, HashSet};

use semel_backends::Arrival;
use semel_core::admin::{EventView, Filter, State};
use semel_core::{EventId, Failure, LaneKey, Message, Route, Topic};
use semel_relay::OnDead;
use serde_json::{Value, json};

use super::{Desk, database_problem, open_inbox};
use crate::args::VerifyOptions;
use crate::config::{Config, Pipeline, Sink};
use crate::exit::{Exit, Problem};
use crate::output::{Format, plain, print, print_json};
use crate::wiring::{ReadSink, arrivals_in};

const EFFECT: &str = "nothing was changed; no event is lost by looking";
const PAGE: usize = 1000;

pub(crate) async fn run(options: &VerifyOptions) -> Result<Exit, Problem> {
    let config = Config::load(&options.pipeline.config.path)?;
    let pipeline = config.pipeline(options.pipeline.name.as_deref())?;
    let place = Place::of(options, pipeline)?;
    let outbox = Outbox { desk: Desk::of(pipeline).await?, pipeline, options };
    // First: what is published while the rest is looked at must not seem lost.
    let promised = outbox.promised().await?;
    let arrived = Arrived::of(place.read(&promised.topics).await?);
    let verdict = outbox.compare(&promised, &arrived).await?;
    match options.output.format {
        Format::Text => print(&verdict.text(&place.in_words())),
        Format::Json => print_json(&verdict.json(&place.in_words())),
    }
    Ok(if verdict.is_good() { Exit::Done } else { Exit::Problems })
}

/// Where events arrive.
enum Place<'a> {
    Lines(&'a std::path::Path),
    Inbox { url: &'a str, consumer: &'a str },
    Sink { sink: &'a Sink, read: &'a ReadSink },
}

impl<'a> Place<'a> {
    fn of(options: &'a VerifyOptions, pipeline: &'a Pipeline) -> Result<Self, Problem> {
        if let Some(path) = &options.received {
            return Ok(Self::Lines(path));
        }
        if let (Some(url), Some(consumer)) = (&options.inbox, &options.consumer) {
            return Ok(Self::Inbox { url, consumer });
        }
        let wrong = |failure| Problem::new(failure, pipeline.place(), EFFECT).of_usage();
        let sink = match (&options.sink, &pipeline.sinks[..]) {
            (None, [only]) => Some(only),
            (None, _) => None,
            (Some(name), sinks) => sinks.iter().find(|sink| sink.name == *name),
        };
        let sink = sink.ok_or_else(|| {
            let names: Vec<_> = pipeline.sinks.iter().map(|sink| sink.name.as_str()).collect();
            let what = "which sink is to be read?";
            let fix = format!("give --sink one of {}", names.join(", "));
            wrong(Failure::misconfigured("E-VERIFY-SINK", what).with_fix(fix))
        })?;
        match &sink.connect.read {
            Some(read) => Ok(Self::Sink { sink, read }),
            None => Err(wrong(unreadable(sink))),
        }
    }

    async fn read(&self, topics: &BTreeSet<Topic>) -> Result<Vec<Arrival>, Problem> {
        let problem = |failure| Problem::new(failure, self.in_words(), EFFECT);
        match self {
            Self::Lines(path) => arrivals_in(path).map_err(problem),
            Self::Inbox { url, consumer } => applied(url, consumer).await,
            Self::Sink { read, .. } => read(topics.clone()).await.map_err(problem),
        }
    }

    fn in_words(&self) -> String {
        match self {
            Self::Lines(path) if path.as_os_str() == "-" => "standard input".into(),
            Self::Lines(path) => path.display().to_string(),
            Self::Inbox { consumer, .. } => format!("the inbox of {consumer}"),
            Self::Sink { sink, .. } => format!("sink.{} ({})", sink.name, sink.technology()),
        }
    }
}

/// A sink whose messages are gone once they are read.
fn unreadable(sink: &Sink) -> Failure {
    let (name, kind) = (&sink.name, sink.technology());
    let what = format!("sink.{name} cannot be read: of {kind}, to read is to take away");
    Failure::misconfigured("E-VERIFY-UNREADABLE", what).with_fix(
        "compare what consumers applied with --inbox URL --consumer NAME, or what a client wrote \
         down with --received FILE",
    )
}

/// What the inbox of a consumer remembers.
async fn applied(url: &str, consumer: &str) -> Result<Vec<Arrival>, Problem> {
    let (database, place) = open_inbox(url).await?;
    let mut arrivals = Vec::new();
    let mut from = EventId::from_uuid(Default::default());
    loop {
        let page = database.applied(consumer, from, PAGE + 1).await;
        let page = page.map_err(|failure| database_problem(&place, failure, EFFECT))?;
        let next = page.get(PAGE).map(|one| one.id);
        let arrival = |id, place| Arrival { id, queue: 0, place };
        let known = page.iter().take(PAGE);
        arrivals.extend(known.map(|one| arrival(one.id, one.at.as_microsecond())));
        match next {
            Some(next) => from = next,
            None => return Ok(arrivals),
        }
    }
}

/// What arrived: how often, and where first.
struct Arrived(HashMap<EventId, (u32, Arrival)>);

impl Arrived {
    fn of(arrivals: Vec<Arrival>) -> Self {
        let mut all = HashMap::new();
        for arrival in arrivals {
            let (times, first) = all.entry(arrival.id).or_insert((0, arrival));
            *times += 1;
            if arrival.queue == first.queue {
                first.place = first.place.min(arrival.place);
            }
        }
        Self(all)
    }
}

/// The events of a pipeline, as far as they were asked for.
struct Outbox<'a> {
    desk: Desk,
    pipeline: &'a Pipeline,
    options: &'a VerifyOptions,
}

/// What has to be there.
#[derive(Default)]
struct Promised {
    published: HashSet<EventId>,
    topics: BTreeSet<Topic>,
}

impl Outbox<'_> {
    async fn promised(&self) -> Result<Promised, Problem> {
        let mut promised = Promised::default();
        self.each(|view| {
            if view.state != State::Published {
                return;
            }
            // What the pipeline is not for counts as published, and never arrives.
            let message = Message::first("", view.event.clone());
            if let Ok(Some(sent)) = self.pipeline.routing.route(&message) {
                promised.published.insert(view.event.id);
                promised.topics.insert(sent.topic);
            }
        })
        .await?;
        Ok(promised)
    }

    async fn compare(&self, promised: &Promised, arrived: &Arrived) -> Result<Verdict, Problem> {
        let skips = self.pipeline.settings.on_dead == OnDead::SkipEvent;
        let mut verdict = Verdict { skips, ..Verdict::default() };
        let mut last = HashMap::new();
        let mut known = HashSet::new();
        self.each(|view| {
            known.insert(view.event.id);
            verdict.judge(view, promised, arrived, &mut last);
        })
        .await?;
        verdict.unknown = arrived.0.keys().filter(|id| !known.contains(*id)).count();
        Ok(verdict)
    }

    async fn each(&self, mut look: impl FnMut(&EventView)) -> Result<(), Problem> {
        let (since, until) = (self.options.since, self.options.until);
        let filter = Filter { since, until, ..Filter::default() };
        let mut after = None;
        loop {
            let page = self.desk.store.list(&filter, after, PAGE).await;
            let page = page.map_err(|failure| self.desk.problem(failure))?;
            page.events.iter().for_each(&mut look);
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }
}

/// What the comparison found.
#[derive(Default)]
struct Verdict {
    published: u64,
    waiting: u64,
    dead: u64,
    lost: Vec<String>,
    doubled: Vec<String>,
    out_of_order: Vec<String>,
    /// Arrived, and not asked for their order: they leave when their time has come.
    scheduled: u64,
    unknown: usize,
    /// Whether a dead letter lets later events of its aggregate pass.
    skips: bool,
}

/// How far each lane is in each queue.
type Latest = HashMap<(LaneKey, usize), i64>;

impl Verdict {
    fn judge(
        &mut self,
        view: &EventView,
        promised: &Promised,
        arrived: &Arrived,
        last: &mut Latest,
    ) {
        let event = &view.event;
        let is_promised = promised.published.contains(&event.id);
        match view.state {
            State::Published => self.published += u64::from(is_promised),
            State::Dead => self.dead += 1,
            State::Pending | State::Publishing | State::Failed => self.waiting += 1,
            State::Discarded => {}
        }
        let told = || format!("{}  {}  {}", event.lane(), event.event_type, event.id);
        let Some((times, first)) = arrived.0.get(&event.id) else {
            if is_promised {
                self.lost.push(told());
            }
            return;
        };
        if *times > 1 {
            self.doubled.push(told());
        }
        if event.available_at.is_some_and(|at| at > event.created_at) {
            self.scheduled += 1;
            return;
        }
        let latest = last.entry((event.lane_key(), first.queue)).or_insert(first.place);
        if first.place < *latest {
            self.out_of_order.push(told());
        }
        *latest = first.place.max(*latest);
    }

    fn is_good(&self) -> bool {
        self.lost.is_empty() && self.doubled.is_empty() && self.out_of_order.is_empty()
    }

    fn text(&self, place: &str) -> String {
        const SHOWN: usize = 10;
        let Self { published, waiting, dead, scheduled, unknown, .. } = self;
        let mut text =
            format!("{published} published, {waiting} waiting, {dead} dead; in {place}:\n");
        let lists = [
            ("lost", &self.lost),
            ("doubled", &self.doubled),
            ("out of order", &self.out_of_order),
        ];
        for (what, list) in lists {
            text += &format!("{what:<14}{}\n", list.len());
            list.iter().take(SHOWN).for_each(|line| text += &format!("  {}\n", plain(line)));
        }
        if self.skips && !self.out_of_order.is_empty() {
            text += "  on_dead = \"skip\": a dead letter that was retried comes behind later events, and is among these\n";
        }
        if *scheduled > 0 {
            text += &format!(
                "{scheduled} scheduled: they leave when their time has come, and were not asked for their order\n"
            );
        }
        if *unknown > 0 {
            text += &format!(
                "{unknown} arrived that were not asked for: cleaned up, of another time, or not ours\n"
            );
        }
        text
    }

    fn json(&self, place: &str) -> Value {
        json!({
            "compared_with": place, "published": self.published, "waiting": self.waiting,
            "dead": self.dead, "lost": self.lost, "doubled": self.doubled,
            "out_of_order": self.out_of_order, "scheduled": self.scheduled,
            "not_in_outbox": self.unknown,
        })
    }
}
