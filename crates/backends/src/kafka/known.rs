//! Where the brokers know a producer: what may leave at once, and what waits for the first of its
//! partition.
//!
//! A producer has several requests for a partition under way, and numbers them. A broker turns down
//! whatever does not follow the last number it has of this producer; but where it has none it takes
//! any (KAFKA-14312). Of the first two requests of a new producer it may turn down the one and take
//! the other: messages overtake each other, and librdkafka even counts the first as written, when it
//! was to be tried again, because one behind it is. So in each partition one message goes ahead, alone,
//! and the others follow when it is confirmed.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use semel_core::Message;

use super::record::Record;
use super::session::lock;

/// Partitions in which a producer has confirmed messages, topic by topic.
#[derive(Default)]
pub(super) struct Known {
    topics: Mutex<HashMap<String, Topic>>,
}

/// A wave, divided.
#[derive(Default)]
pub(super) struct Turn {
    pub(super) now: Vec<Record>,
    /// Those of them that are to be the first in their partitions; no two have the same.
    pub(super) first: HashSet<usize>,
    /// What waits for them.
    pub(super) later: Vec<Record>,
}

impl Known {
    /// Whether all partitions of all topics of a wave are known.
    pub(super) fn covers(&self, batch: &[Message], wave: &[Record]) -> bool {
        let topics = lock(&self.topics);
        let (mut last, now) = (None, Instant::now());
        wave.iter().all(|record| {
            let topic = batch[record.place].topic.as_str();
            last.replace(topic) == Some(topic)
                || topics.get(topic).is_some_and(|known| known.is_whole() && !known.is_old(now))
        })
    }

    /// Divides a wave.
    pub(super) fn divide(&self, batch: &[Message], wave: Vec<Record>) -> Turn {
        let mut topics = lock(&self.topics);
        let now = Instant::now();
        topics.retain(|_, known| !known.is_old(now));
        let (mut turn, mut begun) = (Turn::default(), HashSet::new());
        for record in wave {
            let message = &batch[record.place];
            let topic = message.topic.as_str();
            let known = topics.get(topic);
            let partition = known.and_then(|known| known.partition(message.key()));
            if known.zip(partition).is_some_and(|(known, it)| known.met.contains(&it)) {
                turn.now.push(record);
            } else if begun.insert((topic, partition)) {
                turn.first.insert(record.place);
                turn.now.push(record);
            } else {
                turn.later.push(record);
            }
        }
        turn
    }

    /// Topics of these messages of which it is not known how many partitions they have, but that
    /// they are there: their first message is confirmed.
    pub(super) fn uncounted<'a>(
        &self,
        messages: impl Iterator<Item = &'a Message>,
    ) -> HashSet<&'a str> {
        let topics = lock(&self.topics);
        let is_uncounted =
            |topic: &&str| topics.get(*topic).is_some_and(|known| known.partitions.is_none());
        messages.map(|message| message.topic.as_str()).filter(is_uncounted).collect()
    }

    /// How many partitions a topic has.
    pub(super) fn count(&self, topic: &str, partitions: u32) {
        self.change(topic, |known| known.partitions = Some(partitions));
    }

    /// A message was confirmed in this partition.
    pub(super) fn meet(&self, message: &Message, partition: i32) {
        self.change(message.topic.as_str(), |known| {
            if known.partition(message.key()).is_some_and(|expected| expected != partition) {
                // It has more partitions by now.
                *known = Topic::new();
            }
            known.met.insert(partition);
        });
    }

    fn change(&self, topic: &str, change: impl FnOnce(&mut Topic)) {
        change(lock(&self.topics).entry(topic.to_owned()).or_insert_with(Topic::new));
    }
}

struct Topic {
    since: Instant,
    partitions: Option<u32>,
    met: HashSet<i32>,
}

impl Topic {
    fn new() -> Self {
        Self { since: Instant::now(), partitions: None, met: HashSet::new() }
    }

    fn is_whole(&self) -> bool {
        self.partitions.is_some_and(|count| self.met.len() >= count as usize)
    }

    /// Brokers forget a producer that was silent, by default for a day (`producer.id.expiration.ms`).
    fn is_old(&self, now: Instant) -> bool {
        const TRUSTED_FOR: Duration = Duration::from_secs(3600);
        now.saturating_duration_since(self.since) > TRUSTED_FOR
    }

    /// The partition of a key, as the partitioner of the client chooses it.
    fn partition(&self, key: &str) -> Option<i32> {
        let partition = (murmur2(key.as_bytes()) & 0x7fff_ffff).checked_rem(self.partitions?)?;
        i32::try_from(partition).ok()
    }
}

/// The hash by which the clients of Kafka divide keys among partitions.
fn murmur2(key: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const FACTOR: u32 = 0x5bd1_e995;
    let length = u32::try_from(key.len()).unwrap_or(u32::MAX);
    let (words, tail) = key.as_chunks::<4>();
    let mut hash = words.iter().fold(SEED ^ length, |hash, word| {
        let word = u32::from_le_bytes(*word).wrapping_mul(FACTOR);
        hash.wrapping_mul(FACTOR) ^ (word ^ word >> 24).wrapping_mul(FACTOR)
    });
    if !tail.is_empty() {
        let tail = tail.iter().rev().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
        hash = (hash ^ tail).wrapping_mul(FACTOR);
    }
    hash = (hash ^ hash >> 13).wrapping_mul(FACTOR);
    hash ^ hash >> 15
}

#[cfg(test)]
mod tests {
    use semel_core::Event;
    use semel_core::wire::Format;

    use super::*;

    /// Messages of these lanes, all to one topic, and what is to be sent of them.
    fn wave(lanes: &[&str]) -> (Vec<Message>, Vec<Record>) {
        let message = |lane: &&str| Message::first("orders", Event::new("order", *lane, "Changed"));
        let batch: Vec<_> = lanes.iter().map(message).collect();
        let record = |place| Record::new(place, &batch[place], Format::Plain, 1000, None).unwrap();
        let records = (0..batch.len()).map(record).collect();
        (batch, records)
    }

    /// Two keys that have the same of three partitions, and one that has another.
    fn keys() -> ([String; 2], String) {
        let topic = Topic { partitions: Some(3), ..Topic::new() };
        let keys = || (0..).map(|number| format!("key-{number}"));
        let mut first = keys().filter(|key| topic.partition(key) == Some(0));
        let other = keys().find(|key| topic.partition(key) == Some(1));
        ([first.next().unwrap(), first.next().unwrap()], other.unwrap())
    }

    fn places(records: &[Record]) -> Vec<usize> {
        records.iter().map(|record| record.place).collect()
    }

    #[test]
    fn of_a_topic_that_nobody_has_counted_one_goes_ahead() {
        let known = Known::default();
        let (batch, records) = wave(&["a", "a", "b"]);
        assert!(known.uncounted(batch.iter()).is_empty(), "it may not exist");
        let turn = known.divide(&batch, records);
        assert_eq!((places(&turn.now), places(&turn.later)), (vec![0], vec![1, 2]));
        assert_eq!(turn.first, HashSet::from([0]));
        known.meet(&batch[0], 0);
        assert_eq!(known.uncounted(batch.iter()), HashSet::from(["orders"]));
        let turn = known.divide(&batch, turn.later);
        assert_eq!((places(&turn.now), places(&turn.later)), (vec![1], vec![2]));
    }

    #[test]
    fn of_each_partition_one_goes_ahead() {
        let ([one, same], other) = keys();
        let known = Known::default();
        known.count("orders", 3);
        let (batch, records) = wave(&[&one, &one, &same, &other, &other]);
        let turn = known.divide(&batch, records);
        assert_eq!((places(&turn.now), places(&turn.later)), (vec![0, 3], vec![1, 2, 4]));
        assert_eq!(turn.first, HashSet::from([0, 3]));
        known.meet(&batch[0], 0);
        let turn = known.divide(&batch, turn.later);
        assert_eq!((places(&turn.now), places(&turn.later)), (vec![1, 2, 4], vec![]));
        assert_eq!(turn.first, HashSet::from([4]), "the one before it was not confirmed");
    }

    #[test]
    fn a_topic_is_known_when_all_its_partitions_are() {
        let (batch, records) = wave(&["a", "b"]);
        let known = Known::default();
        known.count("orders", 1);
        assert!(!known.covers(&batch, &records));
        known.meet(&batch[0], 0);
        assert!(known.covers(&batch, &records));
        let (mut both, records) = wave(&["a", "b"]);
        both[1].topic = "bills".into();
        assert!(!known.covers(&both, &records));
    }

    #[test]
    fn a_topic_with_more_partitions_than_were_counted_is_counted_again() {
        let ([one, _], _) = keys();
        let (batch, _) = wave(&[&one]);
        let known = Known::default();
        known.count("orders", 3);
        assert!(known.uncounted(batch.iter()).is_empty());
        known.meet(&batch[0], 5);
        assert_eq!(known.uncounted(batch.iter()), HashSet::from(["orders"]));
    }

    #[test]
    fn what_was_known_long_ago_is_not_trusted() {
        let topic = Topic::new();
        assert!(!topic.is_old(topic.since + Duration::from_secs(3600)));
        assert!(topic.is_old(topic.since + Duration::from_secs(3601)));
    }

    /// The numbers are those of the Java client, as the tests of librdkafka have them.
    #[test]
    fn keys_are_divided_as_by_the_client() {
        let cases = [
            ("kafka", 0xd067_cf64),
            ("giberish123456789", 0x8f55_2b0c),
            ("1234", 0x9fc9_7b14),
            ("234", 0xe7c0_09ca),
            ("34", 0x8739_30da),
            ("4", 0x5a4b_5ca1),
            ("", 0x106e_08d9),
        ];
        for (key, hash) in cases {
            assert_eq!(murmur2(key.as_bytes()), hash, "{key}");
        }
    }
}
