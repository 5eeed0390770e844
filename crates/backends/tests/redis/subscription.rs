//! The subscription: the shared suites, and what is particular to consumer groups.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::cmd;
use semel_backends::redis::{RedisConfig, RedisSubscription};
use semel_core::outbox::AppendError;
use semel_core::{Event, Fault, Limit, Message, Outcome, Settlement, Sink, Source};
use semel_testkit::probe::{Probe, Ran, Skip, WriteProbe};
use semel_testkit::suites::source::SourceProbe;
use semel_testkit::suites::subscription::{DeadLetter, SubscriptionProbe};
use semel_testkit::workload::{delivered_numbers, events, lanes};
use tokio::time::{sleep, timeout};

use super::keys::restart;
use super::server::OwnServer;
use super::{BRIEFLY, PATIENCE, Stream, event_of, random_name};

mod heirs;
mod ordered {
    use super::Group;
    semel_testkit::source_suite!(Group<true>);
    semel_testkit::subscription_suite!(Group<true>);
}
mod unordered {
    use super::Group;
    semel_testkit::subscription_suite!(Group<false>);
}

/// How soon a member counts as gone in tests.
const GONE: Duration = Duration::from_millis(600);

struct Group<const ORDERED: bool>(Stream);

impl<const ORDERED: bool> Group<ORDERED> {
    async fn join(&self, group: &str) -> RedisSubscription {
        let config = RedisConfig::new(&format!("redis://{}", self.0.proxy.address())).unwrap();
        let topics = [self.0.name.as_str()];
        let config = config.timeout(BRIEFLY).subscribe(group, topics);
        let config = config.claim_after(GONE).max_unsettled(200);
        let config = if ORDERED { config } else { config.unordered() };
        timeout(PATIENCE, config.open()).await.expect("an answer").unwrap()
    }

    fn dead_stream(&self) -> String {
        format!("{}.dead", self.0.name)
    }
}

impl<const ORDERED: bool> Probe for Group<ORDERED> {
    const BACKEND: &'static str = "Redis Streams";

    async fn fresh() -> Option<Self> {
        Stream::fresh().await.map(Self)
    }
}

impl<const ORDERED: bool> WriteProbe for Group<ORDERED> {
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
            // After an outage the first call may meet the connection that was lost.
            while !self.0.sink.publish(&batch).await.all_confirmed() {
                sleep(Duration::from_millis(20)).await;
            }
        });
        published.await.expect("published");
    }
}

impl<const ORDERED: bool> SourceProbe for Group<ORDERED> {
    type Source = RedisSubscription;

    async fn open(&self) -> RedisSubscription {
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

impl<const ORDERED: bool> SubscriptionProbe for Group<ORDERED> {
    async fn dead_letters(&self) -> Result<Vec<DeadLetter>, Skip> {
        type Entry = (String, Vec<(String, Vec<u8>)>);
        let range = &mut cmd("XRANGE");
        let entries: Vec<Entry> =
            self.0.reader.ask(range.arg(self.dead_stream()).arg("-").arg("+")).await;
        let letter = |(_, fields): Entry| {
            let (_, body) = fields.last().unwrap().clone();
            let text = |(name, value): (String, Vec<u8>)| {
                (name, String::from_utf8_lossy(&value).into_owned())
            };
            let headers: BTreeMap<_, _> = fields.iter().cloned().map(text).collect();
            let is_event = headers.get("semel-event-id").is_some_and(|id| id.len() == 36);
            let event = is_event.then(|| event_of(fields));
            DeadLetter { event, body: body.into(), headers }
        };
        Ok(entries.into_iter().map(letter).collect())
    }

    async fn publish_foreign(&self, headers: &[(&str, &str)], body: &'static [u8]) -> Ran {
        let mut add = cmd("XADD");
        add.arg(&self.0.name).arg("*");
        for (name, value) in headers {
            add.arg(name).arg(value);
        }
        self.0.reader.ask::<String>(add.arg("payload").arg(body)).await;
        Ok(())
    }

    async fn open_other_group(&self) -> Result<RedisSubscription, Skip> {
        Ok(self.join("another").await)
    }

    fn most_unsettled(&self) -> Result<usize, Skip> {
        Ok(200)
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

/// What comes of asking until something comes.
async fn next(subscription: &mut RedisSubscription) -> Vec<semel_core::Delivery> {
    let asked = async {
        loop {
            let batch = subscription.next_batch(Limit::default()).await.unwrap();
            if !batch.deliveries.is_empty() {
                return batch.deliveries;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, asked).await.expect("something comes")
}

/// However slow it is, a member that lives is not robbed; one that is gone is.
#[tokio::test]
async fn a_slow_member_is_not_robbed_and_a_lost_one_is() {
    let Some(group) = <Group<false> as Probe>::fresh().await else { return };
    group.commit_all(&lanes(5)).await;
    let mut slow = group.open().await;
    let mut other = group.open().await;
    assert_eq!(next(&mut slow).await.len(), 5);
    for _ in 0..10 {
        sleep(GONE / 3).await;
        let batch = other.next_batch(Limit::default()).await.unwrap();
        assert!(batch.deliveries.is_empty(), "robbed of {:?}", batch.deliveries);
    }
    drop(slow);
    assert_eq!(next(&mut other).await.len(), 5);
}

/// One member at a time: what the lost one had comes first, and then what is new.
#[tokio::test]
async fn a_lane_keeps_its_order_over_the_loss_of_a_member() {
    let Some(group) = <Group<true> as Probe>::fresh().await else { return };
    group.commit_all(&events("a", 0..3)).await;
    let mut lost = group.open().await;
    assert_eq!(delivered_numbers(&next(&mut lost).await), [0, 1, 2]);
    let mut heir = group.open().await;
    group.commit_all(&events("a", 3..6)).await;
    assert!(heir.next_batch(Limit::default()).await.unwrap().deliveries.is_empty());
    drop(lost);
    let mut numbers = Vec::new();
    while numbers.len() < 6 {
        let got = next(&mut heir).await;
        numbers.extend(delivered_numbers(&got));
        let settled = got.iter().map(|got| got.receipt);
        let settled = settled.map(|receipt| Settlement { receipt, outcome: Outcome::Delivered });
        assert!(heir.settle(&settled.collect::<Vec<_>>()).await.unwrap().is_held());
    }
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5]);
}

/// Who leaves is removed from the group, and so is nobody who has something in hand.
#[tokio::test]
async fn who_leaves_is_forgotten_when_nothing_is_left() {
    let Some(group) = <Group<false> as Probe>::fresh().await else { return };
    group.commit_all(&lanes(2)).await;
    let mut member = group.open().await;
    let got = next(&mut member).await;
    let members = async || -> usize {
        let told: Vec<redis::Value> =
            group.0.reader.ask(cmd("XINFO").arg("CONSUMERS").arg(&group.0.name).arg("suite")).await;
        told.len()
    };
    member.close().await;
    assert_eq!(members().await, 1, "it has two messages in hand");
    let mut heir = group.open().await;
    let again = next(&mut heir).await;
    assert_eq!(delivered_numbers(&again), delivered_numbers(&got));
    let settled = again.iter().map(|got| got.receipt);
    let settled = settled.map(|receipt| Settlement { receipt, outcome: Outcome::Delivered });
    assert!(heir.settle(&settled.collect::<Vec<_>>()).await.unwrap().is_held());
    heir.close().await;
    assert_eq!(members().await, 1, "only the one that left with messages in hand");
}

/// Trimming takes what nobody has read: it is not waited for.
#[tokio::test]
async fn what_was_trimmed_away_holds_nothing_up() {
    let Some(group) = <Group<true> as Probe>::fresh().await else { return };
    group.commit_all(&events("a", 0..2)).await;
    let mut lost = group.open().await;
    assert_eq!(next(&mut lost).await.len(), 2);
    group.0.reader.ask::<u64>(cmd("XTRIM").arg(&group.0.name).arg("MAXLEN").arg(0)).await;
    drop(lost);
    group.commit_all(&events("a", 2..3)).await;
    let mut heir = group.open().await;
    assert_eq!(delivered_numbers(&next(&mut heir).await), [2]);
}

#[tokio::test]
async fn a_deleted_stream_is_made_again() {
    let Some(group) = <Group<true> as Probe>::fresh().await else { return };
    let mut member = group.open().await;
    assert!(member.next_batch(Limit::default()).await.unwrap().deliveries.is_empty());
    group.0.reader.ask::<u64>(cmd("DEL").arg(&group.0.name)).await;
    group.commit_all(&events("a", 0..1)).await;
    assert_eq!(delivered_numbers(&next(&mut member).await), [0]);
    // The number of an entry is its millisecond, and one that is in hand is known by its number.
    sleep(Duration::from_millis(2)).await;
    // Whatever is asked first: by then it is looked for abandoned entries again.
    group.0.reader.ask::<u64>(cmd("DEL").arg(&group.0.name)).await;
    group.commit_all(&events("a", 1..2)).await;
    sleep(GONE).await;
    assert_eq!(delivered_numbers(&next(&mut member).await), [1]);
}

#[tokio::test]
async fn a_killed_server_is_an_outage_and_nothing_is_lost() {
    let settings = ["--appendonly", "yes", "--appendfsync", "always"];
    let Some(mut server) = OwnServer::start(&settings).await else { return };
    let (sink, topic) = (server.config().connect().await.unwrap(), random_name("stream"));
    let config = server.config().subscribe("suite", [topic.as_str()]).claim_after(GONE);
    let mut member = config.open().await.unwrap();
    let batch: Vec<_> =
        lanes(3).into_iter().map(|event| Message::first(topic.as_str(), event)).collect();
    assert!(sink.publish(&batch).await.all_confirmed());
    let got = next(&mut member).await;
    assert_eq!(got.len(), 3);
    restart(&mut server).await;
    let one = [Settlement { receipt: got[0].receipt, outcome: Outcome::Delivered }];
    let settled = async {
        loop {
            match member.settle(&one).await {
                Ok(holding) => break holding,
                Err(failure) => assert_eq!(failure.fault(), Fault::Unavailable, "{failure}"),
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(timeout(PATIENCE, settled).await.expect("settled").is_held());
    drop(member);
    let config = server.config().subscribe("suite", [topic.as_str()]).claim_after(GONE);
    let mut heir = config.open().await.unwrap();
    assert_eq!(next(&mut heir).await.len(), 2, "what was settled stays settled");
}

#[tokio::test]
async fn a_name_that_is_no_stream_cannot_be_subscribed_to() {
    let Some(group) = <Group<true> as Probe>::fresh().await else { return };
    group.0.reader.ask::<()>(cmd("SET").arg(&group.0.name).arg("text")).await;
    let url = format!("redis://{}", group.0.proxy.address());
    let config = RedisConfig::new(&url).unwrap().subscribe("suite", [group.0.name.as_str()]);
    let failure = timeout(PATIENCE, config.open()).await.unwrap().unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-REDIS-TYPE"));
}

/// A script is not undone: the entry must not leave the group before its letter is written.
#[tokio::test]
async fn a_message_whose_dead_letter_cannot_be_written_stays() {
    let Some(group) = <Group<true> as Probe>::fresh().await else { return };
    group.commit_all(&lanes(1)).await;
    let mut member = group.open().await;
    let receipt = next(&mut member).await[0].receipt;
    group.0.reader.ask::<()>(cmd("SET").arg(group.dead_stream()).arg("text")).await;
    let dead = [Settlement { receipt, outcome: semel_testkit::workload::dead(false) }];
    let failure = member.settle(&dead).await.unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-REDIS-TYPE"));
    group.0.reader.ask::<u64>(cmd("DEL").arg(group.dead_stream())).await;
    for _ in 0..2 {
        assert!(member.settle(&dead).await.unwrap().is_held());
        assert_eq!(group.dead_letters().await.unwrap().len(), 1);
    }
}

/// More fields than a script can give to one command.
#[tokio::test]
async fn an_entry_of_very_many_fields_becomes_a_dead_letter() {
    let Some(group) = <Group<true> as Probe>::fresh().await else { return };
    let names: Vec<_> = (0..5_000).map(|number| format!("field-{number}")).collect();
    let fields: Vec<_> = names.iter().map(|name| (name.as_str(), "x")).collect();
    group.publish_foreign(&fields, b"no event").await.unwrap();
    group.commit_all(&lanes(1)).await;
    let mut member = group.open().await;
    assert_eq!(next(&mut member).await.len(), 1);
    let letters = group.dead_letters().await.unwrap();
    assert_eq!((letters.len(), &letters[0].body[..]), (1, &b"no event"[..]));
    assert_eq!(letters[0].headers["field-4999"], "x");
    assert_eq!(letters[0].headers["semel-error-code"], "E-WIRE");
    assert!(member.next_batch(Limit::default()).await.unwrap().deliveries.is_empty());
}
