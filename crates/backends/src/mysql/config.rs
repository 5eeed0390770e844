//! Where the server is and how it is reached.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use semel_core::{Clock, Failure, SystemClock};
use sqlx::ConnectOptions;
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};

use super::error::failure;
use super::store::MysqlStore;
use crate::connecting;

/// Where the server is and how it is reached.
///
/// ```
/// use semel_backends::mysql::MysqlConfig;
/// use std::time::Duration;
///
/// let config = MysqlConfig::new("mysql://shop:secret@db.internal/shop?ssl-mode=REQUIRED")?
///     .connections(8)
///     .patience(Duration::from_secs(2));
/// assert!(!format!("{config:?}").contains("secret"));
/// assert!(MysqlConfig::new("postgres://db/shop").is_err());
/// # Ok::<(), semel_core::Failure>(())
/// ```
#[derive(Clone)]
pub struct MysqlConfig {
    options: MySqlConnectOptions,
    connections: u32,
    patience: Duration,
    clock: Arc<dyn Clock>,
}

impl MysqlConfig {
    /// Reads a URL such as `mysql://user:password@host:3306/database?ssl-mode=VERIFY_IDENTITY`.
    ///
    /// # Errors
    /// `Misconfigured` when the URL is wrong, or names no database.
    pub fn new(url: &str) -> Result<Self, Failure> {
        // The URL may hold a password: it is not repeated.
        if !url.starts_with("mysql://") && !url.starts_with("mariadb://") {
            return Err(wrong_url("the URL does not begin with mysql://"));
        }
        let options = MySqlConnectOptions::from_str(url)
            .map_err(failure("read the database URL"))?
            .disable_statement_logging();
        if options.get_database().is_none_or(str::is_empty) {
            return Err(wrong_url("the URL names no database"));
        }
        let (connections, patience) = (10, Duration::from_secs(5));
        Ok(Self { options, connections, patience, clock: Arc::new(SystemClock) })
    }

    /// How many connections may be open at once; 10 unless set.
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
    pub async fn connect(&self) -> Result<MysqlStore, Failure> {
        let (host, port) = (self.options.get_host(), self.options.get_port());
        let pool = MySqlPoolOptions::new()
            .max_connections(self.connections)
            .acquire_timeout(self.patience)
            .connect_with(self.options.clone());
        let pool = match pool.await {
            Ok(pool) => pool,
            Err(error) => {
                let error = connecting::reason(&self.options, error).await;
                return Err(failure(&format!("connect to {host}:{port}"))(error));
            }
        };
        Ok(MysqlStore::new(pool, Arc::clone(&self.clock)))
    }
}

fn wrong_url(what: &str) -> Failure {
    Failure::misconfigured("E-MYSQL-URL", format!("MySQL: {what}"))
        .with_fix("write mysql://user:password@host:3306/database")
}

impl fmt::Debug for MysqlConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MysqlConfig")
            .field("host", &self.options.get_host())
            .field("port", &self.options.get_port())
            .field("database", &self.options.get_database())
            .field("connections", &self.connections)
            .finish_non_exhaustive()
    }
}
