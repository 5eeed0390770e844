//! Where the server is, and how streams and keys are kept.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};
use semel_core::wire::Format;
use semel_core::{Failure, Secret};

use super::inbox::RedisInbox;
use super::keys::RedisKeys;
use super::sink::RedisSink;
use super::subscription::RedisSubscriptionConfig;

/// Where the server is, and how streams are kept.
///
/// ```
/// use semel_backends::redis::RedisConfig;
/// use semel_core::Secret;
///
/// let config = RedisConfig::new("redis://redis.internal:6379/0")?
///     .credentials("shop", Secret::new("hunter2"))
///     .key_prefix("{shop}:")
///     .max_len(1_000_000);
/// assert!(!format!("{config:?}").contains("hunter2"));
/// assert!(RedisConfig::new("http://redis").is_err());
/// # Ok::<(), semel_core::Failure>(())
/// ```
#[derive(Clone)]
pub struct RedisConfig {
    pub(super) server: ConnectionInfo,
    pub(super) user: Option<String>,
    pub(super) password: Option<Secret>,
    pub(super) database: i64,
    pub(super) ca_file: Option<PathBuf>,
    pub(super) key_prefix: String,
    pub(super) max_len: Option<u64>,
    pub(super) max_field_bytes: Option<usize>,
    pub(super) format: Format,
    pub(super) timeout: Duration,
}

impl RedisConfig {
    /// Reads a URL: `redis://user:password@host:6379/0`, or `rediss://` for TLS.
    ///
    /// # Errors
    /// `Misconfigured` when the URL is wrong, or asks for what is not built in.
    pub fn new(url: &str) -> Result<Self, Failure> {
        let url = url.trim();
        if url.starts_with("rediss:") && !cfg!(feature = "tls") {
            let what = "Redis: rediss:// needs TLS, which is not built in";
            return Err(
                Failure::misconfigured("E-REDIS-URL", what).with_fix("build with the feature tls")
            );
        }
        // A URL may hold a password: neither it nor the parser's words are repeated.
        let wrong = || {
            Failure::misconfigured("E-REDIS-URL", "Redis: the URL cannot be read")
                .with_fix("write redis://user:password@host:6379/0, or rediss:// for TLS")
        };
        let server = url.into_connection_info().map_err(|_| wrong())?;
        if matches!(server.addr(), ConnectionAddr::TcpTls { insecure: true, .. }) {
            let what = "Redis: #insecure would trust any certificate";
            return Err(Failure::misconfigured("E-REDIS-URL", what)
                .with_fix("remove it, and name the certificate to trust with ca_file"));
        }
        let login = server.redis_settings();
        let (user, database) = (login.username().map(str::to_owned), login.db());
        let password = login.password().map(Secret::new);
        // The link logs in by itself: the client library does not say why a login failed.
        let anonymous = RedisConnectionInfo::default().set_skip_set_lib_name();
        Ok(Self {
            server: server.set_redis_settings(anonymous),
            user,
            password,
            database,
            ca_file: None,
            key_prefix: String::new(),
            max_len: None,
            max_field_bytes: None,
            format: Format::default(),
            timeout: Duration::from_secs(25),
        })
    }

    /// User and password, instead of those in the URL.
    #[must_use]
    pub fn credentials(mut self, user: impl Into<String>, password: Secret) -> Self {
        self.user = Some(user.into());
        self.password = Some(password);
        self
    }

    /// A file of certificates (PEM) to trust instead of those that the operating system trusts.
    #[must_use]
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(path.into());
        self
    }

    /// Goes before the topic in the name of every stream, and before the name of every key. With a hash tag, `{shop}:`, all streams
    /// are in one slot of a cluster.
    #[must_use]
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.key_prefix = prefix.into();
        self
    }

    /// Keeps about so many entries in a stream (`MAXLEN ~`) and drops older ones, read or not; all
    /// are kept unless set.
    #[must_use]
    pub fn max_len(mut self, entries: u64) -> Self {
        self.max_len = Some(entries);
        self
    }

    /// Refuses an event with a field, the payload included, of more bytes than this. Unless set it
    /// is the server's `proto-max-bulk-len`, or 512 MiB where the server does not tell.
    #[must_use]
    pub fn max_field_bytes(mut self, bytes: usize) -> Self {
        self.max_field_bytes = Some(bytes);
        self
    }

    /// How an event looks on the wire; plain unless set.
    #[must_use]
    pub fn format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// How long one publish call may take in all, and a connection to be made; 25 seconds unless
    /// set. Keep it below the relay's `publish_timeout`: then a server that hangs is an outage, and
    /// no failed attempt of the events.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Connects, and warns when the server may lose what it confirms.
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached, `Misconfigured` when it refuses the user.
    pub async fn connect(self) -> Result<RedisSink, Failure> {
        RedisSink::connect(self).await
    }

    /// Connects to keep idempotency keys there, and warns when the server may lose them. A call
    /// waits for an answer no longer than 5 seconds, or [`timeout`](Self::timeout) if that is less.
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached, `Misconfigured` when it refuses the user.
    pub async fn connect_keys(self) -> Result<RedisKeys, Failure> {
        RedisKeys::connect(self).await
    }

    /// Connects to remember there which messages took effect, for effects in the same Redis; warns
    /// when the server may lose that. A call waits for an answer no longer than 5 seconds, or
    /// [`timeout`](Self::timeout) if that is less.
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached, `Misconfigured` when it refuses the user.
    pub async fn connect_inbox(self) -> Result<RedisInbox, Failure> {
        RedisInbox::connect(self).await
    }

    /// Streams to read as a member of a consumer group. Topics are streams, after the key prefix.
    #[must_use]
    pub fn subscribe<T: Into<String>>(
        self,
        group: impl Into<String>,
        topics: impl IntoIterator<Item = T>,
    ) -> RedisSubscriptionConfig {
        let topics = topics.into_iter().map(Into::into).collect();
        RedisSubscriptionConfig::new(self, group.into(), topics)
    }
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig")
            .field("server", &self.server.addr().to_string())
            .field("database", &self.database)
            .field("key_prefix", &self.key_prefix)
            .field("max_len", &self.max_len)
            .field("max_field_bytes", &self.max_field_bytes)
            .field("format", &self.format)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
