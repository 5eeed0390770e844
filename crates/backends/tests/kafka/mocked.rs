//! What no real cluster does at command: with the cluster in memory that comes with librdkafka, which
//! is no integration test. Brokers that die are in `cluster`.

use std::time::{Duration, Instant};

use rdkafka::mocking::MockCluster;
use semel_core::Verdict;
use semel_testkit::workload::events;

use super::{config, messages, publish};

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
