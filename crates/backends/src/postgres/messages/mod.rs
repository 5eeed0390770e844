//! Events that are written as messages into the log, without a table: `append` is one WAL record,
//! and a relay carries what was committed into the outbox.
//!
//! The writer needs no right on any table and maintains no index. A permanent replication slot keeps
//! the messages until the *carrier*, a task of the relay, has put them into `semel.outbox` in the
//! order of their commits. From there on they are events like all others: read, retried, parked,
//! scheduled, replayed and deleted in the same way.
//!
//! A broker that is down holds back no log, because messages are carried whatever becomes of them.
//! While no relay runs the slot holds back all that is written. **When the slot is lost, so are the
//! messages that were not carried**; from then on `append` fails.

mod alive;
mod carrier;
mod format;
mod page;
mod patience;
mod slot;

use semel_core::outbox::AppendError;
use semel_core::{Event, Failure};
use sqlx::{PgConnection, Postgres, Transaction};

use super::error::failure;
use super::store::PostgresStore;
use super::tail::behind_a_pooler;

pub use self::carrier::Carrying;
pub(super) use self::slot::Slot;
pub use self::slot::messages_sql;

/// What messages of semel begin with; others of the same database are not touched.
const PREFIX: &str = "semel";

/// Writes all events, or none, in one round trip.
pub(super) async fn append(
    tx: &mut Transaction<'_, Postgres>,
    events: &[Event],
) -> Result<(), AppendError> {
    // The writer may have limits of its own, and what is not carried is lost.
    events.iter().try_for_each(format::check).map_err(AppendError::Invalid)?;
    let messages: Vec<String> = events.iter().map(format::encode).collect();
    let emitted = sqlx::query(slot::EMIT).bind(&messages).execute(&mut **tx).await;
    let emitted = emitted.map_err(|error| AppendError::Store(failure("write a message")(error)))?;
    if emitted.rows_affected() == 0 && !events.is_empty() {
        let why = "no replication slot keeps them";
        return Err(AppendError::Store(slot::not_kept(why)));
    }
    Ok(())
}

/// How many messages wait in the log; none where the slot keeps none.
pub(super) async fn count(connection: &mut PgConnection) -> Result<u64, Failure> {
    let slot = Slot::look(&mut *connection).await?;
    if slot.keeps { slot.count(connection).await } else { Ok(0) }
}

impl PostgresStore {
    /// Makes the replication slot that keeps messages, if there is none. It waits for the
    /// transactions that run at that time.
    ///
    /// # Errors
    /// `Misconfigured` when `wal_level` is not `logical` or the user may not; `Unavailable` when no
    /// slot is free.
    pub async fn prepare_messages(&self) -> Result<(), Failure> {
        if self.is_pooled() {
            return Err(behind_a_pooler());
        }
        slot::create(self.pool()).await
    }

    /// Carries messages into the outbox, as long as the result lives, and wakes the sources. One
    /// carrier works in a database; the others wait until it is gone. `pipeline` is who says so.
    ///
    /// # Errors
    /// `Misconfigured` when no slot keeps messages, or there is a pooler in between.
    ///
    /// ```no_run
    /// use semel_backends::postgres::PostgresConfig;
    /// use semel_core::Event;
    ///
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = PostgresConfig::new("postgres://localhost/shop")?.connect().await?;
    /// store.prepare_messages().await?;
    /// let mut tx = store.begin().await?;
    /// store.outbox().as_messages().append(&mut tx, Event::new("order", "42", "OrderPlaced")).await?;
    /// tx.commit().await?;
    ///
    /// let carrying = store.carry_messages("orders").await?;
    /// carrying.caught_up().await?;
    /// let source = store.source("orders").await?;
    /// # Ok(()) }
    /// ```
    pub async fn carry_messages(&self, pipeline: &str) -> Result<Carrying, Failure> {
        if self.is_pooled() {
            return Err(behind_a_pooler());
        }
        let slot = Slot::look(self.pool()).await?;
        slot.check()?;
        Ok(Carrying::start(self.clone(), pipeline, slot.name))
    }

    /// How many messages no relay has carried into the outbox: they are in the log only, all of which
    /// is read that the slot keeps.
    ///
    /// # Errors
    /// `Transient` when a relay carries them at the moment, `Misconfigured` when the user may not read
    /// the log.
    pub async fn count_messages(&self) -> Result<u64, Failure> {
        let mut step = self.step().await?;
        count(&mut step).await
    }

    /// Whether a relay carries messages, in any process.
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached.
    pub async fn is_carried(&self) -> Result<bool, Failure> {
        Ok(Slot::look(self.once()).await?.is_read)
    }
}
