//! Where the endpoint is and how it is treated.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONNECTION, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use ipnet::IpNet;
use rustls::RootCertStore;
use semel_core::wire::Format;
use semel_core::{Clock, Failure, Secret, SystemClock};
use url::Url;

use super::address::Guard;
use super::client::{client, roots};
use super::error::forbidden;
use super::signature::Signer;
use super::sink::WebhookSink;

/// Where the endpoint is and how it is treated.
///
/// ```
/// use semel_backends::webhook::WebhookConfig;
/// use semel_core::Secret;
/// use std::time::Duration;
///
/// let config = WebhookConfig::new("https://billing.internal/hooks?token=hunter2")?
///     .secret(&Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"))?
///     .allow("10.20.0.0/16")?
///     .timeout(Duration::from_secs(5));
/// assert!(!format!("{config:?}").contains("hunter2"));
/// assert!(WebhookConfig::new("ftp://partner.example").is_err());
/// # Ok::<(), semel_core::Failure>(())
/// ```
#[derive(Clone)]
pub struct WebhookConfig {
    url: Url,
    pub(super) uri: Uri,
    pub(super) signer: Signer,
    pub(super) headers: HeaderMap,
    pub(super) format: Format,
    pub(super) timeout: Duration,
    pub(super) concurrency: usize,
    pub(super) clock: Arc<dyn Clock>,
    allowed: Vec<IpNet>,
    plain_http: bool,
    ca_file: Option<PathBuf>,
}

impl WebhookConfig {
    /// An endpoint, such as `https://partner.example/hooks`.
    ///
    /// # Errors
    /// `Misconfigured` when it is no such URL.
    pub fn new(url: &str) -> Result<Self, Failure> {
        // The URL itself may hold a token: it is not repeated.
        let mut url = Url::parse(url).map_err(|error| wrong_url(&error.to_string()))?;
        if !["http", "https"].contains(&url.scheme()) || url.host_str().is_none() {
            return Err(wrong_url("it does not begin with https://"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(wrong_url("user and password belong into the header authorization"));
        }
        url.set_fragment(None);
        let uri = url.as_str().parse().map_err(|_| wrong_url("HTTP allows no such URL"))?;
        let agent = HeaderValue::from_static(concat!("semel/", env!("CARGO_PKG_VERSION")));
        Ok(Self {
            url,
            uri,
            signer: Signer::default(),
            headers: HeaderMap::from_iter([(USER_AGENT, agent)]),
            format: Format::default(),
            timeout: Duration::from_secs(10),
            concurrency: 16,
            clock: Arc::new(SystemClock),
            allowed: Vec::new(),
            plain_http: false,
            ca_file: None,
        })
    }

    /// Signs with this secret: `whsec_` and 24 to 64 bytes in base64. Call it again to sign with
    /// several, while the endpoint changes from one to another.
    ///
    /// # Errors
    /// `Misconfigured` when it is no such secret.
    pub fn secret(mut self, secret: &Secret) -> Result<Self, Failure> {
        self.signer.add(secret)?;
        Ok(self)
    }

    /// Adds a header to every request, such as `authorization`.
    ///
    /// # Errors
    /// `Misconfigured` when HTTP allows no such header, or semel sets it itself.
    pub fn header(mut self, name: &str, value: &Secret) -> Result<Self, Failure> {
        let wrong = |why: &str| {
            let what = format!("webhook: the header {name:?} cannot be set: {why}");
            Failure::misconfigured("E-WEBHOOK-HEADER", what).with_fix("change headers of the sink")
        };
        let parsed: HeaderName = name.parse().map_err(|_| wrong("HTTP has no such name"))?;
        let text = parsed.as_str();
        let taken = ["content-", "webhook-", "semel-", "ce-", "transfer-", "host"];
        if taken.iter().any(|taken| text.starts_with(taken)) || parsed == CONNECTION {
            return Err(wrong("it has a value already"));
        }
        let mut value = HeaderValue::from_str(value.reveal())
            .map_err(|_| wrong("its value has characters that HTTP does not allow"))?;
        value.set_sensitive(true);
        self.headers.insert(parsed, value);
        Ok(self)
    }

    /// How the event is laid out; plain unless set.
    #[must_use]
    pub fn format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// How long the endpoint may take for one answer; 10 seconds unless set. A publish call takes
    /// at most twice that: nothing is sent in its second half.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// How many requests may be under way at once; 16 unless set.
    #[must_use]
    pub fn concurrency(mut self, count: usize) -> Self {
        self.concurrency = count.max(1);
        self
    }

    /// Allows a network that is not public, such as `10.20.0.0/16`, or one address.
    ///
    /// # Errors
    /// `Misconfigured` when it is neither.
    pub fn allow(mut self, network: &str) -> Result<Self, Failure> {
        let parsed = network.parse().or_else(|_| network.parse::<IpAddr>().map(IpNet::from));
        self.allowed.push(parsed.map_err(|_| {
            let what = format!("webhook: {network:?} is no network");
            Failure::misconfigured("E-WEBHOOK-ALLOW", what)
                .with_fix("write an address, or a network such as 10.20.0.0/16 or fd00::/8")
        })?);
        Ok(self)
    }

    /// Allows `http://`, where everybody on the way can read the payloads.
    #[must_use]
    pub fn plain_http(mut self, allowed: bool) -> Self {
        self.plain_http = allowed;
        self
    }

    /// Trusts the authorities in this PEM file, beside those of the operating system.
    #[must_use]
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(path.into());
        self
    }

    /// Another clock than the system's, for the timestamps of signatures.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Makes the sink. The endpoint is not asked: it may be down for now.
    ///
    /// # Errors
    /// `Misconfigured` when the address is not allowed or the file of authorities cannot be read.
    pub async fn connect(self) -> Result<WebhookSink, Failure> {
        self.check()?;
        let guard = Guard::new(&self.allowed);
        let roots = if self.is_encrypted() {
            roots(self.ca_file.as_deref())?
        } else {
            RootCertStore::empty()
        };
        let client = client(guard, roots, self.timeout / 2)?;
        Ok(WebhookSink::new(self, client))
    }

    /// Whether the endpoint is allowed, as far as that can be told without asking anybody.
    ///
    /// # Errors
    /// `Misconfigured` when the address is not allowed, or `http://` is not.
    pub fn check(&self) -> Result<(), Failure> {
        if !self.is_encrypted() && !self.plain_http {
            return Err(wrong_url("http:// would show the payloads to everybody on the way"));
        }
        // A literal address is connected to without asking the resolver.
        match self.literal_address() {
            Some(address) if !Guard::new(&self.allowed).permits(address) => {
                Err(forbidden(&self.shown(), address))
            }
            _ => Ok(()),
        }
    }

    fn is_encrypted(&self) -> bool {
        self.url.scheme() == "https"
    }

    /// The endpoint without what may be secret: user, path and parameters.
    pub(super) fn shown(&self) -> String {
        self.url.origin().ascii_serialization()
    }

    fn literal_address(&self) -> Option<IpAddr> {
        self.url.host_str()?.trim_matches(['[', ']']).parse().ok()
    }
}

fn wrong_url(why: &str) -> Failure {
    Failure::misconfigured("E-WEBHOOK-URL", format!("webhook: the URL cannot be used: {why}"))
        .with_fix("write https://host/path, or set plain_http = true for http://")
}

impl fmt::Debug for WebhookConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookConfig")
            .field("endpoint", &self.shown())
            .field("signer", &self.signer)
            .field("format", &self.format)
            .field("timeout", &self.timeout)
            .field("concurrency", &self.concurrency)
            .field("allowed", &self.allowed)
            .field("plain_http", &self.plain_http)
            .finish_non_exhaustive()
    }
}
