//! The subscription: the shared suites, and what is particular to durable consumers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream::consumer::AckPolicy;
use async_nats::jetstream::consumer::pull::Config as Pull;
use semel_backends::nats::{NatsConfig, NatsSubscription, NatsSubscriptionConfig};
use semel_core::outbox::AppendError;
use semel_core::wire::{Binding, decode};
use semel_core::{
    Delivery, Event, Failure, Fault, Holding, Limit, Message, Outcome, Settlement, Sink, Source,
};
use semel_testkit::probe::{Probe, Ran, Skip, WriteProbe};
use semel_testkit::suites::source::SourceProbe;
use semel_testkit::suites::subscription::{DeadLetter, SubscriptionProbe};
use semel_testkit::workload::lanes;
use tokio::time::{sleep, timeout};

use super::{PATIENCE, Stream};

// All but the storm: when a member is lost, nats-server 2.9.10 was seen to give out a message again
// that was acknowledged. `a_storm_of_losses_loses_nothing` takes its place.
semel_testkit::stamp_suite! { source, Group,
    an_empty_source_hands_out_nothing
    a_lane_keeps_its_order_over_transactions_and_batches
    lanes_are_told_apart_by_type_and_id
    rolled_back_events_never_appear
    a_transaction_that_commits_late_is_not_lost
    content_survives_unchanged
    at_most_the_limit_of_events_is_handed_out
    at_most_the_limit_of_bytes_is_handed_out
    an_event_larger_than_the_limit_is_handed_out_alone
    more_says_whether_asking_again_is_worth_it
    a_commit_wakes_the_source
    a_dropped_call_leaves_the_source_usable
    a_dropped_settle_can_be_repeated
    what_is_unsettled_is_not_handed_out_again
    delivered_survives_a_crash
    what_was_unsettled_at_a_crash_comes_again
    released_comes_again_in_its_place
    settling_twice_is_harmless
    an_unknown_receipt_is_ignored
    a_mixed_settlement_is_recorded_as_one
    an_old_owner_is_fenced_off
    a_retry_waits_for_its_time
    a_retry_survives_a_crash
    a_lane_waits_behind_a_retry_and_others_go_on
    followers_released_with_a_failed_head_come_back_in_order
    next_due_is_the_earliest_retry
    a_dead_event_parks_its_lane
    a_dead_event_that_parks_nothing_lets_its_lane_go_on
    a_scheduled_event_waits_for_its_time
    a_scheduled_event_survives_a_crash
    a_scheduled_event_takes_its_place_when_due
}
semel_testkit::subscription_suite!(Group);

/// How soon a member counts as gone in tests.
const GONE: Duration = Duration::from_secs(1);

pub(super) struct Group(pub(super) Stream);

impl Group {
    fn config(&self, consumer: &str) -> NatsSubscriptionConfig {
        let config = NatsConfig::new(&self.0.proxy.address()).unwrap();
        let config = config.timeout(Duration::from_secs(3)).subscribe(&self.0.name, consumer);
        config.ack_wait(GONE).max_unsettled(100)
    }

    async fn join(&self, consumer: &str) -> NatsSubscription {
        timeout(PATIENCE, self.config(consumer).open()).await.expect("an answer").unwrap()
    }
}

impl Probe for Group {
    const BACKEND: &'static str = "NATS JetStream";
    const QUIET: Duration = Duration::from_millis(1_500);

    async fn fresh() -> Option<Self> {
        Stream::fresh().await.map(Self)
    }
}

impl WriteProbe for Group {
    type Tx = Vec<Event>;

    async fn begin(&self) -> Vec<Event> {
        Vec::new()
    }

    async fn append(&self, tx: &mut Vec<Event>, events: &[Event]) -> Result<(), AppendError> {
        tx.extend_from_slice(events);
        Ok(())
    }

    async fn commit(&self, tx: Vec<Event>) {
        let published = timeout(PATIENCE, async {
            let batch: Vec<_> =
                tx.into_iter().map(|event| Message::first(self.0.name.as_str(), event)).collect();
            while !self.0.sink.publish(&batch).await.all_confirmed() {
                sleep(Duration::from_millis(50)).await;
            }
        });
        published.await.expect("published");
    }
}

impl SourceProbe for Group {
    type Source = NatsSubscription;

    async fn open(&self) -> NatsSubscription {
        self.join("suite").await
    }

    fn fences(&self) -> Ran {
        Err(Skip::because("a member that is back may still settle"))
    }

    fn schedules(&self) -> Ran {
        Err(Skip::because("what reaches a broker is due"))
    }

    fn wakes(&self) -> Ran {
        Ok(())
    }
}

impl SubscriptionProbe for Group {
    async fn dead_letters(&self) -> Result<Vec<DeadLetter>, Skip> {
        let name = format!("{}-dead", self.0.name);
        let Ok(stream) = timeout(PATIENCE, self.0.reader.context.get_stream(&name)).await.unwrap()
        else {
            return Ok(Vec::new());
        };
        let mut letters = Vec::new();
        while let Ok(message) = stream.get_raw_message(letters.len() as u64 + 1).await {
            let headers: BTreeMap<String, String> = message
                .headers
                .iter()
                .map(|(name, values)| (name.to_string(), values[0].as_str().to_owned()))
                .collect();
            let pairs = headers.iter().map(|(name, value)| (&**name, &**value));
            let event = decode(Binding::Nats, None, pairs, message.payload.clone()).ok();
            letters.push(DeadLetter { event, body: message.payload, headers });
        }
        Ok(letters)
    }

    async fn publish_foreign(&self, headers: &[(&str, &str)], body: &'static [u8]) -> Ran {
        let mut all = HeaderMap::new();
        for (name, value) in headers {
            all.insert(*name, *value);
        }
        let context = &self.0.reader.context;
        let sent = context.publish_with_headers(self.0.name.clone(), all, body.into()).await;
        timeout(PATIENCE, sent.unwrap()).await.unwrap().unwrap();
        Ok(())
    }

    async fn open_other_group(&self) -> Result<NatsSubscription, Skip> {
        Ok(self.join("another").await)
    }

    fn most_unsettled(&self) -> Result<usize, Skip> {
        Ok(100)
    }

    async fn interrupt(&self) -> Ran {
        self.0.proxy.refuse(true);
        self.0.proxy.cut();
        Ok(())
    }

    async fn restore(&self) {
        self.0.proxy.refuse(false);
    }
}

/// However slow it is, a member that lives is not robbed; one that is gone is.
#[tokio::test]
async fn a_slow_member_is_not_robbed_and_a_lost_one_is() {
    let Some(group) = <Group as Probe>::fresh().await else { return };
    let mut slow = group.open().await;
    group.commit_all(&lanes(5)).await;
    assert_eq!(next(&mut slow, 5).await, 5);
    let mut other = group.open().await;
    for _ in 0..10 {
        sleep(GONE / 3).await;
        let batch = other.next_batch(Limit::default()).await.unwrap();
        assert!(batch.deliveries.is_empty(), "robbed of {:?}", batch.deliveries);
    }
    drop(slow);
    assert_eq!(next(&mut other, 5).await, 5);
}

/// Members are lost again and again with messages in hand: every message is settled by somebody, and
/// few come after that.
#[tokio::test]
async fn a_storm_of_losses_loses_nothing() {
    let Some(group) = <Group as Probe>::fresh().await else { return };
    const COUNT: u64 = 300;
    group.commit_all(&lanes(COUNT)).await;
    let (mut done, mut repeated) = (BTreeSet::new(), 0);
    let storm = async {
        for round in 0_usize.. {
            let mut member = group.open().await;
            let since = Instant::now();
            while since.elapsed() < GONE && done.len() < COUNT as usize {
                let got = member.next_batch(Limit { events: 30, ..Limit::default() }).await;
                let got = got.unwrap().deliveries;
                // Every second one is in hand when the member is lost.
                let settled = got.iter().skip(round % 2).step_by(2).map(|got| got.receipt);
                let settled: Vec<_> = settled
                    .map(|receipt| Settlement { receipt, outcome: Outcome::Delivered })
                    .collect();
                assert!(member.settle(&settled).await.unwrap().is_held());
                for got in got.iter().skip(round % 2).step_by(2) {
                    repeated += usize::from(!done.insert(got.message.event.id));
                }
                sleep(Duration::from_millis(20)).await;
            }
            if done.len() == COUNT as usize {
                return;
            }
        }
    };
    timeout(PATIENCE, storm).await.expect("every message is settled");
    assert!(repeated <= 5, "{repeated} came after they were settled");
}

#[tokio::test]
async fn a_missing_stream_is_misconfigured() {
    let Some(group) = <Group as Probe>::fresh().await else { return };
    let config = NatsConfig::new(&group.0.proxy.address()).unwrap();
    let config = config.subscribe("semel-test-no-such-stream", "suite").dead_letters("x.y");
    let failure = timeout(PATIENCE, config.open()).await.unwrap().unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-NATS-STREAM"));
}

#[tokio::test]
async fn dead_letters_must_not_come_back() {
    let Some(group) = <Group as Probe>::fresh().await else { return };
    let config = group.config("suite").dead_letters(format!("{}.dead", group.0.name));
    let failure = timeout(PATIENCE, config.open()).await.unwrap().unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-NATS-DEAD"));
}

/// A server that has forgotten an acknowledgement would give the message out for ever.
#[tokio::test]
async fn what_was_settled_and_comes_again_is_acknowledged_again() {
    let Some(group) = <Group as Probe>::fresh().await else { return };
    let mut member = group.open().await;
    group.commit(lanes(1)).await;
    let receipt = first(&mut member).await.receipt;
    let settled = Settlement { receipt, outcome: Outcome::Delivered };
    assert_eq!(member.settle(&[settled]).await.unwrap(), Holding::Held);

    // One that knows of no acknowledgement takes the place of the consumer.
    let stream = group.0.reader.context.get_stream(&group.0.name).await.unwrap();
    stream.delete_consumer("suite").await.unwrap();
    let forgetful = Pull {
        durable_name: Some("suite".into()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: GONE,
        ..Pull::default()
    };
    let mut consumer = stream.create_consumer(forgetful).await.unwrap();
    let acknowledged = async {
        while consumer.info().await.unwrap().ack_floor.stream_sequence == 0 {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, acknowledged).await.expect("the server is told again");
    let again = member.next_batch(Limit::default()).await.map_or(0, |batch| batch.deliveries.len());
    assert_eq!(again, 0, "it is not handed out again");
}

/// It comes again and again, and nobody would know why.
#[tokio::test]
async fn what_is_no_event_and_cannot_be_put_aside_is_told() {
    let Some(group) = <Group as Probe>::fresh().await else { return };
    let mut member = group.open().await;
    let letters = format!("{}-dead", group.0.name);
    group.0.reader.context.delete_stream(&letters).await.unwrap();
    group.publish_foreign(&[("semel-event-id", "seven")], b"hello").await.unwrap();
    let failure = trouble(&mut member).await;
    assert!(failure.to_string().contains(&format!("dead.{}.suite", group.0.name)), "{failure}");
}

/// What the subscription says when it can bring nothing.
pub(super) async fn trouble(member: &mut NatsSubscription) -> Failure {
    let said = async {
        loop {
            if let Err(failure) = member.next_batch(Limit::default()).await {
                return failure;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, said).await.expect("it is said")
}

/// The next that comes, whatever is said before.
pub(super) async fn first(member: &mut NatsSubscription) -> Delivery {
    let got = async {
        loop {
            let batch = member.next_batch(Limit::default()).await.unwrap_or_default();
            match batch.deliveries.into_iter().next() {
                Some(delivery) => return delivery,
                None => sleep(Duration::from_millis(20)).await,
            }
        }
    };
    timeout(PATIENCE, got).await.expect("it comes")
}

/// How many come, of so many.
async fn next(subscription: &mut NatsSubscription, count: usize) -> usize {
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
