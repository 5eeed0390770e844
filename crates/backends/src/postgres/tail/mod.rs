//! Hearing of commits from the log, so that a source need not wait for its next look.
//!
//! **The log says when, the table says what.** A replication slot tells of every commit that added
//! to the outbox, within a fraction of a millisecond; the rows are then read as always, by the
//! difference of snapshots. Whatever happens to the slot, the publication or the connection can
//! therefore only make a source slower, never lose, repeat or reorder anything.
//!
//! The slot is temporary: it lives as long as the connection, is confirmed at once, and holds back
//! no log, whether the broker is down or the relay was killed. Only a transaction that somebody keeps
//! open holds back the log of every slot; beyond a budget this one is given back. A source without one
//! polls.

mod address;
mod heard;
mod publication;
mod refusal;
mod session;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use metrics::{Gauge, counter, gauge};
use semel_core::{Failure, Fault, telemetry};
use sqlx::{PgExecutor, PgPool};
use tokio::task::JoinHandle;

use self::refusal::{behind, refused, too_slow};
use self::session::Session;
use super::error::failure;
use super::types::Snapshot;

pub use self::publication::publication_sql;
pub(super) use self::publication::{publication_sql_for, publish_sql};
pub(super) use self::refusal::behind_a_pooler;
pub(super) use self::session::slot_prefix;

/// Whether a source hears of commits from the log.
///
/// ```
/// # use semel_backends::postgres::Tailing;
/// assert_ne!(Tailing::WherePossible, Tailing::Required);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tailing {
    /// If the server allows it; otherwise it polls, and tries again from time to time.
    WherePossible,
    /// It is a fault of the set-up if the server does not allow it. During an outage it polls.
    Required,
}

/// Whether a relay of this pipeline is told by the log.
pub(super) async fn is_tailed(
    executor: impl PgExecutor<'_>,
    pipeline: &str,
) -> Result<bool, Failure> {
    const SLOTS: &str = "select exists (select from pg_replication_slots
        where database = current_database() and starts_with(slot_name::text, $1) and active)";
    sqlx::query_scalar(SLOTS)
        .bind(session::slot_prefix(pipeline))
        .fetch_one(executor)
        .await
        .map_err(failure("look at the replication slots"))
}

/// The ear of one source.
#[derive(Debug)]
pub(super) struct Tail {
    pipeline: String,
    tailing: Tailing,
    pool: PgPool,
    /// How many bytes of log may be kept for it.
    budget: u64,
    phase: Phase,
    /// How long to leave the server alone after something went wrong.
    pause: Duration,
    /// Why it polls, as was told; none while it has not polled for any reason but its beginning.
    told: Option<&'static str>,
    /// Where the last look ended.
    end: Option<Arc<Snapshot>>,
    /// Whether the last look found all there was.
    caught_up: bool,
    up: Up,
}

#[derive(Debug)]
enum Phase {
    /// Until then at least.
    Polling(Instant),
    /// A slot is being made, which waits for the transactions that run now.
    Opening(JoinHandle<Result<Session, Failure>>),
    /// Since then.
    Hearing { session: Session, since: Instant, late: Late },
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

impl Tail {
    /// A drain, which ends when there is nothing more, needs no slot.
    const FIRST: Duration = Duration::from_millis(250);
    const PAUSE: Duration = Duration::from_millis(250);
    const LONGEST_PAUSE: Duration = Duration::from_secs(60);
    /// How long an opening source waits for a fault of the set-up to show.
    const OPENING: Duration = Duration::from_secs(5);

    pub(super) fn new(pipeline: &str, tailing: Tailing, pool: PgPool, budget: u64) -> Self {
        Self {
            up: Up::new(pipeline),
            pipeline: pipeline.to_owned(),
            tailing,
            pool,
            budget,
            phase: Phase::Polling(Instant::now() + Self::FIRST),
            pause: Self::PAUSE,
            told: None,
            end: None,
            caught_up: false,
        }
    }

    /// Opens the session now, and waits a while for it.
    ///
    /// # Errors
    /// `Misconfigured` when the server does not allow it.
    pub(super) async fn insist(&mut self) -> Result<(), Failure> {
        let mut opening = self.open();
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
    pub(super) fn tend(&mut self) -> Result<(), Failure> {
        match &mut self.phase {
            Phase::Polling(until) => {
                if self.caught_up && Instant::now() >= *until {
                    self.phase = Phase::Opening(self.open());
                }
            }
            Phase::Opening(opening) => {
                if let Some(opened) = opening.now_or_never() {
                    return self.opened(flat(opened));
                }
            }
            Phase::Hearing { session, .. } => {
                if let Some(failure) = session.heard.ended() {
                    return self.poll(failure);
                }
            }
        }
        Ok(())
    }

    /// A look ended here, with or without new events; `caught_up` says whether there are no more.
    pub(super) fn note(&mut self, end: &Arc<Snapshot>, found: bool, caught_up: bool) {
        self.caught_up = caught_up;
        let before = self.end.replace(Arc::clone(end));
        if before.as_ref().is_some_and(|before| Arc::ptr_eq(before, end)) {
            // Only what was known was handed out.
            return;
        }
        let Phase::Hearing { session, late, .. } = &mut self.phase else { return };
        if session.heard.looked(before.as_deref(), end) {
            *late = Late::default();
        } else if found && late.again() {
            // Not an error, whatever the source needs: it looks often enough by itself.
            self.pause = Self::LONGEST_PAUSE;
            self.fall_back(&behind());
        }
    }

    /// Resolves when another look is worth it.
    pub(super) fn news(&self) -> Option<BoxFuture<'static, ()>> {
        match &self.phase {
            Phase::Hearing { session, .. } => Some(Arc::clone(&session.heard).news().boxed()),
            _ => None,
        }
    }

    /// Whether it hears of commits.
    pub(super) fn is_hearing(&self) -> bool {
        matches!(self.phase, Phase::Hearing { .. })
    }

    /// Gives the slot back.
    pub(super) fn close(&mut self) {
        self.end_phase();
        self.phase = Phase::Polling(Instant::now() + Self::LONGEST_PAUSE);
    }

    fn open(&self) -> JoinHandle<Result<Session, Failure>> {
        const MOST: Duration = Duration::from_secs(90);
        let (pool, pipeline, budget) = (self.pool.clone(), self.pipeline.clone(), self.budget);
        tokio::spawn(async move {
            let opening = async {
                publication::ensure(&pool).await?;
                Session::open(&pool, &pipeline, budget).await
            };
            tokio::time::timeout(MOST, opening).await.unwrap_or_else(|_| Err(too_slow()))
        })
    }

    fn opened(&mut self, opened: Result<Session, Failure>) -> Result<(), Failure> {
        let session = match opened {
            Ok(session) => session,
            Err(failure) => return self.poll(failure),
        };
        self.phase = Phase::Hearing { session, since: Instant::now(), late: Late::default() };
        self.told = None;
        self.up.turns(true);
        tracing::info!(pipeline = self.pipeline, "tailing: the log tells of new events");
        Ok(())
    }

    fn poll(&mut self, failure: Failure) -> Result<(), Failure> {
        if self.tailing == Tailing::Required && failure.fault() == Fault::Misconfigured {
            self.close();
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
        }
        self.end_phase();
        self.phase = Phase::Polling(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(Self::LONGEST_PAUSE);
    }

    fn end_phase(&mut self) {
        match &self.phase {
            Phase::Hearing { .. } => self.up.turns(false),
            Phase::Opening(opening) => opening.abort(),
            Phase::Polling(_) => {}
        }
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        self.end_phase();
    }
}

fn flat(
    opened: Result<Result<Session, Failure>, tokio::task::JoinError>,
) -> Result<Session, Failure> {
    opened.unwrap_or_else(|error| Err(refused(error.to_string())))
}

/// The numbers of it.
struct Up {
    pipeline: String,
    tailing: Gauge,
}

impl Up {
    fn new(pipeline: &str) -> Self {
        let pipeline = pipeline.to_owned();
        let tailing = gauge!(telemetry::SOURCE_TAILING.name, "pipeline" => pipeline.clone());
        tailing.set(0.0);
        Self { pipeline, tailing }
    }

    fn turns(&self, up: bool) {
        self.tailing.set(if up { 1.0 } else { 0.0 });
        let to = if up { "tail" } else { "poll" };
        let labels = [("pipeline", self.pipeline.clone()), ("to", to.to_owned())];
        counter!(telemetry::SOURCE_HANDOVERS.name, &labels).increment(1);
    }
}

impl std::fmt::Debug for Up {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Up").finish_non_exhaustive()
    }
}
