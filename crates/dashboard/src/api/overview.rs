//! How all pipelines are: now, lately, and as it goes on.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::{Extension, Json};
use futures_util::{Stream, stream};
use semel_core::Timestamp;
use semel_core::admin::State as EventState;
use semel_core::insight::OutageView;
use serde::Serialize;

use crate::Dashboard;
use crate::access::Caller;
use crate::asked::{Explanation, Trouble};
use crate::pipeline::{Listening, Pipeline, SinkView};
use crate::sampler::{self, Sample, Sampler, Track};
use crate::sentence::{Health, Level, complaint, health};

pub(crate) async fn overview(
    State(dashboard): State<Dashboard>,
    Extension(caller): Extension<Caller>,
) -> Json<Overview> {
    sampler::start(&dashboard);
    Json(Overview::of(&dashboard.pipelines, &dashboard.sampler, caller))
}

/// The overview again after every look. It ends when nobody looks any more, as after another
/// configuration: so it must not keep alive what it listens to.
pub(crate) async fn live(
    State(dashboard): State<Dashboard>,
    Extension(caller): Extension<Caller>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    sampler::start(&dashboard);
    let Dashboard { pipelines, sampler, .. } = dashboard;
    let mut looks = sampler.looks();
    looks.mark_changed();
    let told = (pipelines, Arc::downgrade(&sampler), caller, looks);
    let events = stream::unfold(told, |(pipelines, sampler, caller, mut looks)| async {
        looks.changed().await.ok()?;
        let known = sampler.upgrade()?;
        let overview = Overview::of(&pipelines, &known, caller.clone());
        let event = Event::default().json_data(overview).unwrap_or_default();
        Some((Ok(event), (pipelines, sampler, caller, looks)))
    });
    Sse::new(events).keep_alive(KeepAlive::new().interval(Duration::from_secs(15)))
}

/// The last half hour of a pipeline, one number for each look.
pub(crate) async fn history(
    State(dashboard): State<Dashboard>,
    Path(name): Path<String>,
) -> Result<Json<History>, Trouble> {
    sampler::start(&dashboard);
    let pipeline = dashboard.asked(&name)?;
    let track = dashboard.sampler.track(&pipeline.name);
    Ok(Json(History { points: track.samples.iter().map(|sample| Point::of(sample)).collect() }))
}

#[derive(Serialize)]
pub(crate) struct Overview {
    you: Caller,
    health: Health,
    /// Seconds since the last look at any of them; nothing before the first.
    age: Option<f64>,
    pipelines: Vec<Summary>,
}

impl Overview {
    fn of(pipelines: &[Pipeline], sampler: &Sampler, you: Caller) -> Self {
        let tracks: Vec<_> =
            pipelines.iter().map(|pipeline| (pipeline, sampler.track(&pipeline.name))).collect();
        let health = health(tracks.iter().map(|(pipeline, track)| (pipeline.name.as_str(), track)));
        let pipelines =
            tracks.iter().map(|(pipeline, track)| Summary::of(pipeline, track)).collect();
        let age = sampler.age().map(|age| age.as_secs_f64());
        Self { you, health, age, pipelines }
    }
}

/// One pipeline, now.
#[derive(Serialize)]
struct Summary {
    name: String,
    from: String,
    mode: String,
    to: Vec<SinkView>,
    level: Level,
    complaint: Option<String>,
    trouble: Option<Explanation>,
    /// Events by state; nothing before the first look.
    states: Option<BTreeMap<&'static str, u64>>,
    relays: usize,
    /// How many of them work, as far as the database knows.
    working: Option<usize>,
    /// Why relays cannot reach its sinks, as they tell the database.
    outages: Vec<OutageView>,
    /// Whether the log tells of new events, and why not; nothing before the first look.
    tailing: Option<bool>,
    polling_because: Option<String>,
    point: Option<Point>,
}

impl Summary {
    fn of(pipeline: &Pipeline, track: &Track) -> Self {
        let wrong = complaint(&pipeline.name, track);
        let last = track.last();
        let count = |sample: &Sample| {
            EventState::ALL.map(|state| (state.as_str(), sample.stats.count(state))).into()
        };
        let why_polling = last.and_then(|sample| match &pipeline.listening {
            Listening::Perhaps => Some(sample.workings.why_polling()),
            Listening::Never(why) => Some(Some(why.clone())),
            Listening::Elsewhere => None,
        });
        let usual = if last.is_some() { Level::Good } else { Level::Unknown };
        Self {
            name: pipeline.name.clone(),
            from: pipeline.from.clone(),
            mode: pipeline.mode.clone(),
            to: pipeline.to.clone(),
            level: wrong.as_ref().map_or(usual, |(level, _)| *level),
            complaint: wrong.map(|(_, sentence)| sentence),
            trouble: track.trouble.clone(),
            states: last.map(|sample| count(sample)),
            relays: last.map_or(0, |sample| sample.workings.relays.len()),
            working: last.and_then(|sample| working(sample)),
            outages: last.map(|sample| sample.workings.outages.clone()).unwrap_or_default(),
            tailing: why_polling.as_ref().map(Option::is_none),
            polling_because: why_polling.flatten(),
            point: last.map(|sample| Point::of(sample)),
        }
    }
}

/// Whoever keeps no books of what was written keeps none of relays.
fn working(sample: &Sample) -> Option<usize> {
    let workings = &sample.workings;
    let working = workings.relays.iter().filter(|relay| !relay.shares.is_empty()).count();
    workings.written.map(|_| working)
}

#[derive(Serialize)]
pub(crate) struct History {
    points: Vec<Point>,
}

/// What a chart shows of one look.
#[derive(Serialize)]
struct Point {
    at: Timestamp,
    /// Events per second.
    written: Option<f64>,
    published: Option<f64>,
    /// Seconds, and whether the process that answers measured them; otherwise the database said so.
    latency: Option<[f64; 3]>,
    measured: Option<bool>,
    oldest: Option<f64>,
    pending: u64,
    publishing: u64,
    failed: u64,
    dead: u64,
    parked: u64,
}

impl Point {
    fn of(sample: &Sample) -> Self {
        let count = |state| sample.stats.count(state);
        Self {
            at: sample.at,
            written: sample.written,
            published: sample.settled,
            latency: sample.latency.map(|latency| latency.seconds),
            measured: sample.latency.map(|latency| latency.is_measured),
            oldest: sample.stats.oldest_pending.map(|age| age.as_secs_f64()),
            pending: count(EventState::Pending),
            publishing: count(EventState::Publishing),
            failed: count(EventState::Failed),
            dead: count(EventState::Dead),
            parked: sample.stats.parked_lanes,
        }
    }
}
