//! The inbox: the shared suite, and what becomes of an effect when something fails half-way.

use std::time::Duration;

use bytes::Bytes;
use redis::cmd;
use semel_backends::redis::{RedisConfig, RedisInbox, RedisTx};
use semel_core::inbox::{InboxStore, Seen};
use semel_core::{Event, EventId, Failure, Fault, Message, Published, Sink, Verdict};
use semel_relay::{Consumer, handler_fn};
use semel_testkit::probe::{Probe, Ran, Skip};
use semel_testkit::proxy::Proxy;
use semel_testkit::services::{Service, service};
use semel_testkit::suites::inbox::InboxProbe;
use tokio::time::{sleep, timeout};

use super::keys::restart;
use super::server::OwnServer;
use super::{BRIEFLY, PATIENCE, Reader, random_name};

semel_testkit::inbox_suite!(Inbox);

/// An inbox and a counter of effects, under names of the test's own.
struct Inbox {
    store: RedisInbox,
    counter: String,
    reader: Reader,
}

impl Inbox {
    async fn at(url: &str, reader: Reader) -> Self {
        let prefix = format!("{{{}}}:", random_name("inbox"));
        let config = RedisConfig::new(url).unwrap().timeout(BRIEFLY).key_prefix(&prefix);
        Self { store: connect(config).await, counter: format!("{prefix}effects"), reader }
    }

    async fn begin(&self) -> RedisTx {
        timeout(PATIENCE, self.store.begin()).await.expect("an answer").unwrap()
    }

    /// Begins, records and queues one effect.
    async fn in_hand(&self, id: EventId) -> RedisTx {
        let mut tx = self.begin().await;
        assert_eq!(self.record(&mut tx, id).await.unwrap(), Seen::First);
        tx.queue(cmd("INCR").arg(&self.counter));
        tx
    }

    async fn record(&self, tx: &mut RedisTx, id: EventId) -> Result<Seen, Failure> {
        timeout(PATIENCE, self.store.record(tx, "payments", id)).await.expect("an answer")
    }

    async fn commit(&self, tx: RedisTx) -> Result<(), Failure> {
        timeout(PATIENCE, self.store.commit(tx)).await.expect("an answer")
    }

    async fn seen(&self, id: EventId) -> Result<Seen, Failure> {
        let mut tx = self.begin().await;
        let seen = self.record(&mut tx, id).await;
        self.store.rollback(tx).await;
        seen
    }
}

impl Probe for Inbox {
    const BACKEND: &'static str = "Redis";

    async fn fresh() -> Option<Self> {
        let url = service(Service::Redis)?;
        Some(Self::at(&url, Reader::open(&url).await).await)
    }
}

impl InboxProbe for Inbox {
    type Store = RedisInbox;

    fn store(&self) -> &RedisInbox {
        &self.store
    }

    async fn take_effect(&self, tx: &mut <RedisInbox as InboxStore>::Tx<'_>) {
        tx.queue(cmd("INCR").arg(&self.counter));
    }

    async fn effects(&self) -> u64 {
        self.reader.ask::<Option<u64>>(cmd("GET").arg(&self.counter)).await.unwrap_or(0)
    }

    fn keeps_ids(&self) -> Ran {
        Err(Skip::because("the server forgets by itself"))
    }
}

async fn connect(config: RedisConfig) -> RedisInbox {
    timeout(PATIENCE, config.connect_inbox()).await.expect("an answer").unwrap()
}

#[tokio::test]
async fn the_server_forgets_when_the_time_is_over() {
    let Some(mut inbox) = Inbox::fresh().await else { return };
    let (id, short) = (EventId::now(), Duration::from_secs(2));
    inbox.store = inbox.store.keep(short);
    let tx = inbox.in_hand(id).await;
    inbox.commit(tx).await.unwrap();
    assert_eq!(inbox.seen(id).await.unwrap(), Seen::Duplicate { result: None });
    sleep(short).await;
    let tx = inbox.in_hand(id).await;
    inbox.commit(tx).await.unwrap();
    assert_eq!(inbox.effects().await, 2);
}

#[tokio::test]
async fn ids_are_kept_for_a_week() {
    let Some(inbox) = Inbox::fresh().await else { return };
    let id = EventId::now();
    let tx = inbox.in_hand(id).await;
    inbox.commit(tx).await.unwrap();
    let name = inbox.counter.replace("effects", &format!("semel:inbox:payments:{id}"));
    let life: u64 = inbox.reader.ask(cmd("TTL").arg(name)).await;
    assert!((7 * 24 * 3600 - 60..=7 * 24 * 3600).contains(&life), "{life}");
}

/// The old owner wakes up when another has taken the message over.
#[tokio::test]
async fn who_is_later_than_the_lease_has_no_effect() {
    let Some(mut inbox) = Inbox::fresh().await else { return };
    let id = EventId::now();
    inbox.store = inbox.store.lease(Duration::from_millis(200));
    let late = inbox.in_hand(id).await;
    inbox.store = inbox.store.lease(Duration::from_secs(30));
    let next = inbox.in_hand(id).await;
    let failure = inbox.commit(late).await.unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Transient, "E-REDIS-INBOX-LATE"));
    inbox.commit(next).await.unwrap();
    assert_eq!(inbox.effects().await, 1);
}

#[tokio::test]
async fn who_waits_too_long_is_told() {
    let Some(mut inbox) = Inbox::fresh().await else { return };
    let id = EventId::now();
    let holding = inbox.in_hand(id).await;
    inbox.store = inbox.store.lease(Duration::from_millis(200));
    let failure = inbox.seen(id).await.unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Transient, "E-REDIS-INBOX-BUSY"));
    inbox.commit(holding).await.unwrap();
    assert_eq!(inbox.effects().await, 1);
}

/// Two that record the same messages in opposite order wait for each other, and not in a circle.
#[tokio::test]
async fn the_same_messages_at_once_do_not_lock_each_other_out() {
    let Some(inbox) = Inbox::fresh().await else { return };
    let half_a_lease = Duration::from_secs(15);
    for _ in 0..10 {
        let ids: Vec<_> = (0..20).map(|_| EventId::now()).collect();
        let backwards: Vec<_> = ids.iter().copied().rev().collect();
        let consume = async |ids: &[EventId]| {
            let mut tx = inbox.begin().await;
            let new = inbox.store.record_all(&mut tx, "payments", ids).await.unwrap();
            sleep(Duration::from_millis(5)).await;
            inbox.commit(tx).await.unwrap();
            new.into_iter().filter(|new| *new).count()
        };
        let both = async { tokio::join!(consume(&ids), consume(&backwards)) };
        let (one, other) = timeout(half_a_lease, both).await.expect("nobody waits for a lease");
        assert_eq!(one + other, 20);
    }
}

#[tokio::test]
async fn a_first_command_that_fails_leaves_nothing() {
    let Some(inbox) = Inbox::fresh().await else { return };
    let id = EventId::now();
    let mut tx = inbox.begin().await;
    inbox.record(&mut tx, id).await.unwrap();
    tx.queue(cmd("NONSENSE").arg("x"));
    tx.queue(cmd("INCR").arg(&inbox.counter));
    let failure = inbox.commit(tx).await.unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Transient, "E-REDIS-EFFECT"));
    assert_eq!(inbox.effects().await, 0);
    assert_eq!(inbox.seen(id).await.unwrap(), Seen::First);
}

/// Redis undoes nothing: the message becomes a dead letter, and is not applied a second time.
#[tokio::test]
async fn half_an_effect_is_refused_and_never_repeated() {
    let Some(inbox) = Inbox::fresh().await else { return };
    let id = EventId::now();
    let mut tx = inbox.in_hand(id).await;
    tx.queue(cmd("LPUSH").arg(&inbox.counter).arg("no list"));
    let failure = inbox.commit(tx).await.unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Refused, "E-REDIS-EFFECT-HALF"));
    assert!(failure.to_string().contains("WRONGTYPE"), "{failure}");
    let again = inbox.seen(id).await.unwrap_err();
    assert_eq!((again.fault(), again.code()), (Fault::Refused, "E-REDIS-EFFECT-HALF"));
    assert_eq!(inbox.effects().await, 1);
}

/// Lua would stop in the middle, with the id written and the effect missing.
#[tokio::test]
async fn a_command_of_too_many_words_is_refused_before_anything_happens() {
    let Some(inbox) = Inbox::fresh().await else { return };
    let queue = |tx: &mut RedisTx, words: usize| {
        let many: Vec<_> = (2..words).map(|word| word.to_string()).collect();
        tx.queue(cmd("RPUSH").arg(format!("{}:list", inbox.counter)).arg(many));
    };
    let id = EventId::now();
    let mut tx = inbox.in_hand(id).await;
    queue(&mut tx, 9_000);
    let failure = inbox.commit(tx).await.unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Refused, "E-REDIS-EFFECT-LONG"));
    assert_eq!(inbox.effects().await, 0);
    let mut tx = inbox.in_hand(id).await;
    queue(&mut tx, 7_000);
    inbox.commit(tx).await.unwrap();
    assert_eq!(inbox.effects().await, 1);
}

#[tokio::test]
async fn a_server_without_memory_takes_no_half_effect() {
    let Some(server) = OwnServer::start(&["--maxmemory-policy", "noeviction"]).await else {
        return;
    };
    let inbox = Inbox::at(&server.url(), server.reader().await).await;
    let id = EventId::now();
    let tx = inbox.in_hand(id).await;
    inbox.reader.set("maxmemory", "1").await;
    let failure = inbox.commit(tx).await.unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, "E-REDIS-MEMORY"));
    inbox.reader.set("maxmemory", "0").await;
    assert_eq!(inbox.effects().await, 0);
    let tx = inbox.in_hand(id).await;
    inbox.commit(tx).await.unwrap();
    assert_eq!(inbox.effects().await, 1);
}

/// The answer to the commit is lost: whether it happened is unknown, and redelivery finds out.
#[tokio::test]
async fn a_commit_whose_answer_is_lost_took_effect_once() {
    let Some(url) = service(Service::Redis) else { return };
    let proxy = Proxy::start(url.trim_start_matches("redis://")).await;
    let behind = format!("redis://{}", proxy.address());
    let inbox = Inbox::at(&behind, Reader::open(&url).await).await;
    let id = EventId::now();
    let tx = inbox.in_hand(id).await;
    proxy.swallow_replies(true);
    let failure = inbox.commit(tx).await.unwrap_err();
    assert_eq!(failure.fault(), Fault::Unavailable);
    assert_eq!(inbox.effects().await, 1);
    proxy.swallow_replies(false);
    proxy.cut();
    assert_eq!(inbox.seen(id).await.unwrap(), Seen::Duplicate { result: None });
}

#[tokio::test]
async fn a_server_that_is_away_is_an_outage_and_passes() {
    let Some(url) = service(Service::Redis) else { return };
    let proxy = Proxy::start(url.trim_start_matches("redis://")).await;
    let behind = format!("redis://{}", proxy.address());
    let inbox = Inbox::at(&behind, Reader::open(&url).await).await;
    let id = EventId::now();
    let tx = inbox.in_hand(id).await;
    proxy.refuse(true);
    proxy.cut();
    assert_eq!(inbox.commit(tx).await.unwrap_err().fault(), Fault::Unavailable);
    let down = timeout(PATIENCE, inbox.store.begin()).await.expect("an answer").unwrap_err();
    assert_eq!(down.fault(), Fault::Unavailable);
    proxy.refuse(false);
    let other = EventId::now();
    let tx = inbox.in_hand(other).await;
    inbox.commit(tx).await.unwrap();
    assert_eq!(inbox.effects().await, 1);
}

#[tokio::test]
async fn the_memory_survives_a_crash_of_the_server() {
    let settings = ["--appendonly", "yes", "--appendfsync", "always"];
    let Some(mut server) = OwnServer::start(&settings).await else { return };
    let mut inbox = Inbox::at(&server.url(), server.reader().await).await;
    let id = EventId::now();
    let tx = inbox.in_hand(id).await;
    inbox.commit(tx).await.unwrap();
    restart(&mut server).await;
    inbox.reader = server.reader().await;
    assert_eq!(inbox.seen(id).await.unwrap(), Seen::Duplicate { result: None });
    assert_eq!(inbox.effects().await, 1);
}

#[tokio::test]
async fn in_a_cluster_a_hash_tag_keeps_effects_and_ids_together() {
    let Some(server) = OwnServer::start(&["--cluster-enabled", "yes"]).await else { return };
    let reader = server.reader().await;
    reader.ask::<()>(cmd("CLUSTER").arg("ADDSLOTSRANGE").arg(0).arg(16383)).await;
    let up = async {
        while !reader.ask::<String>(cmd("CLUSTER").arg("INFO")).await.contains("state:ok") {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, up).await.expect("the cluster is up");
    let mut inbox = Inbox::at(&server.url(), reader).await;
    let mut tx = inbox.in_hand(EventId::now()).await;
    assert_eq!(inbox.record(&mut tx, EventId::now()).await.unwrap(), Seen::First);
    inbox.commit(tx).await.unwrap();
    assert_eq!(inbox.effects().await, 1);

    inbox.store = connect(server.config()).await;
    let mut tx = inbox.in_hand(EventId::now()).await;
    inbox.record(&mut tx, EventId::now()).await.unwrap();
    let failure = inbox.commit(tx).await.unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-REDIS-CLUSTER"));
    assert_eq!(inbox.effects().await, 1);
}

/// What the server may have forgotten is refused, whatever the consumer would remember.
#[tokio::test]
async fn a_message_that_is_older_than_what_is_kept_is_refused() {
    let Some(inbox) = Inbox::fresh().await else { return };
    const HOUR: Duration = Duration::from_secs(3600);
    let store = inbox.store.clone().keep(HOUR);
    let nothing =
        || handler_fn(|_: &mut RedisTx, _: &Message| Box::pin(async { Ok(Bytes::new()) }));
    let with_default = Consumer::builder("payments", store.clone()).build_with(nothing());
    for consumer in [with_default, Consumer::new("payments", store, nothing())] {
        for (age, is_taken) in [(2 * HOUR, false), (HOUR / 2, true)] {
            let mut event = Event::new("order", "1", "OrderPlaced");
            event.created_at -= age;
            let taken = consumer.publish(&[Message::first("orders", event)]).await;
            let code = match &taken {
                Published::Each(verdicts) => match &verdicts[0] {
                    Verdict::Failed(failure) => failure.code(),
                    _ => "",
                },
                _ => "",
            };
            assert_eq!(code, if is_taken { "" } else { "E-EVENT-OLD" }, "{taken:?}");
        }
    }
}
