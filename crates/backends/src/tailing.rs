//! Whether a source hears of commits from the server's log, or only looks for them.
//!
//! Whatever the log is, the source polls until it has caught up, opens a session with the log beside
//! that, and polls again when the session ends. Each change is one line, one count and a gauge, and is
//! written down where `semel status` looks.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use metrics::{Gauge, counter, gauge};
use semel_core::telemetry::{self, Metric};
use semel_core::{Failure, Fault};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;

/// Whether a source hears of commits from the log.
///
/// ```
/// # #[cfg(feature = "postgres")]
/// # use semel_backends::postgres::Tailing;
/// # #[cfg(not(feature = "postgres"))]
/// # use semel_backends::mysql::Tailing;
/// assert_ne!(Tailing::WherePossible, Tailing::Required);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tailing {
    /// If the server allows it; otherwise it polls, and tries again from time to time.
    WherePossible,
    /// It is a fault of the set-up if the server does not allow it. During an outage it polls.
    Required,
}

/// A session with the log. The log is let go of when this is dropped.
pub(crate) trait Session: Send + Sync + 'static {
    /// Why nothing more will be heard.
    fn ended(&self) -> Option<Failure>;

    /// Resolves when another look is worth it.
    fn news(&self) -> BoxFuture<'static, ()>;
}

/// Opens a session.
type Opener<S> = Box<dyn Fn() -> BoxFuture<'static, Result<S, Failure>> + Send + Sync>;

/// The ear of one source.
pub(crate) struct Tail<S> {
    pipeline: String,
    tailing: Tailing,
    opener: Opener<S>,
    phase: Phase<S>,
    /// How long to leave the server alone after something went wrong.
    pause: Duration,
    /// Why it polls, as was told; none while it has not polled for any reason but its beginning.
    told: Option<&'static str>,
    /// The last change, until it is written down.
    change: Option<Change>,
    /// Whether the last look found all there was.
    caught_up: bool,
    up: Up,
}

/// Why a source polls, in words; nothing when it tails.
pub(crate) type Change = Option<String>;

enum Phase<S> {
    /// Until then at least.
    Polling(Instant),
    Opening(JoinHandle<Result<S, Failure>>),
    /// Since then.
    Hearing {
        session: S,
        since: Instant,
        late: Late,
    },
}

/// Looks in a row that found events before the log told of them: how many, and since when.
#[derive(Debug, Default)]
struct Late {
    looks: u32,
    since: Option<Instant>,
}

impl Late {
    const LOOKS: u32 = 20;
    const TIME: Duration = Duration::from_secs(5);

    /// One more; says whether the log is of no use.
    fn again(&mut self) -> bool {
        self.looks += 1;
        let since = self.since.get_or_insert_with(Instant::now);
        self.looks >= Self::LOOKS && since.elapsed() >= Self::TIME
    }
}

impl<S: Session> Tail<S> {
    /// A drain, which ends when there is nothing more, needs no session.
    const FIRST: Duration = Duration::from_millis(250);
    const PAUSE: Duration = Duration::from_millis(250);
    const LONGEST_PAUSE: Duration = Duration::from_secs(60);
    /// After the log was of no use: a load that is over by then, and not one that goes on.
    const BEHIND: Duration = Duration::from_secs(2);
    /// How long an opening source waits for a fault of the set-up to show.
    const OPENING: Duration = Duration::from_secs(5);

    pub(crate) fn new(pipeline: &str, tailing: Tailing, opener: Opener<S>) -> Self {
        Self {
            up: Up::new(pipeline),
            pipeline: pipeline.to_owned(),
            tailing,
            opener,
            phase: Phase::Polling(Instant::now() + Self::FIRST),
            pause: Self::PAUSE,
            told: None,
            change: None,
            caught_up: false,
        }
    }

    /// One that can never listen, and says why: whatever else looks at it finds one that polls.
    #[cfg(feature = "postgres")]
    pub(crate) fn deaf(pipeline: &str, why: fn() -> Failure) -> Self {
        let opener = move || Box::pin(std::future::ready(Err(why()))) as BoxFuture<'static, _>;
        let mut tail = Self::new(pipeline, Tailing::WherePossible, Box::new(opener));
        tail.fall_back(&why());
        tail
    }

    /// Opens the session now if it is required, and waits a while for it.
    ///
    /// # Errors
    /// `Misconfigured` when the server does not allow what is required.
    pub(crate) async fn begin(&mut self) -> Result<(), Failure> {
        if self.tailing == Tailing::WherePossible {
            return Ok(());
        }
        let mut opening = tokio::spawn((self.opener)());
        if let Ok(opened) = tokio::time::timeout(Self::OPENING, &mut opening).await {
            return self.opened(flat(opened));
        }
        self.phase = Phase::Opening(opening);
        Ok(())
    }

    /// Goes on to the next phase if it is time.
    ///
    /// # Errors
    /// `Misconfigured` when the server does not allow what is required.
    pub(crate) fn tend(&mut self) -> Result<(), Failure> {
        match &mut self.phase {
            Phase::Polling(until) => {
                if self.caught_up && Instant::now() >= *until {
                    self.phase = Phase::Opening(tokio::spawn((self.opener)()));
                }
            }
            Phase::Opening(opening) => {
                if let Some(opened) = opening.now_or_never() {
                    return self.opened(flat(opened));
                }
            }
            Phase::Hearing { session, .. } => {
                if let Some(failure) = session.ended() {
                    return self.poll(failure);
                }
            }
        }
        Ok(())
    }

    /// A look ended: whether it found something, whether the log had told so, and whether there is
    /// no more.
    pub(crate) fn looked(&mut self, found: bool, was_told: bool, caught_up: bool) {
        self.caught_up = caught_up;
        let Phase::Hearing { late, .. } = &mut self.phase else { return };
        if was_told {
            *late = Late::default();
        } else if found && late.again() {
            // Not an error, whatever the source needs: it looks often enough by itself.
            self.pause = self.pause.max(Self::BEHIND);
            self.fall_back(&behind());
        }
    }

    /// What is to be written down, if there is anything.
    pub(crate) fn change(&self) -> Option<&Change> {
        self.change.as_ref()
    }

    /// It is written down.
    pub(crate) fn change_is_known(&mut self) {
        self.change = None;
    }

    /// What it listens to, if it does.
    pub(crate) fn session(&self) -> Option<&S> {
        match &self.phase {
            Phase::Hearing { session, .. } => Some(session),
            _ => None,
        }
    }

    /// Resolves when another look is worth it.
    pub(crate) fn news(&self) -> Option<BoxFuture<'static, ()>> {
        self.session().map(S::news)
    }

    /// Lets go of the log.
    pub(crate) fn close(&mut self) {
        self.end_phase();
        self.phase = Phase::Polling(Instant::now() + Self::LONGEST_PAUSE);
    }

    fn opened(&mut self, opened: Result<S, Failure>) -> Result<(), Failure> {
        let session = match opened {
            Ok(session) => session,
            Err(failure) => return self.poll(failure),
        };
        self.phase = Phase::Hearing { session, since: Instant::now(), late: Late::default() };
        self.told = None;
        self.change = Some(None);
        self.up.turns(true);
        tracing::info!(pipeline = self.pipeline, "tailing: the log tells of new events");
        Ok(())
    }

    fn poll(&mut self, failure: Failure) -> Result<(), Failure> {
        if self.tailing == Tailing::Required && failure.fault() == Fault::Misconfigured {
            self.close();
            self.change = Some(Some(in_words(&failure)));
            return Err(failure);
        }
        self.fall_back(&failure);
        Ok(())
    }

    fn fall_back(&mut self, failure: &Failure) {
        if let Phase::Hearing { since, .. } = &self.phase
            && since.elapsed() > Self::LONGEST_PAUSE
        {
            self.pause = Self::PAUSE;
        }
        if self.told != Some(failure.code()) {
            let fix = failure.fix().unwrap_or_default();
            let code = failure.code();
            tracing::info!(pipeline = self.pipeline, code, fix, "polling: {failure}");
            self.told = Some(code);
            self.change = Some(Some(in_words(failure)));
        }
        self.end_phase();
        self.phase = Phase::Polling(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(Self::LONGEST_PAUSE);
    }
}

impl<S> Tail<S> {
    fn end_phase(&mut self) {
        match &self.phase {
            Phase::Hearing { .. } => self.up.turns(false),
            Phase::Opening(opening) => opening.abort(),
            Phase::Polling(_) => {}
        }
    }
}

impl<S> Drop for Tail<S> {
    fn drop(&mut self) {
        self.end_phase();
    }
}

impl<S> fmt::Debug for Tail<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tail").field("pipeline", &self.pipeline).finish_non_exhaustive()
    }
}

fn flat<S>(opened: Result<Result<S, Failure>, JoinError>) -> Result<S, Failure> {
    opened.unwrap_or_else(|error| {
        Err(Failure::unavailable("E-TAIL-LOST", format!("cannot tail the log: {error}")))
    })
}

/// In one line, and not too long: it is kept in a row that is written often.
fn in_words(failure: &Failure) -> String {
    const LONGEST: usize = 500;
    let fix = failure.fix().map(|fix| format!("; {fix}")).unwrap_or_default();
    let line = format!("{}: {failure}{fix}", failure.code()).replace('\n', " ");
    line.chars().take(LONGEST).collect()
}

/// Not an error: the load is better polled for.
fn behind() -> Failure {
    let what = "events are found by looking sooner than the log tells of them";
    Failure::unavailable("E-TAIL-BEHIND", what)
}

/// How many ears the pipelines of this process have, and how many of them hear, by the name of their
/// gauge: the shares of a pipeline have one.
static EARS: Mutex<BTreeMap<(&str, String), Ears>> = Mutex::new(BTreeMap::new());

#[derive(Default)]
struct Ears {
    all: usize,
    hearing: usize,
}

/// The numbers of one ear.
pub(crate) struct Up {
    metric: Metric,
    pipeline: String,
    gauge: Gauge,
    hears: AtomicBool,
}

impl Up {
    pub(crate) fn new(pipeline: &str) -> Self {
        Self::of(telemetry::SOURCE_TAILING, pipeline)
    }

    pub(crate) fn of(metric: Metric, pipeline: &str) -> Self {
        let pipeline = pipeline.to_owned();
        let gauge = gauge!(metric.name, "pipeline" => pipeline.clone());
        let up = Self { metric, pipeline, gauge, hears: AtomicBool::new(false) };
        up.tell(|ears| ears.all += 1);
        up
    }

    /// One that only polls is worth an alert; of a pipeline that nobody here listens for nothing is
    /// known, and NaN is worth none.
    fn tell(&self, change: impl FnOnce(&mut Ears)) {
        let mut ears = EARS.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (self.metric.name, self.pipeline.clone());
        let here = ears.entry(key.clone()).or_default();
        change(here);
        self.gauge.set(match *here {
            Ears { all: 0, .. } => f64::NAN,
            Ears { all, hearing } => f64::from(u8::from(hearing == all)),
        });
        if here.all == 0 {
            ears.remove(&key);
        }
    }

    /// Whether it hears, from now on; says whether it did.
    pub(crate) fn is(&self, now: bool) -> bool {
        self.hears(now, |_| ())
    }

    fn hears(&self, now: bool, change: impl FnOnce(&mut Ears)) -> bool {
        let before = self.hears.swap(now, Ordering::Relaxed);
        self.tell(|ears| {
            ears.hearing = ears.hearing + usize::from(now) - usize::from(before);
            change(ears);
        });
        before
    }

    pub(crate) fn turns(&self, up: bool) {
        self.is(up);
        let to = if up { "tail" } else { "poll" };
        let labels = [("pipeline", self.pipeline.clone()), ("to", to.to_owned())];
        counter!(telemetry::SOURCE_HANDOVERS.name, &labels).increment(1);
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        self.hears(false, |ears| ears.all -= 1);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use metrics::{Counter, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

    use super::*;

    /// A log that tells nothing.
    struct Deaf;

    impl Session for Deaf {
        fn ended(&self) -> Option<Failure> {
            None
        }

        fn news(&self) -> BoxFuture<'static, ()> {
            Box::pin(std::future::pending())
        }
    }

    fn tail() -> Tail<Deaf> {
        let opener = || Box::pin(async { Ok(Deaf) }) as BoxFuture<'static, _>;
        Tail::new("orders", Tailing::WherePossible, Box::new(opener))
    }

    /// Lets time pass until it listens, or does not any more; says how much.
    async fn until(tail: &mut Tail<Deaf>, hears: bool, found: bool) -> Duration {
        const LOOK: Duration = Duration::from_millis(100);
        let began = Instant::now();
        while tail.session().is_some() != hears {
            assert!(began.elapsed() < Duration::from_secs(300));
            tail.tend().unwrap();
            tail.looked(found, false, true);
            tokio::time::sleep(LOOK).await;
        }
        began.elapsed()
    }

    /// Whether it listens before so much time is over, with looks that leave something or do not.
    async fn hears_within(tail: &mut Tail<Deaf>, time: Duration, caught_up: bool) -> bool {
        const LOOK: Duration = Duration::from_millis(100);
        let began = Instant::now();
        while tail.session().is_none() && began.elapsed() < time {
            tail.looked(true, false, caught_up);
            tail.tend().unwrap();
            tokio::time::sleep(LOOK).await;
        }
        tail.session().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn a_backlog_is_polled_and_the_present_is_tailed() {
        let mut tail = tail();
        assert!(!hears_within(&mut tail, Duration::from_secs(300), false).await, "a backlog");
        assert!(tail.change().is_none(), "nothing went wrong: {:?}", tail.change());
        assert!(hears_within(&mut tail, Duration::from_secs(1), true).await, "the present");
        assert_eq!(tail.change(), Some(&None), "it tails");
    }

    /// Its pause is long over, and what came meanwhile is not all read.
    #[tokio::test(start_paused = true)]
    async fn a_source_that_polls_again_reads_its_backlog_first() {
        let mut tail = tail();
        until(&mut tail, true, false).await;
        until(&mut tail, false, true).await;
        assert!(!hears_within(&mut tail, Duration::from_secs(300), false).await, "a backlog");
        assert!(hears_within(&mut tail, Duration::from_secs(1), true).await, "the present");
    }

    #[tokio::test(start_paused = true)]
    async fn a_log_that_was_of_no_use_is_soon_tried_again() {
        let mut tail = tail();
        until(&mut tail, true, false).await;
        let noticed = until(&mut tail, false, true).await;
        assert!(noticed < Duration::from_secs(10), "{noticed:?}");
        let change = tail.change().unwrap().as_deref().unwrap();
        assert!(change.starts_with("E-TAIL-BEHIND: events are found"), "{change}");
        tail.change_is_known();
        assert!(tail.change().is_none());
        let quiet = until(&mut tail, true, false).await;
        assert!(quiet < Duration::from_secs(4), "{quiet:?}");
        assert_eq!(tail.change(), Some(&None), "it tails again");
    }

    #[test]
    fn a_reason_is_one_line_of_some_length() {
        let failure = Failure::unavailable("E-TAIL-LOST", "gone\n".repeat(500)).with_fix("wait");
        let words = in_words(&failure);
        assert!(words.starts_with("E-TAIL-LOST: gone gone") && words.len() == 500, "{words}");
        let short = Failure::unavailable("E-TAIL-LOST", "gone").with_fix("wait");
        assert_eq!(in_words(&short), "E-TAIL-LOST: gone; wait");
    }

    #[tokio::test(start_paused = true)]
    async fn a_load_that_goes_on_is_polled_for_longer_and_longer() {
        let mut tail = tail();
        let mut polled = Vec::new();
        for _ in 0..8 {
            until(&mut tail, true, true).await;
            until(&mut tail, false, true).await;
            polled.push(until(&mut tail, true, true).await);
        }
        assert!(polled.is_sorted(), "{polled:?}");
        assert!(polled[7] >= Duration::from_secs(60), "{polled:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_log_tells_in_time_keeps_it() {
        let mut tail = tail();
        until(&mut tail, true, false).await;
        for _ in 0..1000 {
            tail.tend().unwrap();
            tail.looked(true, true, true);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(tail.session().is_some());
    }

    /// One gauge.
    #[derive(Clone, Default)]
    struct OneGauge(Arc<AtomicU64>);

    impl OneGauge {
        fn told(&self) -> f64 {
            f64::from_bits(self.0.load(Ordering::Relaxed))
        }
    }

    impl Recorder for OneGauge {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
            Counter::noop()
        }

        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::from_arc(Arc::clone(&self.0))
        }

        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::noop()
        }
    }

    /// An alert goes by it: one for a source that is not read here any more would never end.
    #[test]
    fn a_pipeline_tails_if_all_its_shares_do_and_is_unknown_without_one() {
        let gauge = OneGauge::default();
        metrics::with_local_recorder(&gauge, || {
            let [one, other] = [(); 2].map(|()| Up::new("shares of a test"));
            one.turns(true);
            assert_eq!(gauge.told(), 0.0, "the other polls");
            other.turns(true);
            assert_eq!(gauge.told(), 1.0);
            other.turns(false);
            assert_eq!(gauge.told(), 0.0);
            drop(other);
            assert_eq!(gauge.told(), 1.0, "it went with what it said");
            drop(one);
            assert!(gauge.told().is_nan(), "{}", gauge.told());
        });
    }
}
