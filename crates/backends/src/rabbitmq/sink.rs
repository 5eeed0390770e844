//! [`Sink`] for RabbitMQ.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::TryStreamExt;
use futures_util::stream::FuturesOrdered;
use lapin::options::BasicPublishOptions;
use lapin::tcp::OwnedTLSConfig;
use lapin::{BasicProperties, Channel, Confirmation};
use semel_core::{Failure, Fault, Message, Published, Sink};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

use super::config::RabbitmqConfig;
use super::error::{blocked, failure, rejected, timed_out, unroutable};
use super::link::{Dialler, Link, declare_exchange};
use super::message::{Address, Outgoing};
use crate::waves::Waves;

/// Publishes to RabbitMQ. Made by [`RabbitmqConfig::connect`]; clones share the connection.
///
/// A lane has one unconfirmed message at a time, many lanes are sent together: the broker can turn
/// down one message (unroutable, queue full) and take the next, and nothing sent can be taken back.
///
/// ```no_run
/// use semel_backends::rabbitmq::RabbitmqConfig;
/// use semel_core::Sink;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let sink = RabbitmqConfig::new("amqp://guest:guest@localhost:5672/%2f")?.connect().await?;
/// sink.check().await?;
/// # Ok::<(), semel_core::Failure>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct RabbitmqSink {
    config: Arc<RabbitmqConfig>,
    dialler: Arc<Dialler>,
}

impl RabbitmqSink {
    pub(super) async fn connect(config: RabbitmqConfig) -> Result<Self, Failure> {
        let tls = trusted(&config).await?;
        let config = Arc::new(config);
        let dialler = Arc::new(Dialler::new(Arc::clone(&config), tls));
        let sink = Self { config, dialler };
        sink.dialler.link().await?;
        Ok(sink)
    }

    /// Sends wave after wave. Where it ends, on an error or because it is dropped, `waves` knows.
    async fn send(&self, link: &Link, batch: &[Message], waves: &mut Waves) -> Result<(), Failure> {
        let channel = link.channel().await?;
        while !waves.current().is_empty() {
            let RabbitmqConfig { exchange, format, .. } = &*self.config;
            let encode = |place| Outgoing::encode(&batch[place], exchange, *format, link.limits);
            let wave = waves.current().iter().copied().map(encode);
            let results = self.send_wave(&channel, wave).await?;
            waves.advance(results);
        }
        link.give_back(channel);
        Ok(())
    }

    /// Sends messages of different lanes together, and waits until all of them are answered.
    async fn send_wave(
        &self,
        channel: &Channel,
        wave: impl Iterator<Item = Result<Outgoing, Failure>>,
    ) -> Result<Vec<Result<(), Failure>>, Failure> {
        // Asks only whom it heard of; to join a few would ask all of them whenever one is answered.
        let mut sending = FuturesOrdered::new();
        let addresses = wave.map(|outgoing| {
            let Outgoing { address, properties, body } = outgoing?;
            sending.push_back(send_one(channel, address.clone(), properties, body));
            Ok(address)
        });
        let addresses: Vec<_> = addresses.collect();
        let answers: Vec<_> = sending.try_collect().await.map_err(failure("publish"))?;
        let mut answers = Answers::from(answers);
        let mut judge = |address: Address| answers.next_for(&address);
        Ok(addresses.into_iter().map(|address| address.and_then(&mut judge)).collect())
    }

    async fn usable_link(&self) -> Result<Arc<Link>, Failure> {
        let link = self.dialler.link().await?;
        if link.is_blocked() { Err(blocked()) } else { Ok(link) }
    }

    /// A round trip to the broker, and a look at the exchange.
    async fn probe(&self, link: &Link) -> Result<(), Failure> {
        let channel = link.channel().await?;
        declare_exchange(&channel, &self.config).await?;
        channel.close(200, "OK".into()).await.map_err(failure("close a channel"))
    }

    /// A link on which something hangs or broke is not used again; one that is blocked comes back.
    fn drop_if_broken(&self, link: &Arc<Link>, failure: &Failure) {
        if failure.fault() == Fault::Unavailable && !link.is_blocked() {
            self.dialler.abandon(link);
        }
    }
}

#[async_trait]
impl Sink for RabbitmqSink {
    async fn publish(&self, batch: &[Message]) -> Published {
        let limit = self.config.timeout;
        let deadline = Instant::now() + limit;
        let mut waves = Waves::new(batch);
        if waves.current().is_empty() {
            return waves.finish();
        }
        let link = match in_time(deadline, limit, self.usable_link()).await {
            Ok(link) => link,
            Err(failure) => return Published::None(failure),
        };
        match in_time(deadline, limit, self.send(&link, batch, &mut waves)).await {
            Ok(()) => waves.finish(),
            Err(failure) => {
                self.drop_if_broken(&link, &failure);
                waves.give_up(&failure)
            }
        }
    }

    async fn check(&self) -> Result<(), Failure> {
        const LIMIT: Duration = Duration::from_secs(5);
        let deadline = Instant::now() + LIMIT;
        let link = in_time(deadline, LIMIT, self.usable_link()).await?;
        let answer = in_time(deadline, LIMIT, self.probe(&link)).await;
        answer.inspect_err(|failure| self.drop_if_broken(&link, failure))
    }

    fn system(&self) -> Option<&'static str> {
        Some(super::SYSTEM)
    }
}

async fn send_one(
    channel: &Channel,
    Address { exchange, routing_key, .. }: Address,
    properties: BasicProperties,
    body: Bytes,
) -> lapin::Result<Confirmation> {
    let options = BasicPublishOptions { mandatory: true, ..Default::default() };
    channel.basic_publish(exchange, routing_key, options, &body, properties).await?.await
}

/// What the broker answered to the messages of a wave.
struct Answers {
    acknowledged: std::vec::IntoIter<bool>,
    /// The ids of the messages that no queue took. The client library hands a returned message out
    /// with whichever answer comes next, so they only count when all answers are there; the broker
    /// returns a message before it acknowledges it, so none is missing then.
    returned: HashSet<String>,
}

impl Answers {
    fn next_for(&mut self, address: &Address) -> Result<(), Failure> {
        let acknowledged = self.acknowledged.next().unwrap_or(false);
        if self.returned.contains(address.id.as_str()) {
            return Err(unroutable(address.exchange.as_str(), address.routing_key.as_str()));
        }
        if acknowledged { Ok(()) } else { Err(rejected()) }
    }
}

impl From<Vec<Confirmation>> for Answers {
    fn from(confirmations: Vec<Confirmation>) -> Self {
        let acknowledged: Vec<_> = confirmations.iter().map(Confirmation::is_ack).collect();
        let returned = confirmations.into_iter().filter_map(|answer| {
            let message = answer.take_message()?.delivery;
            message.properties.message_id().as_ref().map(ToString::to_string)
        });
        Self { acknowledged: acknowledged.into_iter(), returned: returned.collect() }
    }
}

async fn in_time<T>(
    deadline: Instant,
    limit: Duration,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let done = timeout_at(deadline, work).await;
    done.unwrap_or_else(|_| Err(timed_out("get an answer", limit)))
}

/// The certificates to trust, if others than the operating system's.
pub(super) async fn trusted(config: &RabbitmqConfig) -> Result<OwnedTLSConfig, Failure> {
    let Some(path) = config.ca_file.clone() else {
        return Ok(OwnedTLSConfig::default());
    };
    let shown = path.display().to_string();
    let read = spawn_blocking(move || std::fs::read_to_string(path)).await;
    let pem = read.map_err(io::Error::other).flatten().map_err(|error| {
        Failure::misconfigured("E-RABBITMQ-TLS", format!("RabbitMQ: cannot read ca_file {shown}"))
            .with_source(error)
            .with_fix("give the path of a PEM file that this user may read")
    })?;
    Ok(OwnedTLSConfig { identity: None, cert_chain: Some(pem) })
}

impl fmt::Debug for RabbitmqSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitmqSink").field("config", &self.config).finish_non_exhaustive()
    }
}
