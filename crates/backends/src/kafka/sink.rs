//! Topics as a sink.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rdkafka::ClientConfig;
use semel_core::{Failure, Message, Published, Sink};
use tokio::time::Instant;

use super::config::KafkaConfig;
use super::dispatch::{self, Carrier};
use super::record::Record;
use super::session::{Landing, Session};

/// Publishes to topics. Made by [`KafkaConfig::connect`].
///
/// The broker answers for a whole request, not for a record. When it turns a request down, the
/// producer ends before anything later is written, and every record of the request is sent once
/// more, alone, by a producer of its own: so exactly those are refused that deserve it.
///
/// ```no_run
/// use semel_backends::kafka::KafkaConfig;
/// use semel_core::{Event, Message, Sink};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let sink = KafkaConfig::new("localhost:9092")?.connect().await?;
/// let message = Message::first("order.events", Event::new("order", "42", "OrderPlaced"));
/// assert!(sink.publish(&[message]).await.all_confirmed());
/// # Ok::<(), semel_core::Failure>(()) }).unwrap();
/// ```
pub struct KafkaSink {
    config: KafkaConfig,
    client: ClientConfig,
    current: Mutex<Option<Arc<Session>>>,
}

impl KafkaSink {
    pub(super) async fn connect(config: KafkaConfig) -> Result<Self, Failure> {
        let sink = Self::open_later(config);
        sink.check().await?;
        Ok(sink)
    }

    /// A sink that connects when it is needed.
    pub(super) fn open_later(config: KafkaConfig) -> Self {
        let client = config.client();
        Self { config, client, current: Mutex::default() }
    }

    /// The producer that is in use, or a new one.
    pub(super) fn session(&self) -> Result<Arc<Session>, Failure> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(session) = current.as_ref().filter(|session| session.end().is_none()) {
            return Ok(Arc::clone(session));
        }
        let session = self.open()?;
        *current = Some(Arc::clone(&session));
        Ok(session)
    }

    /// The id of the cluster, if the brokers say one.
    pub(super) async fn cluster(&self) -> Result<Option<String>, Failure> {
        Ok(self.session()?.cluster(self.config.patience).await)
    }

    fn open(&self) -> Result<Arc<Session>, Failure> {
        Session::open(&self.client, self.config.buffer_bytes)
    }
}

impl Carrier for KafkaSink {
    fn room(&self) -> usize {
        self.config.buffer_bytes
    }

    fn patience(&self) -> Duration {
        self.config.patience
    }

    fn record(&self, place: usize, message: &Message) -> Result<Record, Failure> {
        self.config.record(place, message, None)
    }

    async fn carry(
        &self,
        batch: &[Message],
        wave: Vec<Record>,
        deadline: Instant,
    ) -> Result<Landing, Failure> {
        Ok(self.session()?.fly(batch, wave, left_until(deadline)).await)
    }

    async fn carry_alone(
        &self,
        batch: &[Message],
        record: Record,
        deadline: Instant,
    ) -> Result<Landing, Failure> {
        Ok(self.open()?.fly(batch, vec![record], left_until(deadline)).await)
    }
}

#[async_trait]
impl Sink for KafkaSink {
    async fn publish(&self, batch: &[Message]) -> Published {
        dispatch::publish(self, batch).await
    }

    async fn check(&self) -> Result<(), Failure> {
        const PATIENCE: Duration = Duration::from_secs(5);
        self.session()?.ask(self.config.patience.min(PATIENCE)).await
    }

    fn system(&self) -> Option<&'static str> {
        Some(super::SYSTEM)
    }
}

fn left_until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

impl fmt::Debug for KafkaSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaSink").field("config", &self.config).finish_non_exhaustive()
    }
}
