//! The ids in their topic: one record per consumer and message, `CONSUMER/ID`, whose value is `0`, or
//! `1` and what the effect returned. A tombstone forgets it.
//!
//! Beside them each partition has a mark, which whoever opens the inbox writes: all that was committed
//! before is in front of it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::BorrowedMessage;
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};
use semel_core::{EventId, Failure};
use uuid::Uuid;

use super::super::error;
use super::super::once::Line;
use super::desk::{Desk, now, seconds};
use super::memory::{Key, Second};

/// The topic with the ids of an inbox.
#[derive(Clone, Debug)]
pub(super) struct Log {
    pub(super) topic: String,
    pub(super) partitions: i32,
    /// How old an id may be that is still of interest.
    pub(super) keep: Duration,
}

/// Who wrote a mark, and when of the times that he did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) tenure: Uuid,
    pub(super) round: Uuid,
}

/// Up to where the log is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// What is there now.
    End,
    /// This mark, in all partitions.
    Mark(Mark),
}

/// What was found beside the ids.
#[derive(Debug)]
pub(super) struct Found {
    /// Where each partition was left.
    pub(super) positions: Vec<i64>,
    /// Whose marks there are.
    pub(super) tenures: BTreeSet<Uuid>,
}

const MARK: &str = "mark";

impl Log {
    /// A mark, for all partitions.
    pub(super) fn marks(&self, mark: Mark) -> Vec<Line> {
        let value = [*mark.tenure.as_bytes(), *mark.round.as_bytes()].concat();
        let line = |partition| Line { partition, key: MARK.into(), value: Some(value.clone()) };
        (0..self.partitions).map(line).collect()
    }

    /// That a message took effect.
    pub(super) fn memory(&self, key: &Key, result: Option<&Bytes>) -> Line {
        let value = match result {
            Some(result) => [b"1", result.as_ref()].concat(),
            None => b"0".to_vec(),
        };
        Line { value: Some(value), ..self.tombstone(key) }
    }

    /// That it may take effect again.
    pub(super) fn tombstone(&self, key: &Key) -> Line {
        // The last bytes of an id are random, those before are the time.
        let number = key.id.as_uuid().as_u128() % u128::from(self.partitions.max(1).unsigned_abs());
        let partition = i32::try_from(number).unwrap_or(0);
        Line { partition, key: format!("{}/{}", key.consumer, key.id), value: None }
    }

    /// Tells the desk what is in the log from these positions on, or from its beginning; it blocks.
    ///
    /// # Errors
    /// `Unavailable` when nothing more comes for as long as the patience lasts, or there is more than
    /// is to be remembered; `Misconfigured` when it may not be read.
    pub(super) fn read(
        &self,
        client: &ClientConfig,
        from: &[i64],
        until: Until,
        patience: Duration,
        desk: &Desk,
    ) -> Result<Found, Failure> {
        let consumer = self.consumer(client, from).map_err(|error| self.unread(error))?;
        let mut found = Found { positions: from.to_vec(), tenures: BTreeSet::new() };
        found.positions.resize(self.partitions.unsigned_abs() as usize, 0);
        let (mut ended, mut last, mut nobody) = (BTreeSet::new(), Instant::now(), Names::default());
        while ended.len() < found.positions.len() {
            let left = patience.saturating_sub(last.elapsed());
            if left.is_zero() {
                return Err(error::no_answer("the ids of the inbox do not end"));
            }
            let message = match consumer.poll(left) {
                None => continue,
                Some(Ok(message)) => message,
                Some(Err(KafkaError::PartitionEOF(partition))) => {
                    if until == Until::End {
                        ended.insert(partition);
                    }
                    continue;
                }
                // Connections come and go; whether it goes on in time is all that counts.
                Some(Err(KafkaError::MessageConsumption(code))) if !is_forbidden(code) => continue,
                Some(Err(error)) => return Err(self.unread(error)),
            };
            last = Instant::now();
            if let Some(position) = found.positions.get_mut(place(&message)) {
                *position = message.offset() + 1;
            }
            if let Some(mark) = mark_of(&message) {
                found.tenures.insert(mark.tenure);
                if until == Until::Mark(mark) {
                    ended.insert(message.partition());
                }
            } else {
                self.tell(desk, &message, &mut nobody)?;
            }
        }
        Ok(found)
    }

    fn consumer(&self, client: &ClientConfig, from: &[i64]) -> Result<BaseConsumer, KafkaError> {
        let consumer: BaseConsumer = client
            .clone()
            .set("group.id", &self.topic)
            .set("enable.auto.commit", "false")
            .set("enable.partition.eof", "true")
            .set("isolation.level", "read_committed")
            // A position that was deleted meanwhile: what is left begins later.
            .set("auto.offset.reset", "earliest")
            .set("fetch.wait.max.ms", "20")
            .set("queued.max.messages.kbytes", "16384")
            .create()?;
        let mut assignment = TopicPartitionList::new();
        for partition in 0..self.partitions {
            let position = from.get(partition.unsigned_abs() as usize);
            let offset = position.map_or(Offset::Beginning, |position| Offset::Offset(*position));
            assignment.add_partition_offset(&self.topic, partition, offset)?;
        }
        consumer.assign(&assignment)?;
        Ok(consumer)
    }

    fn tell(
        &self,
        desk: &Desk,
        message: &BorrowedMessage<'_>,
        names: &mut Names,
    ) -> Result<(), Failure> {
        let Some(key) = message.key().and_then(|key| names.read(key)) else { return Ok(()) };
        let Some(value) = message.payload() else {
            desk.unlearn(&[key]);
            return Ok(());
        };
        let at = message.timestamp().to_millis().map_or_else(now, seconds);
        match result_of(value) {
            Some(result) if !self.is_over(at) => desk.learn(&key, at, result),
            _ => Ok(()),
        }
    }

    fn is_over(&self, at: Second) -> bool {
        let keep = Second::try_from(self.keep.as_secs()).unwrap_or(Second::MAX);
        at.saturating_add(keep) < now().saturating_sub(1)
    }

    fn unread(&self, error: KafkaError) -> Failure {
        match error.rdkafka_error_code() {
            Some(code) if is_forbidden(code) => error::inbox_forbidden(
                &self.topic,
                "allow the user Read on the topic, and on the group of the same name",
            ),
            _ => error::failure("read the ids of the inbox", error),
        }
    }
}

/// The name of a consumer, which is the same in most keys, is kept once.
#[derive(Default)]
struct Names {
    last: Option<Arc<str>>,
}

impl Names {
    /// What a key says, if it is one of ours.
    fn read(&mut self, key: &[u8]) -> Option<Key> {
        let (consumer, id) = std::str::from_utf8(key).ok()?.rsplit_once('/')?;
        let id = EventId::from_uuid(Uuid::try_parse(id).ok()?);
        let name = match self.last.take().filter(|last| **last == *consumer) {
            Some(last) => last,
            None => consumer.into(),
        };
        self.last = Some(Arc::clone(&name));
        Some(Key { consumer: name, id })
    }
}

/// What an effect returned, if this says so; nothing if it is none of our values.
#[expect(clippy::option_option, reason = "an effect may return nothing")]
fn result_of(value: &[u8]) -> Option<Option<Bytes>> {
    match value.split_first()? {
        (b'0', []) => Some(None),
        (b'1', result) => Some(Some(Bytes::copy_from_slice(result))),
        _ => None,
    }
}

fn mark_of(message: &BorrowedMessage<'_>) -> Option<Mark> {
    (message.key()? == MARK.as_bytes()).then(|| read_mark(message.payload()?)).flatten()
}

fn read_mark(value: &[u8]) -> Option<Mark> {
    let (tenure, round) = value.split_at_checked(16)?;
    Some(Mark { tenure: Uuid::from_slice(tenure).ok()?, round: Uuid::from_slice(round).ok()? })
}

fn place(message: &BorrowedMessage<'_>) -> usize {
    message.partition().unsigned_abs() as usize
}

const fn is_forbidden(code: Code) -> bool {
    matches!(code, Code::TopicAuthorizationFailed | Code::GroupAuthorizationFailed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> Log {
        let keep = Duration::from_secs(100);
        Log { topic: "billing-inbox".into(), partitions: 3, keep }
    }

    #[test]
    fn what_is_written_is_read() {
        for consumer in ["payments", "Lager ü 🚀", "a/b", ""] {
            let key = Key { consumer: consumer.into(), id: EventId::now() };
            let mut names = Names::default();
            for result in [None, Some(Bytes::new()), Some(Bytes::from_static(b"\x00\xffpaid"))] {
                let line = log().memory(&key, result.as_ref());
                assert_eq!(names.read(line.key.as_bytes()).as_ref(), Some(&key));
                assert_eq!(result_of(&line.value.unwrap()), Some(result));
                assert_eq!(log().tombstone(&key).partition, line.partition);
                assert!((0..3).contains(&line.partition));
            }
        }
    }

    #[test]
    fn a_mark_is_in_every_partition_and_says_whose_it_is() {
        let mark = Mark { tenure: Uuid::now_v7(), round: Uuid::now_v7() };
        let lines = log().marks(mark);
        assert_eq!(lines.iter().map(|line| line.partition).collect::<Vec<_>>(), [0, 1, 2]);
        for line in lines {
            assert!(Names::default().read(line.key.as_bytes()).is_none(), "no id is called so");
            assert_eq!(read_mark(&line.value.unwrap()), Some(mark));
        }
    }

    /// The topic may hold records of somebody else.
    #[test]
    fn fuzzed_any_record_is_read_or_passed() {
        let key = Key { consumer: "payments".into(), id: EventId::now() };
        let line = log().memory(&key, Some(&Bytes::from_static(b"paid")));
        let examples = [line.key.into_bytes(), line.value.unwrap(), b"mark".to_vec()];
        semel_testkit::fuzz::fuzz(&examples, |record| {
            let _ = (Names::default().read(record), result_of(record), read_mark(record));
        });
    }
}
