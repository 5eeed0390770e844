//! A message as it came from a topic, and as a dead letter.

use std::sync::Arc;

use bytes::Bytes;
use rdkafka::Message as _;
use rdkafka::message::{BorrowedHeaders, BorrowedMessage, Header, Headers, OwnedHeaders};
use semel_core::delivery::Log;
use semel_core::wire::{Binding, Epitaph, decode_keyed};
use semel_core::{Event, Failure, Message, Position, Publication, Topic};

use super::log::PartitionLog;
use crate::kafka::record::Record;
use crate::kafka::stamp;

/// A partition of a topic.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::kafka) struct Partition {
    pub(super) topic: Topic,
    pub(in crate::kafka) number: i32,
}

impl Partition {
    pub(super) fn new(topic: &str, number: i32) -> Self {
        Self { topic: Topic::from(topic), number }
    }
}

/// A message as it came.
pub(in crate::kafka) struct Arrived {
    pub(in crate::kafka) partition: Partition,
    pub(in crate::kafka) offset: i64,
    key: Option<Vec<u8>>,
    headers: OwnedHeaders,
    body: Bytes,
}

impl Arrived {
    pub(in crate::kafka) fn new(message: &BorrowedMessage<'_>) -> Self {
        let headers = message.headers().map(BorrowedHeaders::detach);
        Self {
            partition: Partition::new(message.topic(), message.partition()),
            offset: message.offset(),
            key: message.key().map(<[u8]>::to_vec),
            headers: headers.unwrap_or_default(),
            body: message.payload().map(Bytes::copy_from_slice).unwrap_or_default(),
        }
    }

    /// One that has nothing but a body.
    #[cfg(test)]
    pub(super) fn of_body(body: Bytes) -> Self {
        let (partition, headers) = (Partition::new("orders", 0), OwnedHeaders::new());
        Self { partition, offset: 0, key: None, headers, body }
    }

    /// The message for a consumer, in its log if that is known.
    ///
    /// # Errors
    /// `Refused` when it is no event.
    pub(in crate::kafka) fn message(
        &self,
        log: Option<&Arc<PartitionLog>>,
    ) -> Result<Message, Failure> {
        let mut message = Message::first(self.partition.topic.clone(), self.event()?);
        let key = self.key().filter(|key| *key != message.event.aggregate_id);
        message.key = key.map(Into::into);
        if let (Some(log), Ok(offset)) = (log, u64::try_from(self.offset)) {
            let stamp = self.headers.iter().find(|header| header.key == stamp::HEADER);
            let stamp = stamp.and_then(|header| header.value);
            message.publication = stamp.map_or(Publication::Unknown, |it| log.stamps.read(it));
            let log: Arc<dyn Log> = Arc::<PartitionLog>::clone(log);
            message.position = Some(Position { log, offset });
        }
        Ok(message)
    }

    /// The event that it carries.
    ///
    /// # Errors
    /// `Refused` when it carries none.
    pub(in crate::kafka) fn event(&self) -> Result<Event, Failure> {
        decode_keyed(Binding::Kafka, None, self.key(), self.headers(), self.body.clone())
    }

    /// Its key, if it is text.
    fn key(&self) -> Option<&str> {
        std::str::from_utf8(self.key.as_deref()?).ok()
    }

    /// How many bytes its body has.
    pub(super) fn body_size(&self) -> usize {
        self.body.len()
    }

    /// Where it was.
    pub(super) fn origin(&self) -> String {
        let Partition { topic, number } = &self.partition;
        format!("{topic}/{number}@{}", self.offset)
    }

    /// The message as a dead letter, with what is said of it.
    pub(super) fn letter(&self, place: usize, epitaph: Option<Epitaph<'_>>) -> Record {
        let mut record = self.record(place);
        let Some(epitaph) = epitaph else { return record };
        let mut all = Some(record.headers);
        epitaph.headers(Binding::Kafka, &mut |key, value| {
            record.size += key.len() + value.len();
            all = all.take().map(|all| all.insert(Header { key, value: Some(value) }));
        });
        record.headers = all.unwrap_or_default();
        record
    }

    /// What stands for the message on its way to another topic: it goes where its key leads.
    pub(in crate::kafka) fn bound_for(&self, topic: Topic) -> Message {
        let key = self.key.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
        let mut message = Message::first(topic, Event::new("semel.dead_letter", &*key, "Dead"));
        message.key = Some(key.into());
        message
    }

    /// The message as it was, without what is said of its death or of its place.
    pub(in crate::kafka) fn record(&self, place: usize) -> Record {
        let mut headers = OwnedHeaders::new_with_capacity(self.headers.count() + 5);
        let mut size = self.body.len();
        for Header { key, value } in self.headers.iter().filter(|header| is_kept(header.key)) {
            size += key.len() + value.map_or(0, <[u8]>::len);
            headers = headers.insert(Header { key, value });
        }
        Record { place, headers, value: self.body.clone(), size }
    }

    /// Its headers, as far as they are text; what is not is no header of an event.
    pub(in crate::kafka) fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.headers.iter().filter_map(|Header { key, value }| {
            std::str::from_utf8(value?).ok().map(|value| (key, value))
        })
    }
}

/// Whether a header says something of the message wherever it is.
fn is_kept(name: &str) -> bool {
    !Epitaph::has(name) && name != stamp::HEADER
}

/// Why a message is a dead letter.
#[derive(Clone, Copy)]
pub(super) struct Why<'a> {
    pub(super) failure: &'a Failure,
    pub(super) attempts: u32,
    pub(super) group: &'a str,
}
