//! The loop: fetch → lanes → publish → settle.
//!
//! One task, the conductor, owns all state. It starts work (a fetch, a publish call, a settle, a
//! probe), waits until some of it ends, and draws the consequences. Fetch and settle never run at
//! the same time, so a fetch always reflects what was settled before it.

use std::fmt;
use std::ops::AddAssign;
use std::sync::Arc;

use semel_core::{Clock, Failure, Sink, Source, SystemClock};

use crate::conductor::Conductor;
use crate::metrics::Reach;
use crate::pulse::Pulse;
use crate::settings::Settings;
use crate::stop::Stop;

/// Moves events from a source to a sink.
///
/// ```
/// use semel_core::memory::{MemoryBroker, MemoryDatabase};
/// use semel_relay::{Relay, Settings, Stop};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let (database, broker) = (MemoryDatabase::new(), MemoryBroker::new());
/// let relay = Relay::new("orders", database.source(), broker)
///     .with_settings(Settings { batch_events: 500, ..Settings::default() });
///
/// let (stopper, stop) = Stop::new();
/// let running = tokio::spawn(relay.run(stop));
/// stopper.stop(); // on SIGTERM, say
/// let report = running.await??;
/// assert_eq!(report.published, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub struct Relay {
    pub(crate) name: String,
    pub(crate) source: Box<dyn Source>,
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) settings: Settings,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) alert: Option<Arc<dyn Sink>>,
    pub(crate) pulse: Option<Pulse>,
    pub(crate) reach: Reach,
    /// Whether it ends when another one has its source.
    pub(crate) ends_when_lost: bool,
}

impl Relay {
    /// The topic of [alerts](Self::with_alert), for a sink that wants to know beforehand.
    ///
    /// ```
    /// assert_eq!(semel_relay::Relay::ALERTS, "semel.dead_letter");
    /// ```
    pub const ALERTS: &str = "semel.dead_letter";

    /// A relay with default settings. The name labels its metrics and logs.
    pub fn new(
        name: impl Into<String>,
        source: impl Source + 'static,
        sink: impl Sink + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            source: Box::new(source),
            sink: Arc::new(sink),
            settings: Settings::default(),
            clock: Arc::new(SystemClock),
            alert: None,
            pulse: None,
            reach: Reach::default(),
            ends_when_lost: false,
        }
    }

    /// For a group, which opens it anew when it is lost and should not be, and has more of its kind.
    pub(crate) fn of_group(mut self, reach: Reach) -> Self {
        self.ends_when_lost = true;
        self.reach = reach;
        self
    }

    /// Replaces the settings.
    #[must_use]
    pub fn with_settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Replaces the clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Tells this sink about dead letters, beside the log and the metric.
    ///
    /// It gets events of type `DeadLettered` and aggregate type `semel.dead_letter`, one a second at
    /// most, with a count and up to ten letters in each: which event, why, and what to run; never
    /// the payload. Whatever the sink does, the pipeline goes on.
    ///
    /// ```
    /// use semel_core::memory::{MemoryBroker, MemoryDatabase};
    /// use semel_relay::Relay;
    ///
    /// let (database, broker, operators) =
    ///     (MemoryDatabase::new(), MemoryBroker::new(), MemoryBroker::new());
    /// let relay = Relay::new("orders", database.source(), broker).with_alert(operators);
    /// ```
    #[must_use]
    pub fn with_alert(mut self, sink: impl Sink + 'static) -> Self {
        self.alert = Some(Arc::new(sink));
        self
    }

    /// Lets this feel whether its loop still turns.
    #[must_use]
    pub fn with_pulse(mut self, pulse: Pulse) -> Self {
        self.pulse = Some(pulse);
        self
    }

    /// Runs until it is stopped.
    ///
    /// A stop lets publish calls that are under way finish, settles them, and leaves the rest to
    /// the next relay. Dropping the future is like a crash: nothing is lost, what was in flight is
    /// repeated.
    ///
    /// # Errors
    /// `Misconfigured` when the source or the sink says that it cannot work as it is set up.
    /// Outages are not errors: the relay waits for their end.
    pub async fn run(self, stop: Stop) -> Result<Report, Failure> {
        self.settings.check()?;
        Conductor::new(self, stop, false).run().await
    }

    /// Runs until nothing is ready or waiting for a retry, or until it is stopped.
    ///
    /// Dead letters and events scheduled for later are left.
    ///
    /// # Errors
    /// As for [`Relay::run`].
    pub async fn drain(self, stop: Stop) -> Result<Report, Failure> {
        self.settings.check()?;
        Conductor::new(self, stop, true).run().await
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What a relay did.
///
/// ```
/// # use semel_relay::Report;
/// assert_eq!(Report::default().published, 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Events the sink confirmed.
    pub published: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Events that became dead letters.
    pub dead: u64,
    /// Events that were in flight and unsettled when it ended: the next relay gets them again.
    pub abandoned: u64,
}

impl AddAssign for Report {
    fn add_assign(&mut self, other: Self) {
        let Self { published, failed, dead, abandoned } = other;
        self.published += published;
        self.failed += failed;
        self.dead += dead;
        self.abandoned += abandoned;
    }
}
