//! Where the server is and how it is reached.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use semel_core::{Clock, Failure, SystemClock};
use sqlx::ConnectOptions;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use super::error::failure;
use super::store::PostgresStore;

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
            .disable_statement_logging();
        Ok(Self {
            options,
            connections: 10,
            patience: Duration::from_secs(5),
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

    /// Another clock than the system's, for tests. Only *spans* are taken from it: what is due when
    /// is decided by the server's clock.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached, `Misconfigured` when it refuses the user.
    pub async fn connect(&self) -> Result<PostgresStore, Failure> {
        let (host, port) = (self.options.get_host(), self.options.get_port());
        let pool = PgPoolOptions::new()
            .max_connections(self.connections)
            .acquire_timeout(self.patience)
            .connect_with(self.options.clone())
            .await
            .map_err(failure(&format!("connect to {host}:{port}")))?;
        Ok(PostgresStore::new(pool, Arc::clone(&self.clock)))
    }
}

impl fmt::Debug for PostgresConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresConfig")
            .field("host", &self.options.get_host())
            .field("port", &self.options.get_port())
            .field("database", &self.options.get_database())
            .field("connections", &self.connections)
            .finish_non_exhaustive()
    }
}
