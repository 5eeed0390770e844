//! Who was replaced, and who is divided in another way.

use std::sync::Arc;
use std::time::Duration;

use semel_backends::kafka::{ExactlyOnceSink, KafkaConfig};
use semel_core::coordination::Share;
use semel_core::{Fault, Sink, Verdict};
use semel_testkit::services::{Private, Service, service};
use semel_testkit::workload::{event, events, numbers};
use tokio::time::timeout;

use super::{all_confirmed, open, open_share, random_id};
use crate::kafka::lab::Lab;
use crate::kafka::{config, expect, failure, messages, publish, topics};

#[tokio::test]
async fn a_sink_that_was_replaced_sends_nothing_and_is_at_its_end() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let (id, topic) = (random_id(), topics::random_topic());
    topics::create(&brokers, &topic, &[]).await;
    let old = open(&brokers, &id).await;
    all_confirmed(&old, &messages(&topic, [event("a", 0)])).await;
    let new = open(&brokers, &id).await;
    let late = messages(&topic, events("a", 1..3));
    let verdicts = publish(&old, &late).await;
    expect(failure(&verdicts[0]), Fault::Unavailable, "E-KAFKA-FENCED");
    assert_eq!(verdicts[1], Verdict::Behind);
    expect(&old.check().await.unwrap_err(), Fault::Refused, "E-KAFKA-FENCED");
    all_confirmed(&new, &late).await;
    assert_eq!(numbers(&topics::read(&brokers, &[&topic]).await), [0, 1, 2]);
}

/// The pipeline was one share, then two, then one again.
#[tokio::test]
async fn another_division_knows_what_was_sent_and_fences_off_who_sent_it() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let (id, topic) = (random_id(), topics::random_topic());
    topics::create(&brokers, &topic, &[]).await;
    let batch = messages(&topic, events("a", 0..3));
    let whole = open(&brokers, &id).await;
    all_confirmed(&whole, &batch[..1]).await;

    let half = open_share(&brokers, &id, Share::new(1, 2).unwrap()).await;
    all_confirmed(&half, &batch[..2]).await;
    let verdicts = publish(&whole, &batch[2..]).await;
    expect(failure(&verdicts[0]), Fault::Unavailable, "E-KAFKA-FENCED");

    let whole = open(&brokers, &id).await;
    all_confirmed(&whole, &batch).await;
    let verdicts = publish(&half, &messages(&topic, [event("b", 9)])).await;
    expect(failure(&verdicts[0]), Fault::Unavailable, "E-KAFKA-FENCED");
    assert_eq!(numbers(&topics::read(&brokers, &[&topic]).await), [0, 1, 2]);
}

/// A share loses its producer to an outage, is fenced off meanwhile, and begins with another producer,
/// as it would after any outage: it must not take the pipeline back.
#[tokio::test]
async fn who_was_fenced_off_in_an_outage_stays_off() {
    let Some(lab) = Lab::open().await else { return };
    let (id, door) = (random_id(), lab.door(lab.next_door()));
    let topic = topics::random_topic();
    topics::create(&lab.plain, &topic, &[]).await;
    let config = config(&door.address()).patience(Duration::from_secs(3));
    let whole = open_at_last(&config, &id).await;
    all_confirmed(&whole, &messages(&topic, [event("a", 0)])).await;

    door.refuse(true);
    door.cut();
    let verdicts = publish(&whole, &messages(&topic, [event("a", 1)])).await;
    let outage = failure(&verdicts[0]);
    assert_eq!(outage.fault(), Fault::Unavailable);
    assert_ne!(outage.code(), "E-KAFKA-FENCED", "it does not know yet");

    let half = open_share(&lab.plain, &id, Share::new(0, 2).unwrap()).await;
    all_confirmed(&half, &messages(&topic, [event("a", 1)])).await;
    door.refuse(false);
    let fenced = async {
        loop {
            let verdicts = publish(&whole, &messages(&topic, [event("a", 8)])).await;
            let failure = failure(&verdicts[0]);
            assert_eq!(failure.fault(), Fault::Unavailable, "{failure:?}");
            if failure.code() == "E-KAFKA-FENCED" {
                return;
            }
        }
    };
    timeout(Duration::from_secs(60), fenced).await.expect("it learns of it");
    expect(&whole.check().await.unwrap_err(), Fault::Refused, "E-KAFKA-FENCED");
    all_confirmed(&half, &messages(&topic, [event("a", 2)])).await;
    assert_eq!(numbers(&topics::read(&lab.plain, &[&topic]).await), [0, 1, 2]);
}

#[tokio::test]
async fn shares_of_one_division_do_not_disturb_each_other() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let (id, topic) = (random_id(), topics::random_topic());
    topics::create(&brokers, &topic, &[]).await;
    let mut sinks = Vec::new();
    for number in 0..3 {
        sinks.push(open_share(&brokers, &id, Share::new(number, 3).unwrap()).await);
    }
    for (lane, sink) in ["a", "b", "c"].iter().zip(&sinks) {
        all_confirmed(sink, &messages(&topic, events(lane, 0..10))).await;
    }
    assert_eq!(topics::read(&brokers, &[&topic]).await.len(), 30);
}

/// The broker has a request and cannot say so. Where librdkafka does not know how to go on, the sink
/// is opened anew, as a group of relays does it, and the journal knows what became of it.
#[tokio::test]
async fn a_transaction_of_unknown_outcome_makes_no_duplicate() {
    let Some(lab) = Lab::open().await else { return };
    let (id, door) = (random_id(), lab.door(lab.next_door()));
    let topic = topics::random_topic();
    topics::create(&lab.plain, &topic, &[]).await;
    let config = config(&door.address()).patience(Duration::from_secs(2));
    let mut sink = open_at_last(&config, &id).await;
    let (mut unknown, mut sent) = (0, 0);
    // At whichever point of the transaction it strikes.
    for delay in [0, 4, 8, 14] {
        let batch = messages(&topic, events("a", sent..sent + 3));
        let cutting = async {
            tokio::time::sleep(Duration::from_millis(delay)).await;
            door.swallow_replies(true);
            tokio::time::sleep(Duration::from_millis(2500)).await;
            door.swallow_replies(false);
            door.cut();
        };
        let (first, ()) = tokio::join!(publish(&sink, &batch), cutting);
        unknown += usize::from(first[0] != Verdict::Confirmed);
        let again = async {
            while publish(&sink, &batch).await.iter().any(|it| *it != Verdict::Confirmed) {
                match sink.check().await {
                    Err(failure) if failure.fault() == Fault::Refused => {
                        sink = open_at_last(&config, &id).await;
                    }
                    _ => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        };
        timeout(Duration::from_secs(60), again).await.expect("confirmed at last");
        sent += 3;
    }
    assert!(unknown > 0, "it never struck in a transaction");
    let arrived = numbers(&topics::read(&lab.plain, &[&topic]).await);
    assert_eq!(arrived, (0..sent).collect::<Vec<_>>());
}

async fn open_at_last(config: &KafkaConfig, id: &str) -> ExactlyOnceSink {
    loop {
        match config.connect_exactly_once(id, Share::WHOLE).await {
            Ok(sink) => return sink,
            Err(failure) => assert_eq!(failure.fault(), Fault::Unavailable, "{failure}"),
        }
    }
}

#[tokio::test]
async fn a_broker_that_is_killed_in_a_transaction_loses_and_doubles_nothing() {
    let Some(_) = service(Service::Kafka) else { return };
    let starting = tokio::task::spawn_blocking(|| Private::start(Service::Kafka));
    let Some(server) = starting.await.unwrap() else { return };
    let server = Arc::new(server);
    let topic = topics::random_topic();
    topics::create(server.address(), &topic, &[]).await;
    let config = config(server.address()).patience(Duration::from_secs(30));
    let sink = config.connect_exactly_once(&random_id(), Share::WHOLE).await.unwrap();
    let writing = async {
        for start in (0..3000).step_by(100) {
            let batch = messages(&topic, events("a", start..start + 100));
            while publish(&sink, &batch).await.iter().any(|it| *it != Verdict::Confirmed) {}
        }
    };
    let killed = Arc::clone(&server);
    let killing = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let restarting = move || {
            killed.kill();
            killed.restart();
        };
        tokio::task::spawn_blocking(restarting).await.unwrap();
    };
    let both = async { tokio::join!(writing, killing) };
    timeout(Duration::from_secs(100), both).await.expect("it goes on");
    let arrived = numbers(&topics::read(server.address(), &[&topic]).await);
    assert_eq!(arrived, (0..3000).collect::<Vec<_>>());
}
