//! Streams and consumers that go away under a subscription, or are made again.

use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::consumer::pull::Config as Pull;
use semel_backends::nats::NatsSubscription;
use semel_core::{Event, Fault, Holding, Outcome, Receipt, Source};
use semel_testkit::probe::{Probe, WriteProbe};
use semel_testkit::suites::source::SourceProbe;
use semel_testkit::suites::subscription::SubscriptionProbe;
use semel_testkit::workload::{dead, event, lanes, settlements};
use tokio::time::timeout;

use super::PATIENCE;
use super::subscription::{Group, first, trouble};

/// The stream and its consumer are made again: their numbers begin anew.
async fn make_again(group: &Group) -> PullConsumer {
    let context = &group.0.reader.context;
    let stream = context.get_stream(&group.0.name).await.unwrap();
    let same = stream.cached_info().config.clone();
    context.delete_stream(&group.0.name).await.unwrap();
    let stream = context.create_stream(same).await.unwrap();
    let another = Pull { durable_name: Some("suite".into()), ..Pull::default() };
    stream.create_consumer(another).await.unwrap()
}

async fn deliver(member: &mut NatsSubscription, receipt: Receipt) {
    let settled = settlements([(receipt, Outcome::Delivered)]);
    let held = timeout(PATIENCE, member.settle(&settled)).await.expect("an answer");
    assert_eq!(held.unwrap(), Holding::Held);
}

async fn one_in_hand(group: &Group) -> (NatsSubscription, Receipt) {
    let mut member = group.open().await;
    group.commit(lanes(1)).await;
    let receipt = first(&mut member).await.receipt;
    (member, receipt)
}

async fn next_is(member: &mut NatsSubscription, event: &Event) -> Receipt {
    let next = first(member).await;
    assert_eq!(next.message.event.id, event.id);
    next.receipt
}

/// A stream that was made again, or has lost its end, begins at numbers that were there before.
#[tokio::test]
async fn what_has_the_number_of_a_settled_one_is_another() {
    let Some(group) = <Group as Probe>::fresh().await else { return };
    let (mut member, receipt) = one_in_hand(&group).await;
    deliver(&mut member, receipt).await;
    make_again(&group).await;
    let after = event("after", 2);
    group.commit(vec![after.clone()]).await;
    next_is(&mut member, &after).await;
}

/// What is settled of the old one says nothing of the new one: a crash would lose it.
#[tokio::test]
async fn what_has_the_number_of_one_in_hand_is_settled_by_itself() {
    let Some(group) = <Group as Probe>::fresh().await else { return };
    let (mut member, old) = one_in_hand(&group).await;
    let mut consumer = make_again(&group).await;
    let after = event("after", 2);
    group.commit(vec![after.clone()]).await;
    let new = next_is(&mut member, &after).await;
    deliver(&mut member, old).await;
    assert_eq!(consumer.info().await.unwrap().num_ack_pending, 1, "the new one is in hand");
    deliver(&mut member, new).await;
    assert_eq!(consumer.info().await.unwrap().ack_floor.stream_sequence, 1);
}

/// Newer servers do not answer what is said of a message that they have not given out.
#[tokio::test]
async fn what_is_in_hand_of_a_stream_that_is_gone_is_settled() {
    let Some(group) = <Group as Probe>::fresh().await else { return };
    let (mut member, old) = one_in_hand(&group).await;
    make_again(&group).await;
    deliver(&mut member, old).await;
    let after = event("after", 2);
    group.commit(vec![after.clone()]).await;
    let new = next_is(&mut member, &after).await;
    deliver(&mut member, new).await;
}

/// Nothing is asked for while a dead letter waits, so only who settles it can notice.
#[tokio::test]
async fn a_dead_letter_of_a_deleted_consumer_is_misconfigured() {
    let Some(group) = <Group as Probe>::fresh().await else { return };
    let (mut member, receipt) = one_in_hand(&group).await;
    let stream = group.0.reader.context.get_stream(&group.0.name).await.unwrap();
    stream.delete_consumer("suite").await.unwrap();
    let settled = settlements([(receipt, dead(false))]);
    let failure = timeout(PATIENCE, member.settle(&settled)).await.unwrap().unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-NATS-STREAM"));
    assert_eq!(group.dead_letters().await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_deleted_consumer_is_misconfigured() {
    let Some(group) = <Group as Probe>::fresh().await else { return };
    let mut member = group.open().await;
    let stream = group.0.reader.context.get_stream(&group.0.name).await.unwrap();
    stream.delete_consumer("suite").await.unwrap();
    let failure = trouble(&mut member).await;
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-NATS-STREAM"));
}
