//! All of it together: stream, group, engine, inbox, effect.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use redis::cmd;
use semel_backends::redis::{RedisConfig, RedisInbox, RedisSubscription, RedisTx};
use semel_core::{Event, Failure, HandlerError, Message, Published, Schedule, Sink, Verdict};
use semel_relay::{Consumer, Handler, Relay, Settings, Stop, handler_fn};
use semel_testkit::workload::{events, lanes, number};
use tokio::time::{sleep, timeout};

use super::{PATIENCE, Stream, random_name};

/// What two consumers in turn make of a stream where everything is twice and one message is poison:
/// each effect once, and one dead letter.
#[tokio::test]
async fn every_effect_is_once_and_poison_is_put_aside() {
    let Some(stream) = Stream::fresh().await else { return };
    let url = format!("redis://{}", stream.proxy.address());
    let effects = random_name("effects");
    let orders = lanes(100);
    for _ in 0..2 {
        assert!(stream.publish(orders.clone()).await.all_confirmed());
    }
    assert!(stream.publish([Event::new("order", "poison", "Numbered")]).await.all_confirmed());
    for _ in 0..2 {
        let inbox = RedisConfig::new(&url).unwrap().key_prefix(format!("{effects}:"));
        let inbox = inbox.connect_inbox().await.unwrap();
        let member = RedisConfig::new(&url).unwrap().subscribe("billing", [stream.name.as_str()]);
        consume(&effects, inbox, member.open().await.unwrap()).await;
        // To the second one everything is a duplicate.
        assert!(stream.publish(orders.clone()).await.all_confirmed());
    }
    let counted: Vec<u64> = stream.reader.ask(cmd("HVALS").arg(&effects)).await;
    assert_eq!(counted, [1; 100]);
    assert_eq!(stream.reader.count(&format!("{}.dead", stream.name)).await, 1);
}

/// As docs/consumers.md tells: the same consumer reads the stream of its dead letters.
#[tokio::test]
async fn a_dead_letter_takes_effect_once_when_its_stream_is_read() {
    let Some(stream) = Stream::fresh().await else { return };
    let url = format!("redis://{}", stream.proxy.address());
    let effects = random_name("effects");
    let poison = Event::new("order", "poison", "Numbered");
    assert!(stream.publish([poison.clone(), poison]).await.all_confirmed());
    let dead = format!("{}.dead", stream.name);
    let inbox = RedisConfig::new(&url).unwrap().key_prefix(format!("{effects}:"));
    let inbox = inbox.connect_inbox().await.unwrap();
    let member = RedisConfig::new(&url).unwrap().subscribe("billing", [stream.name.as_str()]);
    consume(&effects, inbox.clone(), member.open().await.unwrap()).await;
    assert!(stream.reader.count(&dead).await >= 1);
    for group in ["again", "once more"] {
        let effects = effects.clone();
        let mended = handler_fn(move |tx: &mut RedisTx, _: &Message| {
            tx.queue(cmd("HINCRBY").arg(effects.as_str()).arg("poison").arg(1));
            Box::pin(async { Ok(Bytes::new()) })
        });
        let letters = RedisConfig::new(&url).unwrap().subscribe(group, [dead.as_str()]);
        let letters = letters.open().await.unwrap();
        let billing = Consumer::builder("billing", inbox.clone()).take_old_events();
        let draining = billing.build_with(mended).drain(letters, Stop::never());
        timeout(PATIENCE, draining).await.expect("an end").unwrap();
    }
    let counted: Vec<u64> = stream.reader.ask(cmd("HVALS").arg(&effects)).await;
    assert_eq!(counted, [1]);
}

/// The first message of lane `a` fails always, and is refused when that is enough.
fn poisoned(
    effects: &str,
    attempts: &Arc<AtomicU64>,
    is_enough: &Arc<AtomicBool>,
) -> impl Handler<RedisTx> + 'static {
    let (effects, attempts) = (effects.to_owned(), Arc::clone(attempts));
    let is_enough = Arc::clone(is_enough);
    handler_fn(move |tx: &mut RedisTx, message: &Message| {
        let (lane, number) = (&message.event.aggregate_id, number(&message.event));
        tx.queue(cmd("RPUSH").arg(&effects).arg(format!("{lane}{number}")));
        let outcome = if lane != "a" || number != 0 {
            Ok(Bytes::new())
        } else if is_enough.load(Ordering::Relaxed) {
            Err(HandlerError::reject("enough"))
        } else {
            attempts.fetch_add(1, Ordering::Relaxed);
            Err(HandlerError::retry("never"))
        };
        Box::pin(async { outcome })
    })
}

/// While it is tried again and again, with more behind it than may be in flight.
#[tokio::test]
async fn other_lanes_flow_while_a_poisoned_message_is_tried_again() {
    let Some(stream) = Stream::fresh().await else { return };
    let url = format!("redis://{}", stream.proxy.address());
    let effects = random_name("effects");
    let (attempts, is_enough) = (Arc::default(), Arc::default());
    let handler = poisoned(&effects, &attempts, &is_enough);
    let settings = Settings {
        batch_events: 4,
        in_flight_events: 8,
        schedule: Schedule::new(vec![Duration::from_millis(50); 100_000]),
        ..Settings::default()
    };
    let inbox = RedisConfig::new(&url).unwrap().key_prefix(format!("{effects}:"));
    let inbox = inbox.connect_inbox().await.unwrap();
    let consumer = Consumer::builder("billing", inbox).settings(settings).build_with(handler);
    let member = RedisConfig::new(&url).unwrap().subscribe("billing", [stream.name.as_str()]);
    let (stopper, stop) = Stop::new();
    let running = tokio::spawn(consumer.run(member.open().await.unwrap(), stop));

    let until = async |what: &str, happened: &dyn Fn(&[String]) -> bool| {
        let waiting = async {
            loop {
                let effects: Vec<String> =
                    stream.reader.ask(cmd("LRANGE").arg(&effects).arg(0).arg(-1)).await;
                if happened(&effects) {
                    return effects;
                }
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("{what}"))
    };
    assert!(stream.publish(events("a", 0..40)).await.all_confirmed());
    let lane = |lane: &str, numbers: std::ops::Range<u64>| -> Vec<String> {
        numbers.map(|number| format!("{lane}{number}")).collect()
    };
    for wave in 1..=3 {
        let before = attempts.load(Ordering::Relaxed);
        until("it is tried again", &|_| attempts.load(Ordering::Relaxed) > before + 1).await;
        assert!(stream.publish(events("b", (wave - 1) * 10..wave * 10)).await.all_confirmed());
        let flowing = until("others flow", &|effects| effects.len() as u64 >= wave * 10).await;
        assert_eq!(flowing, lane("b", 0..wave * 10), "and nothing of its own lane");
    }
    let dead = format!("{}.dead", stream.name);
    assert_eq!(stream.reader.count(&dead).await, 0, "it is still tried");

    is_enough.store(true, Ordering::Relaxed);
    let all = until("its lane goes on without it", &|effects| effects.len() >= 69).await;
    assert_eq!(all, [lane("b", 0..30), lane("a", 1..40)].concat());
    assert_eq!(stream.reader.count(&dead).await, 1);
    stopper.stop();
    timeout(PATIENCE, running).await.expect("an end").unwrap().unwrap();
}

async fn consume(effects: &str, inbox: RedisInbox, subscription: RedisSubscription) {
    let effects = effects.to_owned();
    let count = handler_fn(move |tx: &mut RedisTx, message: &Message| {
        let (effects, lane) = (effects.clone(), message.event.aggregate_id.clone());
        Box::pin(async move {
            if lane == "poison" {
                return Err(Failure::refused("E-TEST", "never").into());
            }
            tx.queue(cmd("HINCRBY").arg(effects).arg(lane).arg(1));
            Ok(Bytes::new())
        })
    });
    let relay = Relay::new("billing", subscription, Consumer::new("billing", inbox, count));
    timeout(PATIENCE, relay.drain(Stop::never())).await.expect("an end").unwrap();
}

/// Nothing is undone in Redis, and yet a bad message spoils only itself: whether its first command
/// fails or one after it.
#[tokio::test]
async fn a_message_whose_command_fails_spoils_no_other_of_its_batch() {
    let Some(stream) = Stream::fresh().await else { return };
    let url = format!("redis://{}", stream.proxy.address());
    for (first, code) in [(true, "E-REDIS-EFFECT"), (false, "E-REDIS-EFFECT-HALF")] {
        let effects = random_name("effects");
        let inbox = RedisConfig::new(&url).unwrap().key_prefix(format!("{effects}:"));
        let counted = effects.clone();
        let count = handler_fn(move |tx: &mut RedisTx, message: &Message| {
            let lane = &*message.event.aggregate_id;
            let mut commands = vec![cmd("HINCRBY").arg(&counted).arg(lane).arg(1).to_owned()];
            if lane == "2" {
                let wrong = cmd("LPUSH").arg(&counted).arg("no list").to_owned();
                commands.insert(usize::from(!first), wrong);
            }
            commands.iter().for_each(|command| tx.queue(command));
            Box::pin(async { Ok(Bytes::new()) })
        });
        let consumer = Consumer::new("billing", inbox.connect_inbox().await.unwrap(), count);
        let orders = ["1", "2", "3"].map(|lane| Event::new("order", lane, "Numbered"));
        let batch = orders.map(|event| Message::first("orders", event));
        for _ in 0..2 {
            let published = consumer.publish(&batch).await;
            let Published::Each(verdicts) = published else { panic!("{published:?}") };
            assert!(
                matches!(&verdicts[..], [Verdict::Confirmed, Verdict::Failed(failure), Verdict::Confirmed]
                if failure.code() == code),
                "{verdicts:?}"
            );
        }
        let counted: Vec<Option<u64>> =
            stream.reader.ask(cmd("HMGET").arg(&effects).arg(&["1", "2", "3"])).await;
        assert_eq!(counted, [Some(1), (!first).then_some(1), Some(1)], "{code}");
    }
}
