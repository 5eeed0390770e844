//! Consumer groups: the shared suites, and what is particular to Kafka.

mod beginning;
mod errors;
mod positions;
#[cfg(feature = "postgres")]
mod storm;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, Headers, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};
use semel_backends::kafka::{KafkaSink, KafkaSubscription, KafkaSubscriptionConfig};
use semel_core::Event;
use semel_core::outbox::AppendError;
use semel_core::wire::{Binding, decode};
use semel_testkit::probe::{Probe, Ran, Skip, WriteProbe, run};
use semel_testkit::services::{Service, service};
use semel_testkit::suites;
use semel_testkit::suites::source::SourceProbe;
use semel_testkit::suites::subscription::{DeadLetter, SubscriptionProbe};
use tokio::time::{sleep, timeout};

use super::lab::Lab;
use super::topics::{self, PARTITIONS};
use super::{config, messages};

const PATIENCE: Duration = Duration::from_secs(30);
const MOST_UNSETTLED: usize = 100;

semel_testkit::source_suite!(Group);
semel_testkit::subscription_suite!(Group);

/// Through a proxy that the broker advertises: one door is enough for one scenario.
#[test]
fn an_outage_is_unavailable_and_passes() {
    let scenario = suites::subscription::an_outage_is_unavailable_and_passes::<Cuttable>;
    run::<Cuttable>("subscription", "an_outage_is_unavailable_and_passes", scenario);
}

/// A topic, its dead letters, and a group that reads it.
struct Group {
    /// Where the brokers are.
    brokers: String,
    topic: String,
    sink: KafkaSink,
}

impl Group {
    async fn at(brokers: &str) -> Self {
        let topic = topics::random_topic();
        topics::create(brokers, &topic, &[]).await;
        topics::create(brokers, &format!("{topic}.dead"), &[]).await;
        let sink = super::sink(brokers).await;
        Self { brokers: brokers.to_owned(), topic, sink }
    }

    /// A group of this name and of this test alone: members that come and go move partitions.
    fn config(&self, brokers: &str, group: &str) -> KafkaSubscriptionConfig {
        let group = self.group(group);
        let config = config(brokers).subscription(&group, &[&self.topic]).unwrap();
        config.session_timeout(Duration::from_secs(6)).most_unsettled(MOST_UNSETTLED)
    }

    fn group(&self, name: &str) -> String {
        format!("{name}-{}", self.topic)
    }

    /// A member, once it has something to read.
    async fn member(&self, brokers: &str, group: &str) -> KafkaSubscription {
        let member = timeout(PATIENCE, self.config(brokers, group).connect()).await;
        let member = member.expect("an answer").expect("connected");
        until_assigned(&member).await;
        member
    }

    async fn publish(&self, events: Vec<Event>) {
        let published = super::publish(&self.sink, &messages(&self.topic, events)).await;
        let confirmed = published.iter().all(|verdict| *verdict == semel_core::Verdict::Confirmed);
        assert!(confirmed, "{published:?}");
    }
}

async fn until_assigned(member: &KafkaSubscription) {
    let assigned = async {
        while member.partitions() == 0 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, assigned).await.expect("partitions are assigned");
}

impl Probe for Group {
    const BACKEND: &'static str = "kafka subscription";
    const PATIENCE: Duration = PATIENCE;
    const QUIET: Duration = Duration::from_millis(500);

    async fn fresh() -> Option<Self> {
        Some(Self::at(&service(Service::Kafka)?).await)
    }
}

impl WriteProbe for Group {
    type Tx = Vec<Event>;

    async fn begin(&self) -> Vec<Event> {
        Vec::new()
    }

    async fn append(&self, tx: &mut Vec<Event>, events: &[Event]) -> Result<(), AppendError> {
        tx.extend_from_slice(events);
        Ok(())
    }

    async fn commit(&self, tx: Vec<Event>) {
        self.publish(tx).await;
    }
}

impl SourceProbe for Group {
    type Source = KafkaSubscription;
    const CUMULATIVE: bool = true;

    async fn open(&self) -> KafkaSubscription {
        self.member(&self.brokers, "suite").await
    }

    fn fences(&self) -> Ran {
        Err(Skip::because("members of a group share its partitions"))
    }

    fn schedules(&self) -> Ran {
        Err(Skip::because("what reaches a broker is due"))
    }

    fn wakes(&self) -> Ran {
        Ok(())
    }
}

impl SubscriptionProbe for Group {
    async fn dead_letters(&self) -> Result<Vec<DeadLetter>, Skip> {
        let (brokers, topic) = (self.brokers.clone(), format!("{}.dead", self.topic));
        let reading = tokio::task::spawn_blocking(move || read_letters(&brokers, &topic));
        Ok(reading.await.expect("read back"))
    }

    async fn publish_foreign(&self, headers: &[(&str, &str)], body: &'static [u8]) -> Ran {
        let brokers = self.brokers.clone();
        let mut all = OwnedHeaders::new();
        for (key, value) in headers {
            all = all.insert(Header { key, value: Some(*value) });
        }
        let topic = self.topic.clone();
        let publishing = tokio::task::spawn_blocking(move || {
            let producer: BaseProducer =
                ClientConfig::new().set("bootstrap.servers", brokers).create().unwrap();
            let record = BaseRecord::<(), [u8]>::to(&topic).payload(body).headers(all);
            producer.send(record).map_err(|(error, _)| error).unwrap();
            producer.flush(PATIENCE).unwrap();
        });
        publishing.await.expect("published");
        Ok(())
    }

    async fn open_other_group(&self) -> Result<KafkaSubscription, Skip> {
        Ok(self.member(&self.brokers, "another").await)
    }

    fn most_unsettled(&self) -> Result<usize, Skip> {
        Ok(MOST_UNSETTLED)
    }
}

/// The same behind a door that can be shut.
struct Cuttable {
    lab: Arc<Lab>,
    door: usize,
    group: Group,
}

impl Probe for Cuttable {
    const BACKEND: &'static str = "kafka subscription behind a proxy";
    const PATIENCE: Duration = PATIENCE;

    async fn fresh() -> Option<Self> {
        let lab = Lab::open().await?;
        let (door, group) = (lab.next_door(), Group::at(&lab.plain).await);
        Some(Self { lab, door, group })
    }
}

impl WriteProbe for Cuttable {
    type Tx = Vec<Event>;

    async fn begin(&self) -> Vec<Event> {
        Vec::new()
    }

    async fn append(&self, tx: &mut Vec<Event>, events: &[Event]) -> Result<(), AppendError> {
        self.group.append(tx, events).await
    }

    async fn commit(&self, tx: Vec<Event>) {
        self.group.commit(tx).await;
    }
}

impl SourceProbe for Cuttable {
    type Source = KafkaSubscription;

    async fn open(&self) -> KafkaSubscription {
        self.group.member(&self.lab.door(self.door).address(), "suite").await
    }
}

impl SubscriptionProbe for Cuttable {
    async fn dead_letters(&self) -> Result<Vec<DeadLetter>, Skip> {
        self.group.dead_letters().await
    }

    async fn publish_foreign(&self, headers: &[(&str, &str)], body: &'static [u8]) -> Ran {
        self.group.publish_foreign(headers, body).await
    }

    fn most_unsettled(&self) -> Result<usize, Skip> {
        self.group.most_unsettled()
    }

    async fn interrupt(&self) -> Ran {
        self.lab.door(self.door).refuse(true);
        self.lab.door(self.door).cut();
        Ok(())
    }

    async fn restore(&self) {
        self.lab.door(self.door).refuse(false);
    }
}

fn read_letters(brokers: &str, topic: &str) -> Vec<DeadLetter> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("group.id", "reads-letters")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .set("fetch.wait.max.ms", "20")
        .create()
        .expect("a consumer");
    let mut assignment = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        assignment.add_partition_offset(topic, partition, Offset::Beginning).unwrap();
    }
    consumer.assign(&assignment).expect("assigned");
    let (mut letters, mut ended) = (Vec::new(), BTreeSet::new());
    while ended.len() < PARTITIONS.unsigned_abs() as usize {
        match consumer.poll(PATIENCE).expect("a message in time") {
            Ok(message) => {
                let headers = message.headers().into_iter().flat_map(Headers::iter);
                let headers: BTreeMap<_, _> = headers
                    .map(|it| {
                        let value = String::from_utf8(it.value.unwrap().to_vec()).unwrap();
                        (it.key.to_owned(), value)
                    })
                    .collect();
                let body = Bytes::copy_from_slice(message.payload().unwrap_or_default());
                let pairs = headers.iter().map(|(name, value)| (&**name, &**value));
                let event = decode(Binding::Kafka, None, pairs, body.clone()).ok();
                letters.push(DeadLetter { event, body, headers });
            }
            Err(KafkaError::PartitionEOF(partition)) => {
                ended.insert(partition);
            }
            Err(error) => unreachable!("{error}"),
        }
    }
    letters
}
