//! Dead letters of a subscription: where there is little room for them, or no queue.

use lapin::types::{AMQPValue, FieldTable};
use semel_core::wire::Epitaph;
use semel_core::{Failure, Fault, Holding, Outcome, Settlement, Source};
use semel_testkit::probe::{Probe, WriteProbe};
use semel_testkit::suites::subscription::{DeadLetter, SubscriptionProbe};
use semel_testkit::workload::{Drive, dead, event, lanes, settlements};
use tokio::time::timeout;

use super::subscription::{COMPETING, Queue};
use super::{PATIENCE, publish};

async fn settle(
    drive: &mut Drive<'_, Queue<COMPETING>>,
    settlements: &[Settlement],
) -> Result<Holding, Failure> {
    timeout(PATIENCE, drive.source.settle(settlements)).await.expect("an answer")
}

async fn delete_graves(queue: &Queue<COMPETING>) {
    let gone = queue.reader.channel.queue_delete(queue.dead_queue().into(), Default::default());
    timeout(PATIENCE, gone).await.unwrap().unwrap();
}

/// Makes the queue of dead letters anew, and fills it.
async fn fill(queue: &Queue<COMPETING>) {
    let dead_queue = queue.dead_queue();
    delete_graves(queue).await;
    queue.reader.declare(&dead_queue, full_after_one()).await;
    while publish(&queue.sink, &dead_queue, [event("x", 0)]).await.all_confirmed() {}
}

/// The queue of dead letters goes away: nothing is passed by that is not kept.
#[tokio::test]
async fn a_dead_letter_that_no_queue_takes_stops_the_consumer() {
    let Some(queue) = Queue::<COMPETING>::fresh().await else { return };
    let written = event("a", 1);
    queue.commit_all(std::slice::from_ref(&written)).await;
    let mut drive = Drive::open(&queue).await;
    let taken = drive.take(1).await;
    delete_graves(&queue).await;
    let dead = settlements([(taken[0].receipt, dead(false))]);
    let failure = settle(&mut drive, &dead).await.unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-RABBITMQ-MISSING"));
    let mut drive = drive.reopen().await;
    assert_eq!(drive.take(1).await[0].message.event.id, written.id, "it is still there");
}

/// The queue of dead letters takes no more: the letter waits in its queue until there is room.
#[tokio::test]
async fn a_full_queue_of_dead_letters_is_an_outage_and_passes() {
    let Some(queue) = Queue::<COMPETING>::fresh().await else { return };
    queue.commit_all(&[event("a", 1)]).await;
    let mut drive = Drive::open(&queue).await;
    let taken = drive.take(1).await;
    fill(&queue).await;

    let dead = settlements([(taken[0].receipt, dead(false))]);
    let failure = settle(&mut drive, &dead).await.unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, "E-RABBITMQ-NACK"));

    let purged = queue.reader.channel.queue_purge(queue.dead_queue().into(), Default::default());
    timeout(PATIENCE, purged).await.unwrap().unwrap();
    assert_eq!(settle(&mut drive, &dead).await, Ok(Holding::Held));
    let letters = queue.dead_letters().await.unwrap();
    assert_eq!(letters.len(), 1, "kept once");
}

/// The limit is checked after the message that reaches it.
fn full_after_one() -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(1));
    arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    arguments
}

/// The first is not sent again when there was no room for the second.
#[tokio::test]
async fn a_letter_before_one_without_room_is_kept_once() {
    let Some(queue) = Queue::<COMPETING>::fresh().await else { return };
    let written = lanes(2);
    queue.commit_all(&written).await;
    let mut drive = Drive::open(&queue).await;
    let taken = drive.take(2).await;
    fill(&queue).await;
    queue.reader.take(&queue.dead_queue()).await.expect("room for one");

    let dead = settlements(taken.iter().map(|got| (got.receipt, dead(false))));
    let failure = settle(&mut drive, &dead).await.unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, "E-RABBITMQ-NACK"));
    queue.dead_letters().await.unwrap();
    assert_eq!(settle(&mut drive, &dead).await, Ok(Holding::Held));
    let letters = queue.dead_letters().await.unwrap();
    let letters = letters.iter().filter(|letter| letter.headers.contains_key(Epitaph::ORIGIN));
    let kept: Vec<_> = letters.map(|letter| letter.event.as_ref().unwrap().id).collect();
    assert_eq!(kept, [written[0].id, written[1].id], "each is kept once");
    delete_graves(&queue).await;
    drive.reopen().await.expect_nothing().await;
}

/// The letter of an event with a header of this size, if there can be one.
async fn letter_with_header_of(bytes: usize, queue: &Queue<COMPETING>) -> Option<DeadLetter> {
    let event = |bytes| event("a", 1).with_header("filler", "x".repeat(bytes));
    if !publish(&queue.sink, &queue.name, [event(bytes)]).await.all_confirmed() {
        return None;
    }
    let mut drive = Drive::open(queue).await;
    let taken = drive.take(1).await;
    let failure = Failure::refused("E-TEST", "no ".repeat(600));
    let outcome = Outcome::Dead { attempts: 3, failure, parks_lane: false };
    let dead = settlements([(taken[0].receipt, outcome)]);
    assert_eq!(settle(&mut drive, &dead).await, Ok(Holding::Held));
    queue.dead_letters().await.unwrap().pop()
}

/// All headers of a message have to fit into one frame.
#[tokio::test]
async fn a_letter_that_is_too_large_with_its_reason_is_kept_without() {
    const FRAME: usize = 128 * 1024;
    let Some(queue) = Queue::<COMPETING>::fresh().await else { return };
    let letter = letter_with_header_of(FRAME - 1_200, &queue).await.expect("a letter");
    assert_eq!(letter.headers[Epitaph::ERROR], "E-TEST", "no words");
    assert_eq!(letter.headers[Epitaph::ORIGIN], queue.name);

    let mut bytes = FRAME;
    let letter = loop {
        bytes -= 20;
        if let Some(letter) = letter_with_header_of(bytes, &queue).await {
            break letter;
        }
    };
    assert!(letter.headers.keys().all(|name| !Epitaph::has(name)), "{:?}", letter.event);
}
