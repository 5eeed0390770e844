//! Which topics a group reads, and how.

use std::time::Duration;

use rdkafka::ClientConfig;
use semel_core::{Failure, Topic};

use super::KafkaSubscription;
use crate::kafka::KafkaConfig;
use crate::kafka::error;
use crate::kafka::record::is_legal_topic;

/// Which topics a group reads, and how. Made by [`KafkaConfig::subscription`].
///
/// ```
/// use semel_backends::kafka::{KafkaConfig, Start};
/// use std::time::Duration;
///
/// let config = KafkaConfig::new("kafka-1:9092")?
///     .subscription("billing", &["order.events", "customer.events"])?
///     .start(Start::Latest)
///     .dead_topic("billing.dead")?
///     .session_timeout(Duration::from_secs(20));
/// # let _ = config;
/// assert!(KafkaConfig::new("kafka-1:9092")?.subscription("billing", &[]).is_err());
/// # Ok::<(), semel_core::Failure>(())
/// ```
#[derive(Clone, Debug)]
pub struct KafkaSubscriptionConfig {
    pub(super) connection: KafkaConfig,
    pub(super) group: String,
    pub(super) topics: Vec<String>,
    dead_topic: Option<Topic>,
    pub(super) start: Start,
    session_timeout: Duration,
    pub(super) most_unsettled: usize,
}

/// Where a group begins that has read nothing of a partition yet.
///
/// ```
/// # use semel_backends::kafka::Start;
/// assert_eq!(Start::default(), Start::Earliest);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// With the oldest message there is.
    #[default]
    Earliest,
    /// With what comes from now on: the end of a partition when a member of the group has it for
    /// the first time. That is the group's position from then on, whether anything comes or not.
    Latest,
}

impl KafkaConfig {
    /// A subscription of a consumer group to topics. Where the brokers are, user, encryption,
    /// [`patience`](Self::patience) and [`max_message_bytes`](Self::max_message_bytes) are as for a
    /// sink.
    ///
    /// # Errors
    /// `Misconfigured` when the group has no name, or a topic is missing or has no legal name.
    pub fn subscription(
        self,
        group: &str,
        topics: &[&str],
    ) -> Result<KafkaSubscriptionConfig, Failure> {
        if group.is_empty() {
            return Err(error::setting("a consumer group without a name", "name the group"));
        }
        if topics.is_empty() {
            return Err(error::setting("a subscription to no topic", "name a topic"));
        }
        for topic in topics {
            check_topic(topic)?;
        }
        Ok(KafkaSubscriptionConfig {
            connection: self,
            group: group.to_owned(),
            topics: topics.iter().map(|&topic| topic.to_owned()).collect(),
            dead_topic: None,
            start: Start::default(),
            session_timeout: Duration::from_secs(10),
            most_unsettled: 10_000,
        })
    }
}

impl KafkaSubscriptionConfig {
    /// Where dead letters go; to `<topic>.dead` of their own topic unless set. It must exist.
    ///
    /// # Errors
    /// `Misconfigured` when the name is not legal.
    pub fn dead_topic(mut self, name: &str) -> Result<Self, Failure> {
        check_topic(name)?;
        self.dead_topic = Some(Topic::from(name));
        Ok(self)
    }

    /// Where a group begins that has read nothing yet; with the oldest message unless set.
    #[must_use]
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// After how long a member that says nothing is taken for dead, and its partitions go to
    /// others; 10 seconds unless set. Brokers want 6 seconds at least unless told otherwise.
    #[must_use]
    pub fn session_timeout(mut self, time: Duration) -> Self {
        self.session_timeout = time;
        self
    }

    /// How many messages may be handed out and not settled; 10,000 unless set. A partition is also
    /// read no further than so many messages beyond its first unsettled one.
    #[must_use]
    pub fn most_unsettled(mut self, messages: usize) -> Self {
        self.most_unsettled = messages.max(1);
        self
    }

    /// Connects, looks whether all topics are there, and joins the group.
    ///
    /// # Errors
    /// `Unavailable` when no broker can be reached, `Misconfigured` when they refuse the user, or a
    /// topic is missing.
    pub async fn connect(&self) -> Result<KafkaSubscription, Failure> {
        KafkaSubscription::connect(self.clone()).await
    }

    pub(super) fn dead_topic_of(&self, topic: &Topic) -> Topic {
        self.dead_topic.clone().unwrap_or_else(|| Topic::from(&*format!("{topic}.dead")))
    }

    /// The settings of a consumer.
    pub(super) fn client(&self) -> ClientConfig {
        let mut client = self.connection.connection();
        let millis = |time: Duration| time.as_millis().max(100).to_string();
        client
            .set("group.id", &self.group)
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            // Also for a group that began at the end: it has a position, and where retention has
            // overtaken that, the oldest message is the next one.
            .set("auto.offset.reset", "earliest")
            .set("isolation.level", "read_committed")
            .set("partition.assignment.strategy", "cooperative-sticky")
            .set("session.timeout.ms", millis(self.session_timeout))
            // A member learns of a rebalance by its next heartbeat.
            .set("heartbeat.interval.ms", millis(self.session_timeout / 15))
            // What librdkafka fetches ahead is memory too.
            .set("queued.min.messages", "1000")
            .set("queued.max.messages.kbytes", "4096")
            .set("fetch.max.bytes", "8388608")
            .set("fetch.queue.backoff.ms", "20")
            .set("fetch.error.backoff.ms", "100");
        client
    }
}

fn check_topic(name: &str) -> Result<(), Failure> {
    if is_legal_topic(name) { Ok(()) } else { Err(error::topic_setting(name)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_and_dead_letters_have_a_place() {
        let brokers = || KafkaConfig::new("localhost:9092").unwrap();
        assert!(brokers().subscription("", &["t"]).is_err());
        assert!(brokers().subscription("g", &["a b"]).is_err());
        let config = brokers().subscription("g", &["orders"]).unwrap();
        assert_eq!(config.dead_topic_of(&Topic::from("orders")).as_str(), "orders.dead");
        let config = config.dead_topic("graveyard").unwrap();
        assert_eq!(config.dead_topic_of(&Topic::from("orders")).as_str(), "graveyard");
        assert!(config.dead_topic("/").is_err());
    }
}
