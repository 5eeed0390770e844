//! What a single broker cannot show, with the cluster in memory that comes with librdkafka.

use std::time::{Duration, Instant};

use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use semel_core::{Fault, Verdict};
use semel_testkit::workload::events;

use super::{config, expect, failure, messages, publish};

const TOPIC: &str = "orders";

fn cluster() -> MockCluster<'static, DefaultProducerContext> {
    let cluster = MockCluster::new(3).expect("three brokers");
    cluster.create_topic(TOPIC, 1, 3).expect("a topic");
    cluster.partition_leader(TOPIC, 0, Some(1)).expect("its leader");
    cluster
}

#[tokio::test]
async fn another_leader_is_found() {
    let cluster = cluster();
    let sink = config(&cluster.bootstrap_servers()).connect().await.unwrap();
    for leader in [1, 2, 3, 1] {
        cluster.partition_leader(TOPIC, 0, Some(leader)).unwrap();
        let began = Instant::now();
        let verdicts = publish(&sink, &messages(TOPIC, events("a", 0..50))).await;
        assert_eq!(verdicts, vec![Verdict::Confirmed; 50]);
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    }
}

#[tokio::test]
async fn too_few_replicas_are_an_outage() {
    const TOO_FEW: RDKafkaRespErr = RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS;
    let cluster = cluster();
    let config = config(&cluster.bootstrap_servers()).patience(Duration::from_secs(2));
    let sink = config.connect().await.unwrap();
    let batch = messages(TOPIC, events("a", 0..2));
    cluster.request_errors(RDKafkaApiKey::Produce, &[TOO_FEW; 1000]);
    let verdicts = publish(&sink, &batch).await;
    expect(failure(&verdicts[0]), Fault::Unavailable, "E-KAFKA-DOWN");
    assert_eq!(verdicts[1], Verdict::Behind);

    cluster.clear_request_errors(RDKafkaApiKey::Produce);
    assert_eq!(publish(&sink, &batch).await, vec![Verdict::Confirmed; 2]);
}

#[tokio::test]
async fn a_slow_broker_is_waited_for() {
    let cluster = cluster();
    let sink = config(&cluster.bootstrap_servers()).connect().await.unwrap();
    for broker in 1..=3 {
        cluster.broker_round_trip_time(broker, Duration::from_millis(700)).unwrap();
    }
    let verdicts = publish(&sink, &messages(TOPIC, events("a", 0..100))).await;
    assert_eq!(verdicts, vec![Verdict::Confirmed; 100]);
}
