//! One process has an inbox: the older one is fenced off, and stays off.

use std::time::Duration;

use bytes::Bytes;
use semel_backends::kafka::KafkaTx;
use semel_core::inbox::{InboxStore, Seen};
use semel_core::{EventId, Fault, Message};
use semel_relay::{Consumer, Relay, Stop, handler_fn};
use semel_testkit::probe::Probe;
use semel_testkit::suites::inbox::InboxProbe;
use semel_testkit::workload::numbers;
use tokio::time::timeout;

use super::{Inbox, PATIENCE, commit, connect, duplicate, expect, in_hand, seen};
use crate::kafka::lab::Lab;
use crate::kafka::{config, topics};

#[tokio::test]
async fn who_was_replaced_has_no_effect_and_is_at_its_end() {
    let Some(inbox) = Inbox::fresh().await else { return };
    let [before, late] = [(); 2].map(|()| EventId::now());
    commit(&inbox.store, in_hand(&inbox.store, before, inbox.effect(0)).await).await.unwrap();
    let old = in_hand(&inbox.store, late, inbox.effect(1)).await;
    let standby = inbox.open_again().await;
    expect(&commit(&inbox.store, old).await.unwrap_err(), Fault::Misconfigured, "E-KAFKA-FENCED");
    for _ in 0..2 {
        let failure = inbox.store.begin().await.unwrap_err();
        expect(&failure, Fault::Misconfigured, "E-KAFKA-FENCED");
    }
    assert_eq!(seen(&standby, before).await.unwrap(), duplicate(None));
    commit(&standby, in_hand(&standby, late, inbox.effect(2)).await).await.unwrap();
    assert_eq!(numbers(&inbox.arrived().await), [0, 2]);
}

/// The older one learns of it when it has something to commit, and its consumer ends.
#[tokio::test]
async fn the_consumer_of_who_was_replaced_ends_with_the_reason() {
    let Some(inbox) = Inbox::fresh().await else { return };
    let (effects, orders) = (inbox.effects.clone(), topics::random_topic());
    for topic in [orders.clone(), format!("{orders}.dead")] {
        topics::create(&inbox.brokers, &topic, &[]).await;
    }
    let handler = handler_fn(move |tx: &mut KafkaTx, message: &Message| {
        let sent = tx.send(Message::first(effects.as_str(), message.event.clone()));
        Box::pin(async move { Ok(sent.map(|()| Bytes::new())?) })
    });
    let consumer = Consumer::new("payments", inbox.store.clone(), handler);
    let group = config(&inbox.brokers).subscription(&orders, &[&orders]).unwrap();
    let subscription = group.connect().await.unwrap();
    let standby = inbox.open_again().await;
    let sink = crate::kafka::sink(&inbox.brokers).await;
    let order = Message::first(orders.as_str(), semel_testkit::workload::event("a", 7));
    crate::kafka::publish(&sink, std::slice::from_ref(&order)).await;
    let running = Relay::new("payments", subscription, consumer).run(Stop::never());
    let failure = timeout(PATIENCE, running).await.expect("an end").unwrap_err();
    expect(&failure, Fault::Misconfigured, "E-KAFKA-FENCED");
    assert_eq!(inbox.effects().await, 0);
    assert_eq!(topics::read(&inbox.brokers, &[&format!("{orders}.dead")]).await, []);
    assert_eq!(seen(&standby, order.event.id).await.unwrap(), Seen::First);
}

/// It loses its producer to an outage and is replaced meanwhile: it must not take the inbox back,
/// as it would after any other outage.
#[tokio::test]
async fn who_was_replaced_in_an_outage_leaves_the_other_alone() {
    let Some(lab) = Lab::open().await else { return };
    let door = lab.door(lab.next_door());
    let effects = topics::random_topic();
    topics::create(&lab.plain, &effects, &[]).await;
    let effect =
        |number| Message::first(effects.as_str(), semel_testkit::workload::event("a", number));
    let name = super::random_name();
    let cut_off = config(&door.address()).patience(Duration::from_secs(3));
    let cut_off = connect(&cut_off.inbox(&name).unwrap()).await;
    let lost = in_hand(&cut_off, EventId::now(), effect(0)).await;
    door.refuse(true);
    door.cut();
    assert_eq!(commit(&cut_off, lost).await.unwrap_err().fault(), Fault::Unavailable);
    let standby = connect(&super::settings(&lab.plain, &name)).await;
    commit(&standby, in_hand(&standby, EventId::now(), effect(1)).await).await.unwrap();
    door.refuse(false);
    let told = async {
        loop {
            let failure = cut_off.begin().await.unwrap_err();
            if failure.code() == "E-KAFKA-FENCED" {
                return expect(&failure, Fault::Misconfigured, "E-KAFKA-FENCED");
            }
            assert_eq!(failure.fault(), Fault::Unavailable, "{failure:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, told).await.expect("it learns of it");
    commit(&standby, in_hand(&standby, EventId::now(), effect(2)).await).await.unwrap();
    assert_eq!(numbers(&topics::read(&lab.plain, &[&effects]).await), [1, 2]);
}
