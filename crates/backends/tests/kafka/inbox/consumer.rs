//! All of it together: topic, group, engine, inbox, messages.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use semel_backends::kafka::{KafkaInbox, KafkaSink, KafkaTx};
use semel_core::{Event, Failure, Message, Verdict};
use semel_relay::{Consumer, Relay, Stop, handler_fn};
use semel_testkit::probe::Probe;
use semel_testkit::workload::{event, lanes};
use tokio::time::{sleep, timeout};

use super::{Inbox, PATIENCE};
use crate::kafka::{config, publish, sink, topics};

/// What two consumers in turn make of a topic where everything is in two partitions and one message
/// is poison: each effect once, caused by its message, and one dead letter.
#[tokio::test]
async fn every_effect_is_once_and_copies_in_other_partitions_are_known() {
    let Some(inbox) = Inbox::fresh().await else { return };
    let orders = topics::random_topic();
    let dead = format!("{orders}.dead");
    for topic in [&orders, &dead] {
        topics::create(&inbox.brokers, topic, &[]).await;
    }
    let placed = lanes(100);
    let from = sink(&inbox.brokers).await;
    publish_everywhere(&from, &orders, &placed).await;
    let poison = Message::first(orders.as_str(), Event::new("order", "poison", "Numbered"));
    publish(&from, &[poison]).await;
    consume(&inbox, inbox.store.clone(), &orders, 100).await;
    // To the second one everything is a duplicate, but what comes last.
    let last: Vec<_> = (0..10).map(|number| event(&format!("last-{number}"), number)).collect();
    publish_everywhere(&from, &orders, &last).await;
    consume(&inbox, inbox.open_again().await, &orders, 110).await;

    let arrived = inbox.arrived().await;
    let all = placed.iter().chain(&last);
    let ids: BTreeMap<_, _> = all.map(|it| (it.aggregate_id.clone(), it.id.to_string())).collect();
    assert_eq!(arrived.len(), 110);
    for bill in arrived {
        let cause = bill.headers.get("causation_id");
        assert_eq!(cause, ids.get(&bill.aggregate_id).map(String::as_str), "{bill:?}");
    }
    assert_eq!(topics::read(&inbox.brokers, &[&dead]).await.len(), 2);
}

/// The same events under keys that belong to different partitions.
async fn publish_everywhere(sink: &KafkaSink, topic: &str, events: &[Event]) {
    for key in ["the same for all", "another partition", "and another one"] {
        let copies = events.iter().map(|event| {
            let event = event.clone().with_header(topics::OWN_KEY, key);
            Message { key: Some(key.into()), ..Message::first(topic, event) }
        });
        let verdicts = publish(sink, &copies.collect::<Vec<_>>()).await;
        assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Confirmed));
    }
}

/// Runs a consumer in a group of its own, from the beginning, until there are so many effects.
async fn consume(inbox: &Inbox, store: KafkaInbox, orders: &str, expected: usize) {
    let effects = inbox.effects.clone();
    let bill = handler_fn(move |tx: &mut KafkaTx, message: &Message| {
        let (effects, lane) = (effects.clone(), message.event.aggregate_id.clone());
        Box::pin(async move {
            if lane == "poison" {
                return Err(Failure::refused("E-TEST", "never").into());
            }
            tx.send(Message::first(effects.as_str(), Event::new("bill", lane, "BillMade")))?;
            Ok(Bytes::new())
        })
    });
    let group = format!("{expected}-{orders}");
    let reading = config(&inbox.brokers).subscription(&group, &[orders]).unwrap();
    let subscription = reading.connect().await.unwrap();
    let (stopper, stop) = Stop::new();
    let consumer = Consumer::new("billing", store, bill);
    let running = tokio::spawn(Relay::new("billing", subscription, consumer).run(stop));
    let dead = format!("{orders}.dead");
    let letters = if expected == 100 { 1 } else { 2 };
    let done = async {
        while inbox.arrived().await.len() < expected
            || topics::read(&inbox.brokers, &[&dead]).await.len() < letters
        {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(PATIENCE, done).await.expect("all takes effect");
    stopper.stop();
    timeout(PATIENCE, running).await.expect("an end").unwrap().unwrap();
}
