//! Consumers: effects once, in order, with poison set aside (I1, I3, I5, I8).

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use semel_core::memory::{MemoryBroker, MemoryDatabase, MemoryTx};
use semel_core::{
    Event, EventId, Failure, InboxStore, Message, Published, Schedule, Sink, Verdict,
};
use semel_relay::{Consumer, Handler, Relay, Settings, Stop, handler_fn};
use semel_testkit::clock::VirtualClock;
use tokio::time::Instant;

use crate::scripted::name;

async fn publish(broker: &MemoryBroker, names: &[&str]) {
    for (number, name) in (1..).zip(names) {
        publish_numbered(broker, number, name).await;
    }
}

async fn publish_numbered(broker: &MemoryBroker, number: u64, name: &str) {
    let id = EventId::numbered(VirtualClock::START, number);
    let (lane, _) = name.split_once(':').unwrap();
    let event =
        Event::with_id(id, "order", lane, "Changed").with_bytes("text/plain", name.to_owned());
    broker.publish(&[Message::first("orders", event)]).await;
}

fn consumer(
    broker: &MemoryBroker,
    database: &MemoryDatabase,
    handler: impl Handler<MemoryTx> + 'static,
) -> Relay {
    let settings =
        Settings { schedule: Schedule::broker().without_jitter(), ..Settings::default() };
    let consumer = Consumer::new("payments", database.clone(), handler);
    Relay::new("payments", broker.subscribe("payments", &["orders"]), consumer)
        .with_settings(settings)
        .with_clock(Arc::new(VirtualClock::start()))
}

fn counting() -> impl Handler<MemoryTx> {
    handler_fn(|tx: &mut MemoryTx, message: &Message| {
        tx.add(name(message), 1);
        Box::pin(async { Ok(Bytes::from("done")) })
    })
}

#[tokio::test(start_paused = true)]
async fn a_message_delivered_again_has_no_second_effect() {
    let (broker, database) = (MemoryBroker::new(), MemoryDatabase::new());
    publish(&broker, &["a:1", "a:2"]).await;
    publish(&broker, &["a:1", "a:2"]).await;
    let report = consumer(&broker, &database, counting()).drain(Stop::never()).await.unwrap();
    assert_eq!(report.published, 4);
    assert_eq!((database.get("a:1"), database.get("a:2")), (1, 1));
    let mut tx = database.begin().await;
    let id = EventId::numbered(VirtualClock::START, 1);
    let seen = database.record(&mut tx, "payments", id).await.unwrap();
    assert_eq!(seen, semel_core::inbox::Seen::Duplicate { result: Some("done".into()) });
}

#[tokio::test(start_paused = true)]
async fn one_failure_undoes_the_batch_and_only_that_message_waits() {
    let (broker, database) = (MemoryBroker::new(), MemoryDatabase::new());
    publish(&broker, &["a:1", "b:1", "b:2", "c:1"]).await;
    let tries = AtomicU32::new(0);
    let handler = handler_fn(move |tx: &mut MemoryTx, message: &Message| {
        tx.add(name(message), 1);
        // Behind others, and by itself: that is the attempt which counts.
        let stumbles = name(message) == "b:1" && tries.fetch_add(1, Ordering::Relaxed) < 2;
        Box::pin(async move {
            if stumbles {
                Err(Failure::transient("E-TEST", "busy").into())
            } else {
                Ok(Bytes::new())
            }
        })
    });
    let report = consumer(&broker, &database, handler).drain(Stop::never()).await.unwrap();
    assert_eq!((report.published, report.failed), (4, 1));
    let effects = ["a:1", "b:1", "b:2", "c:1"].map(|name| database.get(name));
    assert_eq!(effects, [1, 1, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn poison_becomes_a_dead_letter_and_the_rest_goes_on() {
    let (broker, database) = (MemoryBroker::new(), MemoryDatabase::new());
    publish(&broker, &["a:1", "a:2", "b:1"]).await;
    let handler = handler_fn(|tx: &mut MemoryTx, message: &Message| {
        tx.add(name(message), 1);
        let poison = name(message) == "a:1";
        Box::pin(async move {
            if poison {
                Err(Failure::transient("E-TEST", "cannot parse").into())
            } else {
                Ok(Bytes::new())
            }
        })
    });
    let report = consumer(&broker, &database, handler).drain(Stop::never()).await.unwrap();
    assert_eq!((report.published, report.dead), (2, 1));
    assert_eq!((database.get("a:1"), database.get("a:2"), database.get("b:1")), (0, 1, 1));
    let dead = broker.dead_letters("payments");
    assert_eq!(
        (name(&dead[0].0).as_str(), dead[0].1.to_string().as_str()),
        ("a:1", "cannot parse")
    );
}

/// Twice as many as may be in flight wait behind the poison, and more of them come with the others.
#[tokio::test(start_paused = true)]
async fn however_much_waits_behind_poison_other_lanes_flow() {
    let (broker, database) = (MemoryBroker::new(), MemoryDatabase::new());
    let behind = (0..2_000).map(|number| format!("a:{number}"));
    let mixed = (2_000..2_500).map(|number| [format!("a:{number}"), format!("b{number}:1")]);
    let names: Vec<_> = behind.chain(mixed.flatten()).collect();
    publish(&broker, &names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let handler = handler_fn(|tx: &mut MemoryTx, message: &Message| {
        let name = name(message);
        let poison = name == "a:0";
        if name.starts_with("a:") {
            let place = tx.get("a");
            tx.add(format!("place of {name}"), place);
            tx.add("a", 1);
        } else {
            tx.add("others", 1);
        }
        Box::pin(async move {
            if poison {
                Err(Failure::transient("E-TEST", "cannot parse").into())
            } else {
                Ok(Bytes::new())
            }
        })
    });
    let (stopper, stop) = Stop::new();
    let running = tokio::spawn(consumer(&broker, &database, handler).run(stop));
    // Between the attempts after 6 and after 36 seconds.
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!((database.get("others"), database.get("a")), (500, 0));
    publish_numbered(&broker, 9_999, "late:1").await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!((database.get("others"), database.get("a")), (501, 0));
    while database.get("a") < 2_499 {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    for number in 1..2_500 {
        let place = database.get(&format!("place of a:{number}"));
        assert_eq!(place, number - 1, "a:{number} in its order");
    }
    stopper.stop();
    let report = running.await.unwrap().unwrap();
    assert_eq!((report.published, report.dead), (2_499 + 501, 1));
}

#[tokio::test(start_paused = true)]
async fn panics_and_hangs_of_a_handler_are_failed_attempts() {
    let (broker, database) = (MemoryBroker::new(), MemoryDatabase::new());
    publish(&broker, &["a:1"]).await;
    let tries = AtomicU32::new(0);
    let handler = handler_fn(move |tx: &mut MemoryTx, message: &Message| {
        tx.add(name(message), 1);
        let attempt = tries.fetch_add(1, Ordering::Relaxed);
        assert!(attempt != 0, "the first call panics");
        Box::pin(async move {
            if attempt == 1 {
                std::future::pending::<()>().await;
            }
            Ok(Bytes::new())
        })
    });
    let report = consumer(&broker, &database, handler).drain(Stop::never()).await.unwrap();
    assert_eq!((report.published, report.failed), (1, 2));
    assert_eq!(database.get("a:1"), 1);
}

/// Also of one that does so before it has returned its future.
#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_spoils_its_own_message_only() {
    let (broker, database) = (MemoryBroker::new(), MemoryDatabase::new());
    publish(&broker, &["a:1", "b:1", "c:1"]).await;
    let handler = handler_fn(|tx: &mut MemoryTx, message: &Message| {
        tx.add(name(message), 1);
        assert!(name(message) != "b:1", "as the test wants");
        Box::pin(async { Ok(Bytes::new()) })
    });
    let sink = Consumer::new("payments", database.clone(), handler);
    let published = sink.publish(&broker.messages()).await;
    let Published::Each(verdicts) = published else { panic!("{published:?}") };
    assert!(
        matches!(&verdicts[..], [Verdict::Confirmed, Verdict::Failed(failure), Verdict::Confirmed]
        if failure.code() == "E-HANDLER-PANIC"),
        "{verdicts:?}"
    );
    let effects = ["a:1", "b:1", "c:1"].map(|name| database.get(name));
    assert_eq!(effects, [1, 0, 1]);
}

/// Three quarters of its time for each of two messages; then the same for one, and in the same
/// transaction one that never ends.
#[tokio::test(start_paused = true)]
async fn every_message_has_all_the_time_of_a_handler() {
    const LIMIT: Duration = Duration::from_millis(400);
    let (broker, database) = (MemoryBroker::new(), MemoryDatabase::new());
    publish(&broker, &["a:1", "b:1", "c:1", "d:1"]).await;
    let (calls, told) = (Arc::new(Mutex::new(Vec::new())), Instant::now());
    let called = Arc::clone(&calls);
    let handler = handler_fn(move |tx: &mut MemoryTx, message: &Message| {
        called.lock().unwrap().push((name(message), told.elapsed()));
        tx.add(name(message), 1);
        let hangs = name(message) == "d:1";
        Box::pin(async move {
            tokio::time::sleep(if hangs { LIMIT * 100 } else { LIMIT * 3 / 4 }).await;
            Ok(Bytes::new())
        })
    });
    let builder = Consumer::builder("payments", database.clone()).handler_timeout(LIMIT);
    let sink = builder.take_old_events().build_with(handler);
    let messages = broker.messages();
    let began = Instant::now();
    assert!(sink.publish(&messages[..2]).await.all_confirmed(), "in time");
    assert_eq!(began.elapsed().as_millis() / 100, 6, "together, in one transaction");
    let published = sink.publish(&messages[2..]).await;
    let Published::Each(verdicts) = published else { panic!("{published:?}") };
    assert!(
        matches!(&verdicts[..], [Verdict::Confirmed, Verdict::Failed(failure)]
            if failure.code() == "E-HANDLER-TIMEOUT"),
        "{verdicts:?}"
    );
    let calls = calls.lock().unwrap();
    let names: Vec<_> = calls.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["a:1", "b:1", "c:1", "d:1", "c:1", "d:1"], "together, then one by one");
    // The alarm was set for the first of the two, and rang for the second in its own time.
    let hung = calls[4].1 - calls[3].1;
    assert_eq!(hung.as_millis() / 10, LIMIT.as_millis() / 10, "{hung:?}");
}

#[tokio::test(start_paused = true)]
async fn two_consumers_of_one_message_each_take_effect() {
    let (broker, database) = (MemoryBroker::new(), MemoryDatabase::new());
    publish(&broker, &["a:1"]).await;
    for name in ["payments", "inventory"] {
        let sink = Consumer::new(name, database.clone(), counting());
        let relay = Relay::new(name, broker.subscribe(name, &[]), sink);
        relay.drain(Stop::never()).await.unwrap();
    }
    assert_eq!(database.get("a:1"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_crash_before_the_acknowledgement_repeats_the_message_not_the_effect() {
    let (broker, database) = (MemoryBroker::new(), MemoryDatabase::new());
    publish(&broker, &["a:1"]).await;
    let sink = Consumer::new("payments", database.clone(), counting());
    let message = broker.messages().remove(0);
    assert!(sink.publish(&[message]).await.all_confirmed());
    // The acknowledgement is lost here.
    consumer(&broker, &database, counting()).drain(Stop::never()).await.unwrap();
    assert_eq!(database.get("a:1"), 1);
    tokio::time::sleep(Duration::from_secs(1)).await;
}
