//! What is in topics, read without a group: nobody's progress changes.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::metadata::MetadataPartition;
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka::{Offset, TopicPartitionList};
use semel_core::{Failure, Topic};
use tokio::task::spawn_blocking;

use super::config::KafkaConfig;
use super::error;
use super::subscription::arrived::Arrived;
use crate::arrival::Arrival;

impl KafkaConfig {
    /// The events that are in these topics now, as whoever reads committed sees them. Nothing is
    /// consumed, and no group moves; what is no event is passed over, and so is a topic that does
    /// not exist.
    ///
    /// # Errors
    /// `Unavailable` when the brokers cannot be reached, or send nothing for the patience of this
    /// configuration; `Misconfigured` when the user may not read.
    pub async fn arrivals(&self, topics: &BTreeSet<Topic>) -> Result<Vec<Arrival>, Failure> {
        let (config, topics) = (self.clone(), topics.clone());
        let reading = spawn_blocking(move || read(&config, &topics));
        reading.await.unwrap_or_else(|_| Err(error::failure("read topics", KafkaError::Canceled)))
    }
}

fn read(config: &KafkaConfig, topics: &BTreeSet<Topic>) -> Result<Vec<Arrival>, Failure> {
    let (mut arrivals, mut queues) = (Vec::new(), 0);
    for topic in topics {
        queues += read_topic(config, topic.as_str(), queues, &mut arrivals)?;
    }
    Ok(arrivals)
}

/// Adds what is in a topic; gives how many partitions it has, which are queues from `first` on.
fn read_topic(
    config: &KafkaConfig,
    topic: &str,
    first: usize,
    arrivals: &mut Vec<Arrival>,
) -> Result<usize, Failure> {
    let failure = |error| error::failure("read a topic", error);
    // One for each topic: the end of a partition is told without its topic.
    let consumer: BaseConsumer = config
        .connection()
        .set("group.id", "semel-verify")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .set("isolation.level", "read_committed")
        .set("fetch.wait.max.ms", "20")
        .create()
        .map_err(failure)?;
    let mut unread = partitions(&consumer, topic, config.patience)?;
    let count = unread.len();
    let mut assignment = TopicPartitionList::new();
    for number in &unread {
        let from = assignment.add_partition_offset(topic, *number, Offset::Beginning);
        from.map_err(failure)?;
    }
    consumer.assign(&assignment).map_err(failure)?;
    let mut deadline = Instant::now() + config.patience;
    while !unread.is_empty() {
        let left = deadline.checked_duration_since(Instant::now());
        let left = left.ok_or_else(|| error::no_answer("a topic does not end"))?;
        match consumer.poll(left) {
            Some(Ok(message)) => {
                let arrived = Arrived::new(&message);
                let queue = first + usize::try_from(arrived.partition.number).unwrap_or(0);
                if let Ok(message) = arrived.message(None) {
                    arrivals.push(Arrival { id: message.event.id, queue, place: arrived.offset });
                }
            }
            Some(Err(KafkaError::PartitionEOF(number))) => {
                unread.remove(&number);
            }
            Some(Err(KafkaError::MessageConsumption(
                code @ (Code::TopicAuthorizationFailed | Code::GroupAuthorizationFailed),
            ))) => return Err(error::of_topic(topic, code)),
            // Connections come and go; whether it goes on in time is all that counts.
            Some(Err(_)) | None => continue,
        }
        deadline = Instant::now() + config.patience;
    }
    Ok(count)
}

/// The partitions of a topic; none if it does not exist.
fn partitions(
    consumer: &BaseConsumer,
    topic: &str,
    patience: Duration,
) -> Result<BTreeSet<i32>, Failure> {
    let metadata = consumer.fetch_metadata(Some(topic), patience);
    let metadata = metadata.map_err(|error| error::failure("look for a topic", error))?;
    let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else {
        return Ok(BTreeSet::new());
    };
    match found.error().map(Code::from) {
        None => Ok(found.partitions().iter().map(MetadataPartition::id).collect()),
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => Ok(BTreeSet::new()),
        Some(code) => Err(error::of_topic(topic, code)),
    }
}
