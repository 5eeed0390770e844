//! Topics as a source: a member of a consumer group.

pub(super) mod arrived;
mod beginning;
mod burial;
mod config;
mod log;
mod member;
mod progress;
mod state;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use rdkafka::consumer::Consumer;
use rdkafka::types::RDKafkaErrorCode as Code;
use semel_core::{
    Batch, Failure, Guarantees, Holding, Limit, Outcome, Settlement, Sink, Source, Topic,
};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep, timeout, timeout_at};

pub use config::{KafkaSubscriptionConfig, Start};

use self::arrived::{Arrived, Why};
use self::burial::{Burial, bury};
use self::member::{Client, Member, Membership};
use super::error;
use super::sink::KafkaSink;

/// Reads topics as a member of a consumer group. Made by [`KafkaSubscriptionConfig::connect`].
///
/// Offsets are committed by `settle`, after the effect, and up to the first message of a partition
/// that is not settled. A group that begins at the end has a position before it reads anything.
/// Dead letters and messages that are no events go to a topic of their own before their offset is
/// passed. When partitions go to another member, what is settled is committed first, and receipts
/// of the rest are void.
///
/// ```no_run
/// use semel_backends::kafka::KafkaConfig;
/// use semel_core::{Limit, Source};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let mut orders = KafkaConfig::new("localhost:9092")?
///     .subscription("billing", &["order.events"])?
///     .connect()
///     .await?;
/// let batch = orders.next_batch(Limit::default()).await?;
/// # let _ = batch;
/// # Ok::<(), semel_core::Failure>(()) }).unwrap();
/// ```
pub struct KafkaSubscription {
    config: KafkaSubscriptionConfig,
    member: Arc<Member>,
    /// None when the group was left.
    client: Option<Arc<Client>>,
    left: Option<oneshot::Receiver<()>>,
    /// Goes on when the call that began it is dropped.
    committing: Option<JoinHandle<Result<(), Code>>>,
    graves: KafkaSink,
}

impl KafkaSubscription {
    async fn connect(config: KafkaSubscriptionConfig) -> Result<Self, Failure> {
        // A letter is its message and some more headers.
        let graves = KafkaSink::open_later(config.connection.with_room_for_an_epitaph());
        graves.check().await?;
        let cluster = graves.cluster().await?;
        let Membership { member, client, has_left } = Member::join(&config, cluster)?;
        let (client, left, committing) = (Some(client), Some(has_left), None);
        let subscription = Self { config, member, client, left, committing, graves };
        let topics = subscription.config.topics.iter().map(|topic| Topic::from(topic.as_str()));
        let graves = topics.clone().map(|topic| subscription.config.dead_topic_of(&topic));
        subscription.ask_for(topics.chain(graves).collect()).await?;
        Ok(subscription)
    }

    /// How many partitions are this member's at present.
    #[must_use]
    pub fn partitions(&self) -> usize {
        self.member.state().assigned()
    }

    /// Puts messages that are no events to the dead letters.
    async fn put_strangers_aside(&mut self) -> Result<(), Failure> {
        let strangers = self.member.state().strangers.clone();
        if strangers.is_empty() {
            return Ok(());
        }
        let why = |failure| Why { failure, attempts: 0, group: &self.config.group };
        let letters = strangers.iter().map(|(arrived, failure)| (&**arrived, why(failure)));
        let Burial { buried, wrong } = self.bury(letters).await;
        let buried: Vec<_> = buried.into_iter().map(|place| &strangers[place]).collect();
        self.pass_by(&buried);
        match wrong {
            Some(failure) => Err(failure),
            None => self.commit().await,
        }
    }

    /// These are among the dead letters now.
    fn pass_by(&self, strangers: &[&(Arc<Arrived>, Failure)]) {
        let mut state = self.member.state();
        let buried =
            |arrived: &Arc<Arrived>| strangers.iter().any(|(other, _)| Arc::ptr_eq(arrived, other));
        state.strangers.retain(|(arrived, _)| !buried(arrived));
        for (arrived, failure) in strangers {
            state.settle(arrived);
            let (topic, offset) = (&arrived.partition.topic, arrived.offset);
            let (partition, code) = (arrived.partition.number, failure.code());
            tracing::warn!(%topic, partition, offset, code, %failure, "no event");
        }
    }

    /// Sends dead letters, and waits until the brokers have them.
    async fn bury<'a>(&self, letters: impl Iterator<Item = (&'a Arrived, Why<'a>)>) -> Burial {
        bury(&self.graves, letters, |topic| self.config.dead_topic_of(topic)).await
    }

    /// Tells the broker how far the group is, and waits until it knows.
    async fn commit(&mut self) -> Result<(), Failure> {
        const AGAIN: Duration = Duration::from_millis(50);
        let deadline = Instant::now() + self.config.connection.patience;
        while !self.member.state().is_committed() || self.committing.is_some() {
            let Some(client) = self.client.clone() else { return Ok(()) };
            let member = Arc::clone(&self.member);
            let commit = || spawn_blocking(move || member.commit(&client));
            let committing = self.committing.get_or_insert_with(commit);
            let Ok(committed) = timeout_at(deadline, committing).await else {
                return Err(error::no_answer("the position of the group"));
            };
            self.committing = None;
            if let Ok(Err(code)) = committed {
                if let Some(failure) = error::of_consumer(code, "cannot commit") {
                    return Err(failure);
                }
                // A rebalance is under way: afterwards the partition is ours again, or no concern.
                if timeout_at(deadline, sleep(AGAIN)).await.is_err() {
                    return Err(error::no_answer(&code.to_string()));
                }
            }
        }
        Ok(())
    }

    /// Whether the brokers answer, if there is reason to doubt it.
    async fn clear_doubts(&self) -> Result<(), Failure> {
        let Some(complaint) = self.member.state().complaint.clone() else { return Ok(()) };
        let topics = self.config.topics.iter().map(|topic| Topic::from(topic.as_str())).collect();
        self.ask_for(topics).await.map_err(|failure| failure.at(&complaint))?;
        self.member.state().complaint = None;
        Ok(())
    }

    /// Asks the brokers for topics.
    async fn ask_for(&self, topics: Vec<Topic>) -> Result<(), Failure> {
        const PATIENCE: Duration = Duration::from_secs(5);
        let Some(client) = self.client.clone() else { return Ok(()) };
        let patience = self.config.connection.patience.min(PATIENCE);
        let asking = spawn_blocking(move || {
            topics.iter().try_for_each(|topic| {
                let topic = topic.as_str();
                let answer = client.client().fetch_metadata(Some(topic), patience);
                let answer = answer.map_err(|_| error::no_answer("the topics"))?;
                let known = answer.topics().iter().find(|known| known.name() == topic);
                match known.and_then(rdkafka::metadata::MetadataTopic::error) {
                    Some(code) => Err(error::of_topic(topic, code.into())),
                    None => Ok(()),
                }
            })
        });
        asking.await.unwrap_or_else(|_| Err(error::no_answer("the topics")))
    }
}

#[async_trait]
impl Source for KafkaSubscription {
    fn guarantees(&self) -> Guarantees {
        Guarantees { lane_order: true, parking: false }
    }

    async fn next_batch(&mut self, limit: Limit) -> Result<Batch, Failure> {
        if let Some(failure) = self.member.state().fatal.clone() {
            return Err(failure);
        }
        self.put_strangers_aside().await?;
        let batch = self.member.hand_out(limit);
        if batch.deliveries.is_empty() {
            self.clear_doubts().await?;
        }
        Ok(batch)
    }

    fn wakeup(&mut self) -> BoxFuture<'static, ()> {
        let news = Arc::clone(&self.member.news);
        Box::pin(async move { news.notified().await })
    }

    async fn settle(&mut self, settlements: &[Settlement]) -> Result<Holding, Failure> {
        let dead: Vec<_> = {
            let state = self.member.state();
            let letters = settlements.iter().filter_map(|Settlement { receipt, outcome }| {
                let Outcome::Dead { attempts, failure, .. } = outcome else { return None };
                let arrived = Arc::clone(&state.window.get(*receipt)?.place);
                Some((*receipt, arrived, failure, *attempts))
            });
            letters.collect()
        };
        let group = &*self.config.group;
        let letters = dead.iter().map(|(_, arrived, failure, attempts)| {
            (&**arrived, Why { failure, attempts: *attempts, group })
        });
        let Burial { buried, wrong } = self.bury(letters).await;
        {
            let mut state = self.member.state();
            // Also where others have to wait: what is buried is not buried again.
            buried.into_iter().for_each(|place| state.settle_receipt(dead[place].0));
            if let Some(failure) = wrong {
                return Err(failure);
            }
            for Settlement { receipt, outcome } in settlements {
                match outcome.is_final() {
                    true => state.settle_receipt(*receipt),
                    false => state.window.release(*receipt),
                }
            }
        }
        self.commit().await?;
        Ok(Holding::Held)
    }

    /// Leaves the group: others get the partitions at once.
    async fn close(&mut self) {
        const PATIENCE: Duration = Duration::from_secs(5);
        self.client = None;
        self.member.stop();
        if let Some(left) = self.left.take() {
            let _ = timeout(PATIENCE, left).await;
        }
    }
}

impl Drop for KafkaSubscription {
    fn drop(&mut self) {
        self.client = None;
        self.member.stop();
    }
}

impl fmt::Debug for KafkaSubscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaSubscription").field("config", &self.config).finish_non_exhaustive()
    }
}
