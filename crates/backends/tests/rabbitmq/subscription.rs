//! Queues as sources: the shared suites, and what is particular to RabbitMQ.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::options::{BasicGetOptions, BasicPublishOptions};
use lapin::types::{AMQPValue, FieldTable, LongString};
use semel_backends::rabbitmq::{
    ExchangeKind, QueueKind, RabbitmqConfig, RabbitmqQueue, RabbitmqSink, RabbitmqSubscription,
    RabbitmqSubscriptionConfig,
};
use semel_core::outbox::AppendError;
use semel_core::wire::{Binding, decode};
use semel_core::{Event, Fault, Holding, Outcome, Source};
use semel_testkit::probe::{Probe, Ran, Skip, WriteProbe};
use semel_testkit::proxy::Proxy;
use semel_testkit::services::{Service, service};
use semel_testkit::suites::source::SourceProbe;
use semel_testkit::suites::subscription::{DeadLetter, SubscriptionProbe};
use semel_testkit::workload::{Drive, ids, lanes};
use tokio::sync::OnceCell;
use tokio::time::{sleep, timeout};

use super::{PATIENCE, Reader, behind_proxy, publish, random_name, text};

semel_testkit::source_suite!(Queue<COMPETING>);
semel_testkit::subscription_suite!(Queue<COMPETING>);

/// One consumer at a time, so that lanes keep their order.
mod single_active {
    use super::{Queue, SINGLE_ACTIVE};

    semel_testkit::source_suite!(Queue<SINGLE_ACTIVE>);
    semel_testkit::subscription_suite!(Queue<SINGLE_ACTIVE>);
}

pub(super) const COMPETING: u8 = 0;
const SINGLE_ACTIVE: u8 = 1;
const PREFETCH: u16 = 120;

/// A queue and its dead letters; subscriptions come through a proxy.
pub(super) struct Queue<const MEMBERS: u8> {
    pub(super) name: String,
    direct: String,
    through: String,
    proxy: Proxy,
    pub(super) sink: RabbitmqSink,
    /// To the exchange of all groups, once there is more than one.
    to_all: OnceCell<RabbitmqSink>,
    pub(super) reader: Reader,
    letters: Mutex<Vec<DeadLetter>>,
}

impl<const MEMBERS: u8> Queue<MEMBERS> {
    fn queue(name: &str) -> RabbitmqQueue {
        let queue = RabbitmqQueue::new(name).unwrap().kind(QueueKind::Classic);
        if MEMBERS == SINGLE_ACTIVE { queue.single_active_consumer() } else { queue }
    }

    fn config(&self, url: &str, queue: &str) -> RabbitmqSubscriptionConfig {
        let dead = RabbitmqQueue::new(&self.dead_queue()).unwrap().kind(QueueKind::Classic);
        RabbitmqConfig::new(url)
            .unwrap()
            .timeout(Duration::from_secs(15))
            .declare_queue(Self::queue(queue))
            .subscription(queue)
            .unwrap()
            .dead_queue(dead)
            .prefetch(PREFETCH)
    }

    pub(super) fn dead_queue(&self) -> String {
        format!("{}.dead", self.name)
    }

    async fn member(&self) -> RabbitmqSubscription {
        self.member_of(&self.name).await
    }

    async fn member_of(&self, queue: &str) -> RabbitmqSubscription {
        let config = self.config(&self.through, queue);
        timeout(PATIENCE, config.connect()).await.expect("an answer").expect("connected")
    }
}

impl<const MEMBERS: u8> Probe for Queue<MEMBERS> {
    const BACKEND: &'static str = if MEMBERS == SINGLE_ACTIVE {
        "rabbitmq subscription, single active consumer"
    } else {
        "rabbitmq subscription"
    };
    const QUIET: Duration = Duration::from_millis(300);

    async fn fresh() -> Option<Self> {
        let direct = service(Service::Rabbitmq)?;
        let name = random_name("subscribed");
        let (proxy, through) = behind_proxy(&direct).await;
        let config = RabbitmqConfig::new(&direct).unwrap().declare_queue(Self::queue(&name));
        let sink = timeout(PATIENCE, config.connect()).await.unwrap().unwrap();
        let reader = Reader::open(&direct).await;
        let (to_all, letters) = (OnceCell::new(), Mutex::default());
        Some(Self { name, direct, through, proxy, sink, to_all, reader, letters })
    }
}

impl<const MEMBERS: u8> WriteProbe for Queue<MEMBERS> {
    type Tx = Vec<Event>;

    async fn begin(&self) -> Vec<Event> {
        Vec::new()
    }

    async fn append(&self, tx: &mut Vec<Event>, events: &[Event]) -> Result<(), AppendError> {
        tx.extend_from_slice(events);
        Ok(())
    }

    async fn commit(&self, tx: Vec<Event>) {
        let sink = self.to_all.get().unwrap_or(&self.sink);
        assert!(publish(sink, &self.name, tx).await.all_confirmed());
    }
}

impl<const MEMBERS: u8> SourceProbe for Queue<MEMBERS> {
    type Source = RabbitmqSubscription;

    async fn open(&self) -> RabbitmqSubscription {
        self.member().await
    }

    fn fences(&self) -> Ran {
        Err(Skip::because("a new consumer takes nothing from those there are"))
    }

    fn schedules(&self) -> Ran {
        Err(Skip::because("what reaches a broker is due"))
    }

    fn wakes(&self) -> Ran {
        Ok(())
    }
}

impl<const MEMBERS: u8> SubscriptionProbe for Queue<MEMBERS> {
    async fn dead_letters(&self) -> Result<Vec<DeadLetter>, Skip> {
        let options = BasicGetOptions { no_ack: true };
        let dead_queue = self.dead_queue();
        loop {
            let get = self.reader.channel.basic_get(dead_queue.as_str().into(), options);
            let Some(got) = timeout(PATIENCE, get).await.unwrap().unwrap() else { break };
            let letter = letter(&got.delivery.properties, got.delivery.data.clone());
            self.letters.lock().unwrap().push(letter);
        }
        Ok(self.letters.lock().unwrap().clone())
    }

    async fn publish_foreign(&self, headers: &[(&str, &str)], body: &'static [u8]) -> Ran {
        let mut table = FieldTable::default();
        for (name, value) in headers {
            table.insert((*name).into(), AMQPValue::LongString(LongString::from(*value)));
        }
        let properties = BasicProperties::default().with_headers(table);
        let (queue, options) = (self.name.as_str().into(), BasicPublishOptions::default());
        let sent = self.reader.channel.basic_publish("".into(), queue, options, body, properties);
        timeout(PATIENCE, async { sent.await?.await }).await.unwrap().unwrap();
        // Not confirmed: what follows on the channel is answered after it.
        let declared = self.reader.channel.basic_qos(0, Default::default());
        timeout(PATIENCE, declared).await.unwrap().unwrap();
        Ok(())
    }

    /// A queue of its own, bound to the same exchange.
    async fn open_other_group(&self) -> Result<RabbitmqSubscription, Skip> {
        let other = random_name("another");
        let config = RabbitmqConfig::new(&self.direct).unwrap().exchange(&self.name).unwrap();
        let config = config.declare_exchange(ExchangeKind::Fanout);
        let bound = |queue| Self::queue(queue).bound_by("#").unwrap();
        let config = config.declare_queue(bound(&self.name)).declare_queue(bound(&other));
        let sink = timeout(PATIENCE, config.connect()).await.unwrap().unwrap();
        self.to_all.set(sink).expect("one other group is enough");
        Ok(self.member_of(&other).await)
    }

    fn shares(&self) -> Ran {
        Skip::unless(MEMBERS == COMPETING, "the others stand by")
    }

    fn most_unsettled(&self) -> Result<usize, Skip> {
        Ok(PREFETCH.into())
    }

    async fn interrupt(&self) -> Ran {
        self.proxy.refuse(true);
        self.proxy.cut();
        Ok(())
    }

    async fn restore(&self) {
        self.proxy.refuse(false);
    }
}

fn letter(properties: &BasicProperties, body: Vec<u8>) -> DeadLetter {
    assert_eq!(*properties.delivery_mode(), Some(2), "persistent");
    let content_type = properties.content_type().as_ref().map(ToString::to_string);
    let table = properties.headers().clone().unwrap_or_default();
    let texts = table.inner().iter();
    let headers: BTreeMap<String, String> =
        texts.filter_map(|(name, value)| Some((name.to_string(), text(value)?))).collect();
    let body = Bytes::from(body);
    let pairs = headers.iter().map(|(name, value)| (&**name, &**value));
    let event = decode(Binding::Amqp, content_type.as_deref(), pairs, body.clone()).ok();
    DeadLetter { event, body, headers }
}

#[tokio::test]
async fn nobody_there_is_an_outage() {
    let config = RabbitmqConfig::new("amqp://guest:guest@127.0.0.1:1/%2f").unwrap();
    let config = config.timeout(Duration::from_secs(2)).subscription("q").unwrap();
    let failure = timeout(PATIENCE, config.connect()).await.unwrap().unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, "E-RABBITMQ-DOWN"));
}

#[tokio::test]
async fn a_queue_that_is_missing_is_told_at_once() {
    let Some(url) = service(Service::Rabbitmq) else { return };
    let name = random_name("missing");
    let dead = RabbitmqQueue::new(&random_name("dead")).unwrap().kind(QueueKind::Classic);
    let config = RabbitmqConfig::new(&url).unwrap().subscription(&name).unwrap().dead_queue(dead);
    let failure = timeout(PATIENCE, config.connect()).await.unwrap().unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-RABBITMQ-MISSING"));
    assert!(failure.to_string().contains(&name), "{failure}");
}

/// Order is promised only where the broker was asked whether it holds.
#[tokio::test]
async fn a_queue_of_many_consumers_cannot_be_read_as_one_of_a_single_one() {
    let Some(many) = Queue::<COMPETING>::fresh().await else { return };
    let queue = RabbitmqQueue::new(&many.name).unwrap().kind(QueueKind::Classic);
    let config = RabbitmqConfig::new(&many.direct).unwrap();
    let config = config.declare_queue(queue.single_active_consumer()).subscription(&many.name);
    let config = config.unwrap();
    assert!(config.keeps_lanes_in_order());
    let failure = timeout(PATIENCE, config.connect()).await.unwrap().unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-RABBITMQ-MISMATCH"));
}

/// Of two consumers of such a queue the second gets what the first leaves, in order.
#[tokio::test]
async fn a_stand_by_takes_over_in_order() {
    let Some(queue) = Queue::<SINGLE_ACTIVE>::fresh().await else { return };
    let mut active = Drive::open(&queue).await;
    let mut stand_by = Drive::open(&queue).await;
    queue.commit_all(&semel_testkit::workload::events("a", 0..10)).await;
    let taken = active.deliver_next(4).await;
    stand_by.expect_nothing().await;
    active.batch().await;
    active.source.close().await;
    let rest = stand_by.drain(6).await;
    let numbers = semel_testkit::workload::delivered_numbers(&[taken, rest].concat());
    assert_eq!(numbers, (0..10).collect::<Vec<_>>());
}

/// What was handed out on a connection that broke is settled in vain, and comes again.
#[tokio::test]
async fn a_cut_makes_receipts_void_and_loses_nothing() {
    let Some(queue) = Queue::<COMPETING>::fresh().await else { return };
    queue.commit_all(&lanes(5)).await;
    let mut drive = Drive::open(&queue).await;
    let taken = drive.take(5).await;
    queue.proxy.cut();
    let delivered: Vec<_> = taken.iter().map(|got| (got.receipt, Outcome::Delivered)).collect();
    let settlements = semel_testkit::workload::settlements(delivered);
    let again = async {
        loop {
            if drive.source.settle(&settlements).await == Ok(Holding::Held)
                && let Ok(batch) = drive.source.next_batch(Default::default()).await
                && !batch.deliveries.is_empty()
            {
                return batch.deliveries;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    let mut again = timeout(PATIENCE, again).await.expect("they come again");
    while again.len() < 5 {
        again.extend(drive.batch().await);
    }
    assert_eq!(ids(&again), ids(&taken));
    // Not even now: old receipts never mean new messages.
    assert_eq!(drive.source.settle(&settlements).await, Ok(Holding::Held));
    let mut drive = drive.reopen().await;
    assert_eq!(ids(&drive.drain(5).await), ids(&taken));
    drive.reopen().await.expect_nothing().await;
}

/// The queue itself goes away under a consumer.
#[tokio::test]
async fn a_queue_that_is_deleted_is_told() {
    let Some(queue) = Queue::<COMPETING>::fresh().await else { return };
    let dead = RabbitmqQueue::new(&queue.dead_queue()).unwrap().kind(QueueKind::Classic);
    let config = RabbitmqConfig::new(&queue.direct).unwrap().timeout(Duration::from_secs(3));
    let config = config.subscription(&queue.name).unwrap().dead_queue(dead);
    let mut source = timeout(PATIENCE, config.connect()).await.unwrap().unwrap();
    let gone = queue.reader.channel.queue_delete(queue.name.as_str().into(), Default::default());
    timeout(PATIENCE, gone).await.unwrap().unwrap();
    let told = async {
        loop {
            match source.next_batch(Default::default()).await {
                Err(failure) if failure.fault() == Fault::Misconfigured => return failure,
                _ => sleep(Duration::from_millis(20)).await,
            }
        }
    };
    let failure = timeout(PATIENCE, told).await.expect("it is told");
    assert_eq!(failure.code(), "E-RABBITMQ-MISSING", "{failure}");
}
