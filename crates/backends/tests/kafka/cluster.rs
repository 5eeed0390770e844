//! A cluster of three brokers that are killed one after the other.
//!
//! It takes a while to start, so there is one test for everything that is done to it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use rdkafka::admin::TopicReplication;
use rdkafka::metadata::{Metadata, MetadataPartition};
use semel_backends::kafka::{ExactlyOnceSink, KafkaConfig};
use semel_core::coordination::Share;
use semel_core::{EventId, Fault, Message, Sink, Verdict};
use semel_testkit::services::{Private, Service, service};
use semel_testkit::workload::{events, numbers};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use super::outages::blocking;
use super::{config, expect, failure, messages, publish, topics};

/// How soon events flow when there is a leader again, and enough replicas are in sync.
const SOON: Duration = Duration::from_secs(3);
const BATCH: u64 = 20;

#[tokio::test]
async fn a_cluster_that_loses_its_leader_and_then_too_many_replicas_loses_no_event() {
    let Some(_) = service(Service::Kafka) else { return };
    let Some(cluster) = Cluster::start().await else { return };
    let (topic, once) = (topics::random_topic(), topics::random_topic());
    cluster.create(&topic).await;
    cluster.create(&once).await;

    let (count, count_once) = publish_while_the_leader_is_killed(&cluster, &topic, &once).await;
    cluster.expect_each_once(&topic, count).await;
    cluster.expect_each_once(&once, count_once).await;

    publish_while_too_few_are_in_sync(&cluster, &topic).await;
    cluster.expect_each_once(&topic, count).await;
    cluster.end().await;
}

/// Says how many events were confirmed, of both sinks.
async fn publish_while_the_leader_is_killed(
    cluster: &Cluster,
    topic: &str,
    once: &str,
) -> (u64, u64) {
    // With the patience that it has by default.
    let sink = KafkaConfig::new(&cluster.addresses()).unwrap().connect().await.unwrap();
    let once_config = config(&cluster.addresses()).patience(Duration::from_secs(10));
    let (progress, progress_once) = (Progress::default(), Progress::default());
    let killing = async {
        progress.reaches(25 * BATCH).await;
        progress_once.reaches(5 * BATCH).await;
        let leader = cluster.leader(topic, 3).await;
        cluster.kill(leader).await;
        let next = cluster.leader(topic, 2).await;
        assert_ne!(next, leader);
        let led_again = Instant::now();
        progress.reaches(progress.confirmed() + BATCH).await;
        assert!(led_again.elapsed() < SOON, "{:?}", led_again.elapsed());
        progress_once.reaches(progress_once.confirmed() + BATCH).await;
        progress.stop();
        progress_once.stop();
    };
    let writing = write(&sink, topic, &progress);
    let writing_once = write_exactly_once(&once_config, once, &progress_once);
    let all = async { tokio::join!(writing, writing_once, killing) };
    let (count, count_once, ()) = timeout(Duration::from_secs(60), all).await.expect("it goes on");
    (count, count_once)
}

/// The leader that is left is alone, and the topic wants two.
async fn publish_while_too_few_are_in_sync(cluster: &Cluster, topic: &str) {
    let patience = Duration::from_secs(3);
    let sink = config(&cluster.addresses()).patience(patience).connect().await.unwrap();
    let leader = cluster.leader(topic, 2).await;
    cluster.kill(leader).await;
    assert_eq!(cluster.leader(topic, 1).await, Cluster::CONTROLLER);
    let batch = messages(topic, events("b", 0..3));
    let verdicts = publish(&sink, &batch).await;
    expect(failure(&verdicts[0]), Fault::Unavailable, "E-KAFKA-DOWN");
    assert_eq!(verdicts[1..], [Verdict::Behind, Verdict::Behind]);

    cluster.restart(leader).await;
    cluster.leader(topic, 2).await;
    let enough_again = Instant::now();
    let confirmed = timeout(Duration::from_secs(60), publish_all(&sink, batch)).await;
    confirmed.expect("confirmed at last");
    assert!(enough_again.elapsed() < SOON, "{:?}", enough_again.elapsed());
    let first = topics::first_arrivals(cluster.first(), topic, "b").await;
    assert_eq!(first, [0, 1, 2]);
}

async fn write(sink: &impl Sink, topic: &str, progress: &Progress) -> u64 {
    while let Some(batch) = progress.next_batch(topic).await {
        publish_all(sink, batch).await;
        progress.advance();
    }
    progress.confirmed()
}

/// Where librdkafka does not know how to go on, the sink is opened anew, as a group of relays does it.
async fn write_exactly_once(config: &KafkaConfig, topic: &str, progress: &Progress) -> u64 {
    let id = format!("semel-cluster-{}", EventId::now());
    let mut sink = open_at_last(config, &id).await;
    while let Some(batch) = progress.next_batch(topic).await {
        let ids: Vec<_> = batch.iter().map(|message| message.event.id).collect();
        let mut rest = unconfirmed(&sink, batch).await;
        while !rest.is_empty() {
            if sink.check().await.is_err_and(|failure| failure.fault() == Fault::Refused) {
                sink = open_at_last(config, &id).await;
            }
            rest = unconfirmed(&sink, rest).await;
        }
        sink.settled(&ids);
        progress.advance();
    }
    progress.confirmed()
}

async fn open_at_last(config: &KafkaConfig, id: &str) -> ExactlyOnceSink {
    loop {
        match config.connect_exactly_once(id, Share::WHOLE).await {
            Ok(sink) => return sink,
            Err(failure) => assert_eq!(failure.fault(), Fault::Unavailable, "{failure}"),
        }
    }
}

/// As the engine does it: what is not confirmed comes again.
async fn publish_all(sink: &impl Sink, batch: Vec<Message>) {
    let mut rest = batch;
    while !rest.is_empty() {
        rest = unconfirmed(sink, rest).await;
    }
}

/// Publishes, and gives back what is not confirmed; nothing but an outage may be the reason.
async fn unconfirmed(sink: &impl Sink, batch: Vec<Message>) -> Vec<Message> {
    let verdicts = publish(sink, &batch).await;
    for verdict in &verdicts {
        if let Verdict::Failed(failure) = verdict {
            assert_eq!(failure.fault(), Fault::Unavailable, "{failure:?}");
        }
    }
    let each = batch.into_iter().zip(verdicts);
    let rest = each.filter(|(_, verdict)| *verdict != Verdict::Confirmed);
    rest.map(|(message, _)| message).collect()
}

/// How far a writer of lane `a` is, and whether that is enough.
#[derive(Default)]
struct Progress {
    confirmed: AtomicU64,
    enough: AtomicBool,
}

impl Progress {
    fn confirmed(&self) -> u64 {
        self.confirmed.load(Ordering::Relaxed)
    }

    async fn reaches(&self, count: u64) {
        while self.confirmed() < count {
            sleep(Duration::from_millis(10)).await;
        }
    }

    fn stop(&self) {
        self.enough.store(true, Ordering::Relaxed);
    }

    /// After a moment, or there would be too many to read back.
    async fn next_batch(&self, topic: &str) -> Option<Vec<Message>> {
        sleep(Duration::from_millis(2)).await;
        let first = self.confirmed();
        let enough = self.enough.load(Ordering::Relaxed);
        (!enough).then(|| messages(topic, events("a", first..first + BATCH)))
    }

    fn advance(&self) {
        self.confirmed.fetch_add(BATCH, Ordering::Relaxed);
    }
}

/// Three brokers. The first is the controller too, so it has to stay.
struct Cluster {
    nodes: Vec<Arc<Private>>,
}

impl Cluster {
    const CONTROLLER: i32 = 1;
    /// Whoever comes first leads, while it lives.
    const REPLICAS: &'static [i32] = &[2, 3, Self::CONTROLLER];

    async fn start() -> Option<Self> {
        let cluster = blocking(Self::start_nodes).await?;
        let all = cluster.nodes.len();
        let all_are_there = move |it: &Metadata| (it.brokers().len() == all).then_some(());
        topics::find_out(cluster.first(), all_are_there).await;
        Some(cluster)
    }

    fn start_nodes() -> Option<Self> {
        let folder = TempDir::with_prefix("semel-kafka-cluster-").unwrap();
        let folder = folder.path();
        let first = start_node(folder, Self::CONTROLLER, "")?;
        let joining = &format!(
            "process.roles=broker\n\
             listeners=PLAINTEXT://127.0.0.1:{{port}}\n\
             controller.quorum.bootstrap.servers={}\n",
            address_of_the_controller(&first)
        );
        let others = thread::scope(|scope| {
            let starting =
                [2, 3].map(|number| scope.spawn(move || start_node(folder, number, joining)));
            starting.map(|node| node.join().unwrap())
        });
        let nodes = [Some(first)].into_iter().chain(others);
        Some(Self { nodes: nodes.map(|node| node.map(Arc::new)).collect::<Option<_>>()? })
    }

    /// The address of the one that is never killed.
    fn first(&self) -> &str {
        self.nodes[0].address()
    }

    fn addresses(&self) -> String {
        let addresses: Vec<_> = self.nodes.iter().map(|node| node.address()).collect();
        addresses.join(",")
    }

    async fn create(&self, topic: &str) {
        let replicas = [Self::REPLICAS; topics::PARTITIONS as usize];
        let replicas = TopicReplication::Variable(&replicas);
        topics::create_on(self.first(), topic, replicas, &[("min.insync.replicas", "2")]).await;
    }

    /// Who leads a topic, as soon as so many of its replicas are in sync.
    async fn leader(&self, topic: &str, in_sync: usize) -> i32 {
        let topic = topic.to_owned();
        let leader = move |metadata: &Metadata| leader(metadata, &topic, in_sync);
        topics::find_out(self.first(), leader).await
    }

    async fn kill(&self, number: i32) {
        assert_ne!(number, Self::CONTROLLER, "it has to stay");
        let node = self.node(number);
        blocking(move || node.kill()).await;
    }

    async fn restart(&self, number: i32) {
        let node = self.node(number);
        blocking(move || node.restart()).await;
    }

    fn node(&self, number: i32) -> Arc<Private> {
        Arc::clone(&self.nodes[usize::try_from(number - 1).unwrap()])
    }

    /// Lane `a` of this topic has every number once, and in order.
    async fn expect_each_once(&self, topic: &str, count: u64) {
        let expected: Vec<_> = (0..count).collect();
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let arrived = topics::read(self.first(), &[topic]).await;
            let lane = numbers(arrived.iter().filter(|event| event.aggregate_id == "a"));
            // What is committed is to be seen a moment later.
            if lane.len() >= expected.len() || Instant::now() > deadline {
                assert_eq!(lane, expected);
                return;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Brokers without a controller take their time to say good-bye.
    async fn end(self) {
        for node in self.nodes {
            blocking(move || node.kill()).await;
        }
    }
}

/// The leader of all partitions, if so many replicas of each are in sync.
fn leader(metadata: &Metadata, topic: &str, in_sync: usize) -> Option<i32> {
    let mut topics = metadata.topics().iter();
    let topic = topics.find(|it| it.name() == topic && it.error().is_none())?;
    let leader = topic.partitions().first()?.leader();
    let is_so = |it: &MetadataPartition| it.leader() == leader && it.isr().len() == in_sync;
    (leader > 0 && topic.partitions().iter().all(is_so)).then_some(leader)
}

/// A node with its number, and what else it is told.
fn start_node(folder: &Path, number: i32, more: &str) -> Option<Private> {
    /// A broker that is silent for so long is given up; 9 s by default.
    const RULES: &str = "broker.session.timeout.ms=5000\n\
        broker.heartbeat.interval.ms=500\n\
        default.replication.factor=3\n\
        offsets.topic.replication.factor=3\n\
        transaction.state.log.replication.factor=3\n\
        transaction.state.log.min.isr=2\n\
        listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n";
    /// For a quick start.
    const JVM: &str = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1";
    let properties = folder.join(format!("{number}.properties"));
    fs::write(&properties, format!("node.id={number}\n{RULES}{more}")).unwrap();
    let properties = properties.to_str().unwrap();
    let variables = [("SEMEL_KAFKA_PROPERTIES", properties), ("SEMEL_KAFKA_JVM", JVM)];
    Private::start_in(Service::Kafka, &variables)
}

fn address_of_the_controller(node: &Private) -> String {
    const KEY: &str = "controller.quorum.bootstrap.servers=";
    let properties = fs::read_to_string(node.folder().join("server.properties")).unwrap();
    properties.lines().find_map(|line| line.strip_prefix(KEY)).unwrap().to_owned()
}
