//! Where the brokers are and how they are reached.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use rdkafka::ClientConfig;
use semel_core::coordination::Share;
use semel_core::wire::Format;
use semel_core::{Failure, Message, Secret};

use super::error::setting;
use super::once::ExactlyOnceSink;
use super::record::Record;
use super::sink::KafkaSink;

/// Where the brokers are and how they are reached.
///
/// ```
/// use semel_backends::kafka::{KafkaConfig, Mechanism, Sasl, Tls};
/// use std::time::Duration;
///
/// let config = KafkaConfig::new("kafka-1:9092,kafka-2:9092")?
///     .sasl(Sasl::new(Mechanism::ScramSha512, "relay", "secret"))
///     .tls(Tls::default())
///     .patience(Duration::from_secs(10));
/// assert!(!format!("{config:?}").contains("secret"));
/// assert!(KafkaConfig::new("").is_err());
/// # Ok::<(), semel_core::Failure>(())
/// ```
#[derive(Clone, Debug)]
pub struct KafkaConfig {
    brokers: String,
    client_id: String,
    sasl: Option<Sasl>,
    tls: Option<Tls>,
    compression: Compression,
    linger: Duration,
    batch_bytes: usize,
    pub(super) format: Format,
    pub(super) max_message_bytes: usize,
    pub(super) buffer_bytes: usize,
    pub(super) patience: Duration,
}

impl KafkaConfig {
    /// Brokers to begin with, such as `kafka-1:9092,kafka-2:9092`; the others are found from there.
    ///
    /// # Errors
    /// `Misconfigured` when the list is not one of hosts and ports.
    pub fn new(brokers: &str) -> Result<Self, Failure> {
        for broker in brokers.split(',') {
            check_address(broker.trim())?;
        }
        Ok(Self {
            brokers: brokers.to_owned(),
            client_id: "semel".to_owned(),
            sasl: None,
            tls: None,
            compression: Compression::None,
            linger: Duration::ZERO,
            batch_bytes: 256 * 1024,
            format: Format::default(),
            max_message_bytes: 1_048_588,
            buffer_bytes: 16 * 1024 * 1024,
            patience: Duration::from_secs(25),
        })
    }

    /// The name by which brokers log and limit this client; `semel` unless set.
    #[must_use]
    pub fn client_id(mut self, name: impl Into<String>) -> Self {
        self.client_id = name.into();
        self
    }

    /// Signs in as a user. Without [`tls`](Self::tls) the network can read along.
    #[must_use]
    pub fn sasl(mut self, sasl: Sasl) -> Self {
        self.sasl = Some(sasl);
        self
    }

    /// Encrypts the connections. The certificates of the brokers are always verified.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// How batches are compressed; not at all unless set.
    #[must_use]
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// What a message carries beside the payload, and where; see [`Format`].
    #[must_use]
    pub fn format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// How long a message waits for others to share a request with; not at all unless set: a relay
    /// hands over many at once, and what comes while requests are under way shares the next.
    #[must_use]
    pub fn linger(mut self, time: Duration) -> Self {
        self.linger = time;
        self
    }

    /// How large a batch of messages in one request may be; 256 KiB unless set. No topic may have a
    /// smaller `max.message.bytes`: the broker would turn down every full batch.
    #[must_use]
    pub fn batch_bytes(mut self, bytes: usize) -> Self {
        self.batch_bytes = bytes;
        self
    }

    /// How large a message may be before compression; 1048588 bytes unless set, as on the brokers
    /// (`message.max.bytes`). A larger one is refused and never sent.
    #[must_use]
    pub fn max_message_bytes(mut self, bytes: usize) -> Self {
        self.max_message_bytes = bytes;
        self
    }

    /// How many bytes of messages may be under way at once; 16 MiB unless set. Whoever wants to
    /// send more waits.
    #[must_use]
    pub fn buffer_bytes(mut self, bytes: usize) -> Self {
        self.buffer_bytes = bytes.clamp(1, u32::MAX as usize);
        self
    }

    /// How long a publish call may take in all before it counts as an outage; 25 seconds unless
    /// set, which is less than a relay waits.
    /// Until then librdkafka tries again by itself, without duplicates.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Whether the settings agree: what waits for others must not wait until the call is over, and a
    /// call may have to wait several times. Also asked by [`connect`](Self::connect).
    ///
    /// # Errors
    /// `Misconfigured` when they do not.
    pub fn check(&self) -> Result<(), Failure> {
        let longest = self.patience / 4;
        if self.linger <= longest {
            return Ok(());
        }
        let (linger, patience) = (self.linger, self.patience);
        let what = format!(
            "messages wait {linger:?} for others, of {patience:?} that a publish call may take"
        );
        Err(setting(&what, &format!("set linger to {longest:?} or less, or a longer timeout")))
    }

    /// Connects.
    ///
    /// # Errors
    /// `Unavailable` when no broker can be reached, `Misconfigured` when they refuse the user or a
    /// setting is wrong.
    pub async fn connect(&self) -> Result<KafkaSink, Failure> {
        self.check()?;
        KafkaSink::connect(self.clone()).await
    }

    /// Connects for exactly once: takes over from whoever published this share under the same
    /// `id`, which no other pipeline may have. See [`ExactlyOnceSink`].
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub async fn connect_exactly_once(
        &self,
        id: &str,
        share: Share,
    ) -> Result<ExactlyOnceSink, Failure> {
        self.check()?;
        ExactlyOnceSink::connect(self.clone(), id, share).await
    }

    /// The same for messages that get headers beside those they came with.
    pub(super) fn with_room_for_an_epitaph(&self) -> Self {
        const EPITAPH: usize = 16 * 1024;
        let config = self.clone();
        config.max_message_bytes(self.max_message_bytes + EPITAPH)
    }

    /// A message as a record, if it can be one.
    pub(super) fn record(
        &self,
        place: usize,
        message: &Message,
        stamp: Option<&str>,
    ) -> Result<Record, Failure> {
        Record::new(place, message, self.format, self.max_message_bytes, stamp)
    }

    /// What librdkafka must know to reach the brokers.
    pub(super) fn connection(&self) -> ClientConfig {
        let mut client = ClientConfig::new();
        client
            .set("bootstrap.servers", &self.brokers)
            .set("client.id", &self.client_id)
            .set("socket.keepalive.enable", "true")
            .set("socket.connection.setup.timeout.ms", "5000")
            .set("reconnect.backoff.ms", "50")
            .set("reconnect.backoff.max.ms", "1000");
        self.set_security(&mut client);
        client
    }

    /// The settings of a producer.
    pub(super) fn client(&self) -> ClientConfig {
        let mut client = self.connection();
        let number = |number: usize| number.to_string();
        client
            .set("acks", "all")
            .set("enable.idempotence", "true")
            // After an error no later message may be written: the producer is replaced instead.
            .set("enable.gapless.guarantee", "true")
            // A message that times out by itself leaves a gap: the sink keeps the time.
            .set("message.timeout.ms", "0")
            // As the Java client: the same key has the same partition for both.
            .set("partitioner", "murmur2_random")
            .set("compression.type", self.compression.as_str())
            .set("linger.ms", (self.linger.as_secs_f64() * 1000.0).to_string())
            .set("batch.size", number(self.batch_bytes))
            .set("batch.num.messages", "100000")
            .set("message.max.bytes", number(self.max_message_bytes))
            // The sink bounds what is under way, in bytes, before it hands anything over.
            .set("queue.buffering.max.messages", "0")
            .set("queue.buffering.max.kbytes", "2147483647")
            .set("topic.metadata.propagation.max.ms", "5000");
        client
    }

    /// The settings of a producer whose messages are all in transactions of this name.
    pub(super) fn transactional_client(&self, id: &str) -> ClientConfig {
        const USUAL: Duration = Duration::from_secs(60);
        let mut client = self.client();
        // An outage may last that long, and the producer still goes on.
        let limit = USUAL.max(self.patience * 2).as_millis().to_string();
        client
            .set("transactional.id", id)
            .set("transaction.timeout.ms", &limit)
            .set("message.timeout.ms", &limit)
            // What is not whole is aborted: there is no gap to be afraid of.
            .set("enable.gapless.guarantee", "false")
            // A broker that does not know the producer takes any request as its first one, and librdkafka
            // would count one that was put off as written when it hears that of the one behind it.
            .set("max.in.flight.requests.per.connection", "1");
        client
    }

    fn set_security(&self, client: &mut ClientConfig) {
        let protocol = match (&self.sasl, &self.tls) {
            (None, None) => "plaintext",
            (None, Some(_)) => "ssl",
            (Some(_), None) => "sasl_plaintext",
            (Some(_), Some(_)) => "sasl_ssl",
        };
        client.set("security.protocol", protocol);
        if let Some(sasl) = &self.sasl {
            client
                .set("sasl.mechanism", sasl.mechanism.as_str())
                .set("sasl.username", &sasl.user)
                .set("sasl.password", sasl.password.reveal());
        }
        if let Some(tls) = &self.tls {
            let ca = tls.ca_file.as_deref().map_or("probe".into(), Path::to_string_lossy);
            client.set("ssl.ca.location", ca);
            if let Some(identity) = &tls.identity {
                client
                    .set("ssl.certificate.location", identity.certificate_file.to_string_lossy())
                    .set("ssl.key.location", identity.key_file.to_string_lossy());
            }
        }
    }
}

fn check_address(broker: &str) -> Result<(), Failure> {
    let (host, port) = broker.rsplit_once(':').unwrap_or((broker, "9092"));
    let host_is_legal = !host.is_empty() && !host.contains(['/', '@', ' ']);
    if host_is_legal && port.parse::<u16>().is_ok() {
        return Ok(());
    }
    // Somebody may have written a password into it: it is not repeated.
    Err(Failure::misconfigured("E-KAFKA-CONFIG", "Kafka: the brokers are not hosts and ports")
        .with_fix(
            "write them as kafka-1:9092,kafka-2:9092; user and password have keys of their own",
        ))
}

/// A user, and how he proves to be that user.
///
/// ```
/// # use semel_backends::kafka::{Mechanism, Sasl};
/// let sasl = Sasl::new(Mechanism::Plain, "relay", "secret");
/// assert!(!format!("{sasl:?}").contains("secret"));
/// ```
#[derive(Clone, Debug)]
pub struct Sasl {
    mechanism: Mechanism,
    user: String,
    password: Secret,
}

impl Sasl {
    /// A user with a password.
    pub fn new(mechanism: Mechanism, user: impl Into<String>, password: impl Into<String>) -> Self {
        Self { mechanism, user: user.into(), password: Secret::new(password) }
    }
}

/// How a user proves to be that user. SCRAM needs the cargo feature `tls`.
///
/// ```
/// # use semel_backends::kafka::Mechanism;
/// assert_eq!("scram-sha-256".parse::<Mechanism>()?, Mechanism::ScramSha256);
/// assert!("kerberos".parse::<Mechanism>().is_err());
/// # Ok::<(), semel_core::Failure>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// The password travels as it is.
    Plain,
    /// SCRAM with SHA-256.
    ScramSha256,
    /// SCRAM with SHA-512.
    ScramSha512,
}

impl Mechanism {
    const ALL: [Self; 3] = [Self::Plain, Self::ScramSha256, Self::ScramSha512];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

impl FromStr for Mechanism {
    type Err = Failure;

    fn from_str(name: &str) -> Result<Self, Failure> {
        named(name, "SASL mechanism", Self::ALL.map(|one| (one.as_str(), one)))
    }
}

/// Whom to trust, and who we are.
///
/// ```
/// # use semel_backends::kafka::Tls;
/// let tls = Tls::default().ca_file("ca.pem").identity("relay.pem", "relay.key");
/// # let _ = tls;
/// ```
#[derive(Clone, Debug, Default)]
pub struct Tls {
    ca_file: Option<PathBuf>,
    identity: Option<Identity>,
}

#[derive(Clone, Debug)]
struct Identity {
    certificate_file: PathBuf,
    key_file: PathBuf,
}

impl Tls {
    /// Trusts the authorities in this PEM file, instead of those the operating system trusts.
    #[must_use]
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(path.into());
        self
    }

    /// Shows the brokers a certificate of our own; both files are PEM.
    #[must_use]
    pub fn identity(
        mut self,
        certificate_file: impl Into<PathBuf>,
        key_file: impl Into<PathBuf>,
    ) -> Self {
        let (certificate_file, key_file) = (certificate_file.into(), key_file.into());
        self.identity = Some(Identity { certificate_file, key_file });
        self
    }
}

/// How batches are compressed.
///
/// ```
/// # use semel_backends::kafka::Compression;
/// assert_eq!("zstd".parse::<Compression>()?, Compression::Zstd);
/// # Ok::<(), semel_core::Failure>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// Gzip.
    Gzip,
    /// Snappy.
    Snappy,
    /// LZ4: the least work.
    Lz4,
    /// Zstandard: the smallest.
    Zstd,
}

impl Compression {
    const ALL: [Self; 5] = [Self::None, Self::Gzip, Self::Snappy, Self::Lz4, Self::Zstd];

    const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

impl FromStr for Compression {
    type Err = Failure;

    fn from_str(name: &str) -> Result<Self, Failure> {
        named(name, "compression", Self::ALL.map(|one| (one.as_str(), one)))
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

fn named<T: Copy, const N: usize>(
    name: &str,
    kind: &str,
    all: [(&'static str, T); N],
) -> Result<T, Failure> {
    let found = all.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
    found.map(|(_, one)| *one).ok_or_else(|| {
        let names = all.map(|(name, _)| name.to_ascii_lowercase()).join(", ");
        Failure::misconfigured("E-KAFKA-CONFIG", format!("Kafka: there is no {kind} {name:?}"))
            .with_fix(format!("write one of {names}"))
    })
}
