//! Signs of life: whether the loops of a process still turn, what its pipelines do, and why they wait.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use semel_core::Failure;
use tokio::time::Instant;

/// Feels whether the loops of relays and groups still turn. Clones feel the same.
///
/// A loop that waits, for events or for the end of an outage, turns all the same: it looks up at
/// least as often as the pulse wants. One that does not stands still, whatever timers say that run
/// beside it.
///
/// ```
/// use semel_core::memory::{MemoryBroker, MemoryDatabase};
/// use semel_relay::{Doing, Pulse, Relay, Stop};
/// use std::time::Duration;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let pulse = Pulse::every(Duration::from_millis(5));
/// let relay = Relay::new("orders", MemoryDatabase::new().source(), MemoryBroker::new())
///     .with_pulse(pulse.clone());
/// let (stopper, stop) = Stop::new();
/// let running = tokio::spawn(relay.run(stop));
/// while pulse.pipelines().get("orders") != Some(&Doing::Working) {
///     tokio::time::sleep(Duration::from_millis(1)).await;
/// }
/// assert!(pulse.still_for(Duration::from_secs(60)).is_empty());
/// # stopper.stop();
/// # running.await??;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Pulse {
    every: Duration,
    began: Instant,
    loops: Arc<Mutex<Vec<Weak<Loop>>>>,
}

/// What a pipeline does. Where several loops work for it, the last of these that one of them does.
///
/// ```
/// # use semel_relay::Doing;
/// assert!(Doing::WaitingForSink > Doing::Working);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Doing {
    /// Another process has the pipeline.
    StandingBy,
    /// It is about to be opened.
    Starting,
    /// It moves events, or has none to move.
    Working,
    /// The sink cannot be reached; events wait.
    WaitingForSink,
    /// The source cannot be reached.
    WaitingForSource,
}

/// A loop that turns. It is forgotten when this is dropped.
pub(crate) struct Turning {
    pulse: Pulse,
    this: Arc<Loop>,
}

struct Loop {
    pipeline: String,
    doing: AtomicU8,
    /// Why its sink cannot be reached.
    outage: Mutex<Option<Failure>>,
    /// When it turned last, in milliseconds since the pulse began.
    turned: AtomicU64,
}

impl Pulse {
    /// Wants loops to turn at least this often.
    #[must_use]
    pub fn every(beat: Duration) -> Self {
        Self { every: beat, began: Instant::now(), loops: Arc::default() }
    }

    /// The pipelines of which a loop has not turned for longer than this.
    #[must_use]
    pub fn still_for(&self, limit: Duration) -> BTreeSet<String> {
        let now = self.milliseconds(Instant::now());
        let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        let stands = |one: &Arc<Loop>| now.saturating_sub(one.turned.load(RELAXED)) > limit;
        self.alive().into_iter().filter(stands).map(|one| one.pipeline.clone()).collect()
    }

    /// What each pipeline does, as its loops told when they last turned.
    #[must_use]
    pub fn pipelines(&self) -> BTreeMap<String, Doing> {
        let mut all = BTreeMap::new();
        for one in self.alive() {
            let doing = Doing::of(one.doing.load(RELAXED));
            let known = all.entry(one.pipeline.clone()).or_insert(doing);
            *known = doing.max(*known);
        }
        all
    }

    /// Why the sinks of pipelines cannot be reached, of those that cannot. Where several loops work for a
    /// pipeline, what one of them says.
    ///
    /// ```
    /// # use semel_relay::Pulse;
    /// let pulse = Pulse::every(std::time::Duration::from_secs(1));
    /// assert!(pulse.outages().is_empty(), "nobody works");
    /// ```
    #[must_use]
    pub fn outages(&self) -> BTreeMap<String, Failure> {
        let alive = self.alive();
        let known = alive.iter().filter_map(|one| Some((one.pipeline.clone(), one.outage()?)));
        known.collect()
    }

    pub(crate) fn begin(&self, pipeline: &str) -> Turning {
        let this = Arc::new(Loop {
            pipeline: pipeline.to_owned(),
            doing: AtomicU8::new(Doing::Starting as u8),
            outage: Mutex::default(),
            turned: AtomicU64::new(self.milliseconds(Instant::now())),
        });
        let mut loops = self.loops();
        loops.retain(|one| one.strong_count() > 0);
        loops.push(Arc::downgrade(&this));
        Turning { pulse: self.clone(), this }
    }

    fn alive(&self) -> Vec<Arc<Loop>> {
        self.loops().iter().filter_map(Weak::upgrade).collect()
    }

    fn loops(&self) -> MutexGuard<'_, Vec<Weak<Loop>>> {
        self.loops.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn milliseconds(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.began).as_millis()).unwrap_or(u64::MAX)
    }
}

/// Nothing else depends on what is read or written with it.
const RELAXED: Ordering = Ordering::Relaxed;

impl Loop {
    fn outage(&self) -> Option<Failure> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Turning {
    /// Its sink cannot be reached, for this reason; or it can.
    pub(crate) fn waits_for_sink(&self, why: Option<&Failure>) {
        *self.this.outage.lock().unwrap_or_else(PoisonError::into_inner) = why.cloned();
    }

    /// The loop turns now, and does this.
    pub(crate) fn turned(&self, now: Instant, doing: Doing) {
        self.this.turned.store(self.pulse.milliseconds(now), RELAXED);
        self.this.doing.store(doing as u8, RELAXED);
    }

    /// When it has to turn again, at the latest.
    pub(crate) fn again_by(&self, now: Instant) -> Instant {
        now + self.pulse.every
    }
}

impl Doing {
    const ALL: [Self; 5] = [
        Self::StandingBy,
        Self::Starting,
        Self::Working,
        Self::WaitingForSink,
        Self::WaitingForSource,
    ];

    fn of(number: u8) -> Self {
        Self::ALL.into_iter().find(|doing| *doing as u8 == number).unwrap_or(Self::Starting)
    }
}

impl fmt::Debug for Pulse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pulse").field("every", &self.every).finish_non_exhaustive()
    }
}
