//! Where the file is and how it is opened.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use semel_core::{Clock, Failure, SystemClock};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection};

use super::error::failure;
use super::store::SqliteStore;

/// Where the database file is and how it is opened.
///
/// ```
/// use semel_backends::sqlite::{Durability, SqliteConfig};
/// use std::time::Duration;
///
/// let config = SqliteConfig::new("sqlite://shop.db")?
///     .durability(Durability::ProcessCrash)
///     .busy_timeout(Duration::from_secs(2));
/// assert!(SqliteConfig::new("sqlite::memory:").is_err());
/// # Ok::<(), semel_core::Failure>(())
/// ```
#[derive(Clone, Debug)]
pub struct SqliteConfig {
    options: SqliteConnectOptions,
    busy_timeout: Duration,
    readers: u32,
    clock: Arc<dyn Clock>,
}

/// What a commit survives.
///
/// ```
/// # use semel_backends::sqlite::Durability;
/// assert_eq!(Durability::default(), Durability::PowerLoss);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// A power cut (`synchronous = FULL`, the default). With anything less the last commits may
    /// vanish after their events have been published: consumers would act on what never happened.
    #[default]
    PowerLoss,
    /// The end of the process, not that of the machine (`synchronous = NORMAL`). Much faster; for
    /// tests, demos and data that can be made again.
    ProcessCrash,
}

impl SqliteConfig {
    /// Reads a URL such as `sqlite://shop.db` or `sqlite:///var/lib/shop.db`. The file is created
    /// when it does not exist, unless the URL says `?mode=rw`.
    ///
    /// # Errors
    /// `Misconfigured` when the URL is wrong, or names a database in memory: every connection
    /// would see another one.
    pub fn new(url: &str) -> Result<Self, Failure> {
        if url.contains(":memory:") || url.contains("mode=memory") {
            return Err(Failure::misconfigured(
                "E-SQLITE-MEMORY",
                "SQLite: an outbox in memory is lost with the process",
            )
            .with_fix("give a file, such as sqlite://semel.db"));
        }
        let chosen_mode = url.contains("mode=");
        let busy_timeout = Duration::from_secs(5);
        let options = SqliteConnectOptions::from_str(url)
            .map_err(failure("read the database URL"))?
            .journal_mode(SqliteJournalMode::Wal)
            .foreign_keys(true)
            .disable_statement_logging();
        let options = if chosen_mode { options } else { options.create_if_missing(true) };
        let config = Self { options, busy_timeout, readers: 4, clock: Arc::new(SystemClock) };
        Ok(config.durability(Durability::default()).busy_timeout(busy_timeout))
    }

    /// What a commit survives.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.options = self.options.synchronous(match durability {
            Durability::PowerLoss => SqliteSynchronous::Full,
            Durability::ProcessCrash => SqliteSynchronous::Normal,
        });
        self
    }

    /// How long to wait for another writer before giving up; 5 seconds unless set.
    #[must_use]
    pub fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.options = self.options.busy_timeout(timeout);
        self.busy_timeout = timeout;
        self
    }

    /// How many connections may read at once; 4 unless set. Only one ever writes.
    #[must_use]
    pub fn readers(mut self, count: u32) -> Self {
        self.readers = count.max(1);
        self
    }

    /// Another clock, for tests.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Opens the file.
    ///
    /// Writers of this process queue for one connection, in order, instead of racing for the lock
    /// of the file; readers have their own and never wait.
    ///
    /// # Errors
    /// `Misconfigured` when the file cannot be opened, `Unavailable` when it is locked.
    pub async fn connect(&self) -> Result<SqliteStore, Failure> {
        let writer = self.pool(1).await?;
        let readers = self.pool(self.readers).await?;
        Ok(SqliteStore::new(writer, readers, Arc::clone(&self.clock)))
    }

    async fn pool(&self, connections: u32) -> Result<SqlitePool, Failure> {
        let file = self.options.get_filename().display().to_string();
        SqlitePoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(self.busy_timeout.max(Duration::from_millis(1)) * 2)
            .idle_timeout(None)
            .max_lifetime(None)
            .test_before_acquire(false)
            // A transaction that SQLite has ended by itself, for want of disk space, is open for ever to sqlx.
            .before_acquire(|connection, _| {
                Box::pin(async move { Ok(!connection.is_in_transaction()) })
            })
            .connect_with(self.options.clone())
            .await
            .map_err(failure(&format!("open {file}")))
    }
}
