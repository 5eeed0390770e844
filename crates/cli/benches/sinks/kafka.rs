//! Kafka, beside a bare producer of librdkafka with the same settings, and the tool that comes with Kafka.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::{ClientContext, DefaultClientContext};
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::message::{DeliveryResult, Header, OwnedHeaders};
use rdkafka::producer::{
    BaseRecord, NoCustomPartitioner, Producer, ProducerContext, ThreadedProducer,
};
use semel_backends::kafka::KafkaConfig;
use semel_core::coordination::Share;
use semel_core::wire::{Binding, Format};
use semel_core::{Message, Sink};

use crate::events::{AT_ONCE, Load};
use crate::{Alike, At, Broker, Native, Outcomes, Target};

pub(crate) const BROKER: Broker = Broker {
    name: "kafka",
    server: At::Variable("SEMEL_TEST_KAFKA_BROKERS"),
    make: |target| Box::pin(make(target)),
    sink: |target| {
        Box::pin(async move {
            Ok(Arc::new(KafkaConfig::new(&target.server)?.connect().await?) as Arc<dyn Sink>)
        })
    },
    bare: |target, load| Box::pin(async move { bare(&target, load) }),
    remove: |target| Box::pin(remove(target)),
    alike: None,
    native: Some(Native { tool: "kafka-producer-perf-test", run: native }),
};

/// Exactly once, beside the same bare producer and the same tool, which are not, and both of them with
/// transactions.
pub(crate) const ONCE: Broker = Broker {
    name: "kafka-once",
    sink: |target| {
        Box::pin(async move {
            let config = KafkaConfig::new(&target.server)?;
            let sink = config.connect_exactly_once(&target.topic, Share::WHOLE).await?;
            Ok(Arc::new(sink) as Arc<dyn Sink>)
        })
    },
    alike: Some(Alike {
        promise: "transactions, each as large as the engine may have under way",
        run: |target, load| Box::pin(async move { in_transactions(&target, load) }),
        native: Some(Native {
            tool: "kafka-producer-perf-test in transactions of 100 ms",
            run: native_in_transactions,
        }),
    }),
    ..BROKER
};

async fn make(target: Target) -> Outcomes<()> {
    let new = NewTopic::new(&target.topic, 6, TopicReplication::Fixed(1));
    admin(&target)?.create_topics([&new], &AdminOptions::new()).await?;
    Ok(())
}

async fn remove(target: Target) -> Outcomes<()> {
    admin(&target)?.delete_topics(&[&target.topic], &AdminOptions::new()).await?;
    Ok(())
}

fn admin(target: &Target) -> Outcomes<AdminClient<DefaultClientContext>> {
    Ok(ClientConfig::new().set("bootstrap.servers", &target.server).create()?)
}

/// Counts confirmations.
#[derive(Default)]
struct Count(AtomicUsize);

impl ClientContext for Count {}

impl ProducerContext<NoCustomPartitioner> for Count {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        assert!(result.is_ok(), "the broker takes it");
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn config(target: &Target) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", &target.server)
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("linger.ms", "1")
        .set("batch.size", "262144")
        .set("partitioner", "murmur2_random");
    config
}

/// One transaction after the other. It writes no journal, so after a crash nobody knows what is there.
fn in_transactions(target: &Target, load: Load) -> Outcomes<Duration> {
    const PATIENCE: Duration = Duration::from_secs(60);
    let mut config = config(target);
    config.set("transactional.id", &target.topic);
    let producer = ThreadedProducer::from_config_and_context(&config, Count::default())?;
    producer.init_transactions(PATIENCE)?;
    producer.client().fetch_metadata(Some(&target.topic), Duration::from_secs(10))?;
    let began = Instant::now();
    let mut batches = load.batches(&target.topic).peekable();
    while batches.peek().is_some() {
        producer.begin_transaction()?;
        for message in batches.by_ref().take(AT_ONCE).flatten() {
            send(&producer, &message);
        }
        producer.commit_transaction(PATIENCE)?;
    }
    Ok(began.elapsed())
}

fn bare(target: &Target, load: Load) -> Outcomes<Duration> {
    let config = config(target);
    let producer = ThreadedProducer::from_config_and_context(&config, Count::default())?;
    producer.client().fetch_metadata(Some(&target.topic), Duration::from_secs(10))?;
    let began = Instant::now();
    for message in load.batches(&target.topic).flatten() {
        send(&producer, &message);
    }
    producer.flush(Duration::from_secs(60))?;
    while producer.context().0.load(Ordering::Relaxed) < load.count {
        std::thread::sleep(Duration::from_micros(100));
    }
    Ok(began.elapsed())
}

fn send(producer: &ThreadedProducer<Count>, message: &Message) {
    let mut headers = Some(OwnedHeaders::new_with_capacity(8));
    Format::Plain.headers(&message.event, Binding::Kafka, &mut |key, value| {
        headers = headers.take().map(|all| all.insert(Header { key, value: Some(value) }));
    });
    let mut record = BaseRecord::to(message.topic.as_str())
        .key(message.key())
        .payload(&message.event.payload.bytes()[..])
        .headers(headers.unwrap_or_default());
    while let Err((_, back)) = producer.send(record) {
        record = back;
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn native(target: &Target, load: Load) -> Outcomes<f64> {
    perf_test(target, load, &[])
}

/// The tool ends a transaction by the clock: at its rates one has about as many records then as the
/// engine may have under way.
fn native_in_transactions(target: &Target, load: Load) -> Outcomes<f64> {
    let transactions = ["--transactional-id", &target.topic, "--transaction-duration-ms", "100"];
    perf_test(target, load, &transactions)
}

/// The same settings, and records of about the same size.
fn perf_test(target: &Target, load: Load, more: &[&str]) -> Outcomes<f64> {
    const HEADERS: usize = 250;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/kafka/perf-test");
    let output = Command::new(script)
        .args(["--topic", &target.topic, "--throughput", "-1"])
        .args(["--num-records", &load.count.to_string()])
        .args(["--record-size", &(load.bytes + HEADERS).to_string()])
        .args(more)
        .args(["--bootstrap-server", &target.server, "--command-property"])
        .args(["acks=all", "enable.idempotence=true", "linger.ms=1", "batch.size=262144"])
        .output()?;
    let said = String::from_utf8(output.stdout)?;
    let last = said.lines().rfind(|line| line.contains(" records/sec"));
    let rate = last.and_then(|line| line.split(", ").nth(1)?.split(' ').next());
    match rate {
        Some(rate) => Ok(rate.parse()?),
        None => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned().into()),
    }
}
