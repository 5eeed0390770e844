//! The connection: made when it is needed, made anew when it broke.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions,
    QueueDeclareOptions,
};
use lapin::tcp::OwnedTLSConfig;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionBuilder, ConnectionProperties};
use semel_core::{Failure, Fault};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::config::{Exchange, ExchangeKind, RabbitmqConfig, RabbitmqQueue};
use super::error::{NACK, failure, rejected, timed_out, was_away};
use super::message::Limits;

/// An open connection and its channels that nobody uses.
///
/// A publish call has a channel for itself: confirmations and returned messages of several calls
/// would mix, and a channel whose call was dropped half-way is closed and not used again.
pub(super) struct Link {
    connection: Connection,
    idle: Mutex<Vec<Channel>>,
    pub(super) limits: Limits,
}

impl Link {
    /// A channel in confirm mode, for one call.
    pub(super) async fn channel(&self) -> Result<Channel, Failure> {
        while let Some(channel) = lock(&self.idle).pop() {
            if channel.status().connected() {
                return Ok(channel);
            }
        }
        let open = async {
            let channel = self.connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            Ok(channel)
        };
        open.await.map_err(failure("open a channel"))
    }

    /// A channel that publishes nothing.
    pub(super) async fn plain_channel(&self) -> Result<Channel, Failure> {
        self.connection.create_channel().await.map_err(failure("open a channel"))
    }

    /// Why a queue that took no message is only away. When its node is, the default exchange knows a
    /// classic queue as little as one that is not there; asked for it by name, the broker tells.
    pub(super) async fn why_away(&self, queue: &ShortString) -> Option<Failure> {
        let asking = async {
            // It ends with a no.
            let channel = self.plain_channel().await?;
            let options = QueueDeclareOptions { passive: true, ..Default::default() };
            let found = channel.queue_declare(queue.clone(), options, FieldTable::default()).await;
            found.map_err(failure(&format!("find the queue {:?}", queue.as_str())))?;
            channel.close(200, "OK".into()).await.map_err(failure("close a channel"))
        };
        match asking.await {
            Ok(()) => Some(was_away(queue.as_str())),
            Err(failure) => Some(failure).filter(|it| it.fault() == Fault::Unavailable),
        }
    }

    /// Keeps a channel on which nothing is under way.
    pub(super) fn give_back(&self, channel: Channel) {
        lock(&self.idle).push(channel);
    }

    /// Whether the broker has asked to be sent nothing.
    pub(super) fn is_blocked(&self) -> bool {
        self.connection.status().blocked()
    }

    fn is_open(&self) -> bool {
        self.connection.status().connected()
    }
}

/// Makes links, one at a time.
pub(super) struct Dialler {
    config: Arc<RabbitmqConfig>,
    tls: OwnedTLSConfig,
    link: Mutex<Option<Arc<Link>>>,
    attempt: tokio::sync::Mutex<Option<Attempt>>,
}

/// A connection in the making. It outlives the call that began it: the client library leaves a
/// thread behind for every attempt that is dropped while a broker accepts and says nothing.
struct Attempt {
    task: JoinHandle<Result<Link, Failure>>,
    give_up_at: Instant,
}

impl Dialler {
    pub(super) fn new(config: Arc<RabbitmqConfig>, tls: OwnedTLSConfig) -> Self {
        Self { config, tls, link: Mutex::default(), attempt: tokio::sync::Mutex::default() }
    }

    /// The open link, or a new one.
    pub(super) async fn link(&self) -> Result<Arc<Link>, Failure> {
        if let Some(link) = self.open_link() {
            return Ok(link);
        }
        let mut slot = self.attempt.lock().await;
        if let Some(link) = self.open_link() {
            return Ok(link);
        }
        let attempt = slot.get_or_insert_with(|| Attempt {
            task: tokio::spawn(dial(Arc::clone(&self.config), self.tls.clone())),
            give_up_at: Instant::now() + self.config.timeout,
        });
        let made = match timeout_at(attempt.give_up_at, &mut attempt.task).await {
            Ok(Ok(made)) => made,
            Ok(Err(error)) => {
                let what = "RabbitMQ: connecting ended half-way";
                Err(Failure::unavailable("E-RABBITMQ-DOWN", what).with_source(error))
            }
            Err(_) => Err(timed_out("connect", self.config.timeout)),
        };
        if let Some(attempt) = slot.take() {
            attempt.task.abort();
        }
        let link = Arc::new(made?);
        *lock(&self.link) = Some(Arc::clone(&link));
        Ok(link)
    }

    /// Publishes to a queue, by the default exchange, and waits until it has the message; whether
    /// there is such a queue.
    ///
    /// # Errors
    /// `Unavailable` also when the queue does not take it now; otherwise as for a connection.
    pub(super) async fn publish_to(
        &self,
        queue: &ShortString,
        body: &[u8],
        properties: BasicProperties,
    ) -> Result<bool, Failure> {
        let link = self.link().await?;
        let publish = async {
            let channel = link.channel().await?;
            let options = BasicPublishOptions { mandatory: true, ..Default::default() };
            let exchange = ShortString::default();
            let sent = channel.basic_publish(exchange, queue.clone(), options, body, properties);
            let answer = async { sent.await?.await }.await.map_err(failure("publish"))?;
            let acknowledged = answer.is_ack();
            if answer.take_message().is_some() {
                return link.why_away(queue).await.map_or(Ok(false), Err);
            }
            if !acknowledged {
                // The channel may be told no for ever, see the sink.
                return Err(rejected());
            }
            link.give_back(channel);
            Ok(true)
        };
        let limit = self.config.timeout;
        let done = timeout(limit, publish).await;
        let done = done.unwrap_or_else(|_| Err(timed_out("publish a dead letter", limit)));
        done.inspect_err(|failure| {
            if failure.fault() == Fault::Unavailable && failure.code() != NACK {
                self.abandon(&link);
            }
        })
    }

    /// Never uses this link again.
    pub(super) fn abandon(&self, link: &Arc<Link>) {
        let mut current = lock(&self.link);
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, link)) {
            *current = None;
        }
    }

    fn open_link(&self) -> Option<Arc<Link>> {
        lock(&self.link).as_ref().filter(|link| link.is_open()).cloned()
    }
}

async fn dial(config: Arc<RabbitmqConfig>, tls: OwnedTLSConfig) -> Result<Link, Failure> {
    let authority = &config.uri.authority;
    let at = format!("connect to {}:{}", authority.host, authority.port);
    let runtime = lapin::runtime::default_runtime().map_err(failure(&at))?;
    let connection = ConnectionBuilder::new_with_runtime(runtime)
        .with_uri(config.uri.clone())
        .with_properties(ConnectionProperties::default().with_connection_name("semel".into()))
        .with_tls_config(tls)
        .connect()
        .await
        .map_err(failure(&at))?;
    declare(&connection, &config).await?;
    let limits = Limits {
        frame_bytes: usize::try_from(connection.configuration().frame_max()).unwrap_or(usize::MAX),
        body_bytes: config.max_message_bytes,
    };
    Ok(Link { connection, idle: Mutex::default(), limits })
}

/// Checks that the exchange is there, and makes what is to be made.
async fn declare(connection: &Connection, config: &RabbitmqConfig) -> Result<(), Failure> {
    let channel = connection.create_channel().await.map_err(failure("open a channel"))?;
    declare_exchange(&channel, config).await?;
    for queue in &config.declared_queues {
        declare_queue(&channel, config, queue)
            .await
            .map_err(failure(&format!("declare the queue {:?}", queue.name.as_str())))?;
    }
    channel.close(200, "OK".into()).await.map_err(failure("close a channel"))
}

/// Makes the exchange, or only checks that it is there. The default exchange always is; of those that
/// come from events nothing is known.
pub(super) async fn declare_exchange(
    channel: &Channel,
    config: &RabbitmqConfig,
) -> Result<(), Failure> {
    let name = match &config.exchange {
        Exchange::Named(name) if !name.as_str().is_empty() => name.clone(),
        _ => return Ok(()),
    };
    let passive = config.declared_exchange.is_none();
    let kind = match config.declared_exchange {
        Some(ExchangeKind::Topic) => lapin::ExchangeKind::Topic,
        Some(ExchangeKind::Fanout) => lapin::ExchangeKind::Fanout,
        Some(ExchangeKind::Direct) | None => lapin::ExchangeKind::Direct,
    };
    let options = ExchangeDeclareOptions { durable: true, passive, ..Default::default() };
    let what = format!("use the exchange {:?}", name.as_str());
    let declared = channel.exchange_declare(name, kind, options, FieldTable::default()).await;
    declared.map_err(failure(&what))
}

async fn declare_queue(
    channel: &Channel,
    config: &RabbitmqConfig,
    queue: &RabbitmqQueue,
) -> lapin::Result<()> {
    declare_bare_queue(channel, queue).await?;
    let exchange = match &config.exchange {
        Exchange::Named(name) if !name.as_str().is_empty() => name,
        _ => return Ok(()),
    };
    let (name, key) = (&queue.name, &queue.binding);
    let (options, arguments) = (QueueBindOptions::default(), FieldTable::default());
    channel.queue_bind(name.clone(), exchange.clone(), key.clone(), options, arguments).await
}

/// Makes a queue and binds it to nothing.
pub(super) async fn declare_bare_queue(
    channel: &Channel,
    queue: &RabbitmqQueue,
) -> lapin::Result<()> {
    let text = |text: &str| AMQPValue::LongString(LongString::from(text));
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), text(queue.kind.as_str()));
    if queue.single_active {
        arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
    }
    if let Some(dead) = &queue.dead_queue {
        arguments.insert("x-dead-letter-exchange".into(), text(""));
        arguments.insert("x-dead-letter-routing-key".into(), text(dead.as_str()));
    }
    let options = QueueDeclareOptions { durable: true, ..Default::default() };
    channel.queue_declare(queue.name.clone(), options, arguments).await.map(drop)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
