//! Lines of the table of errors: who is there, what is too large, which topics.

use std::time::{Duration, Instant};

use semel_backends::kafka::KafkaConfig;
use semel_core::{Fault, Verdict};
use semel_testkit::services::{Service, service};
use semel_testkit::workload::{event, events};

use super::{config, expect, failure, messages, publish, sink, topics};

#[tokio::test]
async fn nobody_there_is_an_outage() {
    let config = KafkaConfig::new("127.0.0.1:1").unwrap();
    let began = Instant::now();
    let failure = config.connect().await.unwrap_err();
    expect(&failure, Fault::Unavailable, "E-KAFKA-DOWN");
    assert!(failure.to_string().contains("Connection refused"), "{failure}");
    assert!(began.elapsed() < Duration::from_secs(7), "a check is short");
}

#[tokio::test]
async fn a_missing_topic_is_a_mistake_in_the_set_up() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let there = topics::random_topic();
    topics::create(&brokers, &there, &[]).await;
    let sink = sink(&brokers).await;
    let missing = topics::random_topic();
    let mut batch = messages(&missing, events("a", 0..2));
    batch.extend(messages(&there, [event("b", 1)]));
    batch.extend(messages(&missing, events("c", 0..2)));
    let verdicts = publish(&sink, &batch).await;
    expect(failure(&verdicts[0]), Fault::Misconfigured, "E-KAFKA-TOPIC-MISSING");
    assert_eq!(verdicts[1..3], [Verdict::Behind, Verdict::Confirmed]);
    expect(failure(&verdicts[3]), Fault::Misconfigured, "E-KAFKA-TOPIC-MISSING");
    assert_eq!(verdicts[4], Verdict::Behind);
}

#[tokio::test]
async fn an_illegal_name_of_a_topic_is_a_refusal() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let sink = sink(&brokers).await;
    let verdicts = publish(&sink, &messages("order/events", [event("a", 1)])).await;
    expect(failure(&verdicts[0]), Fault::Refused, "E-KAFKA-TOPIC-NAME");
}

#[tokio::test]
async fn a_message_over_the_limit_is_refused_beforehand() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let topic = topics::random_topic();
    topics::create(&brokers, &topic, &[("max.message.bytes", "3000")]).await;
    let sink = config(&brokers).max_message_bytes(3000).connect().await.unwrap();
    // The largest that fits is found by trying; the broker agrees with every answer.
    let (mut taken, mut refused) = (0, 0);
    for size in (2000..3100).step_by(25) {
        let large = event("a", 0).with_bytes("application/octet-stream", vec![7; size]);
        match &publish(&sink, &messages(&topic, [large])).await[0] {
            Verdict::Confirmed => taken = size,
            verdict => {
                expect(failure(verdict), Fault::Refused, "E-KAFKA-TOO-LARGE");
                assert!(failure(verdict).to_string().contains("the limit is 3000"));
                refused += 1;
            }
        }
    }
    assert!((2500..2900).contains(&taken), "{taken}");
    assert!(refused > 5);
}

#[tokio::test]
async fn a_message_that_the_broker_finds_too_large_is_refused_alone() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let topic = topics::random_topic();
    topics::create(&brokers, &topic, &[("max.message.bytes", "3000")]).await;
    let sink = sink(&brokers).await;
    let large = event("large", 0).with_bytes("application/octet-stream", vec![7; 5000]);
    let mut batch = messages(&topic, events("a", 0..5));
    batch.insert(2, messages(&topic, [large]).remove(0));
    let verdicts = publish(&sink, &batch).await;
    expect(failure(&verdicts[2]), Fault::Refused, "E-KAFKA-TOO-LARGE");
    let others = verdicts.iter().filter(|verdict| **verdict == Verdict::Confirmed);
    assert_eq!(others.count(), 5, "{verdicts:?}");
}

#[tokio::test]
async fn a_record_that_the_broker_does_not_take_is_refused() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let topic = topics::random_topic();
    // Every message is older than that when it arrives.
    topics::create(&brokers, &topic, &[("message.timestamp.before.max.ms", "0")]).await;
    let sink = config(&brokers).linger(Duration::from_millis(50)).connect().await.unwrap();
    let verdicts = publish(&sink, &messages(&topic, events("a", 0..2))).await;
    expect(failure(&verdicts[0]), Fault::Refused, "E-KAFKA-RECORD");
    assert_eq!(verdicts[1], Verdict::Behind);
}

#[tokio::test]
async fn a_setting_that_librdkafka_does_not_take_is_a_mistake_in_the_set_up() {
    let config = KafkaConfig::new("127.0.0.1:1").unwrap().max_message_bytes(1);
    let failure = config.connect().await.unwrap_err();
    expect(&failure, Fault::Misconfigured, "E-KAFKA-CONFIG");
    assert!(failure.to_string().contains("message.max.bytes"), "{failure}");
}
