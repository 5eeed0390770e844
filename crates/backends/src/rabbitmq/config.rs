//! Where the broker is, what is published to, and what is declared.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use lapin::types::ShortString;
use lapin::uri::{AMQPScheme, AMQPUri};
use semel_core::route::Template;
use semel_core::wire::Format;
use semel_core::{Failure, Secret};

use super::sink::RabbitmqSink;

/// Where the broker is, what is published to, and what is declared.
///
/// ```
/// use semel_backends::rabbitmq::{ExchangeKind, RabbitmqConfig, RabbitmqQueue};
/// use std::time::Duration;
///
/// let config = RabbitmqConfig::new("amqp://shop:secret@broker.internal:5672/shop")?
///     .exchange("events")?
///     .declare_exchange(ExchangeKind::Topic)
///     .declare_queue(RabbitmqQueue::new("billing")?.bound_by("order.#")?)
///     .timeout(Duration::from_secs(10));
/// assert!(!format!("{config:?}").contains("secret"));
/// assert!(RabbitmqConfig::new("http://broker.internal").is_err());
/// # Ok::<(), semel_core::Failure>(())
/// ```
#[derive(Clone)]
pub struct RabbitmqConfig {
    pub(super) uri: AMQPUri,
    pub(super) ca_file: Option<PathBuf>,
    pub(super) exchange: Exchange,
    pub(super) declared_exchange: Option<ExchangeKind>,
    pub(super) declared_queues: Vec<RabbitmqQueue>,
    pub(super) format: Format,
    pub(super) max_message_bytes: usize,
    pub(super) timeout: Duration,
}

impl RabbitmqConfig {
    /// Reads a URL such as `amqp://user:password@host:5672/vhost`; `amqps://` is encrypted, and the
    /// vhost `/` is written `%2f`.
    ///
    /// # Errors
    /// `Misconfigured` when the URL is wrong, or needs TLS in a build without it.
    pub fn new(url: &str) -> Result<Self, Failure> {
        // The URL itself may hold a password: neither it nor the parser's words are repeated.
        let mut uri = AMQPUri::from_str(url).map_err(|_| {
            Failure::misconfigured("E-RABBITMQ-URL", "RabbitMQ: the URL cannot be read")
                .with_fix("write amqp://user:password@host:5672/vhost, or amqps:// for TLS")
        })?;
        if uri.scheme == AMQPScheme::AMQPS && !cfg!(feature = "tls") {
            let what = "RabbitMQ: the URL asks for TLS, which this build does not have";
            return Err(Failure::misconfigured("E-RABBITMQ-URL", what)
                .with_fix("build with the feature tls"));
        }
        // A dead peer is noticed after two of these.
        uri.query.heartbeat.get_or_insert(10);
        Ok(Self {
            uri,
            ca_file: None,
            exchange: Exchange::Named(ShortString::default()),
            declared_exchange: None,
            declared_queues: Vec::new(),
            format: Format::default(),
            max_message_bytes: 16 * 1024 * 1024,
            timeout: Duration::from_secs(25),
        })
    }

    /// Who to log in as, instead of who the URL names.
    #[must_use]
    pub fn credentials(mut self, user: impl Into<String>, password: &Secret) -> Self {
        self.uri.authority.userinfo.username = user.into();
        self.uri.authority.userinfo.password = password.reveal().to_owned();
        self
    }

    /// A file of certificates (PEM) to trust instead of those that the operating system trusts.
    #[must_use]
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(path.into());
        self
    }

    /// Publishes to this exchange, with the topic as the routing key: a name, or a [`Template`] such
    /// as `{aggregate_type}` or `shop.{header.region|default:eu}`. Without it, the topic is the name
    /// of the queue.
    ///
    /// # Errors
    /// `Misconfigured` when the name has more than 255 bytes, or is no template.
    pub fn exchange(mut self, name: &str) -> Result<Self, Failure> {
        let template: Template = name.parse()?;
        self.exchange = match template.constant() {
            Some(name) => Exchange::Named(short("the exchange", &name)?),
            None => Exchange::Of(template, name.to_owned()),
        };
        Ok(self)
    }

    /// Whether the settings agree: only an exchange that is the same for all events can be declared,
    /// and have queues bound to it. Also asked by [`connect`](Self::connect).
    ///
    /// # Errors
    /// `Misconfigured` when they do not.
    pub fn check(&self) -> Result<(), Failure> {
        let declares = self.declared_exchange.is_some() || !self.declared_queues.is_empty();
        match &self.exchange {
            Exchange::Of(_, text) if declares => Err(Failure::misconfigured(
                "E-RABBITMQ-NAME",
                format!("RabbitMQ: the exchange {text:?} differs from event to event"),
            )
            .with_fix("make exchanges, queues and bindings yourself, and declare nothing here")),
            _ => Ok(()),
        }
    }

    /// Makes the exchange, durable and of this kind, if it is not there. Only for one that is the
    /// same for all events.
    #[must_use]
    pub fn declare_exchange(mut self, kind: ExchangeKind) -> Self {
        self.declared_exchange = Some(kind);
        self
    }

    /// Makes a durable queue if it is not there, and binds it to the exchange.
    #[must_use]
    pub fn declare_queue(mut self, queue: RabbitmqQueue) -> Self {
        self.declared_queues.push(queue);
        self
    }

    /// How an event looks on the wire; plain unless set.
    #[must_use]
    pub fn format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// Larger bodies are refused before they are sent; 16 MiB unless set. Must not be above the
    /// broker's `max_message_size` (16 MiB since RabbitMQ 4, 128 MiB before).
    #[must_use]
    pub fn max_message_bytes(mut self, bytes: usize) -> Self {
        self.max_message_bytes = bytes;
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

    /// Connects, and declares what is to be declared.
    ///
    /// # Errors
    /// `Unavailable` when the broker cannot be reached, `Misconfigured` when it refuses the user or
    /// a declaration, or when the exchange does not exist.
    pub async fn connect(self) -> Result<RabbitmqSink, Failure> {
        self.check()?;
        RabbitmqSink::connect(self).await
    }
}

/// Where messages are published to.
#[derive(Clone)]
pub(super) enum Exchange {
    /// The same for all; the default exchange has an empty name.
    Named(ShortString),
    /// By the fields of the event; with the text that it was read from.
    Of(Template, String),
}

impl Exchange {
    /// Whether the topic is the name of a queue.
    pub(super) fn is_the_default(&self) -> bool {
        matches!(self, Self::Named(name) if name.as_str().is_empty())
    }
}

/// How an exchange routes.
///
/// ```
/// # use semel_backends::rabbitmq::ExchangeKind;
/// assert_eq!("topic".parse(), Ok(ExchangeKind::Topic));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangeKind {
    /// By words of the routing key: `order.*`, `order.#`.
    Topic,
    /// By the whole routing key.
    Direct,
    /// To every queue that is bound.
    Fanout,
}

impl FromStr for ExchangeKind {
    type Err = Failure;

    fn from_str(name: &str) -> Result<Self, Failure> {
        match name {
            "topic" => Ok(Self::Topic),
            "direct" => Ok(Self::Direct),
            "fanout" => Ok(Self::Fanout),
            _ => Err(unknown("kind of exchange", name, "topic, direct or fanout")),
        }
    }
}

/// A queue to declare. It is durable: what it confirmed survives a restart of the broker.
///
/// ```
/// use semel_backends::rabbitmq::{QueueKind, RabbitmqQueue};
///
/// let queue = RabbitmqQueue::new("billing")?.kind(QueueKind::Classic).bound_by("order.#")?;
/// assert!(format!("{queue:?}").contains("billing"));
/// # Ok::<(), semel_core::Failure>(())
/// ```
#[derive(Clone, Debug)]
pub struct RabbitmqQueue {
    pub(super) name: ShortString,
    pub(super) kind: QueueKind,
    pub(super) binding: ShortString,
    pub(super) single_active: bool,
    pub(super) dead_queue: Option<ShortString>,
}

impl RabbitmqQueue {
    /// A quorum queue, bound by its own name.
    ///
    /// # Errors
    /// `Misconfigured` when the name has more than 255 bytes.
    pub fn new(name: &str) -> Result<Self, Failure> {
        let name = short("the queue", name)?;
        Ok(Self {
            binding: name.clone(),
            name,
            kind: QueueKind::Quorum,
            single_active: false,
            dead_queue: None,
        })
    }

    /// Another kind than quorum.
    #[must_use]
    pub fn kind(mut self, kind: QueueKind) -> Self {
        self.kind = kind;
        self
    }

    /// Of several consumers one gets the messages, and the others stand by: so that a subscription
    /// keeps events of one aggregate in order.
    #[must_use]
    pub fn single_active_consumer(mut self) -> Self {
        self.single_active = true;
        self
    }

    /// Where the broker itself puts what it will not give out any more: since RabbitMQ 4 a message
    /// of a quorum queue that came back 20 times, which is lost otherwise.
    ///
    /// # Errors
    /// `Misconfigured` when the name has more than 255 bytes.
    pub fn dead_letters_to(mut self, queue: &str) -> Result<Self, Failure> {
        self.dead_queue = Some(short("the queue of dead letters", queue)?);
        Ok(self)
    }

    /// Which routing keys come to it.
    ///
    /// # Errors
    /// `Misconfigured` when the key has more than 255 bytes.
    pub fn bound_by(mut self, key: &str) -> Result<Self, Failure> {
        self.binding = short("the binding", key)?;
        Ok(self)
    }
}

/// How a queue keeps its messages.
///
/// ```
/// # use semel_backends::rabbitmq::QueueKind;
/// assert_eq!("quorum".parse(), Ok(QueueKind::Quorum));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueKind {
    /// Replicated: confirmed by a majority of its nodes.
    Quorum,
    /// On one node: confirmed by its disk.
    Classic,
}

impl QueueKind {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Quorum => "quorum",
            Self::Classic => "classic",
        }
    }
}

impl FromStr for QueueKind {
    type Err = Failure;

    fn from_str(name: &str) -> Result<Self, Failure> {
        match name {
            "quorum" => Ok(Self::Quorum),
            "classic" => Ok(Self::Classic),
            _ => Err(unknown("kind of queue", name, "quorum or classic")),
        }
    }
}

pub(super) fn short(what: &str, name: &str) -> Result<ShortString, Failure> {
    ShortString::try_new(name).map_err(|error| {
        Failure::misconfigured("E-RABBITMQ-NAME", format!("RabbitMQ: {what} has too long a name"))
            .with_source(error)
            .with_fix("give it a name of at most 255 bytes")
    })
}

fn unknown(what: &str, name: &str, known: &str) -> Failure {
    Failure::misconfigured("E-RABBITMQ-NAME", format!("RabbitMQ: there is no {what} {name:?}"))
        .with_fix(format!("write {known}"))
}

impl Exchange {
    fn as_str(&self) -> &str {
        match self {
            Self::Named(name) => name.as_str(),
            Self::Of(_, text) => text,
        }
    }
}

impl fmt::Debug for RabbitmqConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitmqConfig")
            .field("host", &self.uri.authority.host)
            .field("port", &self.uri.authority.port)
            .field("vhost", &self.uri.vhost)
            .field("exchange", &self.exchange.as_str())
            .field("declared_exchange", &self.declared_exchange)
            .field("declared_queues", &self.declared_queues)
            .field("format", &self.format)
            .field("max_message_bytes", &self.max_message_bytes)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
