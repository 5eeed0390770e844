//! What no real cluster does at command: with the cluster in memory that comes with librdkafka, which
//! is no integration test. Brokers that die are in `cluster`.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rdkafka::mocking::MockCluster;
use rdkafka::types::{RDKafkaApiKey as Api, RDKafkaRespErr as Answer};
use semel_backends::kafka::Start;
use semel_core::{Limit, Source, Verdict};
use semel_testkit::workload::{delivered_numbers, event, events};
use tokio::time::timeout;

use super::{config, messages, publish, topics};

const TOPIC: &str = "orders";

/// Four times in a row, from one batch to the next, while all brokers stay.
#[tokio::test]
async fn a_mocked_leader_that_moves_at_once_is_found() {
    let cluster = MockCluster::new(3).expect("three brokers");
    cluster.create_topic(TOPIC, 1, 3).expect("a topic");
    let sink = config(&cluster.bootstrap_servers()).connect().await.unwrap();
    for leader in [1, 2, 3, 1] {
        cluster.partition_leader(TOPIC, 0, Some(leader)).unwrap();
        let began = Instant::now();
        let verdicts = publish(&sink, &messages(TOPIC, events("a", 0..50))).await;
        assert_eq!(verdicts, vec![Verdict::Confirmed; 50]);
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    }
}

/// The broker puts the first request off, and takes those behind it: it knows none of the producer.
#[tokio::test]
async fn a_mocked_broker_that_puts_the_first_off_loses_and_reorders_nothing() {
    const LANES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
    for answer in [
        Answer::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
        Answer::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
    ] {
        let cluster = MockCluster::new(1).expect("a broker");
        cluster.create_topic(TOPIC, topics::PARTITIONS, 1).expect("a topic");
        let brokers = cluster.bootstrap_servers();
        let sink = config(&brokers).batch_bytes(1).connect().await.unwrap();
        cluster.request_errors(Api::Produce, &[answer]);
        let batches = LANES.map(|lane| messages(TOPIC, events(lane, 0..5)));
        // Half of them side by side, the others in one call.
        let (alone, together) = batches.split_at(LANES.len() / 2);
        let together = together.concat();
        let calls = alone.iter().map(Vec::as_slice).chain([together.as_slice()]);
        let published = join_all(calls.map(|batch| publish(&sink, batch))).await;
        assert!(published.concat().iter().all(|verdict| *verdict == Verdict::Confirmed));
        for lane in LANES {
            let arrived = topics::first_arrivals(&brokers, TOPIC, lane).await;
            assert_eq!(arrived, [0, 1, 2, 3, 4], "{lane}");
        }
    }
}

/// A group that begins at the end asks for a position until it has one, and only then reads.
#[tokio::test]
async fn a_mocked_group_asks_for_its_position_until_it_has_one() {
    const PATIENCE: Duration = Duration::from_secs(60);
    let cluster = MockCluster::new(1).expect("a broker");
    for topic in [TOPIC, "orders.dead"] {
        cluster.create_topic(topic, 1, 1).expect("a topic");
    }
    let sink = config(&cluster.bootstrap_servers()).connect().await.unwrap();
    publish(&sink, &messages(TOPIC, events("a", 0..5))).await;
    let refusals = [
        (Api::OffsetFetch, Answer::RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS),
        (Api::ListOffsets, Answer::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION),
        (Api::OffsetCommit, Answer::RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS),
    ];
    for (request, refusal) in refusals {
        cluster.request_errors(request, &[refusal, refusal]);
    }
    let config = config(&cluster.bootstrap_servers()).subscription("late", &[TOPIC]).unwrap();
    let mut member = config.start(Start::Latest).connect().await.unwrap();
    let came = timeout(PATIENCE, async {
        for number in 10.. {
            publish(&sink, &messages(TOPIC, [event("a", number)])).await;
            let batch = member.next_batch(Limit::default()).await.unwrap();
            if !batch.deliveries.is_empty() {
                return delivered_numbers(&batch.deliveries);
            }
        }
        Vec::new()
    });
    let came = came.await.expect("what comes is read");
    assert!(came.iter().all(|number| *number >= 10), "{came:?}");
}
