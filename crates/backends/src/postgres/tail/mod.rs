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
mod held_back;
mod publication;
mod refusal;
#[cfg(test)]
pub(super) mod replayed;
mod session;

use std::sync::Arc;
use std::time::Duration;

use semel_core::Failure;
use sqlx::{PgExecutor, PgPool};

use self::refusal::too_slow;
use self::session::Session;
use super::error::failure;
use super::types::Snapshot;

pub(super) use self::address::config;
pub(super) use self::held_back::keep_little;
pub use self::publication::publication_sql;
pub(super) use self::publication::{publication_sql_for, publish_sql};
pub(super) use self::refusal::{behind_a_pooler, of_session, refused, too_old, wal_level};
pub(super) use self::session::slot_prefix;
pub use crate::tailing::Tailing;

/// The ear of one source.
pub(super) type Tail = crate::tailing::Tail<Session>;

/// The ear of the source of a pipeline; `budget` is how many bytes of log may be kept for it.
pub(super) fn tail(pipeline: &str, tailing: Tailing, pool: &PgPool, budget: u64) -> Tail {
    const MOST: Duration = Duration::from_secs(90);
    let (pool, name) = (pool.clone(), pipeline.to_owned());
    let opener = move || {
        let (pool, pipeline) = (pool.clone(), name.clone());
        Box::pin(async move {
            let opening = async {
                ensured(&pool).await?;
                Session::open(&pool, &pipeline, budget).await
            };
            tokio::time::timeout(MOST, opening).await.unwrap_or_else(|_| Err(too_slow()))
        }) as _
    };
    Tail::new(pipeline, tailing, Box::new(opener))
}

/// In a task of its own: whoever is dropped half-way would leave a transaction open.
async fn ensured(pool: &PgPool) -> Result<(), Failure> {
    let pool = pool.clone();
    let ensured = tokio::spawn(async move { publication::ensure(&pool).await }).await;
    ensured.unwrap_or_else(|_| Err(refused("making the publication panicked")))
}

impl Tail {
    /// A look ended here, with or without new events; `caught_up` says whether there are no more.
    pub(super) fn note(&mut self, end: &Arc<Snapshot>, found: bool, caught_up: bool) {
        // No news where only what was known was handed out.
        let news = self.session().and_then(|session| session.looked(end));
        self.looked(found && news.is_some(), news == Some(true), caught_up);
    }

    /// Whether it hears of commits.
    pub(super) fn is_hearing(&self) -> bool {
        self.session().is_some()
    }
}

/// Whether a relay of this pipeline is told by the log. A slot that is being made, which may wait for
/// others' transactions, tells nothing yet.
pub(super) async fn is_tailed(
    executor: impl PgExecutor<'_>,
    pipeline: &str,
) -> Result<bool, Failure> {
    const SLOTS: &str = "select exists (select from pg_replication_slots
        where database = current_database() and starts_with(slot_name::text, $1)
            and active and confirmed_flush_lsn is not null)";
    sqlx::query_scalar(SLOTS)
        .bind(session::slot_prefix(pipeline))
        .fetch_one(executor)
        .await
        .map_err(failure("look at the replication slots"))
}
