//! Exactly once into Kafka: events, and that they were sent, in one transaction.

mod journal;
mod memory;
mod tenure;
mod transactor;
mod worker;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use semel_core::coordination::Share;
use semel_core::{EventId, Failure, Message, Published, Sink};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

pub(super) use self::journal::Line;
use self::tenure::Tenure;
pub(super) use self::transactor::{Ended, Load, Transactor};
use self::worker::{Order, Parcel, Worker};
use super::config::KafkaConfig;
use super::dispatch::{self, Carrier};
use super::error;
use super::record::Record;
use super::session::Landing;
use super::stamp::stamp;

/// Publishes to topics so that whoever reads only what is committed sees every event once. Made by
/// [`KafkaConfig::connect_exactly_once`].
///
/// A transaction holds what several calls have brought, and the ids of all events that are in Kafka
/// and may be offered again: those that [`Sink::settled`] has not named. The next owner of the share
/// fences this one off, reads the ids back, and confirms what it is offered of them without sending
/// it. One sink is one tenure of a share: when another one took over, [`Sink::check`] refuses, and
/// the share has to be opened anew, together with its source.
///
/// ```no_run
/// use semel_backends::kafka::KafkaConfig;
/// use semel_core::coordination::Share;
/// use semel_core::{Event, Message, Sink};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let kafka = KafkaConfig::new("localhost:9092")?;
/// let sink = kafka.connect_exactly_once("shop-orders", Share::WHOLE).await?;
/// let message = Message::first("order.events", Event::new("order", "42", "OrderPlaced"));
/// assert!(sink.publish(&[message.clone()]).await.all_confirmed());
/// assert!(sink.publish(&[message]).await.all_confirmed(), "and sent only once");
/// # Ok::<(), semel_core::Failure>(()) }).unwrap();
/// ```
pub struct ExactlyOnceSink {
    config: KafkaConfig,
    orders: mpsc::UnboundedSender<Order>,
    /// Its id, if the brokers say one.
    cluster: Option<String>,
}

impl ExactlyOnceSink {
    pub(super) async fn connect(
        config: KafkaConfig,
        id: &str,
        share: Share,
    ) -> Result<Self, Failure> {
        let (tenure, memory) = Tenure::begin(config.clone(), id, share).await?;
        let cluster = tenure.cluster().await?;
        let (orders, received) = mpsc::unbounded_channel();
        let (room, next, unsure) = (config.buffer_bytes, None, None);
        let worker = Worker { orders: received, tenure, memory, room, next, unsure };
        tokio::spawn(worker.run());
        Ok(Self { config, orders, cluster })
    }

    async fn hand_over(
        &self,
        batch: &[Message],
        wave: Vec<Record>,
        alone: bool,
        deadline: Instant,
    ) -> Result<Landing, Failure> {
        let (reply, answer) = oneshot::channel();
        let size = wave.iter().map(|record| record.size).sum();
        let messages = wave.into_iter().map(|record| (batch[record.place].clone(), record));
        let parcel = Parcel { messages: messages.collect(), size, alone, reply };
        // Without a worker there is no answer either.
        let _ = self.orders.send(Order::Publish(parcel));
        match timeout_at(deadline, answer).await {
            Ok(answer) => answer.map_err(|_| error::no_answer("the sink has ended")),
            Err(_) => Err(error::no_answer("")),
        }
    }
}

impl Carrier for ExactlyOnceSink {
    fn room(&self) -> usize {
        self.config.buffer_bytes
    }

    fn patience(&self) -> Duration {
        self.config.patience
    }

    fn record(&self, place: usize, message: &Message) -> Result<Record, Failure> {
        let (topic, publication) = (message.topic.as_str(), message.publication);
        let cluster = self.cluster.as_deref();
        let stamp = cluster.and_then(|cluster| stamp(cluster, topic, publication));
        self.config.record(place, message, stamp.as_deref())
    }

    async fn carry(
        &self,
        batch: &[Message],
        wave: Vec<Record>,
        deadline: Instant,
    ) -> Result<Landing, Failure> {
        self.hand_over(batch, wave, false, deadline).await
    }

    async fn carry_alone(
        &self,
        batch: &[Message],
        record: Record,
        deadline: Instant,
    ) -> Result<Landing, Failure> {
        self.hand_over(batch, vec![record], true, deadline).await
    }
}

#[async_trait]
impl Sink for ExactlyOnceSink {
    async fn publish(&self, batch: &[Message]) -> Published {
        dispatch::publish(self, batch).await
    }

    async fn check(&self) -> Result<(), Failure> {
        const PATIENCE: Duration = Duration::from_secs(5);
        let (reply, answer) = oneshot::channel();
        let _ = self.orders.send(Order::Check(reply));
        match timeout(PATIENCE, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => Err(error::no_answer("")),
        }
    }

    fn remembers(&self) -> bool {
        true
    }

    fn settled(&self, events: &[EventId]) {
        let _ = self.orders.send(Order::Settled(events.to_vec()));
    }

    fn caught_up(&self) {
        let _ = self.orders.send(Order::CaughtUp);
    }

    fn system(&self) -> Option<&'static str> {
        Some(super::SYSTEM)
    }
}

impl fmt::Debug for ExactlyOnceSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExactlyOnceSink").field("config", &self.config).finish_non_exhaustive()
    }
}
