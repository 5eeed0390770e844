//! Processes that are killed: whoever reads what is committed sees each effect once.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use semel_backends::kafka::KafkaInbox;
use semel_core::inbox::Seen;
use semel_core::{EventId, InboxStore, Message, Timestamp};
use semel_testkit::probe::Probe;
use semel_testkit::suites::inbox::InboxProbe;
use semel_testkit::workload::{event, numbers};
use tokio::time::{sleep, timeout};

use super::{Inbox, PATIENCE, connect, in_hand, seen, settings};

/// What a child is told: the brokers, the inbox, and the topic of effects.
const TOLD: &str = "SEMEL_TEST_INBOX_CHILD";
const MESSAGES: u64 = 3000;

/// Nothing is sent before the commit, and a process that dies while it commits leaves a transaction
/// that the next one aborts, or finds committed: all of it or nothing.
#[tokio::test]
async fn processes_that_are_killed_again_and_again_have_each_effect_once() {
    let Some(inbox) = Inbox::fresh().await else { return };
    let told = format!("{}|{}|{}", inbox.brokers, inbox.name, inbox.effects);
    for life in 0..8 {
        let mut child = spawn(&told);
        // It needs about a second to open the inbox; each life ends at another point.
        sleep(Duration::from_millis(1200 + 130 * life)).await;
        if life == 7 {
            timeout(PATIENCE, has_an_effect(&inbox)).await.expect("one of them had an effect");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let store = inbox.open_again().await;
    timeout(PATIENCE * 2, live(&store, &inbox.effects)).await.expect("an end");
    let mut arrived = numbers(&inbox.arrived().await);
    arrived.sort_unstable();
    assert_eq!(arrived, (0..MESSAGES).collect::<Vec<_>>());
}

async fn has_an_effect(inbox: &Inbox) {
    while inbox.effects().await == 0 {
        sleep(Duration::from_millis(50)).await;
    }
}

/// What a process that died between effect and commit left: all is sent, and nothing decided.
#[tokio::test]
async fn an_effect_without_its_commit_is_not_there() {
    let Some(inbox) = Inbox::fresh().await else { return };
    let (id, topic) = (EventId::now(), format!("{}-inbox", inbox.name));
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", &inbox.brokers)
        .set("transactional.id", &topic)
        .create()
        .unwrap();
    producer.init_transactions(PATIENCE).unwrap();
    producer.begin_transaction().unwrap();
    let key = format!("payments/{id}");
    for (topic, value) in [(&inbox.effects, "an effect"), (&topic, "0")] {
        producer.send(BaseRecord::to(topic).key(&key).payload(value)).unwrap();
    }
    producer.flush(PATIENCE).unwrap();
    std::mem::forget(producer);
    let store = inbox.open_again().await;
    assert_eq!(seen(&store, id).await.unwrap(), Seen::First);
    store.commit(in_hand(&store, id, inbox.effect(7)).await).await.unwrap();
    assert_eq!(numbers(&inbox.arrived().await), [7]);
}

/// Without a process of its own: the transaction is given up between effect and commit.
#[tokio::test]
async fn a_transaction_that_is_dropped_before_its_commit_leaves_nothing() {
    let Some(inbox) = Inbox::fresh().await else { return };
    let id = EventId::now();
    drop(in_hand(&inbox.store, id, inbox.effect(0)).await);
    assert_eq!(seen(&inbox.store, id).await.unwrap(), Seen::First);
    assert_eq!(inbox.effects().await, 0);
    // Whoever stops waiting for a commit does not undo it: it takes effect, or does not, as a whole.
    let tx = in_hand(&inbox.store, id, inbox.effect(1)).await;
    let waiting = timeout(Duration::from_millis(1), inbox.store.commit(tx)).await;
    println!("given up: {}", waiting.is_err());
    let known = seen(&inbox.store, id).await.unwrap();
    assert_eq!(known, Seen::Duplicate { result: None });
    assert_eq!(inbox.effects().await, 1);
}

fn spawn(told: &str) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "kafka::inbox::kills::a_process_that_is_killed"]).env(TOLD, told);
    child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// What the child does; on its own it does nothing.
#[tokio::test]
async fn a_process_that_is_killed() {
    let Ok(told) = std::env::var(TOLD) else { return };
    let [brokers, name, effects] = *told.split('|').collect::<Vec<_>>() else { return };
    let store = connect(&settings(brokers, name)).await;
    live(&store, effects).await;
    // Until it is killed.
    sleep(Duration::from_secs(60)).await;
}

/// Everything from the beginning, as if nothing had ever been acknowledged.
async fn live(store: &KafkaInbox, effects: &str) {
    let batches = (0..MESSAGES).step_by(10).map(|start| batch(store, effects, start));
    stream::iter(batches).buffer_unordered(4).collect::<Vec<()>>().await;
}

async fn batch(store: &KafkaInbox, effects: &str, start: u64) {
    let numbered: Vec<_> = (start..start + 10).collect();
    let id = |number: &u64| EventId::numbered(Timestamp::UNIX_EPOCH, *number);
    let ids: Vec<_> = numbered.iter().map(id).collect();
    let mut tx = store.begin().await.unwrap();
    let new = store.record_all(&mut tx, "payments", &ids).await.unwrap();
    for (number, _) in numbered.iter().zip(new).filter(|(_, new)| *new) {
        let lane = (number % 7).to_string();
        tx.send(Message::first(effects, event(&lane, *number))).unwrap();
    }
    store.commit(tx).await.unwrap();
}
