//! The same backlog to Kafka, from the database and from memory.

use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use semel_backends::kafka::KafkaConfig;
use semel_backends::postgres::{PostgresStore, Tailing};
use semel_core::memory::MemoryDatabase;
use semel_core::{OutboxWriter, Source};
use semel_relay::{Relay, Routed, Settings, Stop};

use super::{Outcomes, made, median, rate};

/// What a relay makes of a source that tails, as a part of what it makes of one that costs nothing.
pub(super) async fn beside_memory(
    store: &PostgresStore,
    count: usize,
    rounds: usize,
) -> Outcomes<()> {
    let Ok(brokers) = std::env::var("SEMEL_TEST_KAFKA_BROKERS") else {
        println!("SEMEL_TEST_KAFKA_BROKERS is not set: nothing is sent to Kafka");
        return Ok(());
    };
    let topic = format!("semel-bench-tail-{}", std::process::id());
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", &brokers).create()?;
    let new = NewTopic::new(&topic, 6, TopicReplication::Fixed(1));
    admin.create_topics([&new], &AdminOptions::new()).await?;
    let (mut from_memory, mut from_log) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let memory = MemoryDatabase::new();
        let mut tx = memory.begin().await;
        memory.append(&mut tx, &(0..count).map(made).collect::<Vec<_>>()).await?;
        tx.commit();
        from_memory.push(send(memory.source(), &brokers, &topic, count).await?);
        let pipeline = format!("to kafka {round}");
        let source = store.tailing_source(&pipeline, Tailing::WherePossible).await?;
        from_log.push(send(source, &brokers, &topic, count).await?);
    }
    admin.delete_topics(&[&topic], &AdminOptions::new()).await?;
    let (memory, log) = (median(from_memory), median(from_log));
    println!(
        "a backlog of {count} to Kafka: {} ({:.2} of the same sink fed from memory, {})",
        rate(count, log),
        memory.as_secs_f64() / log.as_secs_f64(),
        rate(count, memory),
    );
    Ok(())
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
