//! Dead letters of a subscription: where there is little room for them, or no queue.

use std::time::Duration;

use lapin::BasicProperties;
use lapin::options::{BasicGetOptions, BasicPublishOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use semel_backends::rabbitmq::{QueueKind, RabbitmqConfig, RabbitmqQueue, RabbitmqSubscription};
use semel_backends::{Fate, sweep};
use semel_core::wire::Epitaph;
use semel_core::{Failure, Fault, Holding, Limit, Outcome, Settlement, Source};
use semel_testkit::probe::{Probe, WriteProbe};
use semel_testkit::services::{Private, Service};
use semel_testkit::suites::source::SourceProbe;
use semel_testkit::suites::subscription::{DeadLetter, SubscriptionProbe};
use semel_testkit::workload::{Drive, dead, event, lanes, settlements};
use tokio::time::{sleep, timeout};

use super::outages::control;
use super::subscription::{COMPETING, Queue};
use super::{PATIENCE, Reader, publish, random_name};

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

/// Puts a message that is no event to a queue, as somebody else would.
async fn put(reader: &Reader, queue: &str, properties: BasicProperties) {
    let options = BasicPublishOptions { mandatory: true, ..Default::default() };
    let sent = reader.channel.basic_publish("".into(), queue.into(), options, b"hello", properties);
    timeout(PATIENCE, async { sent.await?.await }).await.unwrap().unwrap();
}

/// The properties of all messages of a queue, which are taken out.
async fn taken_out(reader: &Reader, queue: &str) -> Vec<BasicProperties> {
    let mut all = Vec::new();
    let next = || reader.channel.basic_get(queue.into(), BasicGetOptions { no_ack: true });
    while let Some(got) = timeout(PATIENCE, next()).await.unwrap().unwrap() {
        all.push(got.delivery.properties.clone());
    }
    all
}

/// How many messages wait in a queue.
async fn waiting(reader: &Reader, queue: &str) -> u32 {
    let options = QueueDeclareOptions { passive: true, ..Default::default() };
    let found = reader.channel.queue_declare(queue.into(), options, FieldTable::default());
    timeout(PATIENCE, found).await.unwrap().unwrap().message_count()
}

async fn until_waiting(reader: &Reader, queue: &str, count: u32) {
    let there = async {
        while waiting(reader, queue).await != count {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, there).await.unwrap_or_else(|_| unreachable!("{count} in {queue}"));
}

/// Asks a subscription that reads no events, until so many letters are there.
async fn until_buried(source: &mut RabbitmqSubscription, count: u32, reader: &Reader, dead: &str) {
    let buried = async {
        while waiting(reader, dead).await < count {
            let batch = source.next_batch(Limit::default()).await.unwrap();
            assert!(batch.deliveries.is_empty(), "it is no event");
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, buried).await.expect("they are buried");
}

/// It neither runs out, nor goes once more where its message was sent besides.
#[tokio::test]
async fn a_letter_lasts_and_takes_no_other_way() {
    const LASTS: Duration = Duration::from_secs(3);
    let Some(queue) = Queue::<COMPETING>::fresh().await else { return };
    let (reader, dead_queue) = (&queue.reader, queue.dead_queue());
    let beside = [("CC", random_name("copied")), ("BCC", random_name("hidden"))];
    let mut headers = FieldTable::default();
    for (name, queue) in &beside {
        reader.declare(queue, FieldTable::default()).await;
        let queue = AMQPValue::LongString(LongString::from(queue.as_str()));
        headers.insert((*name).into(), AMQPValue::FieldArray(vec![queue].into()));
    }
    let short = BasicProperties::default()
        .with_correlation_id("7".into())
        .with_expiration(LASTS.as_millis().to_string().into());
    // What a consumer has been given does not run out.
    let mut consumer = queue.open().await;
    put(reader, &queue.name, short).await;
    until_buried(&mut consumer, 1, reader, &dead_queue).await;
    sleep(LASTS + Duration::from_secs(1)).await;
    assert_eq!(waiting(reader, &dead_queue).await, 1, "it is still there");

    put(reader, &queue.name, BasicProperties::default().with_headers(headers)).await;
    until_buried(&mut consumer, 2, reader, &dead_queue).await;
    let letters = taken_out(reader, &dead_queue).await;
    let known_by = letters[0].correlation_id().as_ref().map(ShortString::as_str);
    assert_eq!((letters.len(), known_by), (2, Some("7")), "the rest stays as it was");
    for (name, queue) in &beside {
        assert_eq!(taken_out(reader, queue).await.len(), 1, "{name}: the message, not its letter");
    }
}

/// The broker takes a message that says whose it is from nobody else.
#[tokio::test]
async fn a_message_of_another_user_becomes_a_letter_and_goes_back() {
    let Some(server) = Private::start(Service::Rabbitmq) else { return };
    control(&server, &["add_user", "shop", "secret"]);
    control(&server, &["set_permissions", "shop", ".*", ".*", ".*"]);
    let queue = |name| RabbitmqQueue::new(name).unwrap().kind(QueueKind::Classic);
    let config = RabbitmqConfig::new(server.address()).unwrap();
    let reading = config.clone().declare_queue(queue("orders")).subscription("orders").unwrap();
    let reading = reading.dead_queue(queue("orders.dead"));
    let mut consumer = timeout(PATIENCE, reading.connect()).await.unwrap().unwrap();

    let shop = Reader::open(&server.address().replace("guest:guest", "shop:secret")).await;
    let by_shop = || BasicProperties::default().with_user_id("shop".into());
    put(&shop, "orders", by_shop()).await;
    until_buried(&mut consumer, 1, &shop, "orders.dead").await;
    timeout(PATIENCE, consumer.close()).await.unwrap();

    // As the broker itself puts them there.
    put(&shop, "orders.dead", by_shop()).await;
    until_waiting(&shop, "orders.dead", 2).await;
    let mut letters = timeout(PATIENCE, config.dead_letters("orders.dead")).await.unwrap().unwrap();
    let swept = sweep(&mut *letters, Fate::Back { otherwise: Some("orders") }, &mut |_| {}).await;
    assert_eq!((swept.done, swept.left), (2, 0), "{swept:?}");
    until_waiting(&shop, "orders.dead", 0).await;
    until_waiting(&shop, "orders", 2).await;
}
