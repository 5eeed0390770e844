//! [`Sink`] for RabbitMQ.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::stream::FuturesUnordered;
use lapin::Channel;
use lapin::tcp::OwnedTLSConfig;
use lapin::types::ShortString;
use semel_core::{Failure, Fault, Message, Published, Sink};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

use super::answers::{Answers, send_one};
use super::config::RabbitmqConfig;
use super::error::{NACK, UNROUTABLE, blocked, failure, timed_out};
use super::link::{Dialler, Link, declare_exchange};
use super::message::Outgoing;
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

    /// Sends wave after wave. Where it ends, on an error or at the deadline, `waves` knows.
    async fn send(
        &self,
        link: &Link,
        batch: &[Message],
        waves: &mut Waves,
        deadline: Instant,
    ) -> Result<(), Failure> {
        /// What waits for its answer takes memory in the client, however small it is: with 1,000, a relay needed 102 MiB instead of 66.
        const AT_ONCE: usize = 250;
        let channel = in_time(deadline, self.config.timeout, link.channel()).await?;
        let mut is_told_no = false;
        while !waves.current().is_empty() {
            for places in waves.current().to_vec().chunks(AT_ONCE) {
                let sending = self.send_some(link, &channel, batch, places, waves, deadline);
                is_told_no |= sending.await?;
            }
            waves.advance();
        }
        // A channel that met a quorum queue without a leader is told no for ever.
        if !is_told_no {
            link.give_back(channel);
        }
        Ok(())
    }

    /// Sends these of the batch, and hears what became of them; says whether a queue said no.
    async fn send_some(
        &self,
        link: &Link,
        channel: &Channel,
        batch: &[Message],
        places: &[usize],
        waves: &mut Waves,
        deadline: Instant,
    ) -> Result<bool, Failure> {
        let RabbitmqConfig { exchange, format, timeout, .. } = &*self.config;
        // Asks only whom it heard of; to join a few would ask all of them whenever one is answered.
        let mut sending = FuturesUnordered::new();
        for &place in places {
            match Outgoing::encode(&batch[place], exchange, *format, link.limits) {
                Ok(outgoing) => sending.push(send_one(channel, place, outgoing).fuse()),
                Err(failure) => waves.settle(place, Err(failure)),
            }
        }
        let mut answers = Answers::default();
        let answered = in_time(deadline, *timeout, answers.hear(&mut sending)).await;
        let mut certain = answers.certain(sending);
        self.find_those_away(link, batch, &mut certain, deadline).await;
        let mut is_told_no = false;
        for (place, result) in certain {
            is_told_no |= result.as_ref().is_err_and(|it| it.code() == NACK);
            waves.settle(place, result);
        }
        answered.map(|()| is_told_no)
    }

    /// Of messages to the default exchange that no queue took: those whose queue is only away.
    async fn find_those_away(
        &self,
        link: &Link,
        batch: &[Message],
        certain: &mut [(usize, Result<(), Failure>)],
        deadline: Instant,
    ) {
        if !self.config.exchange.is_the_default() {
            return;
        }
        let mut asked = HashMap::new();
        for (place, result) in certain {
            if !result.as_ref().is_err_and(|it| it.code() == UNROUTABLE) {
                continue;
            }
            let queue = batch[*place].topic.as_str();
            let Ok(name) = ShortString::try_new(queue) else { continue };
            if !asked.contains_key(queue) {
                let asking = async { Ok(link.why_away(&name).await) };
                let why = in_time(deadline, self.config.timeout, asking).await;
                asked.insert(queue, why.unwrap_or_else(Some));
            }
            if let Some(Some(why)) = asked.get(queue) {
                *result = Err(why.clone());
            }
        }
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
        match self.send(&link, batch, &mut waves, deadline).await {
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
