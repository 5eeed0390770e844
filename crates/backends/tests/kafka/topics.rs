//! Topics, made and read with the client library itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewTopic, ResourceSpecifier, TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers};
use rdkafka::metadata::{Metadata, MetadataTopic};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};
use semel_core::wire::{Binding, decode};
use semel_core::{Event, EventId};
use semel_testkit::workload::numbers;

pub(crate) const PARTITIONS: i32 = 3;
/// The header of an event whose key is not the aggregate id: it says which one it is.
pub(crate) const OWN_KEY: &str = "key";
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn random_topic() -> String {
    format!("semel-{}", EventId::now())
}

/// A new topic of this name with these settings, which the broker knows of.
pub(crate) async fn create(brokers: &str, topic: &str, settings: &[(&str, &str)]) {
    create_on(brokers, topic, TopicReplication::Fixed(1), settings).await;
}

/// The same, with these replicas.
pub(crate) async fn create_on(
    brokers: &str,
    topic: &str,
    replicas: TopicReplication<'_>,
    settings: &[(&str, &str)],
) {
    let mut new = NewTopic::new(topic, PARTITIONS, replicas);
    for (name, value) in settings {
        new = new.set(name, value);
    }
    let (admin, options) = (admin(brokers), AdminOptions::new().operation_timeout(Some(PATIENCE)));
    let made = admin.create_topics([&new], &options).await.expect("an answer");
    made[0].as_ref().expect("the topic is made");
    until(|| is_known(&admin, topic)).await;
}

/// Deletes a topic, and waits until it is gone.
pub(crate) async fn delete(brokers: &str, topic: &str) {
    let (admin, options) = (admin(brokers), AdminOptions::new().operation_timeout(Some(PATIENCE)));
    admin.delete_topics(&[topic], &options).await.expect("an answer")[0].as_ref().expect("deleted");
    until(|| !is_known(&admin, topic)).await;
}

/// Deletes all messages of a partition before this one, as retention does.
pub(crate) async fn delete_before(brokers: &str, topic: &str, partition: i32, offset: i64) {
    let mut before = TopicPartitionList::new();
    before.add_partition_offset(topic, partition, Offset::Offset(offset)).unwrap();
    let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
    let deleted = admin(brokers).delete_records(&before, &options).await.expect("an answer");
    deleted.elements()[0].error().expect("they are deleted");
}

/// The controller answers before the brokers hear of what it did.
async fn until(is_so: impl Fn() -> bool) {
    let so = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, so).await.expect("the brokers know");
}

fn is_known(admin: &AdminClient<DefaultClientContext>, topic: &str) -> bool {
    let metadata = admin.inner().fetch_metadata(None, PATIENCE).expect("metadata");
    let has_leaders = |it: &MetadataTopic| it.partitions().iter().all(|one| one.leader() >= 0);
    metadata.topics().iter().any(|it| it.name() == topic && has_leaders(it))
}

/// Asks the brokers until they say what is to be found out.
pub(crate) async fn find_out<T: Send + 'static>(
    brokers: &str,
    find: impl Fn(&Metadata) -> Option<T> + Send + 'static,
) -> T {
    const ANSWER: Duration = Duration::from_secs(5);
    let admin = admin(brokers);
    let asking = tokio::task::spawn_blocking(move || {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            // A broker may die while it is asked.
            let metadata = admin.inner().fetch_metadata(None, ANSWER).ok();
            if let Some(found) = metadata.as_ref().and_then(&find) {
                return Some(found);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        None
    });
    asking.await.unwrap().expect("the brokers say it in time")
}

/// Gives a topic these settings, and the defaults in all else.
pub(crate) async fn alter(brokers: &str, topic: &str, settings: &[(&str, &str)]) {
    let entries = settings.iter().copied().collect();
    let change = AlterConfig { specifier: ResourceSpecifier::Topic(topic), entries };
    let (admin, options) = (admin(brokers), AdminOptions::new());
    let changed = admin.alter_configs([&change], &options).await;
    changed.expect("an answer")[0].as_ref().expect("the topic is changed");
    let heard = async {
        loop {
            let specifier = ResourceSpecifier::Topic(topic);
            let told = admin.describe_configs([&specifier], &options).await.expect("an answer");
            let told = told.into_iter().next().unwrap().expect("its settings");
            let value = |name| told.get(name).and_then(|entry| entry.value.as_deref());
            if settings.iter().all(|(name, wanted)| value(name) == Some(wanted)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, heard).await.expect("the broker hears of it");
}

fn admin(brokers: &str) -> AdminClient<DefaultClientContext> {
    ClientConfig::new().set("bootstrap.servers", brokers).create().expect("an admin client")
}

/// Everything in these topics, partition by partition, as events.
pub(crate) async fn read(brokers: &str, topics: &[&str]) -> Vec<Event> {
    let (brokers, topics) = (brokers.to_owned(), topics.iter().map(|&name| name.to_owned()));
    let topics: Vec<_> = topics.collect();
    let reading = tokio::task::spawn_blocking(move || read_all(&brokers, &topics));
    reading.await.expect("read back")
}

fn read_all(brokers: &str, topics: &[String]) -> Vec<Event> {
    topics.iter().flat_map(|topic| read_topic(brokers, topic)).collect()
}

/// What is committed; whatever is behind an open transaction is not.
fn read_topic(brokers: &str, topic: &str) -> Vec<Event> {
    let consumer = consumer(brokers, "read_committed");
    until_transactions_are_marked(&consumer, brokers, topic);
    let mut assignment = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        assignment.add_partition_offset(topic, partition, Offset::Beginning).unwrap();
    }
    consumer.assign(&assignment).expect("assigned");
    let mut events: BTreeMap<_, Vec<Event>> = BTreeMap::new();
    let mut ended = BTreeSet::new();
    while ended.len() < PARTITIONS.unsigned_abs() as usize {
        match consumer.poll(PATIENCE).expect("a message in time") {
            Ok(message) => events.entry(message.partition()).or_default().push(event(&message)),
            Err(KafkaError::PartitionEOF(partition)) => {
                ended.insert(partition);
            }
            Err(error) => unreachable!("{error}"),
        }
    }
    events.into_values().flatten().collect()
}

/// The brokers answer a commit before they mark its end in every partition, and up to that mark nobody
/// sees it. A transaction that stays open is not waited for.
fn until_transactions_are_marked(committed: &BaseConsumer, brokers: &str, topic: &str) {
    const MARKED_WITHIN: Duration = Duration::from_secs(2);
    let (all, deadline) = (consumer(brokers, "read_uncommitted"), Instant::now() + MARKED_WITHIN);
    // A broker that has just started may not know yet what it leads.
    let end = |consumer: &BaseConsumer, partition| {
        consumer.fetch_watermarks(topic, partition, PATIENCE).ok().map(|(_, end)| end)
    };
    let is_marked = |partition| {
        let end_of_all = end(&all, partition);
        end_of_all.is_some() && end(committed, partition) == end_of_all
    };
    while !(0..PARTITIONS).all(is_marked) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn consumer(brokers: &str, isolation: &str) -> BaseConsumer {
    ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("group.id", "reads-back")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .set("isolation.level", isolation)
        .set("fetch.wait.max.ms", "20")
        .create()
        .expect("a consumer")
}

fn event(message: &BorrowedMessage<'_>) -> Event {
    let headers = message.headers().into_iter().flat_map(Headers::iter);
    let headers: Vec<_> = headers
        .map(|header| (header.key, std::str::from_utf8(header.value.unwrap()).unwrap()))
        .collect();
    let body = Bytes::copy_from_slice(message.payload().expect("never a tombstone"));
    let event = decode(Binding::Kafka, None, headers, body).expect("an event");
    let key = event.headers.get(OWN_KEY).unwrap_or(&event.aggregate_id);
    assert_eq!(message.key(), Some(key.as_bytes()));
    event
}

/// The numbers of a lane, each where it arrived first.
pub(crate) async fn first_arrivals(brokers: &str, topic: &str, lane: &str) -> Vec<u64> {
    let arrived = read(brokers, &[topic]).await;
    let mut first = Vec::new();
    for number in numbers(arrived.iter().filter(|event| event.aggregate_id == lane)) {
        if !first.contains(&number) {
            first.push(number);
        }
    }
    first
}
