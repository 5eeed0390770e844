//! [`InboxStore`]: the messages each consumer has taken effect for, when the effect is messages in
//! Kafka.
//!
//! | file | role |
//! |---|---|
//! | `config` | how the inbox is called, and how much it remembers |
//! | `tx` | what a handler wants to send |
//! | `desk` | which messages are in hand, and which took effect |
//! | `memory` | the ids that are remembered |
//! | `worker` | commits what has gathered |
//! | `tenure` | one process at a time owns the inbox |
//! | `log` | the ids in their topic |
//! | `topic` | whether that topic keeps them |

mod config;
mod desk;
mod log;
mod memory;
mod tenure;
mod topic;
mod tx;
mod worker;

use std::collections::HashSet;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use semel_core::inbox::{InboxStore, Seen};
use semel_core::{EventId, Failure};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

pub use self::config::KafkaInboxConfig;
use self::desk::{Desk, Hands, State, Taking};
use self::memory::{Key, Memory};
use self::tenure::Tenure;
pub use self::tx::KafkaTx;
use self::worker::{Order, Parcel, Worker};
use super::config::KafkaConfig;
use super::error;

/// Remembers in a topic which messages took effect, where the effect is messages that the handler
/// sends. Made by [`KafkaConfig::inbox`]; clones are the same inbox.
///
/// The handler adds messages to a [`KafkaTx`]; one transaction of Kafka holds them and the ids of
/// what they are for, both or neither. What several transactions commit at the same time shares one
/// of Kafka's. **An effect anywhere else** (a table, a call to another service) is not part of that:
/// keep the inbox in the database that has the effect.
///
/// **One process has it.** Whoever opens an inbox fences off the process that had it: that one's
/// transactions fail, and so does all it does from then on (`E-KAFKA-FENCED`). All ids are in
/// memory, whichever partition a message comes from, so a copy in another one is recognised too.
///
/// ```no_run
/// use semel_backends::kafka::{KafkaConfig, KafkaTx};
/// use semel_core::{Event, Message};
/// use semel_relay::{Consumer, handler_fn};
///
/// # async fn run() -> Result<(), semel_core::Failure> {
/// let inbox = KafkaConfig::new("kafka-1:9092")?.inbox("billing")?.connect().await?;
/// let bill = handler_fn(|tx: &mut KafkaTx, order: &Message| Box::pin(async move {
///     let bill = Event::new("bill", &*order.event.aggregate_id, "BillMade");
///     tx.send(Message::first("bill.events", bill))?;
///     Ok(Default::default())
/// }));
/// let consumer = Consumer::builder("billing", inbox).build_with(bill);
/// # let _ = consumer; Ok(()) }
/// ```
#[derive(Clone)]
pub struct KafkaInbox {
    connection: Arc<KafkaConfig>,
    topic: Arc<str>,
    keep: Duration,
    desk: Arc<Desk>,
    orders: mpsc::UnboundedSender<Order>,
}

impl KafkaInbox {
    pub(super) async fn connect(config: KafkaInboxConfig) -> Result<Self, Failure> {
        let desk = Desk::new(Memory::new(config.keep, config.max_bytes));
        let (connection, topic) = (Arc::new(config.connection.clone()), config.topic().into());
        let keep = config.keep;
        let tenure = Tenure::begin(config, &desk).await?;
        desk.set(State::Ready);
        let (orders, received) = mpsc::unbounded_channel();
        let (room, next, undecided) = (connection.buffer_bytes, None, Vec::new());
        let worker_desk = Arc::clone(&desk);
        let worker = Worker { orders: received, tenure, desk: worker_desk, room, next, undecided };
        tokio::spawn(worker.run());
        Ok(Self { connection, topic, keep, desk, orders })
    }

    /// Takes those of the messages that are new. Waits while another transaction has one of them in
    /// hand, and while it is not known what became of one.
    async fn take(&self, hands: &mut Hands, keys: &[Key]) -> Result<Vec<Seen>, Failure> {
        let patience = self.connection.patience;
        let deadline = Instant::now() + patience;
        loop {
            let mut changed = pin!(self.desk.changed());
            changed.as_mut().enable();
            match self.desk.take(hands, keys)? {
                Taking::Done(seen) => return Ok(seen),
                Taking::Unsure => self.resume().await?,
                Taking::Busy => {
                    let waiting = timeout_at(deadline, changed).await;
                    waiting.map_err(|_| error::inbox_busy(patience))?;
                }
            }
        }
    }

    async fn resume(&self) -> Result<(), Failure> {
        self.order(Order::Resume, self.connection.patience).await
    }

    async fn order(
        &self,
        order: impl FnOnce(oneshot::Sender<Result<(), Failure>>) -> Order,
        patience: Duration,
    ) -> Result<(), Failure> {
        let (reply, answer) = oneshot::channel();
        // Without a worker there is no answer either.
        let _ = self.orders.send(order(reply));
        match timeout(patience, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(error::no_answer("the inbox has ended")),
            Err(_) => Err(error::no_answer("")),
        }
    }
}

impl InboxStore for KafkaInbox {
    type Tx<'c> = KafkaTx;

    /// Asks the brokers for nothing, unless it is not known what became of a transaction.
    async fn begin(&self) -> Result<KafkaTx, Failure> {
        match self.desk.state() {
            State::Ready => {}
            State::Unsure => self.resume().await?,
            State::Over(failure) => return Err(failure),
        }
        let (config, hands) = (Arc::clone(&self.connection), Hands::empty(&self.desk));
        Ok(KafkaTx { config, hands, messages: Vec::new() })
    }

    /// Waits while another transaction has the same message in hand, for as long as the patience
    /// lasts.
    async fn record(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        id: EventId,
    ) -> Result<Seen, Failure> {
        let key = Key { consumer: consumer.into(), id };
        if let Some(result) = tx.hands.results.get(&key) {
            return Ok(Seen::Duplicate { result: result.clone() });
        }
        let seen = self.take(&mut tx.hands, &[key]).await?;
        Ok(seen.into_iter().next().unwrap_or(Seen::Duplicate { result: None }))
    }

    /// Takes all of them or none, so that two do not wait for each other.
    async fn record_all(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        ids: &[EventId],
    ) -> Result<Vec<bool>, Failure> {
        let consumer: Arc<str> = consumer.into();
        let mut wanted = HashSet::new();
        let keys: Vec<_> = ids
            .iter()
            .map(|id| Key { consumer: Arc::clone(&consumer), id: *id })
            .filter(|key| !tx.hands.results.contains_key(key) && wanted.insert(key.id))
            .collect();
        let seen = self.take(&mut tx.hands, &keys).await?;
        let mut new: HashSet<_> = keys
            .iter()
            .zip(seen)
            .filter(|(_, seen)| *seen == Seen::First)
            .map(|(key, _)| key.id)
            .collect();
        Ok(ids.iter().map(|id| new.remove(id)).collect())
    }

    /// # Errors
    /// `Refused` when it is larger than a message may be, `Unavailable` when there is no room to
    /// remember it.
    async fn store_result(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        id: EventId,
        result: Bytes,
    ) -> Result<(), Failure> {
        /// For the key, and what a record has beside it.
        const REST: usize = 256;
        let (size, limit) =
            (result.len() + consumer.len() + REST, self.connection.max_message_bytes);
        if size > limit {
            return Err(error::too_large(&self.topic, size, limit));
        }
        self.desk.promise(&mut tx.hands, &Key { consumer: consumer.into(), id }, result)
    }

    async fn commit(&self, tx: KafkaTx) -> Result<(), Failure> {
        let KafkaTx { hands, messages, .. } = tx;
        if hands.results.is_empty() && messages.is_empty() {
            return Ok(());
        }
        let (reply, answer) = oneshot::channel();
        let _ = self.orders.send(Order::Commit(Parcel { messages, hands, reply }));
        answer.await.unwrap_or_else(|_| Err(error::no_answer("the inbox has ended")))
    }

    async fn rollback(&self, tx: KafkaTx) {
        drop(tx);
    }

    /// What is older than the inbox keeps is gone by itself; a younger id is forgotten in the topic
    /// too.
    async fn forget(&self, age: Duration, limit: usize) -> Result<usize, Failure> {
        if age >= self.keep {
            return Ok(0);
        }
        let age = u32::try_from(age.as_millis().div_ceil(1000)).unwrap_or(u32::MAX);
        let keys = self.desk.before(desk::now().saturating_sub(age), limit);
        if keys.is_empty() {
            return Ok(0);
        }
        let count = keys.len();
        self.order(|reply| Order::Forget(keys, reply), self.connection.patience * 2).await?;
        Ok(count)
    }

    fn retention(&self) -> Option<Duration> {
        Some(self.keep)
    }
}

impl fmt::Debug for KafkaInbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaInbox")
            .field("topic", &self.topic)
            .field("keep", &self.keep)
            .finish_non_exhaustive()
    }
}
