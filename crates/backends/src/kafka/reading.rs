//! A topic from its beginning to where it ends now, read without a group: nobody's progress changes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::metadata::MetadataPartition;
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka::{Offset, TopicPartitionList};
use semel_core::Failure;

use super::config::KafkaConfig;
use super::error;
use super::subscription::arrived::Arrived;

/// A topic that is being read. Every call waits; none is for a thread that must not.
pub(super) struct Reading {
    consumer: BaseConsumer,
    topic: String,
    /// Where each partition began and ended.
    spans: BTreeMap<i32, (i64, i64)>,
    /// The ends of partitions that are not read to their end.
    unread: BTreeMap<i32, i64>,
    patience: Duration,
}

impl Reading {
    /// Begins to read a topic, as whoever reads committed sees it. One that does not exist has no
    /// partitions. The group is a name that rights are given to; it is not joined.
    ///
    /// # Errors
    /// `Unavailable` when the brokers cannot be reached, `Misconfigured` when the user may not read.
    pub(super) fn open(config: &KafkaConfig, group: &str, topic: &str) -> Result<Self, Failure> {
        let failure = |error| error::failure("read a topic", error);
        // One for each topic: the end of a partition is told without its topic.
        let consumer: BaseConsumer = config
            .connection()
            .set("group.id", group)
            .set("enable.auto.commit", "false")
            .set("enable.partition.eof", "true")
            .set("isolation.level", "read_committed")
            .set("fetch.wait.max.ms", "20")
            .create()
            .map_err(failure)?;
        let patience = config.patience;
        let mut spans = BTreeMap::new();
        for number in partitions(&consumer, topic, patience)? {
            let span = consumer.fetch_watermarks(topic, number, patience).map_err(failure)?;
            spans.insert(number, span);
        }
        let mut assignment = TopicPartitionList::new();
        let mut unread = BTreeMap::new();
        for (number, (begin, end)) in spans.iter().filter(|(_, (begin, end))| begin < end) {
            let from = Offset::Offset(*begin);
            assignment.add_partition_offset(topic, *number, from).map_err(failure)?;
            unread.insert(*number, *end);
        }
        consumer.assign(&assignment).map_err(failure)?;
        Ok(Self { consumer, topic: topic.to_owned(), spans, unread, patience })
    }

    /// How many partitions the topic has.
    pub(super) fn partitions(&self) -> usize {
        self.spans.len()
    }

    /// Where every partition began and ended.
    pub(super) fn spans(&self) -> &BTreeMap<i32, (i64, i64)> {
        &self.spans
    }

    /// The next message of any partition; none at the end of all.
    ///
    /// # Errors
    /// `Unavailable` when the brokers send nothing for too long, `Misconfigured` when the user may
    /// not read.
    pub(super) fn next(&mut self) -> Result<Option<Arrived>, Failure> {
        let mut deadline = Instant::now() + self.patience;
        while !self.unread.is_empty() {
            let left = deadline.checked_duration_since(Instant::now());
            let left = left.ok_or_else(|| error::no_answer("a topic does not end"))?;
            match self.consumer.poll(left) {
                Some(Ok(message)) => {
                    let arrived = Arrived::new(&message);
                    let end = self.unread.get(&arrived.partition.number).copied().unwrap_or(0);
                    if arrived.offset + 1 >= end {
                        self.unread.remove(&arrived.partition.number);
                    }
                    if arrived.offset < end {
                        return Ok(Some(arrived));
                    }
                }
                Some(Err(KafkaError::PartitionEOF(number))) => {
                    self.unread.remove(&number);
                }
                Some(Err(KafkaError::MessageConsumption(
                    code @ (Code::TopicAuthorizationFailed | Code::GroupAuthorizationFailed),
                ))) => return Err(error::of_topic(&self.topic, code)),
                // Connections come and go; whether it goes on in time is all that counts.
                Some(Err(_)) | None => continue,
            }
            deadline = Instant::now() + self.patience;
        }
        Ok(None)
    }
}

/// The partitions of a topic; none if it does not exist.
fn partitions(
    consumer: &BaseConsumer,
    topic: &str,
    patience: Duration,
) -> Result<Vec<i32>, Failure> {
    let metadata = consumer.fetch_metadata(Some(topic), patience);
    let metadata = metadata.map_err(|error| error::failure("look for a topic", error))?;
    let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else {
        return Ok(Vec::new());
    };
    match found.error().map(Code::from) {
        None => Ok(found.partitions().iter().map(MetadataPartition::id).collect()),
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => Ok(Vec::new()),
        Some(code) => Err(error::of_topic(topic, code)),
    }
}
