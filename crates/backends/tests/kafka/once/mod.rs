//! Exactly once: what is offered again is not sent again, and who was replaced sends nothing.

mod fencing;
mod relay;
mod suite;

use std::process::Command;

use semel_backends::kafka::ExactlyOnceSink;
use semel_core::coordination::Share;
use semel_core::{EventId, Fault, Message, Sink, Verdict};
use semel_testkit::services::{Service, service};
use semel_testkit::workload::{event, events, numbers};

use super::{config, expect, failure, messages, publish, topics};

fn random_id() -> String {
    format!("semel-once-{}", EventId::now())
}

async fn open(brokers: &str, id: &str) -> ExactlyOnceSink {
    open_share(brokers, id, Share::WHOLE).await
}

async fn open_share(brokers: &str, id: &str, share: Share) -> ExactlyOnceSink {
    config(brokers).connect_exactly_once(id, share).await.expect("connected")
}

fn ids(batch: &[Message]) -> Vec<EventId> {
    batch.iter().map(|message| message.event.id).collect()
}

async fn all_confirmed(sink: &ExactlyOnceSink, batch: &[Message]) {
    assert_eq!(publish(sink, batch).await, vec![Verdict::Confirmed; batch.len()]);
}

/// The crash is between the commit in Kafka and the settle at the source: everything comes again.
#[tokio::test]
async fn what_was_committed_and_not_settled_is_not_sent_again() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let (id, topic) = (random_id(), topics::random_topic());
    topics::create(&brokers, &topic, &[]).await;
    let batch = messages(&topic, events("a", 0..5));
    all_confirmed(&open(&brokers, &id).await, &batch).await;
    // Several lives, each of which dies before it has settled anything.
    for _ in 0..3 {
        all_confirmed(&open(&brokers, &id).await, &batch).await;
    }
    let sink = open(&brokers, &id).await;
    let more = messages(&topic, events("a", 5..8));
    all_confirmed(&sink, &[batch.clone(), more.clone()].concat()).await;
    assert_eq!(numbers(&topics::read(&brokers, &[&topic]).await), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(kcat(&brokers, &topic), 8, "and so says a tool that we did not write");
}

#[tokio::test]
async fn what_is_settled_may_be_replayed() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let (id, topic) = (random_id(), topics::random_topic());
    topics::create(&brokers, &topic, &[]).await;
    let batch = messages(&topic, events("a", 0..3));
    let sink = open(&brokers, &id).await;
    all_confirmed(&sink, &batch).await;
    sink.settled(&ids(&batch[1..]));
    all_confirmed(&sink, &batch).await;
    assert_eq!(numbers(&topics::read(&brokers, &[&topic]).await), [0, 1, 2, 1, 2]);
}

/// Whoever took over knows what the last one had not settled, until the relay has caught up.
#[tokio::test]
async fn what_was_left_behind_is_forgotten_when_the_relay_has_caught_up() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let (id, topic) = (random_id(), topics::random_topic());
    topics::create(&brokers, &topic, &[]).await;
    let batch = messages(&topic, events("a", 0..2));
    all_confirmed(&open(&brokers, &id).await, &batch).await;
    let sink = open(&brokers, &id).await;
    all_confirmed(&sink, &batch).await;
    sink.caught_up();
    all_confirmed(&sink, &messages(&topic, [event("a", 2)])).await;
    // The journal does not know them any more, so neither does the next one.
    let sink = open(&brokers, &id).await;
    all_confirmed(&sink, &batch).await;
    assert_eq!(numbers(&topics::read(&brokers, &[&topic]).await), [0, 1, 2, 0, 1]);
}

/// Far more than a message of the journal can hold, and more than one transaction.
#[tokio::test]
async fn a_wide_window_is_remembered_as_a_whole() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let (id, topic) = (random_id(), topics::random_topic());
    topics::create(&brokers, &topic, &[]).await;
    let batch =
        messages(&topic, (0..70_000).map(|number| event(&(number % 50).to_string(), number)));
    let sink = open(&brokers, &id).await;
    for part in batch.chunks(35_000) {
        all_confirmed(&sink, part).await;
    }
    drop(sink);
    let sink = open(&brokers, &id).await;
    for part in batch.chunks(10_000) {
        all_confirmed(&sink, part).await;
    }
    assert_eq!(topics::read(&brokers, &[&topic]).await.len(), 70_000);
}

#[tokio::test]
async fn a_refusal_by_the_broker_aborts_for_itself_alone() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let (id, topic) = (random_id(), topics::random_topic());
    topics::create(&brokers, &topic, &[("max.message.bytes", "3000")]).await;
    let sink = open(&brokers, &id).await;
    let large = event("large", 9).with_bytes("application/octet-stream", vec![7; 5000]);
    let mut batch = messages(&topic, events("large", 0..4));
    batch.insert(2, messages(&topic, [large]).remove(0));
    batch.extend(messages(&topic, events("other", 0..4)));
    let verdicts = publish(&sink, &batch).await;
    assert_eq!(verdicts[..2], [Verdict::Confirmed, Verdict::Confirmed]);
    expect(failure(&verdicts[2]), Fault::Refused, "E-KAFKA-TOO-LARGE");
    assert_eq!(verdicts[3..5], [Verdict::Behind, Verdict::Behind]);
    assert_eq!(verdicts[5..], vec![Verdict::Confirmed; 4]);
    assert_eq!(kcat(&brokers, &topic), 6);
}

#[tokio::test]
async fn a_missing_topic_stops_its_lane_and_no_other() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let (id, topic) = (random_id(), topics::random_topic());
    topics::create(&brokers, &topic, &[]).await;
    let config = config(&brokers).patience(std::time::Duration::from_secs(25));
    let sink = config.connect_exactly_once(&id, Share::WHOLE).await.unwrap();
    let mut batch = messages(&topics::random_topic(), events("a", 0..2));
    batch.extend(messages(&topic, [event("b", 1)]));
    let verdicts = publish(&sink, &batch).await;
    expect(failure(&verdicts[0]), Fault::Misconfigured, "E-KAFKA-TOPIC-MISSING");
    assert_eq!(verdicts[1..], [Verdict::Behind, Verdict::Confirmed]);
}

/// Messages that kcat reads as a consumer that wants only what is committed.
fn kcat(brokers: &str, topic: &str) -> usize {
    let read = Command::new("kcat")
        .args(["-C", "-e", "-q", "-b", brokers, "-t", topic, "-f", "%k\n"])
        .args(["-X", "isolation.level=read_committed"])
        .output()
        .expect("kcat runs");
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    String::from_utf8(read.stdout).unwrap().lines().count()
}
