//! Dead letters of a subscription: where there is little room for them, and how they are looked at.

use std::time::Duration;

use async_nats::jetstream::stream::{Config as Keep, DiscardPolicy, Stream};
use semel_backends::nats::{NatsConfig, NatsSubscription};
use semel_backends::{DeadQueue, Fate, sweep};
use semel_core::wire::Epitaph;
use semel_core::{Event, Failure, Fault, Holding, Outcome, Receipt, Source};
use semel_testkit::probe::{Probe, WriteProbe};
use semel_testkit::suites::source::SourceProbe;
use semel_testkit::suites::subscription::{DeadLetter, SubscriptionProbe};
use semel_testkit::workload::{Drive, dead, event, lanes, settlements};
use tokio::time::{sleep, timeout};

use super::PATIENCE;
use super::subscription::{Group, first};

/// The stream of dead letters, as it is kept.
async fn kept(group: &Group, keep: Keep) -> Stream {
    let name = &group.0.name;
    let letters =
        Keep { name: format!("{name}-dead"), subjects: vec![format!("dead.{name}.>")], ..keep };
    group.0.reader.context.create_stream(letters).await.unwrap()
}

/// The letter of an event where letters have at most 1,000 bytes.
async fn small_letter(group: &Group, event: Event) -> DeadLetter {
    kept(group, Keep { max_message_size: 1_000, ..Keep::default() }).await;
    let mut member = group.open().await;
    group.commit(vec![event]).await;
    let receipt = first(&mut member).await.receipt;
    let failure = Failure::new(Fault::Refused, "E-TEST", "no ".repeat(600));
    let dead = Outcome::Dead { attempts: 3, failure, parks_lane: false };
    assert_eq!(settle(&mut member, &[(receipt, dead)]).await, Ok(Holding::Held));
    let mut letters = group.dead_letters().await.unwrap();
    assert_eq!(letters.len(), 1);
    letters.remove(0)
}

async fn settle(
    member: &mut NatsSubscription,
    outcomes: &[(Receipt, Outcome)],
) -> Result<Holding, Failure> {
    let settled = settlements(outcomes.iter().cloned());
    timeout(PATIENCE, member.settle(&settled)).await.expect("an answer")
}

/// Where the stream of dead letters takes no larger ones than the stream itself.
#[tokio::test]
async fn a_letter_that_is_too_large_with_its_reason_is_kept_without() {
    let Some(group) = <Group as Probe>::fresh().await else { return };
    let letter = small_letter(&group, event("a", 1)).await;
    assert_eq!(letter.headers[Epitaph::ERROR], "E-TEST", "no words");
    assert_eq!(letter.headers[Epitaph::CODE], "E-TEST");
    assert!(letter.headers[Epitaph::ORIGIN].ends_with("@1"), "{letter:?}");

    let large = event("a", 1).with_bytes("text/plain", "x".repeat(550));
    let Some(group) = <Group as Probe>::fresh().await else { return };
    let letter = small_letter(&group, large).await;
    assert!(letter.headers.keys().all(|name| !Epitaph::has(name)), "{letter:?}");
}

/// The first is not sent again when there was no room for the second.
#[tokio::test]
async fn a_letter_before_one_without_room_is_kept_once() {
    const REMEMBERED: Duration = Duration::from_millis(100);
    let Some(group) = <Group as Probe>::fresh().await else { return };
    let mut letters = kept(
        &group,
        Keep {
            max_messages: 1,
            discard: DiscardPolicy::New,
            duplicate_window: REMEMBERED,
            ..Keep::default()
        },
    )
    .await;
    group.commit(lanes(2)).await;
    let mut drive = Drive::open(&group).await;
    let taken = drive.take(2).await;
    let outcomes: Vec<_> = taken.iter().map(|got| (got.receipt, dead(false))).collect();
    let failure = settle(&mut drive.source, &outcomes).await.unwrap_err();
    assert_eq!(failure.code(), "E-NATS-STREAM-FULL", "{failure}");
    sleep(REMEMBERED * 5).await;
    letters.purge().await.unwrap();
    assert_eq!(settle(&mut drive.source, &outcomes).await, Ok(Holding::Held));
    assert_eq!(letters.info().await.unwrap().state.last_sequence, 2, "each is stored once");
}

/// The stream of dead letters is made again, and its numbers begin anew: what comes back from it is not
/// taken for what came back before.
#[tokio::test]
async fn letters_of_one_number_all_go_back() {
    let Some(group) = <Group as Probe>::fresh().await else { return };
    let (name, context) = (&group.0.name, &group.0.reader.context);
    let home = format!("{name}.home");
    for number in 0..2 {
        kept(&group, Keep::default()).await;
        let dead = format!("dead.{name}.orders");
        context.publish(dead, number.to_string().into()).await.unwrap().await.unwrap();
        let config = NatsConfig::new(&group.0.proxy.address()).unwrap();
        let mut queue = config.dead_letters(&format!("{name}-dead")).await.unwrap();
        let back = Fate::Back { otherwise: Some(&home) };
        let swept = sweep(&mut *queue, back, &mut |_| {}).await;
        assert_eq!((swept.done, swept.left), (1, 0), "{swept:?}");
        context.delete_stream(format!("{name}-dead")).await.unwrap();
    }
    let mut stream = context.get_stream(name).await.unwrap();
    assert_eq!(stream.info().await.unwrap().state.messages, 2, "none is dropped as a repetition");
}

/// A queue may be larger than the memory.
#[tokio::test]
async fn whoever_looks_on_has_no_more_in_hand_than_what_came_last() {
    let Some(group) = <Group as Probe>::fresh().await else { return };
    group.commit(lanes(2)).await;
    let config = NatsConfig::new(&group.0.proxy.address()).unwrap();
    let mut queue: Box<dyn DeadQueue> = config.dead_letters(&group.0.name).await.unwrap();
    let old = queue.next(1).await.unwrap().remove(0);
    let new = queue.next(1).await.unwrap().remove(0);
    let home = format!("{}.home", group.0.name);
    assert_eq!(queue.send(&old, &home).await.unwrap_err().code(), "E-DEAD-GONE");
    queue.send(&new, &home).await.unwrap();
}
