//! The inbox: the shared suite, and what it remembers.

mod consumer;
mod kills;
mod owners;
mod topic;
mod trouble;

use std::time::Duration;

use semel_backends::kafka::{KafkaInbox, KafkaInboxConfig, KafkaTx};
use semel_core::inbox::{InboxStore, Seen};
use semel_core::{Event, EventId, Failure, Fault, Message};
use semel_testkit::probe::Probe;
use semel_testkit::services::{Service, service};
use semel_testkit::suites::inbox::InboxProbe;
use semel_testkit::workload::event;
use tokio::time::{sleep, timeout};

use super::{config, expect, topics};

semel_testkit::inbox_suite!(Inbox);

/// Long enough for anything that must happen; a test that waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// An inbox and a topic with its effects, under names of the test's own.
struct Inbox {
    store: KafkaInbox,
    name: String,
    effects: String,
    brokers: String,
}

impl Inbox {
    async fn new(change: impl FnOnce(KafkaInboxConfig) -> KafkaInboxConfig) -> Option<Self> {
        let brokers = service(Service::Kafka)?;
        let effects = topics::random_topic();
        topics::create(&brokers, &effects, &[]).await;
        let name = random_name();
        let store = connect(&change(settings(&brokers, &name))).await;
        Some(Self { store, name, effects, brokers })
    }

    /// As another process would.
    async fn open_again(&self) -> KafkaInbox {
        connect(&settings(&self.brokers, &self.name)).await
    }

    /// Begins, records and sends one effect.
    async fn in_hand(&self, id: EventId) -> KafkaTx {
        in_hand(&self.store, id, self.effect(0)).await
    }

    fn effect(&self, number: u64) -> Message {
        Message::first(self.effects.as_str(), event("effect", number))
    }

    async fn arrived(&self) -> Vec<Event> {
        topics::read(&self.brokers, &[&self.effects]).await
    }
}

impl Probe for Inbox {
    const BACKEND: &'static str = "Kafka";

    async fn fresh() -> Option<Self> {
        Self::new(|config| config).await
    }
}

impl InboxProbe for Inbox {
    type Store = KafkaInbox;

    fn store(&self) -> &KafkaInbox {
        &self.store
    }

    async fn take_effect(&self, tx: &mut <KafkaInbox as InboxStore>::Tx<'_>) {
        tx.send(self.effect(0)).expect("a message like any other");
    }

    async fn effects(&self) -> u64 {
        self.arrived().await.len() as u64
    }
}

fn random_name() -> String {
    format!("semel-{}", EventId::now())
}

fn settings(brokers: &str, name: &str) -> KafkaInboxConfig {
    config(brokers).inbox(name).unwrap()
}

/// Where the patience of the test is short, a broker that is busy looks like one that is away.
async fn connect(config: &KafkaInboxConfig) -> KafkaInbox {
    let connecting = async {
        loop {
            match config.connect().await {
                Ok(inbox) => return inbox,
                Err(failure) => assert_eq!(failure.code(), "E-KAFKA-DOWN", "{failure:?}"),
            }
        }
    };
    timeout(PATIENCE, connecting).await.expect("connected")
}

async fn in_hand(store: &KafkaInbox, id: EventId, effect: Message) -> KafkaTx {
    let mut tx = timeout(PATIENCE, store.begin()).await.expect("an answer").unwrap();
    assert_eq!(store.record(&mut tx, "payments", id).await.unwrap(), Seen::First);
    tx.send(effect).unwrap();
    tx
}

async fn commit(store: &KafkaInbox, tx: KafkaTx) -> Result<(), Failure> {
    timeout(PATIENCE, store.commit(tx)).await.expect("an answer")
}

/// Whether a message is known; it is not taken.
async fn seen(store: &KafkaInbox, id: EventId) -> Result<Seen, Failure> {
    let seeing = async {
        let mut tx = store.begin().await?;
        store.record(&mut tx, "payments", id).await
    };
    timeout(PATIENCE, seeing).await.expect("an answer")
}

fn duplicate(result: Option<&'static str>) -> Seen {
    Seen::Duplicate { result: result.map(Into::into) }
}

#[tokio::test]
async fn who_opens_it_again_remembers() {
    let Some(inbox) = Inbox::fresh().await else { return };
    let [with_result, without, undone] = [(); 3].map(|()| EventId::now());
    let mut tx = inbox.in_hand(with_result).await;
    inbox.store.store_result(&mut tx, "payments", with_result, "paid".into()).await.unwrap();
    assert_eq!(inbox.store.record(&mut tx, "payments", without).await.unwrap(), Seen::First);
    commit(&inbox.store, tx).await.unwrap();
    inbox.store.rollback(inbox.in_hand(undone).await).await;
    for _ in 0..2 {
        let again = inbox.open_again().await;
        assert_eq!(seen(&again, with_result).await.unwrap(), duplicate(Some("paid")));
        assert_eq!(seen(&again, without).await.unwrap(), duplicate(None));
        assert_eq!(seen(&again, undone).await.unwrap(), Seen::First);
    }
    assert_eq!(inbox.effects().await, 1);
}

/// Far more than one request or one read of the log.
#[tokio::test]
async fn many_ids_are_remembered_as_a_whole() {
    let Some(inbox) = Inbox::fresh().await else { return };
    let ids: Vec<_> = (0..50_000).map(|_| EventId::now()).collect();
    for part in ids.chunks(10_000) {
        let mut tx = inbox.store.begin().await.unwrap();
        let new = inbox.store.record_all(&mut tx, "payments", part).await.unwrap();
        assert_eq!(new, vec![true; part.len()]);
        commit(&inbox.store, tx).await.unwrap();
    }
    let again = inbox.open_again().await;
    let mut tx = again.begin().await.unwrap();
    let new = again.record_all(&mut tx, "payments", &ids).await.unwrap();
    assert_eq!(new.into_iter().filter(|new| *new).count(), 0);
}

#[tokio::test]
async fn ids_are_forgotten_when_the_time_is_over() {
    let short = Duration::from_secs(2);
    let Some(inbox) = Inbox::new(|config| config.keep(short)).await else { return };
    let id = EventId::now();
    commit(&inbox.store, inbox.in_hand(id).await).await.unwrap();
    assert_eq!(seen(&inbox.store, id).await.unwrap(), duplicate(None));
    assert_eq!(inbox.store.retention(), Some(short));
    sleep(short + Duration::from_secs(2)).await;
    assert_eq!(seen(&inbox.store, id).await.unwrap(), Seen::First);
    // Even where the topic still has them.
    let again = connect(&settings(&inbox.brokers, &inbox.name).keep(short)).await;
    assert_eq!(seen(&again, id).await.unwrap(), Seen::First);
}

/// What was forgotten on purpose stays forgotten.
#[tokio::test]
async fn a_tombstone_outlives_the_process() {
    let Some(inbox) = Inbox::fresh().await else { return };
    let (old, young) = (EventId::now(), EventId::now());
    commit(&inbox.store, inbox.in_hand(old).await).await.unwrap();
    sleep(Duration::from_secs(4)).await;
    commit(&inbox.store, inbox.in_hand(young).await).await.unwrap();
    assert_eq!(inbox.store.forget(Duration::from_secs(2), 10).await.unwrap(), 1);
    let again = inbox.open_again().await;
    assert_eq!(seen(&again, old).await.unwrap(), Seen::First);
    assert_eq!(seen(&again, young).await.unwrap(), duplicate(None));
}

#[tokio::test]
async fn no_message_is_taken_when_the_memory_is_full() {
    let Some(inbox) = Inbox::new(|config| config.max_bytes(3 * 64)).await else { return };
    for _ in 0..3 {
        commit(&inbox.store, inbox.in_hand(EventId::now()).await).await.unwrap();
    }
    let id = EventId::now();
    expect(&seen(&inbox.store, id).await.unwrap_err(), Fault::Unavailable, "E-KAFKA-INBOX-FULL");
    let fewer = settings(&inbox.brokers, &inbox.name).max_bytes(2 * 64);
    let failure = timeout(PATIENCE, fewer.connect()).await.unwrap().unwrap_err();
    expect(&failure, Fault::Unavailable, "E-KAFKA-INBOX-FULL");
    let short = Duration::from_secs(1);
    sleep(short + Duration::from_secs(3)).await;
    let again = connect(&fewer.keep(short)).await;
    assert_eq!(seen(&again, id).await.unwrap(), Seen::First);
    assert_eq!(inbox.effects().await, 3);
}

#[tokio::test]
async fn who_waits_too_long_is_told() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let impatient = config(&brokers).patience(Duration::from_secs(3));
    let store = connect(&impatient.inbox(&random_name()).unwrap()).await;
    let id = EventId::now();
    let mut tx = store.begin().await.unwrap();
    store.record(&mut tx, "payments", id).await.unwrap();
    expect(&seen(&store, id).await.unwrap_err(), Fault::Transient, "E-KAFKA-INBOX-BUSY");
    commit(&store, tx).await.unwrap();
    assert_eq!(seen(&store, id).await.unwrap(), duplicate(None));
}

/// Two that record the same messages in opposite order wait for each other, and not in a circle.
#[tokio::test]
async fn the_same_messages_at_once_do_not_lock_each_other_out() {
    let Some(inbox) = Inbox::fresh().await else { return };
    for _ in 0..10 {
        let ids: Vec<_> = (0..20).map(|_| EventId::now()).collect();
        let backwards: Vec<_> = ids.iter().copied().rev().collect();
        let consume = async |ids: &[EventId]| {
            let mut tx = inbox.store.begin().await.unwrap();
            let new = inbox.store.record_all(&mut tx, "payments", ids).await.unwrap();
            sleep(Duration::from_millis(5)).await;
            commit(&inbox.store, tx).await.unwrap();
            new.into_iter().filter(|new| *new).count()
        };
        let (one, other) = tokio::join!(consume(&ids), consume(&backwards));
        assert_eq!(one + other, 20);
    }
}
