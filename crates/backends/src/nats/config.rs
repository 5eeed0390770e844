//! Where the server is, and the stream to make.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use async_nats::ServerAddr;
use semel_core::wire::Format;
use semel_core::{Failure, Secret};

use super::sink::NatsSink;
use super::subscription::NatsSubscriptionConfig;

/// Where the server is, and the stream to make.
///
/// ```
/// use semel_backends::nats::{NatsConfig, NatsStream};
/// use semel_core::Secret;
///
/// let config = NatsConfig::new("nats://one.internal:4222,nats://two.internal:4222")?
///     .credentials("shop", Secret::new("hunter2"))
///     .create_stream(NatsStream::new("ORDERS", ["order.>"]).replicas(3));
/// assert!(!format!("{config:?}").contains("hunter2"));
/// assert!(NatsConfig::new("").is_err());
/// # Ok::<(), semel_core::Failure>(())
/// ```
#[derive(Clone)]
pub struct NatsConfig {
    pub(super) servers: Vec<ServerAddr>,
    pub(super) login: Option<Login>,
    pub(super) ca_file: Option<PathBuf>,
    pub(super) stream: Option<NatsStream>,
    pub(super) format: Format,
    pub(super) timeout: Duration,
}

/// Who to log in as.
#[derive(Clone)]
pub(super) enum Login {
    User(String, Secret),
    Token(Secret),
    File(PathBuf),
}

impl NatsConfig {
    /// Reads one or more URLs with commas between them: `nats://user:password@host:4222`, or
    /// `tls://` where encryption is a must.
    ///
    /// # Errors
    /// `Misconfigured` when a URL is wrong.
    pub fn new(urls: &str) -> Result<Self, Failure> {
        // A URL may hold a password: neither it nor the parser's words are repeated.
        let wrong = || {
            Failure::misconfigured("E-NATS-URL", "NATS: the URL cannot be read")
                .with_fix("write nats://user:password@host:4222, or tls:// for TLS")
        };
        if urls.trim().is_empty() {
            return Err(wrong());
        }
        let servers = urls.split(',').map(|url| ServerAddr::from_str(url.trim()));
        let servers = servers.collect::<Result<Vec<_>, _>>().map_err(|_| wrong())?;
        if servers.iter().any(|server| server.host().is_empty()) {
            return Err(wrong());
        }
        let (login, ca_file, stream) = (None, None, None);
        let (format, timeout) = (Format::default(), Duration::from_secs(25));
        Ok(Self { servers, login, ca_file, stream, format, timeout })
    }

    /// User and password, instead of those in the URL.
    #[must_use]
    pub fn credentials(mut self, user: impl Into<String>, password: Secret) -> Self {
        self.login = Some(Login::User(user.into(), password));
        self
    }

    /// A token to log in with.
    #[must_use]
    pub fn token(mut self, token: Secret) -> Self {
        self.login = Some(Login::Token(token));
        self
    }

    /// A `.creds` file (JWT and seed) to log in with.
    #[must_use]
    pub fn credentials_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.login = Some(Login::File(path.into()));
        self
    }

    /// A file of certificates (PEM) to trust beside those that the operating system trusts.
    #[must_use]
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(path.into());
        self
    }

    /// Makes this stream if there is none of its name. One that is there stays as it is.
    #[must_use]
    pub fn create_stream(mut self, stream: NatsStream) -> Self {
        self.stream = Some(stream);
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

    /// Connects, and makes the stream if that is asked for.
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached, `Misconfigured` when it refuses the user or
    /// the stream, or has no JetStream.
    pub async fn connect(self) -> Result<NatsSink, Failure> {
        NatsSink::connect(self).await
    }

    /// A stream to read as a durable pull consumer of this name.
    #[must_use]
    pub fn subscribe(
        self,
        stream: impl Into<String>,
        consumer: impl Into<String>,
    ) -> NatsSubscriptionConfig {
        NatsSubscriptionConfig::new(self, stream.into(), consumer.into())
    }
}

/// A stream to make: kept in files, until its limits.
///
/// ```
/// # use semel_backends::nats::NatsStream;
/// let stream = NatsStream::new("ORDERS", ["order.>", "refund.>"]).replicas(3);
/// assert!(format!("{stream:?}").contains("refund"));
/// ```
#[derive(Clone, Debug)]
pub struct NatsStream {
    pub(super) name: String,
    pub(super) subjects: Vec<String>,
    pub(super) replicas: usize,
}

impl NatsStream {
    /// A stream of these subjects, on one server.
    pub fn new<S: Into<String>>(
        name: impl Into<String>,
        subjects: impl IntoIterator<Item = S>,
    ) -> Self {
        let subjects = subjects.into_iter().map(Into::into).collect();
        Self { name: name.into(), subjects, replicas: 1 }
    }

    /// On so many servers; 3 survive the loss of one.
    #[must_use]
    pub fn replicas(mut self, count: usize) -> Self {
        self.replicas = count.max(1);
        self
    }
}

impl fmt::Debug for NatsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers: Vec<_> = self.servers.iter().map(|at| (at.host(), at.port())).collect();
        f.debug_struct("NatsConfig")
            .field("servers", &servers)
            .field("stream", &self.stream)
            .field("format", &self.format)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
