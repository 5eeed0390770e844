//! [`Sink`] for RabbitMQ.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lapin::tcp::OwnedTLSConfig;
use semel_core::{Failure, Fault, Message, Published, Sink};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

use super::config::RabbitmqConfig;
use super::convoy::Seat;
use super::error::{blocked, failure, timed_out};
use super::link::{Dialler, Link, declare_exchange};
use super::message::Outgoing;
use super::wave::send_wave;
use crate::waves::Waves;

/// Publishes to RabbitMQ. Made by [`RabbitmqConfig::connect`]; clones share the connection.
///
/// A lane has one unconfirmed message at a time, many lanes are sent together: the broker can turn
/// down one message (unroutable, queue full) and take the next, and nothing sent can be taken back.
/// Calls with few lanes each send theirs together.
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

/// With so many lanes a call has enough under way by itself.
const WIDE: usize = 100;

impl RabbitmqSink {
    pub(super) async fn connect(config: RabbitmqConfig) -> Result<Self, Failure> {
        let tls = trusted(&config).await?;
        let config = Arc::new(config);
        let dialler = Arc::new(Dialler::new(Arc::clone(&config), tls));
        let sink = Self { config, dialler };
        sink.dialler.link().await?;
        Ok(sink)
    }

    /// Few lanes have few messages under way: they go with those of other calls.
    async fn send_together(
        &self,
        link: &Arc<Link>,
        batch: &[Message],
        waves: Waves,
        deadline: Instant,
    ) -> Published {
        let limit = self.config.timeout;
        let seat = Seat::new(batch, waves);
        match in_time(deadline, limit, link.convoy(&self.config).carry(&seat)).await {
            Ok(()) => seat.leave().finish(),
            Err(failure) => {
                self.drop_if_broken(link, &failure);
                seat.leave().give_up(&failure)
            }
        }
    }

    /// Sends wave after wave. Where it ends, on an error or because it is dropped, `waves` knows.
    async fn send(&self, link: &Link, batch: &[Message], waves: &mut Waves) -> Result<(), Failure> {
        let channel = link.channel().await?;
        while !waves.current().is_empty() {
            let RabbitmqConfig { exchange, format, .. } = &*self.config;
            let encode = |place| Outgoing::encode(&batch[place], exchange, *format, link.limits);
            let wave = waves.current().iter().copied().map(encode);
            let results = send_wave(&channel, wave).await?;
            waves.advance(results);
        }
        link.give_back(channel);
        Ok(())
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
        if waves.current().len() < wide() {
            return self.send_together(&link, batch, waves, deadline).await;
        }
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

fn wide() -> usize {
    std::env::var("SEMEL_WIDE").ok().and_then(|lanes| lanes.parse().ok()).unwrap_or(WIDE)
}
