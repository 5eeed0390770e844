//! What becomes of an effect when something fails half-way.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use semel_core::inbox::{InboxStore, Seen};
use semel_core::{Event, EventId, Fault, Message};
use semel_testkit::probe::Probe;
use semel_testkit::services::{Private, Service, service};
use semel_testkit::suites::inbox::InboxProbe;
use semel_testkit::workload::{event, numbers};
use tokio::time::{Instant, sleep, timeout};

use super::{Inbox, PATIENCE, commit, connect, duplicate, expect, in_hand, random_name, seen};
use crate::kafka::lab::Lab;
use crate::kafka::{config, topics};

#[tokio::test]
async fn what_the_brokers_refuse_leaves_nothing_and_spoils_nothing() {
    let Some(inbox) = Inbox::fresh().await else { return };
    let narrow = topics::random_topic();
    topics::create(&inbox.brokers, &narrow, &[("max.message.bytes", "3000")]).await;
    let bad = EventId::now();
    let large = event("large", 9).with_bytes("application/octet-stream", vec![7; 5000]);
    let mut tx = in_hand(&inbox.store, bad, inbox.effect(9)).await;
    tx.send(Message::first(narrow.as_str(), large)).unwrap();
    let good: Vec<_> = (0..5).map(|_| EventId::now()).collect();
    let mut all = vec![tx];
    for (number, id) in good.iter().enumerate() {
        all.push(in_hand(&inbox.store, *id, inbox.effect(number as u64)).await);
    }
    // The first is on its way while the others gather, and so they share a transaction.
    let mut ended = join_all(all.into_iter().map(|tx| commit(&inbox.store, tx))).await;
    expect(&ended.remove(0).unwrap_err(), Fault::Refused, "E-KAFKA-TOO-LARGE");
    assert!(ended.into_iter().all(|committed| committed.is_ok()));
    assert_eq!(seen(&inbox.store, bad).await.unwrap(), Seen::First);
    for id in good {
        assert_eq!(seen(&inbox.store, id).await.unwrap(), duplicate(None));
    }
    let mut arrived = numbers(&inbox.arrived().await);
    arrived.sort_unstable();
    assert_eq!(arrived, [0, 1, 2, 3, 4]);
    assert_eq!(topics::read(&inbox.brokers, &[&narrow]).await, []);
}

/// Each is as large as the topic takes, and together they are one request that it does not take.
#[tokio::test]
async fn messages_that_are_too_large_together_are_sent_one_by_one() {
    let Some(inbox) = Inbox::fresh().await else { return };
    let narrow = topics::random_topic();
    topics::create(&inbox.brokers, &narrow, &[("max.message.bytes", "3000")]).await;
    let mut tx = in_hand(&inbox.store, EventId::now(), inbox.effect(0)).await;
    let half = |number| event("a", number).with_bytes("application/octet-stream", vec![7; 1500]);
    let halves: Vec<_> = (0..5).map(half).collect();
    for half in &halves {
        tx.send(Message::first(narrow.as_str(), half.clone())).unwrap();
    }
    commit(&inbox.store, tx).await.unwrap();
    let id = |event: &Event| event.id;
    let arrived = topics::read(&inbox.brokers, &[&narrow]).await;
    assert_eq!(
        arrived.iter().map(id).collect::<Vec<_>>(),
        halves.iter().map(id).collect::<Vec<_>>()
    );
    // And then as always.
    commit(&inbox.store, inbox.in_hand(EventId::now()).await).await.unwrap();
    assert_eq!(inbox.effects().await, 2);
}

#[tokio::test]
async fn what_cannot_be_sent_is_refused_beforehand() {
    let Some(inbox) = Inbox::fresh().await else { return };
    let mut tx = inbox.store.begin().await.unwrap();
    let nowhere = Message::first("no topic", event("a", 0));
    expect(&tx.send(nowhere).unwrap_err(), Fault::Refused, "E-KAFKA-TOPIC-NAME");
    let large = event("a", 0).with_bytes("application/octet-stream", vec![7; 2 * 1024 * 1024]);
    let large = Message::first(inbox.effects.as_str(), large);
    expect(&tx.send(large).unwrap_err(), Fault::Refused, "E-KAFKA-TOO-LARGE");
    let (id, result) = (EventId::now(), vec![7; 2 * 1024 * 1024].into());
    let failure = inbox.store.store_result(&mut tx, "payments", id, result).await.unwrap_err();
    expect(&failure, Fault::Refused, "E-KAFKA-TOO-LARGE");
    commit(&inbox.store, tx).await.unwrap();
    assert_eq!(inbox.effects().await, 0);
}

#[tokio::test]
async fn a_missing_topic_is_a_mistake_in_the_set_up() {
    let Some(inbox) = Inbox::fresh().await else { return };
    let id = EventId::now();
    let patient = config(&inbox.brokers).patience(Duration::from_secs(25));
    let store = connect(&patient.inbox(&inbox.name).unwrap()).await;
    let effect = Message::first(topics::random_topic().as_str(), event("a", 0));
    let failure = commit(&store, in_hand(&store, id, effect).await).await.unwrap_err();
    expect(&failure, Fault::Misconfigured, "E-KAFKA-TOPIC-MISSING");
    assert_eq!(seen(&store, id).await.unwrap(), Seen::First);
}

/// The brokers have a request and cannot say so. Nobody is told anything of those messages before
/// the log was read, and then what is so.
#[tokio::test]
async fn a_commit_of_unknown_outcome_is_found_out() {
    let Some(lab) = Lab::open().await else { return };
    let door = lab.door(lab.next_door());
    let effects = topics::random_topic();
    topics::create(&lab.plain, &effects, &[]).await;
    let settings = config(&door.address()).patience(Duration::from_secs(2));
    let store = connect(&settings.inbox(&random_name()).unwrap()).await;
    let (mut unknown, mut known) = (0, 0);
    let effect = |number| Message::first(effects.as_str(), event("a", number));
    commit(&store, in_hand(&store, EventId::now(), effect(0)).await).await.unwrap();
    let begun = Instant::now();
    commit(&store, in_hand(&store, EventId::now(), effect(1)).await).await.unwrap();
    let usual = begun.elapsed();
    // At whichever point of the transaction it strikes.
    for number in 2..12 {
        let id = EventId::now();
        let effect = || effect(number);
        let tx = in_hand(&store, id, effect()).await;
        let cutting = async {
            sleep(usual * u32::try_from(number - 2).unwrap() / 10).await;
            door.swallow_replies(true);
            sleep(Duration::from_millis(2500)).await;
            door.swallow_replies(false);
            door.cut();
        };
        let (first, ()) = tokio::join!(commit(&store, tx), cutting);
        unknown += usize::from(first.is_err());
        let again = async {
            loop {
                match seen(&store, id).await {
                    Ok(Seen::Duplicate { .. }) => break true,
                    Ok(Seen::First) => {
                        assert!(first.is_err(), "what was committed is known");
                        match commit(&store, in_hand(&store, id, effect()).await).await {
                            Ok(()) => break false,
                            Err(failure) => assert_eq!(failure.fault(), Fault::Unavailable),
                        }
                    }
                    Err(failure) => {
                        assert_eq!(failure.fault(), Fault::Unavailable, "{failure:?}");
                        sleep(Duration::from_millis(20)).await;
                    }
                }
            }
        };
        known += usize::from(timeout(PATIENCE, again).await.expect("it goes on"));
    }
    assert!(unknown > 0, "it never struck in a transaction");
    println!("{unknown} unknown, {known} known in the end without another attempt");
    let arrived = numbers(&topics::read(&lab.plain, &[&effects]).await);
    assert_eq!(arrived, (0..12).collect::<Vec<_>>());
}

#[tokio::test]
async fn brokers_that_are_away_are_an_outage_and_pass() {
    let Some(lab) = Lab::open().await else { return };
    let door = lab.door(lab.next_door());
    let effects = topics::random_topic();
    topics::create(&lab.plain, &effects, &[]).await;
    let settings = config(&door.address()).patience(Duration::from_secs(3));
    let store = connect(&settings.inbox(&random_name()).unwrap()).await;
    let effect = || Message::first(effects.as_str(), event("a", 0));
    let [id, other] = [(); 2].map(|()| EventId::now());
    let tx = in_hand(&store, id, effect()).await;
    door.refuse(true);
    door.cut();
    expect(&commit(&store, tx).await.unwrap_err(), Fault::Unavailable, "E-KAFKA-DOWN");
    let down = timeout(PATIENCE, store.begin()).await.expect("an answer").unwrap_err();
    assert_eq!(down.fault(), Fault::Unavailable, "{down:?}");
    door.refuse(false);
    let back = async {
        while store.begin().await.is_err() {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, back).await.expect("it passes");
    for id in [id, other] {
        commit(&store, in_hand(&store, id, effect()).await).await.unwrap();
    }
    assert_eq!(topics::read(&lab.plain, &[&effects]).await.len(), 2);
}

#[tokio::test]
async fn a_broker_that_is_killed_in_a_transaction_loses_and_doubles_nothing() {
    let Some(_) = service(Service::Kafka) else { return };
    let starting = tokio::task::spawn_blocking(|| Private::start(Service::Kafka));
    let Some(server) = starting.await.unwrap() else { return };
    let server = Arc::new(server);
    let effects = topics::random_topic();
    topics::create(server.address(), &effects, &[]).await;
    let settings = config(server.address()).patience(Duration::from_secs(30));
    let store = connect(&settings.inbox(&random_name()).unwrap()).await;
    let writing = async {
        for number in 0..200 {
            let id = EventId::now();
            loop {
                let Ok(mut tx) = store.begin().await else { continue };
                match store.record(&mut tx, "payments", id).await {
                    Ok(Seen::Duplicate { .. }) => break,
                    Ok(Seen::First) => {
                        let effect = Message::first(effects.as_str(), event("a", number));
                        tx.send(effect).unwrap();
                        if store.commit(tx).await.is_ok() {
                            break;
                        }
                    }
                    Err(_) => {}
                }
            }
        }
    };
    let killed = Arc::clone(&server);
    let killing = async {
        sleep(Duration::from_millis(300)).await;
        let restarting = move || {
            killed.kill();
            killed.restart();
        };
        tokio::task::spawn_blocking(restarting).await.unwrap();
    };
    let both = async { tokio::join!(writing, killing) };
    timeout(Duration::from_secs(100), both).await.expect("it goes on");
    let arrived = numbers(&topics::read(server.address(), &[&effects]).await);
    assert_eq!(arrived, (0..200).collect::<Vec<_>>());
}
