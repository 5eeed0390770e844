//! `semel verify`: compares what the outbox says was published with what arrived.

use std::collections::{HashMap, HashSet};
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use semel_core::admin::{EventView, Filter, State};
use semel_core::{EventId, Failure, LaneKey, Message, Route};
use serde_json::{Value, json};

use super::{Desk, database_problem, open_inbox};
use crate::args::VerifyOptions;
use crate::config::{Config, Pipeline};
use crate::exit::{Exit, Problem};
use crate::output::{Format, print, print_json};

const EFFECT: &str = "nothing was changed; no event is lost by looking";
const PAGE: usize = 1000;

pub(crate) async fn run(options: &VerifyOptions) -> Result<Exit, Problem> {
    let arrived = match (&options.received, &options.inbox) {
        (Some(path), _) => Arrived::read(path)?,
        (None, Some(url)) => {
            Arrived::applied(url, options.consumer.as_deref().unwrap_or_default()).await?
        }
        (None, None) => Arrived::default(),
    };
    let config = Config::load(&options.pipeline.config.path)?;
    let pipeline = config.pipeline(options.pipeline.name.as_deref())?;
    let verdict = compare(pipeline, options, &arrived).await?;
    match options.output.format {
        Format::Text => print(&verdict.text()),
        Format::Json => print_json(&verdict.json()),
    }
    Ok(if verdict.is_good() { Exit::Done } else { Exit::Problems })
}

/// What arrived: how often, and in which order.
#[derive(Default)]
struct Arrived {
    by_id: HashMap<EventId, Arrival>,
}

#[derive(Clone, Copy)]
struct Arrival {
    times: u32,
    /// The first time; a later one is a greater number.
    rank: i64,
}

impl Arrived {
    /// One JSON object per line, with the id of the event in it.
    fn read(path: &Path) -> Result<Self, Problem> {
        let is_standard = path.as_os_str() == "-";
        let place = if is_standard { "standard input".into() } else { path.display().to_string() };
        let lines: Box<dyn BufRead> = if is_standard {
            Box::new(io::stdin().lock())
        } else {
            let opened = std::fs::File::open(path);
            Box::new(BufReader::new(opened.map_err(|error| unreadable(error, &place))?))
        };
        let mut arrived = Self::default();
        for (number, line) in lines.lines().enumerate() {
            let line = line.map_err(|error| unreadable(error, &place))?;
            if line.trim().is_empty() {
                continue;
            }
            let id = id_of(&line).ok_or_else(|| {
                let what = format!("line {} has no id of an event", number + 1);
                let failure = Failure::refused("E-VERIFY-LINE", what).with_fix(
                    "give JSON objects with \"id\", \"semel-event-id\" or \"ce_id\", at the top or in \
                     \"headers\", or ids alone, one per line",
                );
                Problem::new(failure, &place, EFFECT)
            })?;
            arrived.note(id, i64::try_from(number).unwrap_or(i64::MAX));
        }
        Ok(arrived)
    }

    /// What the inbox of a consumer remembers.
    async fn applied(url: &str, consumer: &str) -> Result<Self, Problem> {
        let (database, place) = open_inbox(url).await?;
        let mut arrived = Self::default();
        let mut from = EventId::from_uuid(Default::default());
        loop {
            let page = database.applied(consumer, from, PAGE + 1).await;
            let page = page.map_err(|failure| database_problem(&place, failure, EFFECT))?;
            let next = page.get(PAGE).map(|one| one.id);
            for one in page.iter().take(PAGE) {
                arrived.note(one.id, one.at.as_microsecond());
            }
            match next {
                Some(next) => from = next,
                None => return Ok(arrived),
            }
        }
    }

    fn note(&mut self, id: EventId, rank: i64) {
        let arrival = self.by_id.entry(id).or_insert(Arrival { times: 0, rank });
        arrival.times += 1;
    }
}

fn unreadable(error: io::Error, place: &str) -> Problem {
    let failure = Failure::misconfigured("E-VERIFY-READ", "cannot read what arrived")
        .with_source(error)
        .with_fix("give --received a file that this user may read, or - for standard input");
    Problem::new(failure, place, EFFECT)
}

/// The id in a line, wherever a broker's client puts it.
fn id_of(line: &str) -> Option<EventId> {
    const NAMES: [&str; 5] = ["semel-event-id", "ce_id", "ce-id", "cloudEvents_id", "id"];
    if let Ok(id) = line.trim().parse() {
        return Some(id);
    }
    let value: Value = serde_json::from_str(line).ok()?;
    let inside = |table: &Value| {
        NAMES.iter().find_map(|name| table.get(name)?.as_str()?.parse::<EventId>().ok())
    };
    inside(&value).or_else(|| inside(value.get("headers")?))
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
    unknown: usize,
}

async fn compare(
    pipeline: &Pipeline,
    options: &VerifyOptions,
    arrived: &Arrived,
) -> Result<Verdict, Problem> {
    let desk = Desk::of(pipeline).await?;
    let filter = Filter { since: options.since, until: options.until, ..Filter::default() };
    let mut verdict = Verdict::default();
    let mut last: HashMap<LaneKey, i64> = HashMap::new();
    let mut known: HashSet<EventId> = HashSet::new();
    let mut after = None;
    loop {
        let page = desk.store.list(&filter, after, PAGE).await;
        let page = page.map_err(|failure| desk.problem(failure))?;
        for view in &page.events {
            known.insert(view.event.id);
            verdict.judge(pipeline, view, arrived, &mut last);
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    verdict.unknown = arrived.by_id.keys().filter(|id| !known.contains(*id)).count();
    Ok(verdict)
}

impl Verdict {
    fn judge(
        &mut self,
        pipeline: &Pipeline,
        view: &EventView,
        arrived: &Arrived,
        last: &mut HashMap<LaneKey, i64>,
    ) {
        let event = &view.event;
        // What the pipeline is not for counts as published, and never arrives.
        let is_sent =
            !matches!(pipeline.routing.route(&Message::first("", event.clone())), Ok(None));
        match view.state {
            State::Published if is_sent => self.published += 1,
            State::Dead => self.dead += 1,
            State::Pending | State::Publishing | State::Failed => self.waiting += 1,
            State::Published | State::Discarded => {}
        }
        let told = || format!("{}  {}  {}", event.lane(), event.event_type, event.id);
        let Some(arrival) = arrived.by_id.get(&event.id) else {
            if view.state == State::Published && is_sent {
                self.lost.push(told());
            }
            return;
        };
        if arrival.times > 1 {
            self.doubled.push(told());
        }
        let latest = last.entry(event.lane_key()).or_insert(arrival.rank);
        if arrival.rank < *latest {
            self.out_of_order.push(told());
        }
        *latest = arrival.rank.max(*latest);
    }

    fn is_good(&self) -> bool {
        self.lost.is_empty() && self.doubled.is_empty() && self.out_of_order.is_empty()
    }

    fn text(&self) -> String {
        const SHOWN: usize = 10;
        let Self { published, waiting, dead, unknown, .. } = self;
        let mut text = format!("{published} published, {waiting} waiting, {dead} dead\n");
        let lists = [
            ("lost", &self.lost),
            ("doubled", &self.doubled),
            ("out of order", &self.out_of_order),
        ];
        for (what, list) in lists {
            text += &format!("{what:<14}{}\n", list.len());
            list.iter().take(SHOWN).for_each(|line| text += &format!("  {line}\n"));
        }
        if *unknown > 0 {
            text += &format!(
                "{unknown} arrived that the outbox does not have: cleaned up, or not ours\n"
            );
        }
        text
    }

    fn json(&self) -> Value {
        let Self { published, waiting, dead, unknown, lost, doubled, out_of_order } = self;
        json!({
            "published": published, "waiting": waiting, "dead": dead, "lost": lost,
            "doubled": doubled, "out_of_order": out_of_order, "not_in_outbox": unknown,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_found_where_clients_put_them() {
        let id = EventId::now();
        let lines = [
            format!("{id}"),
            format!("{{\"id\": \"{id}\"}}"),
            format!("{{\"topic\": \"x\", \"headers\": {{\"ce_id\": \"{id}\"}}}}"),
        ];
        for line in lines {
            assert_eq!(id_of(&line), Some(id), "{line}");
        }
        assert_eq!(id_of("{\"id\": 7}"), None);
    }
}
