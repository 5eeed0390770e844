//! Connections that break, replies that are lost, brokers that stop.

use std::sync::Arc;
use std::time::{Duration, Instant};

use semel_backends::kafka::KafkaSink;
use semel_core::{Fault, Message, Sink, Verdict};
use semel_testkit::services::{Private, Service, service};
use semel_testkit::workload::{event, events, numbers};
use tokio::time::sleep;

use super::lab::Lab;
use super::{config, expect, failure, messages, publish, topics};

/// The broker has it and cannot say so: when the connection is back the producer asks again, and
/// the broker knows the message by its sequence number.
#[tokio::test]
async fn a_lost_confirmation_makes_no_duplicate() {
    let Some(lab) = Lab::open().await else { return };
    let door = lab.door(lab.next_door());
    let topic = topics::random_topic();
    topics::create(&lab.plain, &topic, &[]).await;
    let sink = Arc::new(config(&door.address()).patience(LONG).connect().await.unwrap());
    assert_eq!(publish(&sink, &messages(&topic, [event("a", 0)])).await, [Verdict::Confirmed]);

    door.swallow_replies(true);
    let sending = in_background(&sink, messages(&topic, events("a", 1..4)));
    wait_for(&lab.plain, &topic, 4).await;
    assert!(!sending.is_finished(), "nobody can have confirmed it");
    door.swallow_replies(false);
    door.cut();
    assert_eq!(sending.await.unwrap(), vec![Verdict::Confirmed; 3]);
    assert_eq!(numbers(&topics::read(&lab.plain, &[&topic]).await), [0, 1, 2, 3]);
}

#[tokio::test]
async fn connections_that_are_cut_again_and_again_lose_and_double_nothing() {
    let Some(lab) = Lab::open().await else { return };
    let door = lab.door(lab.next_door());
    let topic = topics::random_topic();
    topics::create(&lab.plain, &topic, &[]).await;
    let sink = Arc::new(config(&door.address()).patience(LONG).connect().await.unwrap());
    for round in 0..10_u64 {
        let batch = messages(&topic, events("a", round * 200..(round + 1) * 200));
        let sending = in_background(&sink, batch);
        sleep(Duration::from_millis(round)).await;
        door.cut();
        let verdicts = sending.await.unwrap();
        assert_eq!(verdicts, vec![Verdict::Confirmed; 200]);
    }
    let arrived = numbers(&topics::read(&lab.plain, &[&topic]).await);
    assert_eq!(arrived, (0..2000).collect::<Vec<_>>());
}

/// Every change of topics waits for the confirmations before it: a whole batch takes longer than a
/// call may.
#[tokio::test]
async fn a_lane_that_changes_topics_behind_a_slow_broker_moves_on_and_costs_no_attempt() {
    let Some(lab) = Lab::open().await else { return };
    let door = lab.door(lab.next_door());
    let patience = Duration::from_secs(4);
    let names = [topics::random_topic(), topics::random_topic()];
    for topic in &names {
        topics::create(&lab.plain, topic, &[]).await;
    }
    let sink = config(&door.address()).patience(patience).connect().await.unwrap();
    for topic in &names {
        assert_eq!(publish(&sink, &messages(topic, [event("a", 0)])).await, [Verdict::Confirmed]);
    }
    door.delay_replies(Duration::from_millis(250));
    let turns = names.iter().cycle().zip(events("a", 1..25));
    let mut batch: Vec<_> = turns.map(|(topic, event)| Message::first(&**topic, event)).collect();
    let mut calls = 0;
    while !batch.is_empty() {
        calls += 1;
        let began = Instant::now();
        let verdicts = publish(&sink, &batch).await;
        assert!(began.elapsed() < patience, "{:?}", began.elapsed());
        let confirmed = verdicts.iter().take_while(|it| **it == Verdict::Confirmed).count();
        assert!(confirmed > 0, "a call gets somewhere");
        if let Some(verdict) = verdicts.get(confirmed) {
            expect(failure(verdict), Fault::Unavailable, "E-KAFKA-SLOW");
        }
        batch.drain(..confirmed);
    }
    assert!(calls > 1, "it did not fit into one");
    for (topic, first) in names.iter().zip([1, 2]) {
        let expected: Vec<_> = std::iter::once(0).chain((first..25).step_by(2)).collect();
        assert_eq!(numbers(&topics::read(&lab.plain, &[topic]).await), expected, "each once");
    }
}

#[tokio::test]
async fn a_frozen_broker_is_an_outage_and_passes() {
    let Some(_) = service(Service::Kafka) else { return };
    let Some(server) = blocking(|| Private::start(Service::Kafka)).await else { return };
    let server = Arc::new(server);
    let topic = topics::random_topic();
    topics::create(server.address(), &topic, &[]).await;
    let patience = Duration::from_secs(2);
    let sink = config(server.address()).patience(patience).connect().await.unwrap();
    publish(&sink, &messages(&topic, [event("a", 0)])).await;

    let held = Arc::clone(&server);
    blocking(move || held.freeze()).await;
    let batch = messages(&topic, [event("a", 1), event("a", 2), event("b", 3)]);
    let verdicts = publish(&sink, &batch).await;
    expect(failure(&verdicts[0]), Fault::Unavailable, "E-KAFKA-DOWN");
    assert_eq!(verdicts[1], Verdict::Behind);
    expect(failure(&verdicts[2]), Fault::Unavailable, "E-KAFKA-DOWN");
    expect(&sink.check().await.unwrap_err(), Fault::Unavailable, "E-KAFKA-DOWN");

    let held = Arc::clone(&server);
    blocking(move || held.thaw()).await;
    let thawed = Instant::now();
    confirmed_at_last(&sink, &batch).await;
    assert!(thawed.elapsed() < Duration::from_secs(3), "{:?}", thawed.elapsed());
    // What was under way when the broker froze may come late: as a duplicate, never as a first.
    let first = topics::first_arrivals(server.address(), &topic, "a").await;
    assert_eq!(first, [0, 1, 2]);
}

#[tokio::test]
async fn a_broker_that_is_killed_and_restarted_loses_and_doubles_nothing() {
    let Some(_) = service(Service::Kafka) else { return };
    let Some(server) = blocking(|| Private::start(Service::Kafka)).await else { return };
    let server = Arc::new(server);
    let topic = topics::random_topic();
    topics::create(server.address(), &topic, &[]).await;
    let sink = Arc::new(config(server.address()).patience(LONG).connect().await.unwrap());
    let writer = Arc::clone(&sink);
    let name = topic.clone();
    let writing = tokio::spawn(async move {
        for start in (0..4000).step_by(100) {
            let batch = messages(&name, events("a", start..start + 100));
            assert_eq!(publish(&writer, &batch).await, vec![Verdict::Confirmed; 100]);
            sleep(Duration::from_millis(10)).await;
        }
    });
    wait_for(server.address(), &topic, 500).await;
    let held = Arc::clone(&server);
    blocking(move || {
        held.kill();
        held.restart();
    })
    .await;
    let back = Instant::now();
    confirmed_at_last(&sink, &messages(&topic, [event("b", 0)])).await;
    assert!(back.elapsed() < Duration::from_secs(2), "{:?}", back.elapsed());
    writing.await.unwrap();
    let arrived = topics::read(server.address(), &[&topic]).await;
    let lane = numbers(arrived.iter().filter(|event| event.aggregate_id == "a"));
    assert_eq!(lane, (0..4000).collect::<Vec<_>>());
}

/// The broker gives up its only folder, and ends.
#[tokio::test]
async fn a_full_disk_is_an_outage_and_loses_nothing() {
    const FULL: u64 = 12 * 1024 * 1024;
    let Some(_) = service(Service::Kafka) else { return };
    let Some(server) = blocking(|| Private::start(Service::Kafka)).await else { return };
    let server = Arc::new(server);
    let topic = topics::random_topic();
    topics::create(server.address(), &topic, &[]).await;
    let config = config(server.address()).patience(Duration::from_secs(4));
    let sink = config.connect().await.unwrap();
    server.limit_files(FULL);
    let padding = "0".repeat(200_000);
    let large =
        |number: u64| event("a", 0).with_bytes("application/json", format!("{padding}{number}"));
    let mut full = false;
    for number in 0..100 {
        let batch = messages(&topic, [large(number)]);
        let verdicts = publish(&sink, &batch).await;
        if verdicts != [Verdict::Confirmed] {
            expect(failure(&verdicts[0]), Fault::Unavailable, "E-KAFKA-DOWN");
            full = true;
            let held = Arc::clone(&server);
            blocking(move || held.restart()).await;
            confirmed_at_last(&sink, &batch).await;
        }
    }
    assert!(full, "the disk was never full");
    let first = topics::first_arrivals(server.address(), &topic, "a").await;
    assert_eq!(first, (0..100).collect::<Vec<_>>());
}

const LONG: Duration = Duration::from_secs(100);

fn in_background(
    sink: &Arc<KafkaSink>,
    batch: Vec<Message>,
) -> tokio::task::JoinHandle<Vec<Verdict>> {
    let sink = Arc::clone(sink);
    tokio::spawn(async move { publish(&sink, &batch).await })
}

async fn confirmed_at_last(sink: &KafkaSink, batch: &[Message]) {
    let deadline = Instant::now() + LONG;
    while publish(sink, batch).await.iter().any(|verdict| *verdict != Verdict::Confirmed) {
        assert!(Instant::now() < deadline, "never confirmed");
    }
}

async fn wait_for(brokers: &str, topic: &str, count: usize) {
    let deadline = Instant::now() + LONG;
    while topics::read(brokers, &[topic]).await.len() < count {
        assert!(Instant::now() < deadline, "less than {count} arrive");
        sleep(Duration::from_millis(20)).await;
    }
}

pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}
