//! The knobs of a relay, with defaults that suit most.

use std::time::Duration;

use semel_core::{Failure, Schedule};

use crate::mutation::Mutation;

/// How a relay works.
///
/// ```
/// use semel_relay::Settings;
/// use std::time::Duration;
///
/// let settings = Settings { batch_events: 1000, ..Settings::default() };
/// settings.check()?;
/// assert!(Settings { batch_events: 0, ..Settings::default() }.check().is_err());
/// # Ok::<(), semel_core::Failure>(())
/// ```
#[derive(Clone, Debug)]
pub struct Settings {
    /// Events asked from the source at a time, and published in one call. Default 500.
    pub batch_events: usize,
    /// Events taken from the source and not settled, at most: what a crash can repeat. Default
    /// 1,000. What a source that does not park leaves with the relay behind an event that is tried
    /// again does not count: other aggregates go on.
    pub in_flight_events: usize,
    /// Bytes of those events, at most (one larger event is still let through). Default 16 MiB.
    pub in_flight_bytes: usize,
    /// Publish calls at the same time, each with lanes of its own. Unless set, as many as batches
    /// may be in flight: see [`calls_at_once`](Self::calls_at_once).
    pub concurrency: Option<usize>,
    /// How often an idle source is asked, unless it wakes the relay earlier. While it brings
    /// something it is asked up to 32 times as often. Default 100 ms.
    pub poll_interval: Duration,
    /// How long one publish call may take. Default 30 s.
    pub publish_timeout: Duration,
    /// How long a stop waits for what is in flight. Default 10 s.
    pub stop_timeout: Duration,
    /// When an event is tried again, and how often.
    pub schedule: Schedule,
    /// What a dead letter does to the later events of its aggregate.
    pub on_dead: OnDead,
    /// A deliberate mistake, for the tests that must notice it.
    #[cfg(feature = "mutants")]
    pub mutation: Option<Mutation>,
}

/// What a dead letter does to the later events of its aggregate.
///
/// ```
/// # use semel_relay::OnDead;
/// assert_eq!(OnDead::default(), OnDead::ParkLane);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDead {
    /// They wait until somebody retries or discards it.
    #[default]
    ParkLane,
    /// They go on without it.
    SkipEvent,
}

impl Settings {
    /// Checks that the values make sense together.
    ///
    /// # Errors
    /// `Misconfigured`, naming the value and its range.
    pub fn check(&self) -> Result<(), Failure> {
        let wrong = |what: &str| Err(Failure::misconfigured("E-SETTINGS", what));
        match self {
            Self { batch_events: 0, .. } => wrong("batch_events must be at least 1"),
            Self { concurrency: Some(0), .. } => wrong("concurrency must be at least 1"),
            Self { in_flight_events, batch_events, .. } if in_flight_events < batch_events => {
                wrong("in_flight_events must be at least batch_events")
            }
            Self { poll_interval: Duration::ZERO, .. } => wrong("poll_interval must be above 0"),
            Self { publish_timeout: Duration::ZERO, .. } => {
                wrong("publish_timeout must be above 0")
            }
            _ => Ok(()),
        }
    }

    /// How many publish calls may run at the same time: `concurrency`, or as many as it takes to
    /// have all of `in_flight_events` under way, but 4 at least and 32 at most, for a call may take
    /// a connection of its own.
    ///
    /// ```
    /// # use semel_relay::Settings;
    /// assert_eq!(Settings::default().calls_at_once(), 4);
    /// let wide = Settings { batch_events: 1000, in_flight_events: 8000, ..Settings::default() };
    /// assert_eq!(wide.calls_at_once(), 8);
    /// assert_eq!(Settings { concurrency: Some(1), ..wide }.calls_at_once(), 1);
    /// ```
    #[must_use]
    pub fn calls_at_once(&self) -> usize {
        const FEWEST: usize = 4;
        const MOST: usize = 32;
        let batches = self.in_flight_events.div_ceil(self.batch_events.max(1));
        self.concurrency.unwrap_or(batches.clamp(FEWEST, MOST))
    }

    /// Whether to make this mistake: never, outside the tests.
    #[cfg(feature = "mutants")]
    pub(crate) fn makes(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    #[cfg(not(feature = "mutants"))]
    pub(crate) const fn makes(&self, _: Mutation) -> bool {
        false
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            batch_events: 500,
            in_flight_events: 1000,
            in_flight_bytes: 16 * 1024 * 1024,
            concurrency: None,
            poll_interval: Duration::from_millis(100),
            publish_timeout: Duration::from_secs(30),
            stop_timeout: Duration::from_secs(10),
            schedule: Schedule::broker(),
            on_dead: OnDead::ParkLane,
            #[cfg(feature = "mutants")]
            mutation: None,
        }
    }
}
