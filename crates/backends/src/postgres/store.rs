//! One database, shared by everything that uses it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use semel_core::coordination::Share;
use semel_core::{Clock, Failure, SystemClock};
use sqlx::{PgConnection, PgPool, Postgres, Transaction};
use tokio::sync::watch;

use super::coordination::PostgresMember;
use super::error::failure;
use super::notify::Notifying;
use super::pooler::{BRIEF, Link, Once, Step, Way};
use super::schema::{self, SchemaStatus};
use super::tail::{self, Tailing};
use super::{
    PostgresAdmin, PostgresInbox, PostgresKeys, PostgresLetters, PostgresMarks, PostgresOutbox,
    PostgresSource,
};
use crate::mapped::Airspace;

/// A database. Clones share its connections.
///
/// Made by [`PostgresConfig::connect`](super::PostgresConfig::connect), or from the pool of an
/// application by [`PostgresStore::from_pool`].
///
/// ```no_run
/// use semel_backends::postgres::{PgPool, PostgresStore};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = PgPool::connect("postgres://localhost/shop").await?;
/// let store = PostgresStore::from_pool(pool);
/// store.migrate().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct PostgresStore {
    pool: PgPool,
    pub(super) clock: Arc<dyn Clock>,
    changes: Arc<watch::Sender<()>>,
    /// What the sources of mapped tables have in flight.
    pub(super) airspace: Airspace,
    way: Way,
    /// Whether its connections come with the statements of [`recording`](super::recording).
    has_statements: bool,
    /// How many bytes of log may be kept for a source that tails it.
    pub(super) log_budget: u64,
    pub(super) notifying: Arc<Notifying>,
}

/// One GiB.
pub(super) const DEFAULT_LOG_BUDGET: u64 = 1 << 30;

impl PostgresStore {
    pub(super) fn new(pool: PgPool, clock: Arc<dyn Clock>, way: Way, log_budget: u64) -> Self {
        Self {
            pool,
            clock,
            way,
            has_statements: false,
            log_budget,
            notifying: Arc::default(),
            changes: Arc::new(watch::Sender::new(())),
            airspace: Airspace::default(),
        }
    }

    /// A store on the application's own pool, whose connections lead to the server itself. Behind a
    /// pooler, let [`PostgresConfig::connect`](super::PostgresConfig::connect) find that out.
    #[must_use]
    pub fn from_pool(pool: PgPool) -> Self {
        Self::new(pool, Arc::new(SystemClock), Way::Direct, DEFAULT_LOG_BUDGET)
    }

    /// The same database, whose sources may hold back another amount of log; see
    /// [`PostgresConfig::log_budget`](super::PostgresConfig::log_budget).
    #[must_use]
    pub fn with_log_budget(mut self, bytes: u64) -> Self {
        self.log_budget = bytes;
        self
    }

    /// The same, whose connections were prepared when they were opened.
    pub(super) fn with_statements(mut self) -> Self {
        self.has_statements = true;
        self
    }

    pub(super) fn has_statements(&self) -> bool {
        self.has_statements
    }

    /// Whether there is a pooler between here and the server.
    #[must_use]
    pub fn is_pooled(&self) -> bool {
        self.way != Way::Direct
    }

    /// The connections.
    #[must_use]
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Opens a transaction.
    ///
    /// # Errors
    /// `Unavailable` when there is no connection to be had.
    pub async fn begin(&self) -> Result<Transaction<'static, Postgres>, Failure> {
        self.begin_as("begin").await
    }

    /// In a task of its own: if the caller is dropped half-way, sqlx would put a connection back
    /// into the pool that has a transaction open and does not know it.
    pub(super) async fn begin_as(
        &self,
        sql: &'static str,
    ) -> Result<Transaction<'static, Postgres>, Failure> {
        self.opened(sql).await.map_err(failure("begin a transaction"))
    }

    pub(super) async fn opened(
        &self,
        sql: impl Into<String>,
    ) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
        let (pool, sql) = (self.pool.clone(), self.way.opening(sql));
        let begun = tokio::spawn(async move { pool.begin_with(sql).await }).await;
        begun.unwrap_or(Err(sqlx::Error::WorkerCrashed))
    }

    /// A connection for statements that need no transaction of their own.
    pub(super) async fn step(&self) -> Result<Step<'static>, Failure> {
        Ok(match self.way {
            Way::Direct => Step::Owned(self.pool.acquire().await.map_err(failure("connect"))?),
            Way::Pooled { .. } => Step::Within(self.begin_as(BRIEF).await?),
        })
    }

    /// Executes one statement.
    pub(super) fn once(&self) -> Once<'_> {
        Once(self)
    }

    pub(super) fn link<'c>(&self, connection: &'c mut PgConnection) -> Link<'c> {
        Link::new(connection, self.way)
    }

    /// Creates or upgrades the tables; says which migrations were applied.
    ///
    /// # Errors
    /// See [`migrate`](super::migrate).
    pub async fn migrate(&self) -> Result<Vec<&'static str>, Failure> {
        schema::migrate_in(self.begin().await?).await
    }

    /// Which version of the tables is there.
    ///
    /// # Errors
    /// See [`status`](super::status).
    pub async fn status(&self) -> Result<SchemaStatus, Failure> {
        let mut step = self.step().await?;
        let status = schema::status_of(&mut step).await?;
        step.end().await?;
        Ok(status)
    }

    /// The writing end of the outbox.
    #[must_use]
    pub fn outbox(&self) -> PostgresOutbox {
        PostgresOutbox::new(self.clone())
    }

    /// The outbox as a source for the pipeline of this name, taking it over from any other owner.
    /// A pipeline that is new begins with the oldest event that is still there.
    ///
    /// # Errors
    /// As of [`source_share`](Self::source_share), of which this is the only share.
    pub async fn source(&self, pipeline: &str) -> Result<PostgresSource, Failure> {
        self.source_share(pipeline, Share::WHOLE).await
    }

    /// The same, and the log tells of commits, so that it need not wait for its next look.
    ///
    /// The rows are read from the table in any case: what the log does not tell is found a little
    /// later. It needs `wal_level = logical` and a user with REPLICATION, and takes one temporary
    /// replication slot.
    ///
    /// # Errors
    /// As of [`source`](Self::source), and `Misconfigured` when it is required and the server does
    /// not allow it.
    ///
    /// ```no_run
    /// use semel_backends::postgres::{PostgresConfig, Tailing};
    ///
    /// # async fn run() -> Result<(), semel_core::Failure> {
    /// let store = PostgresConfig::new("postgres://localhost/shop")?.connect().await?;
    /// let source = store.tailing_source("orders", Tailing::WherePossible).await?;
    /// # Ok(()) }
    /// ```
    pub async fn tailing_source(
        &self,
        pipeline: &str,
        tailing: Tailing,
    ) -> Result<PostgresSource, Failure> {
        self.source(pipeline).await?.follow_log(tailing).await
    }

    /// Whether the log tells a relay of the pipeline of this name of new events, in any process.
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached.
    pub async fn is_tailed(&self, pipeline: &str) -> Result<bool, Failure> {
        tail::is_tailed(self.once(), pipeline).await
    }

    /// One share of the pipeline of this name as a source, taking it over from any other owner of
    /// this share. It hands out the events of its own lanes and no others; whatever else is true of
    /// a pipeline is true of each of its shares.
    ///
    /// When the pipeline is split into another number of shares, it is split anew first: owners of
    /// its former shares get nothing more, and what they had not settled is offered by the new ones.
    ///
    /// # Errors
    /// `Misconfigured` when the tables are missing or of another version, or when too many events
    /// are not settled to split the pipeline anew.
    ///
    /// ```no_run
    /// use semel_backends::postgres::PostgresConfig;
    /// use semel_core::coordination::Share;
    ///
    /// # async fn run() -> Result<(), semel_core::Failure> {
    /// let store = PostgresConfig::new("postgres://localhost/shop")?.connect().await?;
    /// let first_of_four = store.source_share("orders", Share::new(0, 4)?).await?;
    /// # Ok(()) }
    /// ```
    pub async fn source_share(
        &self,
        pipeline: &str,
        share: Share,
    ) -> Result<PostgresSource, Failure> {
        // In a task of its own, for the same reason as a transaction.
        let (store, pipeline) = (self.clone(), pipeline.to_owned());
        let opened =
            tokio::spawn(async move { PostgresSource::open(store, &pipeline, share).await });
        opened.await.unwrap_or_else(|_| Err(failure("open the source")(sqlx::Error::WorkerCrashed)))
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
    ) -> Result<PostgresMember, Failure> {
        PostgresMember::new(self.clone(), pipeline, shares, lease)
    }

    /// The operator's view of a pipeline.
    #[must_use]
    pub fn admin(&self, pipeline: &str) -> PostgresAdmin {
        PostgresAdmin::new(self.clone(), pipeline)
    }

    /// Dead letters of consumers.
    #[must_use]
    pub fn letters(&self) -> PostgresLetters {
        PostgresLetters::new(self.clone())
    }

    /// How far consumers got.
    #[must_use]
    pub fn marks(&self) -> PostgresMarks {
        PostgresMarks(())
    }

    /// The inbox.
    #[must_use]
    pub fn inbox(&self) -> PostgresInbox {
        PostgresInbox::new(self.clone())
    }

    /// Idempotency keys.
    #[must_use]
    pub fn keys(&self) -> PostgresKeys {
        PostgresKeys::new(self.clone())
    }

    /// Closes all connections.
    pub async fn close(&self) {
        self.pool.close().await;
    }

    /// Wakes the sources of this process.
    pub(super) fn announce_change(&self) {
        self.changes.send_replace(());
    }

    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").finish_non_exhaustive()
    }
}

/// A span of time in microseconds.
pub(super) fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX / 4)
}

/// A number of rows for LIMIT.
pub(super) fn count(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// The number of a share, or how many there are.
pub(super) fn integer(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// How many rows a statement said it changed.
pub(super) fn changed(rows: u64) -> usize {
    usize::try_from(rows).unwrap_or(usize::MAX)
}
