//! What can be wrong with a subscription, and what a rebalance does.

use std::collections::BTreeSet;
use std::time::Duration;

use semel_core::wire::Epitaph;
use semel_core::{Failure, Fault, Holding, Limit, Outcome, Source};
use semel_testkit::services::{Service, service};
use semel_testkit::suites::subscription::SubscriptionProbe;
use semel_testkit::workload::{Drive, dead, delivered_numbers, event, lanes};
use tokio::time::{sleep, timeout};

use super::{Group, PATIENCE};
use crate::kafka::{config, expect, topics};

#[tokio::test]
async fn nobody_there_is_an_outage() {
    let config = config("127.0.0.1:1").patience(Duration::from_secs(1));
    let config = config.subscription("g", &["orders"]).unwrap();
    let failure = timeout(PATIENCE, config.connect()).await.unwrap().unwrap_err();
    expect(&failure, Fault::Unavailable, "E-KAFKA-DOWN");
}

#[tokio::test]
async fn a_topic_that_is_missing_is_told_at_once() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let topic = topics::random_topic();
    let config = config(&brokers).subscription("g", &[&topic]).unwrap();
    let failure = timeout(PATIENCE, config.connect()).await.unwrap().unwrap_err();
    expect(&failure, Fault::Misconfigured, "E-KAFKA-TOPIC-MISSING");
    assert!(failure.to_string().contains(&topic), "{failure}");

    topics::create(&brokers, &topic, &[]).await;
    let failure = timeout(PATIENCE, config.connect()).await.unwrap().unwrap_err();
    expect(&failure, Fault::Misconfigured, "E-KAFKA-TOPIC-MISSING");
    assert!(failure.to_string().contains(&format!("{topic}.dead")), "{failure}");
}

/// Nothing is passed by that is not kept.
#[tokio::test]
async fn a_dead_letter_that_is_not_taken_stops_the_consumer() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let group = Group::at(&brokers).await;
    topics::alter(&brokers, &format!("{}.dead", group.topic), &[("max.message.bytes", "500")])
        .await;
    let large = event("a", 1).with_bytes("application/octet-stream", vec![7; 1_000]);
    group.publish(vec![large.clone()]).await;
    let mut drive = Drive::open(&group).await;
    let taken = drive.take(1).await;
    let outcomes = semel_testkit::workload::settlements([(taken[0].receipt, dead(false))]);
    let settled = timeout(PATIENCE, drive.source.settle(&outcomes)).await.unwrap();
    expect(&settled.unwrap_err(), Fault::Misconfigured, "E-KAFKA-DEAD-LETTER");
    let mut drive = drive.reopen().await;
    assert_eq!(drive.take(1).await[0].message.event.id, large.id, "it is still there");
}

/// Settles an event with a body of this size as dead, with a long reason; whether the letter is kept.
/// If not, the event counts as delivered.
async fn is_buried(group: &Group, drive: &mut Drive<'_, Group>, bytes: usize) -> bool {
    let body = vec![7; bytes];
    group.publish(vec![event("a", 1).with_bytes("application/octet-stream", body)]).await;
    let receipt = drive.take(1).await[0].receipt;
    let failure = Failure::refused("E-TEST", "no ".repeat(600));
    let outcome = Outcome::Dead { attempts: 3, failure, parks_lane: false };
    let outcomes = semel_testkit::workload::settlements([(receipt, outcome)]);
    let settled = timeout(PATIENCE, drive.source.settle(&outcomes)).await.unwrap();
    if let Err(failure) = &settled {
        expect(failure, Fault::Misconfigured, "E-KAFKA-DEAD-LETTER");
        drive.settle([(receipt, Outcome::Delivered)]).await;
    }
    settled.is_ok()
}

/// What is said of it takes room that its topic does not have.
#[tokio::test]
async fn a_letter_that_is_too_large_with_its_reason_is_kept_without() {
    const LIMIT: usize = 5_000;
    let Some(brokers) = service(Service::Kafka) else { return };
    let group = Group::at(&brokers).await;
    let (dead_topic, limit) = (format!("{}.dead", group.topic), LIMIT.to_string());
    topics::alter(&brokers, &dead_topic, &[("max.message.bytes", &limit)]).await;
    let mut drive = Drive::open(&group).await;
    assert!(is_buried(&group, &mut drive, LIMIT - 1_500).await);
    let letter = group.dead_letters().await.unwrap().pop().expect("a letter");
    assert_eq!(letter.headers[Epitaph::ERROR], "E-TEST", "no words");
    assert!(letter.headers[Epitaph::ORIGIN].starts_with(&group.topic), "{letter:?}");

    let mut bytes = LIMIT;
    while !is_buried(&group, &mut drive, bytes).await {
        bytes -= 60;
    }
    let letters = group.dead_letters().await.unwrap();
    let letter = letters.iter().find(|letter| letter.body.len() == bytes).expect("a letter");
    assert!(letter.headers.keys().all(|name| !Epitaph::has(name)), "{:?}", letter.headers);
    assert_eq!(letters.len(), 2, "each is kept once");
    drive.reopen().await.expect_nothing().await;
}

/// Those that are taken are not sent again with the one that is not.
#[tokio::test]
async fn letters_beside_one_that_is_not_taken_are_kept_once() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let group = Group::at(&brokers).await;
    let dead_topic = format!("{}.dead", group.topic);
    topics::alter(&brokers, &dead_topic, &[("max.message.bytes", "3000")]).await;
    let large = event("large", 0).with_bytes("application/octet-stream", vec![7; 5_000]);
    let all = [vec![large], lanes(8)].concat();
    group.publish(all.clone()).await;
    let mut drive = Drive::open(&group).await;
    let mut taken = drive.take(all.len()).await;
    // A refusal keeps those back that have not left, so the large one goes last.
    taken.sort_by_key(|got| got.message.event.payload.bytes().len());
    let outcomes = taken.iter().map(|got| (got.receipt, dead(false)));
    let outcomes = semel_testkit::workload::settlements(outcomes);
    let some = async {
        loop {
            assert!(drive.source.settle(&outcomes).await.is_err());
            if !group.dead_letters().await.unwrap().is_empty() {
                break;
            }
        }
    };
    timeout(PATIENCE, some).await.expect("other partitions take theirs");
    assert!(timeout(PATIENCE, drive.source.settle(&outcomes)).await.unwrap().is_err());
    topics::alter(&brokers, &dead_topic, &[("max.message.bytes", "100000")]).await;
    let settled = async {
        while drive.source.settle(&outcomes).await.is_err() {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(PATIENCE, settled).await.expect("all are taken");
    let letters = group.dead_letters().await.unwrap();
    let kept: BTreeSet<_> = letters.iter().map(|it| it.event.as_ref().unwrap().id).collect();
    assert_eq!((letters.len(), kept.len()), (all.len(), all.len()), "each is kept once");
    drive.reopen().await.expect_nothing().await;
}

/// A letter that is put back and dies again says why it died last, and nothing twice.
#[tokio::test]
async fn a_letter_that_dies_again_gets_a_new_epitaph() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let group = Group::at(&brokers).await;
    group.publish_foreign(&[(Epitaph::CODE, "E-OLD"), ("x", "y")], b"hello").await.unwrap();
    let mut drive = Drive::open(&group).await;
    let letters = semel_testkit::workload::eventually::<Group, _>(async || {
        assert!(drive.ask(Limit::default()).await.deliveries.is_empty(), "it is no event");
        group.dead_letters().await.ok().filter(|letters| !letters.is_empty())
    });
    let letters = letters.await.expect("a letter");
    assert_eq!(letters[0].headers[Epitaph::CODE], "E-WIRE");
    assert_eq!(letters[0].headers["x"], "y");
    assert_eq!(letters[0].headers[Epitaph::CONSUMER], group.group("suite"));
    let origin = &letters[0].headers[Epitaph::ORIGIN];
    assert!(origin.starts_with(&format!("{}/", group.topic)), "{origin}");
}

/// What was handed out of a partition that goes to another member is settled in vain there, and
/// comes again here; the position never goes past it.
#[tokio::test]
async fn what_a_rebalance_takes_away_is_settled_in_vain() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let group = Group::at(&brokers).await;
    group.publish(lanes(30)).await;
    let mut first = Drive::open(&group).await;
    let taken = first.take(30).await;
    let mut second = Drive { probe: &group, source: group.member(&brokers, "suite").await };
    let moved = second.batch().await;
    assert!(!moved.is_empty() && moved.len() < 30, "{}", moved.len());
    first.deliver(&taken).await;
    second.settle(moved.iter().map(|got| (got.receipt, Outcome::Released))).await;
    assert_eq!(second.deliver_next(moved.len()).await.len(), moved.len(), "still there");
    first.source.close().await;
    drop(first);
    let fewer = second.source.partitions();
    let all = async {
        while second.source.partitions() < 3 {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, all).await.unwrap_or_else(|_| unreachable!("{fewer} partitions only"));
    second.expect_nothing().await;
}

/// After a member has left, its receipts are worth nothing.
#[tokio::test]
async fn a_member_that_left_settles_in_vain() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let group = Group::at(&brokers).await;
    group.publish(lanes(3)).await;
    let mut drive = Drive::open(&group).await;
    let taken = drive.take(3).await;
    drive.source.close().await;
    let delivered = taken.iter().map(|got| (got.receipt, Outcome::Delivered));
    assert_eq!(drive.try_settle(delivered).await, Holding::Held);
    let again = drive.reopen().await.drain(3).await;
    assert_eq!(delivered_numbers(&again).len(), 3);
}

/// A slow handler costs no membership: the member goes on answering while nobody asks it.
#[tokio::test]
async fn a_member_that_is_not_asked_stays_a_member() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let group = Group::at(&brokers).await;
    group.publish(lanes(5)).await;
    let mut drive = Drive::open(&group).await;
    let taken = drive.take(5).await;
    // Longer than the session.
    sleep(Duration::from_secs(8)).await;
    drive.deliver(&taken).await;
    drive.reopen().await.expect_nothing().await;
}
