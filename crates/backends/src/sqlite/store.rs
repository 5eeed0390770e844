//! One open database file, shared by everything that uses it.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::{Clock, Failure, SystemClock};
use sqlx::{Sqlite, SqlitePool, Transaction};
use tokio::sync::watch;

use super::coordination::SqliteMember;
use super::error::failure;
use super::{
    SchemaStatus, SqliteAdmin, SqliteInbox, SqliteKeys, SqliteLetters, SqliteMarks, SqliteOutbox,
    SqliteSource, schema,
};
use crate::mapped::Airspace;
pub(super) use crate::row::timestamp;

/// An open database file. Clones share its connections.
///
/// Made by [`SqliteConfig::connect`](super::SqliteConfig::connect), or from the pool of an
/// application by [`SqliteStore::from_pool`].
///
/// ```
/// use semel_backends::sqlite::SqliteConfig;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// # let folder = tempfile::tempdir().unwrap();
/// # let url = format!("sqlite://{}/shop.db", folder.path().display());
/// let store = SqliteConfig::new(&url)?.connect().await?;
/// assert_eq!(store.migrate().await?.first(), Some(&"0001_tables"));
/// assert!(store.migrate().await?.is_empty());
/// # Ok::<(), semel_core::Failure>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct SqliteStore {
    pub(super) writer: SqlitePool,
    pub(super) readers: SqlitePool,
    pub(super) clock: Arc<dyn Clock>,
    changes: Arc<watch::Sender<()>>,
    /// What the sources of mapped tables have in flight.
    pub(super) airspace: Airspace,
    /// For each pipeline that a source of this process owns: its epoch, and the last event that
    /// was handed out. It saves a write per batch.
    handed_out: Arc<Mutex<HashMap<String, (i64, u64)>>>,
}

impl SqliteStore {
    pub(super) fn new(writer: SqlitePool, readers: SqlitePool, clock: Arc<dyn Clock>) -> Self {
        let changes = Arc::new(watch::Sender::new(()));
        let airspace = Airspace::default();
        Self { writer, readers, clock, changes, airspace, handed_out: Arc::default() }
    }

    /// A store on the application's own pool. It should have the write-ahead log, a busy timeout
    /// and more than one connection, as [`SqliteConfig`](super::SqliteConfig) sets them.
    #[must_use]
    pub fn from_pool(pool: SqlitePool) -> Self {
        Self::new(pool.clone(), pool, Arc::new(SystemClock))
    }

    /// Opens a transaction that may write: `BEGIN IMMEDIATE`, so that it waits for its turn now
    /// and cannot fail for want of the lock in the middle.
    ///
    /// # Errors
    /// `Unavailable` when the lock could not be had in time.
    pub async fn begin(&self) -> Result<Transaction<'static, Sqlite>, Failure> {
        self.writer.begin_with("BEGIN IMMEDIATE").await.map_err(failure("begin a transaction"))
    }

    /// The connections for reading.
    #[must_use]
    pub fn pool(&self) -> &SqlitePool {
        &self.readers
    }

    /// Creates or upgrades the tables; says which migrations were applied.
    ///
    /// # Errors
    /// See [`migrate`](super::migrate).
    pub async fn migrate(&self) -> Result<Vec<&'static str>, Failure> {
        schema::migrate(&self.writer).await
    }

    /// Which version of the tables is there, and which one this program needs.
    ///
    /// # Errors
    /// See [`status`](super::status).
    pub async fn status(&self) -> Result<SchemaStatus, Failure> {
        schema::status(&self.readers).await
    }

    /// The writing end of the outbox.
    #[must_use]
    pub fn outbox(&self) -> SqliteOutbox {
        SqliteOutbox::new(self.clone())
    }

    /// The outbox as a source for the pipeline of this name, taking it over from any other owner.
    ///
    /// # Errors
    /// `Misconfigured` when the tables are missing or of another version.
    pub async fn source(&self, pipeline: &str) -> Result<SqliteSource, Failure> {
        SqliteSource::open(self.clone(), pipeline).await
    }

    /// Dead letters of consumers.
    #[must_use]
    pub fn letters(&self) -> SqliteLetters {
        SqliteLetters::new(self.clone())
    }

    /// How far consumers got.
    #[must_use]
    pub fn marks(&self) -> SqliteMarks {
        SqliteMarks(())
    }

    /// The inbox.
    #[must_use]
    pub fn inbox(&self) -> SqliteInbox {
        SqliteInbox::new(self.clone())
    }

    /// Idempotency keys.
    #[must_use]
    pub fn keys(&self) -> SqliteKeys {
        SqliteKeys::new(self.clone())
    }

    /// A new member of the group of relays that work on the pipeline of this name.
    ///
    /// # Errors
    /// `Misconfigured` when there cannot be so many shares.
    pub fn member(
        &self,
        pipeline: &str,
        shares: u32,
        lease: Duration,
    ) -> Result<SqliteMember, Failure> {
        SqliteMember::new(self.clone(), pipeline, shares, lease)
    }

    /// What an operator may ask and change about the pipeline of this name.
    #[must_use]
    pub fn admin(&self, pipeline: &str) -> SqliteAdmin {
        SqliteAdmin::new(self.clone(), pipeline)
    }

    /// Waits until everything is written, and closes the file.
    pub async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }

    /// Wakes the sources of this process.
    pub(super) fn announce_change(&self) {
        self.changes.send_replace(());
    }

    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    pub(super) fn note_handed_out(&self, pipeline: &str, epoch: i64, last: u64) {
        let mut noted = self.handed_out.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(note) = noted.get_mut(pipeline) {
            *note = (epoch, last);
        } else {
            noted.insert(pipeline.to_owned(), (epoch, last));
        }
    }

    /// The last event that the owner with this epoch has handed out, if it is in this process.
    pub(super) fn handed_out(&self, pipeline: &str, epoch: i64) -> u64 {
        let noted = self.handed_out.lock().unwrap_or_else(PoisonError::into_inner);
        noted.get(pipeline).filter(|(owner, _)| *owner == epoch).map_or(0, |(_, last)| *last)
    }

    /// The present in the unit of the tables.
    pub(super) fn now(&self) -> i64 {
        self.clock.now().as_microsecond()
    }

    /// `age` ago in the unit of the tables.
    pub(super) fn before(&self, age: Duration) -> i64 {
        self.now().saturating_sub(micros(age))
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").finish_non_exhaustive()
    }
}

/// A span of time in the unit of the tables.
pub(super) fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}
