//! The seeded scheduler: every decision of a run, from one number.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use semel_core::EventId;

/// How likely each mishap is, per call.
///
/// ```
/// # use semel_testkit::faults::Odds;
/// assert_eq!(Odds::none().fails, 0.0);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Odds {
    /// The call fails without having done anything.
    pub fails: f64,
    /// The call does its work and reports failure.
    pub lies: f64,
    /// The call does its work, or half of it, and never answers.
    pub hangs: f64,
    /// The call does its work twice.
    pub doubles: f64,
    /// One event of the call fails, this time.
    pub stumbles: f64,
    /// The call takes some time.
    pub dawdles: f64,
    /// An outage begins: everything fails for a while.
    pub outages: f64,
}

impl Odds {
    /// Nothing goes wrong.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            fails: 0.0,
            lies: 0.0,
            hangs: 0.0,
            doubles: 0.0,
            stumbles: 0.0,
            dawdles: 0.0,
            outages: 0.0,
        }
    }

    /// Things go wrong all the time.
    #[must_use]
    pub const fn many() -> Self {
        Self {
            fails: 0.05,
            lies: 0.05,
            hangs: 0.02,
            doubles: 0.03,
            stumbles: 0.10,
            dawdles: 0.50,
            outages: 0.01,
        }
    }

    /// The same mishaps, less or more often.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        let scale = |odds: f64| (odds * factor).min(0.9);
        Self {
            fails: scale(self.fails),
            lies: scale(self.lies),
            hangs: scale(self.hangs),
            doubles: scale(self.doubles),
            stumbles: scale(self.stumbles),
            dawdles: scale(self.dawdles),
            outages: scale(self.outages),
        }
    }
}

/// What went wrong so far.
///
/// ```
/// # use semel_testkit::faults::Tally;
/// assert_eq!(Tally { failed: 1, lied: 2, ..Tally::default() }.total(), 3);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Calls that failed without effect.
    pub failed: u64,
    /// Calls that took effect and reported failure.
    pub lied: u64,
    /// Calls that never answered.
    pub hung: u64,
    /// Calls that took effect twice.
    pub doubled: u64,
    /// Events that failed once.
    pub stumbled: u64,
    /// Outages.
    pub outages: u64,
    /// Events that may have been published more than once because of all this.
    pub repeatable: u64,
}

impl Tally {
    /// All mishaps together.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.failed + self.lied + self.hung + self.doubled + self.stumbled + self.outages
    }
}

/// What happens to one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mishap {
    None,
    Fail,
    Lie,
    Hang,
    Double,
}

/// Decides what goes wrong, from a seed.
#[derive(Debug)]
pub struct Chaos {
    odds: Odds,
    calm: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    random: StdRng,
    tally: Tally,
    outage_until: Option<tokio::time::Instant>,
    stumbles: HashMap<EventId, u32>,
}

impl Chaos {
    /// An event stumbles at most this often in each half of its way, so that only events that are
    /// refused on purpose ever die.
    const STUMBLES: u32 = 3;

    /// Chaos of a seed.
    #[must_use]
    pub fn new(seed: u64, odds: Odds) -> Self {
        let state = State {
            random: StdRng::seed_from_u64(seed),
            tally: Tally::default(),
            outage_until: None,
            stumbles: HashMap::new(),
        };
        Self { odds, calm: AtomicBool::new(false), state: Mutex::new(state) }
    }

    /// From now on nothing goes wrong.
    pub fn calm(&self) {
        self.calm.store(true, Ordering::Relaxed);
        self.with(|state| state.outage_until = None);
    }

    /// What went wrong so far.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.with(|state| state.tally)
    }

    /// Takes time, perhaps: the other tasks run meanwhile.
    pub async fn dawdle(&self) {
        if self.hits(self.odds.dawdles) {
            match self.below(4) {
                0 => tokio::task::yield_now().await,
                1 => tokio::time::sleep(Duration::from_millis(self.below(3))).await,
                2 => tokio::time::sleep(Duration::from_millis(self.below(40))).await,
                _ => tokio::time::sleep(Duration::from_millis(self.below(400))).await,
            }
        }
    }

    /// A number below `bound`.
    #[must_use]
    pub fn below(&self, bound: u64) -> u64 {
        self.with(|state| state.random.random_range(0..bound.max(1)))
    }

    /// Whether something of these odds happens now. Never while calm.
    #[must_use]
    pub fn hits(&self, odds: f64) -> bool {
        odds > 0.0
            && !self.calm.load(Ordering::Relaxed)
            && self.with(|state| state.random.random_bool(odds))
    }

    pub(crate) fn mishap(&self) -> Mishap {
        let odds = self.odds;
        let choices = [
            (odds.fails, Mishap::Fail),
            (odds.lies, Mishap::Lie),
            (odds.hangs, Mishap::Hang),
            (odds.doubles, Mishap::Double),
        ];
        let mishap = choices.into_iter().find(|(odds, _)| self.hits(*odds));
        let mishap = mishap.map_or(Mishap::None, |(_, mishap)| mishap);
        self.with(|state| match mishap {
            Mishap::None => {}
            Mishap::Fail => state.tally.failed += 1,
            Mishap::Lie => state.tally.lied += 1,
            Mishap::Hang => state.tally.hung += 1,
            Mishap::Double => state.tally.doubled += 1,
        });
        mishap
    }

    /// Whether there is an outage now; one may begin.
    pub(crate) fn is_out(&self) -> bool {
        let now = tokio::time::Instant::now();
        if self.with(|state| state.outage_until.is_some_and(|until| now < until)) {
            return true;
        }
        let begins = self.hits(self.odds.outages);
        if begins {
            let length = Duration::from_millis(100 + self.below(20_000));
            self.with(|state| {
                state.tally.outages += 1;
                state.outage_until = Some(now + length);
            });
        }
        begins
    }

    /// Whether this event fails this time.
    #[must_use]
    pub fn stumbles(&self, id: EventId) -> bool {
        if !self.hits(self.odds.stumbles) {
            return false;
        }
        self.with(|state| {
            let count = state.stumbles.entry(id).or_default();
            *count += 1;
            let stumbles = *count <= Self::STUMBLES;
            state.tally.stumbled += u64::from(stumbles);
            stumbles
        })
    }

    /// Notes that this many events may come again.
    pub fn may_repeat(&self, events: usize) {
        self.with(|state| state.tally.repeatable += events as u64);
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.lock().expect("no wrapper panics while it decides"))
    }
}
