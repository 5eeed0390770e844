//! The subscription to SQS: the shared suites on moto, and what is particular to a queue.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aws_sdk_sqs::types::{Message as Received, MessageAttributeValue};
use semel_backends::aws::{AwsSink, SqsSubscription};
use semel_core::outbox::AppendError;
use semel_core::{Event, EventId, Fault, Limit, Message, Sink, Source};
use semel_testkit::probe::{Probe, Ran, Skip, WriteProbe};
use semel_testkit::suites::source::SourceProbe;
use semel_testkit::suites::subscription::{DeadLetter, SubscriptionProbe};
use semel_testkit::workload::lanes;
use tokio::time::{sleep, timeout};

use super::impostor::Impostor;
use super::{Lab, PATIENCE, Queue, config, event_of, random_name};

/// All but the storm: a thousand messages take moto minutes.
mod fifo {
    use super::Reading;
    semel_testkit::stamp_suite! { source, Reading<true>,
        an_empty_source_hands_out_nothing
        a_lane_keeps_its_order_over_transactions_and_batches
        lanes_are_told_apart_by_type_and_id
        content_survives_unchanged
        at_most_the_limit_of_events_is_handed_out
        an_event_larger_than_the_limit_is_handed_out_alone
        a_commit_wakes_the_source
        a_dropped_settle_can_be_repeated
        what_is_unsettled_is_not_handed_out_again
        delivered_survives_a_crash
        what_was_unsettled_at_a_crash_comes_again
        released_comes_again_in_its_place
        settling_twice_is_harmless
        an_unknown_receipt_is_ignored
    }
    semel_testkit::subscription_suite!(Reading<true>);
}
mod standard {
    use super::Reading;
    semel_testkit::subscription_suite!(Reading<false>);
}

/// How long a message in hand is hidden in tests.
const HIDDEN: Duration = Duration::from_secs(2);

/// How long a question waits in tests.
pub(super) const WAIT: Duration = Duration::from_secs(1);

/// A queue of the test's own, that of its dead letters, and a sink.
struct Reading<const FIFO: bool> {
    lab: Lab,
    name: String,
    queue: Queue,
    dead: Queue,
    sink: AwsSink,
}

impl<const FIFO: bool> Probe for Reading<FIFO> {
    const BACKEND: &'static str = "SQS";
    const PATIENCE: Duration = Duration::from_secs(60);
    const QUIET: Duration = Duration::from_secs(3);

    async fn fresh() -> Option<Self> {
        let lab = Lab::open().await?;
        let (name, ending) = (random_name("read"), if FIFO { ".fifo" } else { "" });
        let queue = lab.queue(&format!("{name}{ending}")).await;
        let dead = lab.queue(&format!("{name}-dead{ending}")).await;
        let sink = super::config(&lab.url).connect_sqs().await.unwrap();
        Some(Self { lab, name: format!("{name}{ending}"), queue, dead, sink })
    }
}

impl<const FIFO: bool> WriteProbe for Reading<FIFO> {
    type Tx = Vec<Event>;

    async fn begin(&self) -> Vec<Event> {
        Vec::new()
    }

    async fn append(&self, tx: &mut Vec<Event>, events: &[Event]) -> Result<(), AppendError> {
        tx.extend_from_slice(events);
        Ok(())
    }

    async fn commit(&self, tx: Vec<Event>) {
        let batch: Vec<_> =
            tx.into_iter().map(|event| Message::first(self.name.as_str(), event)).collect();
        let published = timeout(PATIENCE, self.sink.publish(&batch)).await.expect("an answer");
        assert!(published.all_confirmed(), "{published:?}");
    }
}

impl<const FIFO: bool> SourceProbe for Reading<FIFO> {
    type Source = SqsSubscription;

    async fn open(&self) -> SqsSubscription {
        let config = self.lab.config().timeout(Duration::from_secs(20));
        let config = config.subscribe_sqs(&self.name).visibility(HIDDEN).wait(WAIT);
        let config = config.max_unsettled(40);
        timeout(PATIENCE, config.open()).await.expect("an answer").unwrap()
    }

    async fn reopen(&self, crashed: SqsSubscription) -> SqsSubscription {
        drop(crashed);
        // moto gives to who asked and is gone, and does not see what is in hand of others then.
        sleep(WAIT * 2).await;
        self.open().await
    }

    fn fences(&self) -> Ran {
        Err(Skip::because("a reader that is back may still settle"))
    }

    fn wakes(&self) -> Ran {
        Ok(())
    }
}

impl<const FIFO: bool> SubscriptionProbe for Reading<FIFO> {
    const HANDOVER: Duration = Duration::from_secs(30);

    async fn dead_letters(&self) -> Result<Vec<DeadLetter>, Skip> {
        let letter = |mut message: Received| {
            let attributes = message.message_attributes.as_mut();
            let said = attributes.and_then(|all| all.remove("semel-epitaph")).unwrap();
            let headers: BTreeMap<String, String> =
                serde_json::from_str(said.string_value().unwrap()).unwrap();
            let id = message.message_attributes.as_ref().unwrap().get("semel-event-id");
            let is_event = id.is_some_and(|id| id.string_value().unwrap().len() == 36);
            let body = message.body.clone().unwrap().into_bytes().into();
            DeadLetter { event: is_event.then(|| event_of(&message)), body, headers }
        };
        Ok(self.dead.messages().await.into_iter().map(letter).collect())
    }

    async fn publish_foreign(&self, headers: &[(&str, &str)], body: &'static [u8]) -> Ran {
        let Ok(body) = std::str::from_utf8(body) else {
            return Err(Skip::because("a message is text"));
        };
        let mut send = self.queue.client.send_message().queue_url(&self.queue.url);
        for (name, value) in headers {
            let value = MessageAttributeValue::builder().data_type("String").string_value(*value);
            send = send.message_attributes(*name, value.build().unwrap());
        }
        if FIFO {
            let id = EventId::now().to_string();
            send = send.message_group_id("foreign").message_deduplication_id(id);
        }
        timeout(PATIENCE, send.message_body(body).send()).await.unwrap().unwrap();
        Ok(())
    }

    fn shares(&self) -> Ran {
        Err(Skip::because("moto gives a message to two who ask at once"))
    }

    fn most_unsettled(&self) -> Result<usize, Skip> {
        Ok(40)
    }

    async fn interrupt(&self) -> Ran {
        self.lab.proxy.refuse(true);
        self.lab.proxy.cut();
        Ok(())
    }

    async fn restore(&self) {
        self.lab.proxy.refuse(false);
    }
}

/// What is no event is put aside, and events around it come.
#[tokio::test]
async fn what_is_no_event_is_put_aside() {
    let Some(reading) = <Reading<false> as Probe>::fresh().await else { return };
    reading.publish_foreign(&[("semel-event-id", "seven")], b"hello").await.unwrap();
    reading.commit_all(&lanes(1)).await;
    let mut subscription = reading.open().await;
    assert_eq!(next(&mut subscription, 1).await, 1);
    let arrive = async {
        loop {
            let letters = reading.dead_letters().await.unwrap();
            if !letters.is_empty() {
                return letters;
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    let letters = timeout(PATIENCE, arrive).await.expect("a dead letter");
    assert_eq!((&letters[0].body[..], letters[0].event.is_none()), (&b"hello"[..], true));
    assert_eq!(letters[0].headers["semel-error-code"], "E-WIRE");
}

/// However slow it is, a reader that lives is not robbed; one that is gone is.
#[tokio::test]
async fn a_slow_reader_is_not_robbed_and_a_lost_one_is() {
    let Some(reading) = <Reading<false> as Probe>::fresh().await else { return };
    reading.commit_all(&lanes(3)).await;
    let mut slow = reading.open().await;
    assert_eq!(next(&mut slow, 3).await, 3);
    let mut other = reading.open().await;
    for _ in 0..6 {
        sleep(HIDDEN / 2).await;
        let batch = other.next_batch(Limit::default()).await.unwrap();
        assert!(batch.deliveries.is_empty(), "robbed of {:?}", batch.deliveries);
    }
    drop(slow);
    assert_eq!(next(&mut other, 3).await, 3);
}

/// Who is closed hands over at once, and not when the messages are shown again by themselves.
#[tokio::test]
async fn what_a_reader_gives_back_comes_at_once() {
    let Some(reading) = <Reading<true> as Probe>::fresh().await else { return };
    reading.commit_all(&lanes(3)).await;
    let config = reading.lab.config().subscribe_sqs(&reading.name).wait(WAIT);
    let config = config.visibility(PATIENCE * 10);
    let mut leaving = config.clone().open().await.unwrap();
    assert_eq!(next(&mut leaving, 3).await, 3);
    timeout(PATIENCE, leaving.close()).await.expect("close is quick");
    let mut heir = config.open().await.unwrap();
    assert_eq!(next(&mut heir, 3).await, 3);
}

/// SQS goes on with a question nobody listens to any more, and would hide what it finds for it.
#[tokio::test]
async fn what_is_given_back_is_not_for_the_last_question_of_who_leaves() {
    let Some(reading) = <Reading<false> as Probe>::fresh().await else { return };
    reading.commit_all(&lanes(3)).await;
    let config = reading.lab.config().subscribe_sqs(&reading.name).wait(WAIT * 3);
    let config = config.visibility(PATIENCE * 10);
    let mut leaving = config.clone().open().await.unwrap();
    assert_eq!(next(&mut leaving, 3).await, 3);
    sleep(WAIT / 4).await;
    timeout(PATIENCE, leaving.close()).await.expect("close is quick");
    sleep(WAIT * 3).await;
    let mut heir = config.open().await.unwrap();
    assert_eq!(next(&mut heir, 3).await, 3);
}

#[tokio::test]
async fn a_missing_queue_of_dead_letters_is_misconfigured() {
    let Some(reading) = <Reading<false> as Probe>::fresh().await else { return };
    let config = reading.lab.config().subscribe_sqs(&reading.name).dead_letters("semel-test-none");
    let failure = timeout(PATIENCE, config.open()).await.unwrap().unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-AWS-MISSING"));
}

/// It comes again and again, and nobody would know why.
#[tokio::test]
async fn what_is_no_event_and_cannot_be_put_aside_is_told() {
    let Some(reading) = <Reading<false> as Probe>::fresh().await else { return };
    let mut reader = reading.open().await;
    let delete = reading.dead.client.delete_queue().queue_url(&reading.dead.url);
    timeout(PATIENCE, delete.send()).await.unwrap().unwrap();
    reading.publish_foreign(&[("semel-event-id", "seven")], b"hello").await.unwrap();
    let said = async {
        loop {
            if let Err(failure) = reader.next_batch(Limit::default()).await {
                return failure;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    let failure = timeout(PATIENCE, said).await.expect("it is said");
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-AWS-MISSING"));
}

/// A reader that is throttled asks nothing for as long as it was told.
#[tokio::test]
async fn a_throttled_reader_waits_as_long_as_it_is_asked_to() {
    const ASKED: Duration = Duration::from_secs(2);
    let receiving = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&receiving);
    let impostor = Impostor::start(move |request| {
        if request.contains("QueueName") {
            return Some((200, "", "{\"QueueUrl\":\"http://sqs/1/orders\"}".to_owned()));
        }
        noted.lock().unwrap().push(Instant::now());
        Some((400, "retry-after: 2\r\n", "{\"__type\":\"ThrottlingException\"}".to_owned()))
    })
    .await;
    let config = config(&impostor.url).subscribe_sqs("orders").wait(WAIT);
    let mut reader = timeout(PATIENCE, config.open()).await.unwrap().unwrap();
    let twice = async {
        while receiving.lock().unwrap().len() < 2 {
            if let Err(failure) = reader.next_batch(Limit::default()).await {
                assert_eq!(failure.code(), "E-AWS-THROTTLED", "{failure}");
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, twice).await.expect("it asks again");
    let receiving = receiving.lock().unwrap();
    assert!(receiving[1] - receiving[0] >= ASKED, "{:?}", receiving[1] - receiving[0]);
}

/// How many come, of so many.
async fn next(subscription: &mut SqsSubscription, count: usize) -> usize {
    let mut got = 0;
    let asked = async {
        while got < count {
            got += subscription.next_batch(Limit::default()).await.unwrap().deliveries.len();
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, asked).await.expect("they come");
    got
}
