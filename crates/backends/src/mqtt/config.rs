//! Where the broker is, and how to speak to it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use semel_core::wire::Format;
use semel_core::{Failure, Secret};
use url::Url;

use super::sink::MqttSink;

/// Where the broker is, and how to speak to it.
///
/// ```
/// use semel_backends::mqtt::{MqttConfig, MqttVersion};
/// use semel_core::Secret;
/// use semel_core::wire::Format;
///
/// let config = MqttConfig::new("mqtts://broker.internal")?
///     .credentials("shop", Secret::new("hunter2"))
///     .format(Format::CloudEventsBinary)?;
/// assert!(!format!("{config:?}").contains("hunter2"));
/// // MQTT 3.1.1 has no headers.
/// assert!(config.version(MqttVersion::V3).is_err());
/// assert!(MqttConfig::new("http://broker.internal").is_err());
/// # Ok::<(), semel_core::Failure>(())
/// ```
#[derive(Clone)]
pub struct MqttConfig {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) encrypted: bool,
    pub(super) login: Option<(String, Secret)>,
    pub(super) ca_file: Option<PathBuf>,
    pub(super) client_id: Option<String>,
    pub(super) version: MqttVersion,
    pub(super) format: Format,
    pub(super) retain: bool,
    pub(super) require_subscriber: bool,
    pub(super) max_in_flight: u16,
    pub(super) max_message_bytes: usize,
    pub(super) timeout: Duration,
}

impl MqttConfig {
    /// Reads a URL such as `mqtt://user:password@host:1883`; `mqtts://` is encrypted, and its port is
    /// 8883 unless given.
    ///
    /// # Errors
    /// `Misconfigured` when the URL is wrong.
    pub fn new(url: &str) -> Result<Self, Failure> {
        let url = Url::parse(url).map_err(|_| wrong_url())?;
        let (encrypted, port) = match url.scheme() {
            "mqtt" => (false, 1883),
            "mqtts" => (true, 8883),
            _ => return Err(wrong_url()),
        };
        let host = url.host_str().filter(|host| !host.is_empty()).ok_or_else(wrong_url)?;
        if !matches!(url.path(), "" | "/") || url.query().is_some() {
            return Err(wrong_url());
        }
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let login = (!url.username().is_empty()).then(|| {
            let password = url.password().map(decoded).unwrap_or_default();
            (decoded(url.username()), Secret::new(password))
        });
        Ok(Self {
            host: host.trim_matches(['[', ']']).to_owned(),
            port: url.port().unwrap_or(port),
            encrypted,
            login,
            ca_file: None,
            client_id: None,
            version: MqttVersion::V5,
            format: Format::default(),
            retain: false,
            require_subscriber: false,
            max_in_flight: 1_000,
            max_message_bytes: LARGEST_PACKET,
            timeout: Duration::from_secs(25),
        })
    }

    /// Who to log in as, instead of who the URL names.
    #[must_use]
    pub fn credentials(mut self, user: impl Into<String>, password: Secret) -> Self {
        self.login = Some((user.into(), password));
        self
    }

    /// A file of certificates (PEM) to trust instead of those that the operating system trusts. Only
    /// for `mqtts://`.
    #[must_use]
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(path.into());
        self
    }

    /// The name by which the broker knows this sink; unless set a random one, another one for every sink
    /// that is connected. A broker ends the connection of whoever comes under the same name.
    #[must_use]
    pub fn client_id(mut self, id: impl Into<String>) -> Self {
        self.client_id = Some(id.into());
        self
    }

    /// Which version of the protocol to speak; 5 unless set.
    ///
    /// # Errors
    /// `Misconfigured` when the format needs what the version does not have.
    pub fn version(mut self, version: MqttVersion) -> Result<Self, Failure> {
        self.version = version;
        self.checked()
    }

    /// How an event looks on the wire; plain unless set. In MQTT 3.1.1 plain is the payload alone.
    ///
    /// # Errors
    /// `Misconfigured` when the format needs what the version does not have.
    pub fn format(mut self, format: Format) -> Result<Self, Failure> {
        self.format = format;
        self.checked()
    }

    /// Whether the broker keeps the last message of every topic for those who subscribe later; no
    /// unless set.
    #[must_use]
    pub fn retain(mut self, retain: bool) -> Self {
        self.retain = retain;
        self
    }

    /// Whether a message that nobody subscribes to has failed; no unless set. MQTT 5 only, and only
    /// with brokers that say so.
    #[must_use]
    pub fn require_subscriber(mut self, required: bool) -> Self {
        self.require_subscriber = required;
        self
    }

    /// How many messages may be unacknowledged at once; 1,000 unless set. In MQTT 5 the broker may
    /// ask for less.
    #[must_use]
    pub fn max_in_flight(mut self, count: u16) -> Self {
        self.max_in_flight = count.clamp(1, u16::MAX - 1);
        self
    }

    /// Larger messages are refused before they are sent; as much as MQTT allows (256 MiB) unless set.
    /// In MQTT 5 the broker says itself when it takes less.
    #[must_use]
    pub fn max_message_bytes(mut self, bytes: usize) -> Self {
        self.max_message_bytes = bytes.min(LARGEST_PACKET);
        self
    }

    /// How long one publish call may take in all, and a connection to be made; 25 seconds unless
    /// set. Keep it below the relay's `publish_timeout`: then a broker that hangs is an outage, and
    /// no failed attempt of the events.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// `Unavailable` when the broker cannot be reached, `Misconfigured` when it refuses the user or
    /// has not what is needed.
    pub async fn connect(self) -> Result<MqttSink, Failure> {
        MqttSink::connect(self).await
    }

    fn checked(self) -> Result<Self, Failure> {
        if self.version == MqttVersion::V3 && self.format == Format::CloudEventsBinary {
            let what = "MQTT: cloudevents-binary needs headers, which MQTT 3.1.1 does not have";
            return Err(Failure::misconfigured("E-MQTT-FORMAT", what)
                .with_fix("use MQTT 5, or the format cloudevents-structured"));
        }
        Ok(self)
    }
}

/// What the length of a packet can say.
const LARGEST_PACKET: usize = 268_435_455;

/// A version of the protocol.
///
/// ```
/// # use semel_backends::mqtt::MqttVersion;
/// assert_eq!(MqttVersion::try_from(5)?, MqttVersion::V5);
/// assert!(MqttVersion::try_from(4).is_err());
/// # Ok::<(), semel_core::Failure>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MqttVersion {
    /// MQTT 5: headers, and reasons for refusals.
    V5,
    /// MQTT 3.1.1: the payload alone; a broker that does not want a message says nothing.
    V3,
}

impl TryFrom<u8> for MqttVersion {
    type Error = Failure;

    fn try_from(number: u8) -> Result<Self, Failure> {
        match number {
            5 => Ok(Self::V5),
            3 => Ok(Self::V3),
            _ => {
                let what = format!("MQTT: there is no version {number}");
                Err(Failure::misconfigured("E-MQTT-VERSION", what)
                    .with_fix("write 5, or 3 for MQTT 3.1.1"))
            }
        }
    }
}

/// The URL may hold a password: neither it nor the parser's words are repeated.
fn wrong_url() -> Failure {
    Failure::misconfigured("E-MQTT-URL", "MQTT: the URL cannot be read")
        .with_fix("write mqtt://user:password@host:1883, or mqtts://host:8883 for TLS")
}

impl fmt::Debug for MqttConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MqttConfig")
            .field("host", &self.host)
            .field("port", &self.port)
            .field("encrypted", &self.encrypted)
            .field("client_id", &self.client_id)
            .field("version", &self.version)
            .field("format", &self.format)
            .field("retain", &self.retain)
            .field("require_subscriber", &self.require_subscriber)
            .field("max_in_flight", &self.max_in_flight)
            .field("max_message_bytes", &self.max_message_bytes)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
