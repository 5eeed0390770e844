//! Positions: what a consumer may go by, and a topic that was made anew.

use std::time::Duration;

use semel_backends::kafka::{ExactlyOnceSink, KafkaSubscription};
use semel_core::coordination::Share;
use semel_core::memory::{MemoryDatabase, MemoryTx};
use semel_core::{Failure, Limit, Message, Outcome, Publication, Settlement, Sink, Source};
use semel_relay::{Consumer, Report, Stop, handler_fn};
use semel_testkit::services::{Service, service};
use semel_testkit::suites::subscription::SubscriptionProbe;
use semel_testkit::workload::{event, events, number};
use tokio::time::{sleep, timeout};

use super::{Group, PATIENCE, config, messages, topics};

/// As a source hands them out that knows whether they were published before.
pub(super) fn stamped(mut batch: Vec<Message>, publication: Publication) -> Vec<Message> {
    batch.iter_mut().for_each(|message| message.publication = publication);
    batch
}

async fn once(group: &Group) -> ExactlyOnceSink {
    let config = config(&group.brokers);
    config.connect_exactly_once(&group.topic, Share::WHOLE).await.expect("connected")
}

async fn send(sink: &impl Sink, batch: &[Message]) {
    assert!(sink.publish(batch).await.all_confirmed());
}

/// So many messages, by the numbers of their events.
pub(super) async fn take(member: &mut KafkaSubscription, count: usize) -> Vec<Message> {
    let taking = async {
        let mut got = Vec::new();
        while got.len() < count {
            let batch = member.next_batch(Limit::default()).await.expect("a batch");
            if batch.deliveries.is_empty() {
                sleep(Duration::from_millis(10)).await;
            }
            got.extend(batch.deliveries.into_iter().map(|delivery| delivery.message));
        }
        got.sort_by_key(|message| number(&message.event));
        got
    };
    timeout(PATIENCE, taking).await.expect("they come")
}

#[tokio::test]
async fn only_what_is_in_its_topic_once_can_be_gone_by() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let group = Group::at(&brokers).await;
    let sink = once(&group).await;
    let batch =
        |numbers, publication| stamped(messages(&group.topic, events("a", numbers)), publication);
    send(&sink, &batch(0..2, Publication::First)).await;
    send(&sink, &batch(2..3, Publication::Again)).await;
    send(&sink, &batch(3..4, Publication::Unknown)).await;
    // The mark of a commit follows its answer, and has a place in the log as a message has one:
    // what can be read was marked.
    take(&mut group.member(&brokers, "watches").await, 4).await;
    // Sent at least once: it may say what it likes.
    send(&group.sink, &batch(4..5, Publication::First)).await;

    let mut positions = Vec::new();
    for reader in ["one", "other"] {
        let mut member = group.member(&brokers, reader).await;
        let got = take(&mut member, 5).await;
        let said: Vec<_> = got.iter().map(|message| message.publication).collect();
        let (first, again, unknown) =
            (Publication::First, Publication::Again, Publication::Unknown);
        assert_eq!(said, [first, first, again, unknown, unknown]);
        let log = &got[0].position.as_ref().expect("a position").log;
        let last = got[4].position.as_ref().expect("a position").offset;
        assert_eq!(log.end().await.expect("an end"), last + 1);
        let place = |message: &Message| {
            let position = message.position.as_ref().expect("a position");
            (position.log.name().to_owned(), position.offset)
        };
        positions.push(got.iter().map(place).collect::<Vec<_>>());
    }
    assert_eq!(positions[0], positions[1], "whoever reads");
    assert!(positions[0].is_sorted());
    let (cluster, rest) = positions[0][0].0.split_once('/').expect("cluster/topic/partition");
    assert!(!cluster.is_empty() && rest.starts_with(&group.topic), "{rest}");
}

/// Somebody puts a dead letter back where it came from, with all its headers.
#[tokio::test]
async fn a_dead_letter_that_is_put_back_goes_by_its_id() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let group = Group::at(&brokers).await;
    let sent = stamped(messages(&group.topic, [event("a", 1)]), Publication::First);
    send(&once(&group).await, &sent).await;
    let mut member = group.member(&brokers, "buries").await;
    let delivery = loop {
        let mut batch = member.next_batch(Limit::default()).await.expect("a batch");
        match batch.deliveries.pop() {
            Some(delivery) => break delivery,
            None => sleep(Duration::from_millis(10)).await,
        }
    };
    let failure = Failure::refused("E-TEST", "no");
    let outcome = Outcome::Dead { attempts: 1, failure, parks_lane: false };
    let settlement = Settlement { receipt: delivery.receipt, outcome };
    assert!(member.settle(&[settlement]).await.expect("buried").is_held());
    let Ok(letters) = group.dead_letters().await else { unreachable!("they can be read") };
    let headers = &letters[0].headers;
    assert!(headers.contains_key("semel-error"), "{headers:?}");
    assert!(!headers.contains_key("semel-delivery"), "{headers:?}");
}

#[tokio::test]
async fn a_topic_that_was_made_anew_is_noticed() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let group = Group::at(&brokers).await;
    let database = MemoryDatabase::new();
    let batch = |numbers| stamped(messages(&group.topic, events("a", numbers)), Publication::First);
    send(&once(&group).await, &batch(0..20)).await;
    run(&group, "first", &database, 20).await.expect("it stops");
    // The log is read from the beginning, and that is nothing to stop for.
    send(&once(&group).await, &batch(20..21)).await;
    run(&group, "second", &database, 21).await.expect("it stops");

    topics::delete(&brokers, &group.topic).await;
    topics::create(&brokers, &group.topic, &[]).await;
    send(&once(&group).await, &batch(30..33)).await;
    let failure = run(&group, "third", &database, 24).await.expect_err("it is another log");
    assert_eq!(failure.code(), "E-CONSUMER-LOG", "{failure}");
    assert_eq!(database.get("effects"), 21);
}

/// Runs a consumer until so many effects are there, or it ends by itself.
async fn run(
    group: &Group,
    name: &str,
    database: &MemoryDatabase,
    effects: i64,
) -> Result<Report, Failure> {
    let consumer = Consumer::builder("payments", database.clone())
        .dead_letters(database.clone())
        .by_position(database.clone())
        .build_with(handler_fn(|tx: &mut MemoryTx, _: &Message| {
            tx.add("effects", 1);
            Box::pin(async { Ok(bytes::Bytes::new()) })
        }));
    let (stopper, stop) = Stop::new();
    let running = tokio::spawn(consumer.run(group.member(&group.brokers, name).await, stop));
    let done = async {
        while database.get("effects") < effects && !running.is_finished() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, done).await.expect("it gets on, or ends");
    stopper.stop();
    timeout(PATIENCE, running).await.expect("it ends").expect("no panic")
}
