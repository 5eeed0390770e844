//! The same backlog to Kafka: from the database; from nowhere, where events are made as they are asked
//! for, which is how `./dev bench sinks` has the sink's own rate; from memory, where they are made
//! beforehand; and from memory while COPY reads the same rows to nowhere, which is what the machine
//! can do where database, broker and relay share its processors.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::TryStreamExt;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use semel_backends::kafka::KafkaConfig;
use semel_backends::postgres::{PostgresStore, Tailing};
use semel_core::memory::MemoryDatabase;
use semel_core::{
    Event, EventId, Failure, Message, OutboxWriter, Payload, Published, Sink, Source,
};
use semel_relay::{Relay, Routed, Settings, Stop};
use semel_testkit::made::Made;
use sqlx::postgres::PgPoolCopyExt;

use super::stopwatch::StopWatch;
use super::{LANES, Load, Outcomes, latency, made, median, rate};

/// What a relay makes of a source that tails, as a part of what it makes of one that only makes events,
/// of one that costs nothing, and of one that costs the database what COPY does.
pub(super) async fn beside_others(
    store: &PostgresStore,
    count: usize,
    rounds: usize,
) -> Outcomes<()> {
    let Ok(brokers) = std::env::var("SEMEL_TEST_KAFKA_BROKERS") else {
        println!("SEMEL_TEST_KAFKA_BROKERS is not set: nothing is sent to Kafka");
        return Ok(());
    };
    let (admin, topic) = make_topic(&brokers).await?;
    let (mut from_nowhere, mut from_log) = (Vec::new(), Vec::new());
    let (mut from_memory, mut beside_copy) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        from_nowhere.push(send(generated(count), &brokers, &topic, count).await?);
        let memory = filled(count).await?;
        from_memory.push(send(memory.source(), &brokers, &topic, count).await?);
        let memory = filled(count).await?;
        let copying = tokio::spawn(copy(store.clone()));
        let sent = send(memory.source(), &brokers, &topic, count).await?;
        beside_copy.push(sent.max(copying.await?.map_err(|error| error.to_string())?));
        let pipeline = format!("to kafka {round}");
        let source = store.tailing_source(&pipeline, Tailing::WherePossible).await?;
        from_log.push(send(source, &brokers, &topic, count).await?);
    }
    admin.delete_topics(&[&topic], &AdminOptions::new()).await?;
    let log = median(from_log);
    println!("a backlog of {count} to Kafka: {}", rate(count, log));
    let peers = [
        ("the sink's own rate, of events made as they are asked for (target 0.8)", from_nowhere),
        ("the same sink fed from memory", from_memory),
        ("that beside COPY", beside_copy),
    ];
    for (peer, times) in peers {
        let peer_took = median(times);
        let ratio = peer_took.as_secs_f64() / log.as_secs_f64();
        println!("    {ratio:.2} of {peer}, {}", rate(count, peer_took));
    }
    Ok(())
}

/// From the answer to a commit to the broker's acknowledgement.
pub(super) async fn until_acknowledged(store: &PostgresStore, load: Load) -> Outcomes<()> {
    let Ok(brokers) = std::env::var("SEMEL_TEST_KAFKA_BROKERS") else { return Ok(()) };
    let (admin, topic) = make_topic(&brokers).await?;
    let sink = Routed::new(KafkaConfig::new(&brokers)?.connect().await?, topic.parse()?);
    let watch = Arc::new(StopWatch::default());
    let sink = Acknowledged { sink, watch: Arc::clone(&watch) };
    latency(store, load, Ok(Tailing::Required), &watch, sink).await?;
    println!("tail, {} tx/s, until Kafka's acknowledgement: {}", load.pace, watch.summary());
    admin.delete_topics(&[&topic], &AdminOptions::new()).await?;
    Ok(())
}

/// A sink that tells when what it has sent is acknowledged.
struct Acknowledged<S> {
    sink: S,
    watch: Arc<StopWatch>,
}

#[async_trait]
impl<S: Sink> Sink for Acknowledged<S> {
    async fn publish(&self, batch: &[Message]) -> Published {
        let published = self.sink.publish(batch).await;
        self.watch.arrived(batch);
        published
    }

    async fn check(&self) -> Result<(), Failure> {
        self.sink.check().await
    }
}

async fn make_topic(brokers: &str) -> Outcomes<(AdminClient<DefaultClientContext>, String)> {
    let topic = format!("semel-bench-tail-{}", EventId::now());
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", brokers).create()?;
    let new = NewTopic::new(&topic, 6, TopicReplication::Fixed(1));
    admin.create_topics([&new], &AdminOptions::new()).await?;
    Ok((admin, topic))
}

/// As [`made`], but for a payload that is there already.
fn generated(count: usize) -> impl Source {
    let payload = made(0).payload;
    Made::new(count, move |number| {
        let event = Event::new("order", (number % LANES).to_string(), "OrderPlaced");
        event.with_bytes(Payload::JSON, payload.bytes().clone())
    })
}

async fn filled(count: usize) -> Outcomes<MemoryDatabase> {
    let memory = MemoryDatabase::new();
    let mut tx = memory.begin().await;
    memory.append(&mut tx, &(0..count).map(made).collect::<Vec<_>>()).await?;
    tx.commit();
    Ok(memory)
}

/// Reads the rows as the server gives them away most cheaply, and forgets them.
async fn copy(store: PostgresStore) -> Result<Duration, sqlx::Error> {
    const ROWS: &str = "copy (select seq, id, aggregate_type, aggregate_id, event_type, payload, \
        headers::text, created_at from semel.outbox order by seq) to stdout (format binary)";
    let began = Instant::now();
    let mut rows = store.pool().copy_out_raw(ROWS).await?;
    while rows.try_next().await?.is_some() {}
    Ok(began.elapsed())
}

async fn send(
    source: impl Source + 'static,
    brokers: &str,
    topic: &str,
    count: usize,
) -> Outcomes<Duration> {
    let sink = KafkaConfig::new(brokers)?.connect().await?;
    let routed = Routed::new(sink, topic.parse()?);
    let settings =
        Settings { batch_events: 1_000, in_flight_events: 10_000, ..Settings::default() };
    let relay = Relay::new("to kafka", source, routed).with_settings(settings);
    let began = Instant::now();
    let report = relay.drain(Stop::never()).await?;
    let took = began.elapsed();
    assert_eq!(report.published, count as u64, "{report:?}");
    Ok(took)
}
