//! Hearing of commits from the binary log, so that a source need not wait for its next look.
//!
//! **The log says when, the table says what.** The server sends its binary log to a session as it
//! would to a replica; the session looks only for commits that added to the outbox, and rings. The
//! rows are then numbered and read as always. Whatever happens to the log, to its position or to
//! the connection can therefore only make a source slower, never lose, repeat or reorder anything.
//!
//! A session begins with the end of the log and keeps no position: after a purge, a fail-over or a
//! restart it begins with the end again. A source without one polls.

mod address;
mod bell;
mod ear;
mod refusal;
mod session;

use std::time::Duration;

use semel_core::Failure;
use sqlx::MySqlPool;

use self::bell::Rings;
use self::session::Session;
use super::error::failure;

pub use crate::tailing::Tailing;

/// The ear of one source.
pub(super) type Tail = crate::tailing::Tail<Session>;

/// The ear of the source of a pipeline.
pub(super) fn tail(pipeline: &str, tailing: Tailing, pool: &MySqlPool) -> Tail {
    const MOST: Duration = Duration::from_secs(30);
    let (pool, name) = (pool.clone(), pipeline.to_owned());
    let opener = move || {
        let (options, pipeline) = (pool.connect_options(), name.clone());
        Box::pin(async move {
            let opening = Session::open(&options, &pipeline);
            let opened = tokio::time::timeout(MOST, opening).await;
            opened.unwrap_or_else(|_| Err(refusal::lost("no answer within 30 seconds")))
        }) as _
    };
    Tail::new(pipeline, tailing, Box::new(opener))
}

impl Tail {
    /// A look begins; says what was heard before.
    pub(super) fn looking(&mut self) -> Result<Option<Rings>, Failure> {
        self.tend()?;
        Ok(self.session().map(|session| session.bell.rings()))
    }

    /// The look ended: whether it found events that were not known, and whether there are no more.
    pub(super) fn found(&mut self, rings: Option<Rings>, found: bool, caught_up: bool) {
        if let (Some(session), Some(rings)) = (self.session(), rings) {
            session.bell.looked(rings, found);
        }
        self.looked(found, rings.is_some_and(|rings| rings.is_news), caught_up);
    }
}

/// Whether a relay of this pipeline is told by the log.
pub(super) async fn is_tailed(pool: &MySqlPool, pipeline: &str) -> Result<bool, Failure> {
    let database = pool.connect_options();
    let lock = session::lock_name(database.get_database().unwrap_or_default(), pipeline);
    sqlx::query_scalar("SELECT is_used_lock(?) IS NOT NULL")
        .bind(lock)
        .fetch_one(pool)
        .await
        .map_err(failure("look whether the log is tailed"))
}
