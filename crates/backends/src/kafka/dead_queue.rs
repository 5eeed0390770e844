//! Dead letters in a topic. A log gives nothing back from its middle: letters are taken out by
//! deleting the records up to them.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use rdkafka::admin::AdminOptions;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka::{Offset, TopicPartitionList};
use semel_core::wire::{Binding, Inscription};
use semel_core::{Failure, LaneKey, Message, Published, Receipt, Topic, Verdict};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::config::KafkaConfig;
use super::dispatch::{self, Carrier};
use super::error;
use super::reading::Reading;
use super::record::{Record, is_legal_topic};
use super::session::Landing;
use super::sink::KafkaSink;
use super::subscription::arrived::Arrived;
use super::topic::Admin;
use crate::dead_queue::{DeadLetter, DeadQueue};
use crate::hand::Hand;

impl KafkaConfig {
    /// The dead letters in a topic. They go back by their key, in the order of their partition: a
    /// partition is one lane.
    ///
    /// # Errors
    /// `Unavailable` when no broker can be reached, `Misconfigured` when there is no such topic, or
    /// the user may not read it.
    pub async fn dead_letters(&self, topic: &str) -> Result<Box<dyn DeadQueue>, Failure> {
        let (config, name) = (self.clone(), topic.to_owned());
        let opening = spawn_blocking(move || Reading::open(&config, "semel-dead", &name));
        let reading = opening.await.unwrap_or_else(|_| Err(interrupted()))?;
        if reading.partitions() == 0 {
            return Err(error::of_topic(topic, Code::UnknownTopicOrPartition));
        }
        let admin = self.connection().create().map_err(|error| error::failure("begin", error))?;
        Ok(Box::new(KafkaDeadQueue {
            topic: topic.to_owned(),
            spans: reading.spans().clone(),
            reading: Some(reading),
            hand: Hand::new(),
            // Nobody comes to share a request with.
            sink: KafkaSink::open_later(self.clone().linger(Duration::ZERO)),
            admin,
            patience: self.patience,
        }))
    }
}

struct KafkaDeadQueue {
    topic: String,
    spans: BTreeMap<i32, (i64, i64)>,
    /// None while a thread has it.
    reading: Option<Reading>,
    hand: Hand<Arrived>,
    sink: KafkaSink,
    admin: Admin,
    patience: Duration,
}

#[async_trait]
impl DeadQueue for KafkaDeadQueue {
    fn count(&self) -> usize {
        let letters = self.spans.values().map(|(begin, end)| end - begin).sum::<i64>();
        usize::try_from(letters).unwrap_or(0)
    }

    async fn next(&mut self, most: usize) -> Result<Vec<DeadLetter>, Failure> {
        self.hand.clear();
        let Some(mut reading) = self.reading.take() else { return Err(interrupted()) };
        let some = spawn_blocking(move || {
            let mut some = Vec::new();
            while some.len() < most
                && let Some(arrived) = reading.next()?
            {
                some.push(arrived);
            }
            Ok::<_, Failure>((reading, some))
        });
        let (reading, some) = some.await.unwrap_or_else(|_| Err(interrupted()))?;
        self.reading = Some(reading);
        Ok(some.into_iter().map(|arrived| self.letter(arrived)).collect())
    }

    async fn send(&self, letter: &DeadLetter, to: &str) -> Result<(), Failure> {
        if !is_legal_topic(to) {
            return Err(error::topic_name(to));
        }
        let arrived = self.hand.get(letter.receipt)?;
        let returning = Returning { arrived, sink: &self.sink };
        match dispatch::publish(&returning, &[arrived.bound_for(Topic::from(to))]).await {
            Published::All => Ok(()),
            Published::None(failure) => Err(failure),
            Published::Each(verdicts) => match verdicts.into_iter().next() {
                Some(Verdict::Failed(failure)) => Err(failure),
                _ => Err(error::producer_ended()),
            },
        }
    }

    async fn remove(&mut self, letters: &[Receipt]) -> Result<(), Failure> {
        let mut kept: BTreeMap<i32, i64> = BTreeMap::new();
        for Arrived { partition, offset, .. } in self.hand.all(letters) {
            let first = kept.entry(partition.number).or_default();
            *first = (*first).max(offset + 1);
        }
        if letters.is_empty() {
            // Nothing is before the beginning; but whoever may not delete is told.
            kept.extend(self.spans.iter().map(|(number, (begin, _))| (*number, *begin)));
        }
        self.delete_before(&kept).await?;
        self.hand.forget(letters);
        Ok(())
    }

    /// Nothing was taken from anybody.
    async fn close(&mut self) {
        self.hand.clear();
    }
}

impl KafkaDeadQueue {
    fn letter(&mut self, arrived: Arrived) -> DeadLetter {
        let event = arrived.event().ok();
        let said = Inscription::read(Binding::Kafka, arrived.headers());
        let home = said.as_ref().and_then(|said| said.origin.split_once('/'));
        let home = home.map(|(topic, _)| topic.to_owned());
        let lane = LaneKey::of_log(&arrived.partition.number.to_string());
        let receipt = self.hand.take(arrived);
        DeadLetter { lane, ..DeadLetter::new(receipt, event, said, home) }
    }

    /// Deletes records of partitions, before the first that each of them keeps.
    async fn delete_before(&self, kept: &BTreeMap<i32, i64>) -> Result<(), Failure> {
        let failure = |error: KafkaError| error::not_deleted(&self.topic, error);
        let mut offsets = TopicPartitionList::new();
        for (number, first) in kept {
            let offset = Offset::Offset(*first);
            offsets.add_partition_offset(&self.topic, *number, offset).map_err(failure)?;
        }
        if kept.is_empty() {
            return Ok(());
        }
        let patience = Some(self.patience);
        let options = AdminOptions::new().request_timeout(patience).operation_timeout(patience);
        let deleted = self.admin.delete_records(&offsets, &options).await.map_err(failure)?;
        deleted.elements().iter().try_for_each(|each| each.error().map_err(failure))
    }
}

/// A letter on its way back: the record is the one that it was.
struct Returning<'a> {
    arrived: &'a Arrived,
    sink: &'a KafkaSink,
}

impl Carrier for Returning<'_> {
    fn room(&self) -> usize {
        self.sink.room()
    }

    fn patience(&self) -> Duration {
        self.sink.patience()
    }

    fn record(&self, place: usize, _: &Message) -> Result<Record, Failure> {
        Ok(self.arrived.record(place))
    }

    async fn carry(
        &self,
        batch: &[Message],
        wave: Vec<Record>,
        deadline: Instant,
    ) -> Result<Landing, Failure> {
        self.sink.carry(batch, wave, deadline).await
    }

    async fn carry_alone(
        &self,
        batch: &[Message],
        record: Record,
        deadline: Instant,
    ) -> Result<Landing, Failure> {
        self.sink.carry_alone(batch, record, deadline).await
    }
}

fn interrupted() -> Failure {
    error::failure("read a topic", KafkaError::Canceled)
}
