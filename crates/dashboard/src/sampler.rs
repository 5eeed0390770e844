//! Looks at every pipeline again and again and remembers half an hour of it, for the charts and for
//! whoever listens. All of it comes from the database, but the latencies where this process alone
//! publishes: it knows them exactly, the database to about a second.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use semel_core::admin::{Filter, State, Stats};
use semel_core::insight::Workings;
use semel_core::{Clock, Failure, SystemClock, Timestamp};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::Dashboard;
use crate::asked::{Explanation, patiently};
use crate::gauges::Gauges;
use crate::pipeline::Pipeline;
use crate::quantiles::Buckets;

/// How many looks are remembered.
const KEPT: usize = 900;
/// The least time between two looks.
const EVERY: Duration = Duration::from_secs(2);
/// How much longer than a look the pause after it is: pages must not slow relays down.
const LEISURE: u32 = 20;

/// After a look that took long, because the database was busy, nobody waits longer for the next.
const SELDOM: Duration = Duration::from_secs(10);

/// One look at a pipeline.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) at: Timestamp,
    pub(crate) stats: Stats,
    pub(crate) workings: Workings,
    /// Events per second that were written and that left the log, since the look before.
    pub(crate) written: Option<f64>,
    pub(crate) settled: Option<f64>,
    pub(crate) latency: Option<Latency>,
}

/// How long it took to publish events.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Latency {
    /// p50, p95 and p99 in seconds.
    pub(crate) seconds: [f64; 3],
    /// Whether this process measured it; otherwise the database said so.
    pub(crate) is_measured: bool,
}

/// What is known of a pipeline.
#[derive(Clone, Debug, Default)]
pub(crate) struct Track {
    pub(crate) samples: VecDeque<Arc<Sample>>,
    /// Why the last look failed.
    pub(crate) trouble: Option<Explanation>,
    buckets: Buckets,
}

/// All that is remembered.
pub(crate) struct Sampler {
    tracks: Mutex<BTreeMap<String, Track>>,
    looks: watch::Receiver<Looked>,
    /// Until somebody looks, who owns it from then on: so whoever listens hears of the end, too.
    teller: Mutex<Option<Teller>>,
}

/// When somebody looked last, if ever.
type Looked = Option<Instant>;
type Teller = watch::Sender<Looked>;

impl Default for Sampler {
    fn default() -> Self {
        let (teller, looks) = watch::channel(None);
        Self { tracks: Mutex::default(), looks, teller: Mutex::new(Some(teller)) }
    }
}

impl Sampler {
    pub(crate) fn track(&self, pipeline: &str) -> Track {
        self.tracks().get(pipeline).cloned().unwrap_or_default()
    }

    /// Tells of every look, and when nobody looks any more.
    pub(crate) fn looks(&self) -> watch::Receiver<Looked> {
        self.looks.clone()
    }

    /// How long ago the last look was, whatever came of it.
    pub(crate) fn age(&self) -> Option<Duration> {
        self.looks.borrow().map(|at| at.elapsed())
    }

    /// For the one who looks; nothing for those who come after.
    fn take_teller(&self) -> Option<Teller> {
        self.teller.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn tracks(&self) -> MutexGuard<'_, BTreeMap<String, Track>> {
        self.tracks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What this process measured of a pipeline since it was asked last.
    fn measured(&self, pipeline: &str, metrics: &str) -> Option<[f64; 3]> {
        let mut tracks = self.tracks();
        let track = tracks.entry(pipeline.to_owned()).or_default();
        let buckets = Buckets::read(metrics, pipeline);
        let latency = buckets.since(&track.buckets);
        track.buckets = buckets;
        latency
    }

    fn keep(&self, pipeline: &str, look: Result<Look, Failure>) {
        let mut tracks = self.tracks();
        let track = tracks.entry(pipeline.to_owned()).or_default();
        match look {
            Ok(look) => track.add(look),
            Err(failure) => track.trouble = Some(Explanation::from(&failure)),
        }
    }
}

/// What one look brings.
struct Look {
    at: Timestamp,
    stats: Stats,
    workings: Workings,
    latency: Option<Latency>,
}

impl Track {
    pub(crate) fn last(&self) -> Option<&Arc<Sample>> {
        self.samples.back()
    }

    fn add(&mut self, look: Look) {
        let Look { at, stats, workings, latency } = look;
        let before = self.last();
        let rate = |number: fn(&Workings) -> Option<u64>| {
            let before = before?;
            let seconds = at.duration_since(before.at).as_secs_f64();
            let grown = number(&workings)?.saturating_sub(number(&before.workings)?);
            (seconds > 0.0).then_some(grown as f64 / seconds)
        };
        let (written, settled) = (rate(|now| now.written), rate(|now| now.settled));
        self.trouble = None;
        self.samples.push_back(Arc::new(Sample { at, stats, workings, written, settled, latency }));
        if self.samples.len() > KEPT {
            self.samples.pop_front();
        }
    }
}

/// Begins to look, if nobody does yet. It ends with the last router that serves the dashboard.
pub(crate) fn start(dashboard: &Dashboard) {
    if let Some(looking) = begin(dashboard) {
        tokio::spawn(looking);
    }
}

/// Looks until it is dropped, unless somebody does already: that is decided now, and not with the
/// first look, before which visitors may come.
pub(crate) fn run(dashboard: &Dashboard) -> impl Future<Output = ()> + Send + use<> {
    let looking = begin(dashboard);
    async move {
        if let Some(looking) = looking {
            looking.await;
        }
    }
}

fn begin(dashboard: &Dashboard) -> Option<impl Future<Output = ()> + Send + use<>> {
    let teller = dashboard.sampler.take_teller()?;
    let sampler = Arc::downgrade(&dashboard.sampler);
    let (pipelines, metrics) = (Arc::clone(&dashboard.pipelines), dashboard.metrics.clone());
    let told = (teller, Gauges::of(&pipelines));
    Some(async move { while look_at_all(&sampler, &told, &pipelines, metrics.as_deref()).await {} })
}

async fn look_at_all(
    sampler: &Weak<Sampler>,
    (teller, gauges): &(Teller, Gauges),
    pipelines: &[Pipeline],
    metrics: Option<&(dyn Fn() -> String + Send + Sync)>,
) -> bool {
    let began = Instant::now();
    for pipeline in pipelines {
        let Some(known) = sampler.upgrade() else { return false };
        let measured = metrics.and_then(|render| known.measured(&pipeline.name, &render()));
        let before = known.track(&pipeline.name).last().cloned();
        drop(known);
        let look = patiently(look_at(pipeline, measured, before.as_deref())).await;
        let Some(sampler) = sampler.upgrade() else { return false };
        if let Ok(Look { stats, workings, .. }) = &look {
            gauges.tell(&pipeline.name, stats, workings.log.as_ref());
        }
        sampler.keep(&pipeline.name, look);
        teller.send_replace(Some(Instant::now()));
    }
    sleep(EVERY.max(began.elapsed() * LEISURE).min(SELDOM)).await;
    sampler.strong_count() > 0
}

async fn look_at(
    pipeline: &Pipeline,
    measured: Option<[f64; 3]>,
    before: Option<&Sample>,
) -> Result<Look, Failure> {
    let stats = pipeline.admin.stats().await?;
    let workings = match &pipeline.insight {
        Some(insight) => insight.workings(&pipeline.name).await?,
        None => Workings::default(),
    };
    let has_moved = pipeline.insight.is_none()
        || before.is_none_or(|before| before.workings.settled != workings.settled);
    let at_work = workings.relays.iter().filter(|relay| !relay.shares.is_empty()).count();
    let (seconds, is_measured) = match measured {
        // What one of several relays measured says nothing of the others.
        Some(seconds) if at_work <= 1 => (Some(seconds), true),
        _ if has_moved => (latency(pipeline).await?, false),
        _ => (None, false),
    };
    let latency = seconds.map(|seconds| Latency { seconds, is_measured });
    Ok(Look { at: SystemClock.now(), stats, workings, latency })
}

/// Of the newest events that were published.
async fn latency(pipeline: &Pipeline) -> Result<Option<[f64; 3]>, Failure> {
    const NEWEST: usize = 100;
    let published = Filter { state: Some(State::Published), ..Filter::default() };
    let page = pipeline.admin.latest(&published, None, NEWEST).await?;
    let took = |view: &semel_core::admin::EventView| {
        let took = view.published_at?.duration_since(view.event.created_at);
        Some(took.as_secs_f64().max(0.0))
    };
    let mut took: Vec<f64> = page.events.iter().filter_map(took).collect();
    took.sort_by(f64::total_cmp);
    let place =
        |percent: usize| took.get((took.len() * percent / 100).min(took.len() - 1)).copied();
    if took.is_empty() {
        return Ok(None);
    }
    Ok(match (place(50), place(95), place(99)) {
        (Some(p50), Some(p95), Some(p99)) => Some([p50, p95, p99]),
        _ => None,
    })
}
