//! The journal: a compacted topic that says, of every share, which events are in Kafka already and
//! may be offered again. It is written in the same transactions as the events.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminOptions, NewTopic, TopicReplication};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};
use semel_core::coordination::Share;
use semel_core::{EventId, Failure};
use uuid::Uuid;

use super::super::error;
use super::super::topic::{Admin, count_partitions, until_it_appears};

/// The journal of a pipeline, as one share of it uses it.
#[derive(Clone, Debug)]
pub(super) struct Journal {
    id: String,
    pub(super) share: Share,
    pub(super) topic: String,
    partitions: i32,
}

/// What the journal says in one of its slots; nothing clears it.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) kind: Kind,
    pub(super) slot: usize,
    pub(super) events: Option<Vec<EventId>>,
}

/// Who confirmed the events of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The sink that last owned the share.
    Live,
    /// Those before it.
    Old,
}

/// A record of the journal, or of the ids of an inbox.
pub(in crate::kafka) struct Line {
    pub(in crate::kafka) partition: i32,
    pub(in crate::kafka) key: String,
    pub(in crate::kafka) value: Option<Vec<u8>>,
}

/// What the journal says.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// Events of this share, and how many slots of each kind they take.
    pub(super) own: HashSet<EventId>,
    pub(super) live_slots: usize,
    pub(super) old_slots: usize,
    /// Events of shares that the pipeline was divided into at another time.
    pub(super) others: HashSet<EventId>,
    /// Those shares.
    pub(super) divisions: BTreeSet<(u32, u32)>,
    /// The mark of this share before the one that was read up to.
    pub(super) mark_before: Option<Uuid>,
}

/// What was read: the latest line of each key.
#[derive(Default)]
struct Latest {
    lines: BTreeMap<String, Option<Vec<u8>>>,
    mark_before: Option<Uuid>,
}

impl Journal {
    /// The journal of pipeline `id`; it is made if it does not exist.
    ///
    /// # Errors
    /// `Misconfigured` when it may not be made, `Unavailable` when nobody answers.
    pub(super) async fn open(
        client: &ClientConfig,
        id: &str,
        share: Share,
        patience: Duration,
    ) -> Result<Self, Failure> {
        let topic = format!("{id}-progress");
        let admin: Admin =
            client.create().map_err(|error| error::failure("look for the journal", error))?;
        let admin = Arc::new(admin);
        let wanted = i32::try_from(share.of).unwrap_or(1);
        let mut partitions = count_partitions(&admin, &topic, patience).await?;
        if partitions == 0 {
            create(&admin, &topic, wanted, patience).await?;
            partitions = until_it_appears(&admin, &topic, patience).await?;
        }
        Ok(Self { id: id.to_owned(), share, topic, partitions })
    }

    /// The transactional id of a share, from its number and how many there are.
    pub(super) fn transactional_id(&self, (number, of): (u32, u32)) -> String {
        format!("{}-{}", self.id, name(number, of))
    }

    /// What marks the end of the journal for a reader: everything before it is settled.
    pub(super) fn marks(&self, round: Uuid) -> Vec<Line> {
        self.marks_of((self.share.number, self.share.of), round)
    }

    /// The marks of a share in the name of somebody else: its owner finds that they are not his.
    pub(super) fn marks_of(&self, share: (u32, u32), round: Uuid) -> Vec<Line> {
        let key = mark(share);
        let value = Some(round.as_bytes().to_vec());
        let line = |partition| Line { partition, key: key.clone(), value: value.clone() };
        (0..self.partitions).map(line).collect()
    }

    fn partition(&self) -> i32 {
        i32::try_from(self.share.number).unwrap_or(0) % self.partitions
    }

    /// An entry as it is written.
    pub(super) fn line(&self, entry: &Entry) -> Line {
        let share = name(self.share.number, self.share.of);
        let partition = self.partition();
        let key = format!("{share} {} {}", entry.kind.as_str(), entry.slot);
        Line { partition, key, value: entry.events.as_deref().map(encode) }
    }

    /// Reads everything up to the marks of this round; it blocks.
    ///
    /// # Errors
    /// `Unavailable` when it takes too long, `Misconfigured` when it may not be read.
    pub(super) fn read(
        &self,
        client: &ClientConfig,
        round: Uuid,
        patience: Duration,
    ) -> Result<Contents, Failure> {
        let read = self.try_read(client, round, patience);
        let latest = read.map_err(|error| match error.rdkafka_error_code() {
            Some(Code::TopicAuthorizationFailed | Code::GroupAuthorizationFailed) => forbidden(
                &self.topic,
                "allow the user Read on the topic, and on the group of the same name",
            ),
            _ => error::failure("read the journal back", error),
        })?;
        let Latest { lines, mark_before } =
            latest.ok_or_else(|| error::no_answer("the journal does not end"))?;
        let lines = lines.iter().filter_map(|(key, value)| Some((key.as_str(), value.as_deref()?)));
        Ok(Contents { mark_before, ..self.contents(lines) })
    }

    fn try_read(
        &self,
        client: &ClientConfig,
        round: Uuid,
        patience: Duration,
    ) -> KafkaResult<Option<Latest>> {
        let consumer: BaseConsumer = client
            .clone()
            .set("group.id", &self.topic)
            .set("enable.auto.commit", "false")
            .set("isolation.level", "read_committed")
            .set("fetch.wait.max.ms", "20")
            .create()?;
        let mut assignment = TopicPartitionList::new();
        for partition in 0..self.partitions {
            assignment.add_partition_offset(&self.topic, partition, Offset::Beginning)?;
        }
        consumer.assign(&assignment)?;
        let mut ended = BTreeSet::new();
        let (mut latest, mark) = (Latest::default(), mark((self.share.number, self.share.of)));
        let deadline = Instant::now() + patience;
        while ended.len() < self.partitions.unsigned_abs() as usize {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                return Ok(None);
            };
            let Some(message) = consumer.poll(left) else { continue };
            let message = match message {
                // Connections come and go; whether it ends in time is all that counts.
                Err(KafkaError::MessageConsumption(code)) if !is_forbidden(code) => continue,
                message => message?,
            };
            let key = String::from_utf8_lossy(message.key().unwrap_or_default()).into_owned();
            if message.payload() == Some(&round.as_bytes()[..]) {
                ended.insert(message.partition());
            } else if key == mark && message.partition() == self.partition() {
                latest.mark_before = message.payload().and_then(|it| Uuid::from_slice(it).ok());
            }
            latest.lines.insert(key, message.payload().map(<[u8]>::to_vec));
        }
        Ok(Some(latest))
    }

    /// What these lines say for this share.
    fn contents<'a>(&self, lines: impl Iterator<Item = (&'a str, &'a [u8])>) -> Contents {
        let mut contents = Contents::default();
        for (key, value) in lines {
            let Some((share, what)) = parse(key) else { continue };
            if share.1 != self.share.of {
                contents.divisions.insert(share);
                if what != What::End {
                    contents.others.extend(decode(value));
                }
            } else if share.0 == self.share.number
                && let What::Slot(kind, slot) = what
            {
                contents.own.extend(decode(value));
                let slots = match kind {
                    Kind::Live => &mut contents.live_slots,
                    Kind::Old => &mut contents.old_slots,
                };
                *slots = (slot + 1).max(*slots);
            }
        }
        contents
    }
}

impl Kind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Old => "old",
        }
    }
}

const END: &str = "end";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    End,
    Slot(Kind, usize),
}

fn mark((number, of): (u32, u32)) -> String {
    format!("{} {END}", name(number, of))
}

fn name(number: u32, of: u32) -> String {
    format!("{}-of-{of}", number + 1)
}

fn parse(key: &str) -> Option<((u32, u32), What)> {
    let mut words = key.split(' ');
    let (number, of) = words.next()?.split_once("-of-")?;
    let share = (number.parse::<u32>().ok()?.checked_sub(1)?, of.parse().ok()?);
    let what = match (words.next()?, words.next()) {
        (END, None) => What::End,
        ("live", Some(slot)) => What::Slot(Kind::Live, slot.parse().ok()?),
        ("old", Some(slot)) => What::Slot(Kind::Old, slot.parse().ok()?),
        _ => return None,
    };
    Some((share, what))
}

fn encode(events: &[EventId]) -> Vec<u8> {
    events.iter().flat_map(|event| *event.as_uuid().as_bytes()).collect()
}

fn decode(value: &[u8]) -> impl Iterator<Item = EventId> {
    let id = |bytes: &[u8]| Uuid::from_slice(bytes).ok().map(EventId::from_uuid);
    value.chunks_exact(16).filter_map(id)
}

async fn create(
    admin: &Admin,
    topic: &str,
    partitions: i32,
    patience: Duration,
) -> Result<(), Failure> {
    // The brokers' own number of replicas; small segments, so that there is little to read back.
    let new = NewTopic::new(topic, partitions, TopicReplication::Fixed(-1))
        .set("cleanup.policy", "compact")
        .set("segment.bytes", "16777216")
        .set("min.cleanable.dirty.ratio", "0.1")
        .set("max.message.bytes", "1048588");
    let options = AdminOptions::new().operation_timeout(Some(patience));
    let answer = admin.create_topics([&new], &options).await;
    let answer = answer.map_err(|error| error::failure("make the journal", error))?;
    match answer.into_iter().next() {
        Some(Err((_, Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed))) => {
            Err(forbidden(
                topic,
                &format!(
                    "create it: kafka-topics.sh --create --topic {topic} --partitions {partitions} \
                     --config cleanup.policy=compact --config segment.bytes=16777216"
                ),
            ))
        }
        Some(Err((_, code))) if code != Code::TopicAlreadyExists => {
            Err(error::failure("make the journal", KafkaError::AdminOp(code)))
        }
        _ => Ok(()),
    }
}

const fn is_forbidden(code: Code) -> bool {
    matches!(code, Code::TopicAuthorizationFailed | Code::GroupAuthorizationFailed)
}

fn forbidden(topic: &str, fix: &str) -> Failure {
    let what = format!("Kafka: the user may not make or read topic {topic:?}, the journal");
    Failure::misconfigured("E-KAFKA-ACL", what).with_fix(fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal(number: u32, of: u32) -> Journal {
        let share = Share::new(number, of).unwrap();
        Journal { id: "shop".into(), share, topic: "shop-progress".into(), partitions: 2 }
    }

    fn written(
        journal: &Journal,
        kind: Kind,
        slot: usize,
        events: &[EventId],
    ) -> (String, Vec<u8>) {
        let line = journal.line(&Entry { kind, slot, events: Some(events.to_vec()) });
        (line.key, line.value.unwrap())
    }

    #[test]
    fn a_share_reads_its_own_events_and_those_of_other_divisions() {
        let [mine, older, neighbour, former] = [(); 4].map(|()| EventId::now());
        let lines = [
            written(&journal(1, 3), Kind::Live, 0, &[mine]),
            written(&journal(1, 3), Kind::Old, 4, &[older]),
            written(&journal(2, 3), Kind::Live, 0, &[neighbour]),
            written(&journal(0, 1), Kind::Live, 0, &[former]),
        ];
        let lines = lines.iter().map(|(key, value)| (key.as_str(), value.as_slice()));
        let found = journal(1, 3).contents(lines);
        assert_eq!(found.own, HashSet::from([mine, older]));
        assert_eq!(found.others, HashSet::from([former]));
        assert_eq!((found.live_slots, found.old_slots), (1, 5));
        assert_eq!(found.divisions, BTreeSet::from([(0, 1)]));
        assert_eq!(journal(1, 3).transactional_id((0, 1)), "shop-1-of-1");
    }

    #[test]
    fn a_share_of_another_division_is_known_before_it_has_sent_anything() {
        let round = Uuid::nil();
        let marks = journal(0, 2).marks(round);
        assert_eq!(marks.iter().map(|mark| mark.partition).collect::<Vec<_>>(), [0, 1]);
        let value = marks[0].value.as_deref().unwrap();
        let found = journal(0, 1).contents([(marks[0].key.as_str(), value)].into_iter());
        assert_eq!(found.divisions, BTreeSet::from([(0, 2)]));
        assert!(found.others.is_empty() && found.own.is_empty());
    }

    #[test]
    fn other_lines_are_passed_over() {
        for key in ["", "x", "0-of-1 live 0", "1-of-1 live", "1-of-1 live x", "1-of-1 else 0"] {
            assert_eq!(parse(key), None, "{key}");
        }
    }

    /// The topic may hold records of somebody else.
    #[test]
    fn fuzzed_any_record_is_read_or_passed() {
        let key = written(&journal(1, 3), Kind::Live, 12, &[EventId::now()]).0;
        let examples = [key, mark((0, 1)), "4294967295-of-4294967295 old 7".into()];
        semel_testkit::fuzz::fuzz(&examples, |record| {
            if let Some((share, _)) = parse(&String::from_utf8_lossy(record)) {
                assert!(matches!(parse(&mark(share)), Some((same, What::End)) if same == share));
            }
            assert_eq!(decode(record).count(), record.len() / 16);
        });
    }
}
