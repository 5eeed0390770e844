//! Where the server is and how it is reached.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use semel_core::{Clock, Failure, SystemClock};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, Executor, PgPool};

use super::error::failure;
use super::pooler::{Marker, Way};
use super::recording::PREPARE;
use super::store::{DEFAULT_LOG_BUDGET, PostgresStore};
use crate::connecting;

/// Where the server is and how it is reached.
///
/// ```
/// use semel_backends::postgres::PostgresConfig;
/// use std::time::Duration;
///
/// let config = PostgresConfig::new("postgres://shop:secret@db.internal/shop?sslmode=require")?
///     .connections(8)
///     .patience(Duration::from_secs(2));
/// assert!(!format!("{config:?}").contains("secret"));
/// assert!(PostgresConfig::new("mysql://db/shop").is_err());
/// # Ok::<(), semel_core::Failure>(())
/// ```
#[derive(Clone)]
pub struct PostgresConfig {
    options: PgConnectOptions,
    connections: u32,
    patience: Duration,
    log_budget: u64,
    clock: Arc<dyn Clock>,
}

impl PostgresConfig {
    /// Reads a URL such as `postgres://user:password@host:5432/database?sslmode=verify-full`.
    ///
    /// # Errors
    /// `Misconfigured` when the URL is wrong.
    pub fn new(url: &str) -> Result<Self, Failure> {
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            // The URL itself may hold a password: it is not repeated.
            return Err(Failure::misconfigured(
                "E-POSTGRES-URL",
                "PostgreSQL: the URL does not begin with postgres://",
            )
            .with_fix("write postgres://user:password@host:5432/database"));
        }
        let options = PgConnectOptions::from_str(url)
            .map_err(failure("read the database URL"))?
            .application_name("semel")
            // Poolers refuse what they do not know.
            .extra_float_digits(None)
            .disable_statement_logging();
        Ok(Self {
            options,
            connections: 10,
            patience: Duration::from_secs(5),
            log_budget: DEFAULT_LOG_BUDGET,
            clock: Arc::new(SystemClock),
        })
    }

    /// How many connections may be open at once; 10 unless set. A source keeps one for itself.
    #[must_use]
    pub fn connections(mut self, count: u32) -> Self {
        self.connections = count.max(1);
        self
    }

    /// How long to wait for a connection before giving up; 5 seconds unless set.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// How many bytes of its log the server may keep for a source that tails it; 1 GiB unless set. The
    /// slot of a source is confirmed at once and keeps next to nothing, except while somebody has a
    /// transaction open for long. Above that, the source gives its slot back and polls.
    #[must_use]
    pub fn log_budget(mut self, bytes: u64) -> Self {
        self.log_budget = bytes;
        self
    }

    /// Another clock than the system's, for tests. Only *spans* are taken from it: what is due when
    /// is decided by the server's clock.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Connects, and looks whether there is a pooler in between: then everything works in the way
    /// that is safe behind one in transaction mode, with more round trips.
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached, `Misconfigured` when it refuses the user.
    pub async fn connect(&self) -> Result<PostgresStore, Failure> {
        let (host, port) = (self.options.get_host(), self.options.get_port());
        let what = format!("connect to {host}:{port}");
        let failed = || failure(&what);
        let marker = Marker::new();
        let pool = match self.open(marker.put_on(&self.options)).await {
            Ok(pool) if marker.arrived(&pool).await.map_err(failed())? => {
                return Ok(self.store(pool, Way::Direct).with_statements());
            }
            Ok(pool) => pool,
            Err(error) if Marker::is_refused(&error) => {
                self.open(self.options.clone()).await.map_err(failed())?
            }
            Err(error) => return Err(failed()(error)),
        };
        let knows_statements = marker.is_renamed(&pool).await.map_err(failed())?;
        pool.close().await;
        let options = self.options.clone();
        let options = if knows_statements { options } else { options.statement_cache_capacity(0) };
        let pool = self.open(options).await.map_err(failed())?;
        tracing::info!(
            %host, port, knows_statements,
            "there is a pooler between here and PostgreSQL: every statement runs in a transaction, \
             nothing is kept between them, and notifications cannot be listened for"
        );
        let way = Way::Pooled { knows_statements };
        Ok(self.store(pool, way))
    }

    fn store(&self, pool: PgPool, way: Way) -> PostgresStore {
        PostgresStore::new(pool, Arc::clone(&self.clock), way, self.log_budget)
    }

    async fn open(&self, options: PgConnectOptions) -> Result<PgPool, sqlx::Error> {
        let pool = PgPoolOptions::new()
            .max_connections(self.connections)
            .acquire_timeout(self.patience)
            .after_connect(|connection, _| {
                Box::pin(async { connection.execute(PREPARE.as_str()).await.map(drop) })
            })
            .connect_with(options.clone());
        match pool.await {
            Err(error) => Err(connecting::reason(&options, error).await),
            opened => opened,
        }
    }
}

impl fmt::Debug for PostgresConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresConfig")
            .field("host", &self.options.get_host())
            .field("port", &self.options.get_port())
            .field("database", &self.options.get_database())
            .field("connections", &self.connections)
            .field("log_budget", &self.log_budget)
            .finish_non_exhaustive()
    }
}
