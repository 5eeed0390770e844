//! Kafka against the shared suite, a real broker and real trouble.

mod cluster;
mod failures;
mod inbox;
mod lab;
mod mocked;
mod once;
mod order;
mod outages;
#[cfg(feature = "tls")]
mod secured;
mod subscription;
mod suite;
mod topics;

use std::time::Duration;

use semel_backends::kafka::{KafkaConfig, KafkaSink};
use semel_core::{Event, Failure, Fault, Message, Published, Sink, Verdict};

/// A sink that soon loses patience.
async fn sink(brokers: &str) -> KafkaSink {
    config(brokers).connect().await.expect("connected")
}

fn config(brokers: &str) -> KafkaConfig {
    KafkaConfig::new(brokers).unwrap()
}

fn messages(topic: &str, events: impl IntoIterator<Item = Event>) -> Vec<Message> {
    events.into_iter().map(|event| Message::first(topic, event)).collect()
}

/// Publishes, but never forever.
async fn publish(sink: &impl Sink, batch: &[Message]) -> Vec<Verdict> {
    let published = tokio::time::timeout(Duration::from_secs(120), sink.publish(batch)).await;
    match published.expect("an answer") {
        Published::All => vec![Verdict::Confirmed; batch.len()],
        Published::Each(verdicts) => verdicts,
        Published::None(failure) => vec![Verdict::Failed(failure); batch.len()],
    }
}

/// The failure of a verdict.
fn failure(verdict: &Verdict) -> &Failure {
    let failure = if let Verdict::Failed(failure) = verdict { Some(failure) } else { None };
    failure.unwrap_or_else(|| unreachable!("it did not fail: {verdict:?}"))
}

fn expect(failure: &Failure, fault: Fault, code: &str) {
    assert_eq!((failure.fault(), failure.code()), (fault, code), "{failure:?}");
    assert!(failure.fix().is_some(), "what is to be done about {failure:?}");
}
