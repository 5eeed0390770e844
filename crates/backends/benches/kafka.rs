//! How fast the sink publishes, beside a bare producer of librdkafka that sends the same messages
//! to the same broker in the same run.
//! `cargo bench -p semel-backends --features kafka --bench kafka`
//!
//! Needs `SEMEL_TEST_KAFKA_BROKERS`. Arguments: events (300000), payload bytes (200), rounds (3).

#![expect(clippy::print_stdout, reason = "it reports to the terminal")]

use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
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
use semel_core::{Event, EventId, Message, Sink};

type Outcomes<T> = Result<T, Box<dyn Error>>;

const BATCH: usize = 1_000;
/// As the engine does: several batches under way, each with lanes of its own.
const AT_ONCE: [usize; 2] = [8, 1];

#[tokio::main]
async fn main() -> Outcomes<()> {
    let mut numbers = std::env::args().filter_map(|argument| argument.parse::<usize>().ok());
    let count = numbers.next().unwrap_or(300_000);
    let bytes = numbers.next().unwrap_or(200);
    let rounds = numbers.next().unwrap_or(3);
    let brokers = std::env::var("SEMEL_TEST_KAFKA_BROKERS")?;
    let topic = format!("semel-bench-{}", EventId::now());
    create(&brokers, &topic).await?;
    let batches = batches(&topic, count, bytes);
    let before = most_memory()?;
    let sink = KafkaConfig::new(&brokers)?.connect().await?;
    through_sink(&sink, &batches, AT_ONCE[0]).await;
    println!("memory of the sink at most: {} KiB", most_memory()? - before);
    let bare = ThreadedProducer::from_config_and_context(&bare_config(&brokers), Count::default())?;
    through_bare(&bare, &batches[..1])?;
    let once = KafkaConfig::new(&brokers)?.connect_exactly_once(&topic, Share::WHOLE).await?;
    let (mut bares, mut onces) = (Vec::new(), Vec::new());
    let mut sinks = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        bares.push(through_bare(&bare, &batches)?);
        for (at_once, times) in AT_ONCE.iter().zip(&mut sinks) {
            times.push(through_sink(&sink, &batches, *at_once).await);
        }
        onces.push(through_sink(&once, &batches, AT_ONCE[0]).await);
    }
    let (bare, once) = (median(bares), median(onces));
    let least = median(sinks[0].clone());
    println!("a bare producer: {}", rate(count, bare));
    for (at_once, times) in AT_ONCE.iter().zip(sinks) {
        let sink = median(times);
        let ratio = bare.as_secs_f64() / sink.as_secs_f64();
        println!("the sink, {at_once} x {BATCH} at once: {} ({ratio:.2} of it)", rate(count, sink));
    }
    let ratio = least.as_secs_f64() / once.as_secs_f64();
    let at_once = AT_ONCE[0];
    println!(
        "exactly once, {at_once} x {BATCH} at once: {} ({ratio:.2} of at least once)",
        rate(count, once)
    );
    delete(&brokers, &format!("{topic}-progress")).await?;
    delete(&brokers, &topic).await
}

fn batches(topic: &str, count: usize, bytes: usize) -> Vec<Vec<Message>> {
    let payload = format!("{{\"text\":\"{}\"}}", "x".repeat(bytes.saturating_sub(11)));
    let made = |number: usize| {
        let event = Event::new("order", (number % 10_000).to_string(), "OrderPlaced");
        Message::first(topic, event.with_bytes("application/json", payload.clone()))
    };
    let all: Vec<_> = (0..count).map(made).collect();
    all.chunks(BATCH).map(<[Message]>::to_vec).collect()
}

async fn through_sink(sink: &impl Sink, batches: &[Vec<Message>], at_once: usize) -> Duration {
    let began = Instant::now();
    stream::iter(batches)
        .for_each_concurrent(at_once, async |batch| {
            assert!(sink.publish(batch).await.all_confirmed());
            let ids: Vec<_> = batch.iter().map(|message| message.event.id).collect();
            sink.settled(&ids);
        })
        .await;
    began.elapsed()
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

fn through_bare(
    producer: &ThreadedProducer<Count>,
    batches: &[Vec<Message>],
) -> Outcomes<Duration> {
    let confirmed = &producer.context().0;
    let sent = confirmed.load(Ordering::Relaxed) + batches.iter().map(Vec::len).sum::<usize>();
    let began = Instant::now();
    for message in batches.iter().flatten() {
        let mut headers = Some(OwnedHeaders::new_with_capacity(8));
        Format::Plain.headers(&message.event, Binding::Kafka, &mut |key, value| {
            headers = headers.take().map(|all| all.insert(Header { key, value: Some(value) }));
        });
        let mut record = BaseRecord::to(message.topic.as_str())
            .key(&message.event.aggregate_id)
            .payload(&message.event.payload.bytes()[..])
            .headers(headers.unwrap_or_default());
        while let Err((_, back)) = producer.send(record) {
            record = back;
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    producer.flush(Duration::from_secs(60))?;
    while confirmed.load(Ordering::Relaxed) < sent {
        std::thread::sleep(Duration::from_micros(100));
    }
    Ok(began.elapsed())
}

fn bare_config(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", brokers)
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("linger.ms", "1")
        .set("batch.size", "262144")
        .set("partitioner", "murmur2_random");
    config
}

async fn create(brokers: &str, topic: &str) -> Outcomes<()> {
    let new = NewTopic::new(topic, 6, TopicReplication::Fixed(1));
    admin(brokers)?.create_topics([&new], &AdminOptions::new()).await?;
    Ok(())
}

async fn delete(brokers: &str, topic: &str) -> Outcomes<()> {
    admin(brokers)?.delete_topics(&[topic], &AdminOptions::new()).await?;
    Ok(())
}

fn admin(brokers: &str) -> Outcomes<AdminClient<DefaultClientContext>> {
    Ok(ClientConfig::new().set("bootstrap.servers", brokers).create()?)
}

/// The most that was resident so far, in KiB.
fn most_memory() -> Outcomes<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    Ok(line.unwrap_or_default().trim_end_matches("kB").trim().parse()?)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn rate(count: usize, time: Duration) -> String {
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no 53 bits")]
    let rate = count as f64 / time.as_secs_f64();
    format!("{rate:.0}/s")
}
