//! Servers that hang, crash, and come back.

use std::time::{Duration, Instant};

use semel_backends::nats::{NatsConfig, NatsSink, NatsStream};
use semel_core::{Event, Fault, Sink};
use semel_testkit::services::{Private, Service};
use semel_testkit::workload::{event, events, numbers};
use tokio::time::{sleep, timeout};

use super::{PATIENCE, Reader, Stream, failure_of, publish};

/// The outcome is unknown: the event comes again, and the stream knows its id.
#[tokio::test]
async fn a_cut_between_sending_and_confirming_repeats_and_loses_nothing() {
    let Some(stream) = Stream::fresh().await else { return };
    // Then the stream is known, and a lane goes there in one piece.
    assert!(stream.publish(events("c", 10..12)).await.all_confirmed());
    stream.proxy.swallow_replies(true);
    let batch = [event("a", 0), event("a", 1), event("b", 2)];
    let began = Instant::now();
    let (published, ()) = tokio::join!(stream.publish(batch.clone()), async {
        until_arrived(&stream, 5).await;
        stream.proxy.cut();
    });
    let failure = failure_of(published);
    assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, "E-NATS-DOWN"));
    assert!(began.elapsed() < Duration::from_secs(3), "a lost connection is not waited for");
    stream.proxy.swallow_replies(false);
    until_confirmed(&stream.sink, &stream.name, batch.to_vec()).await;
    assert_eq!(numbers(&stream.arrived().await), [10, 11, 0, 1, 2], "each once");
}

#[tokio::test]
async fn no_acknowledgement_in_time_is_an_outage() {
    let Some(stream) = Stream::fresh().await else { return };
    stream.proxy.swallow_replies(true);
    let failure = failure_of(stream.publish([event("a", 0)]).await);
    assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, "E-NATS-TIMEOUT"));
    let began = Instant::now();
    let failure = timeout(PATIENCE, stream.sink.check()).await.unwrap().unwrap_err();
    assert_eq!(failure.fault(), Fault::Unavailable);
    assert!(began.elapsed() < Duration::from_secs(7), "a probe is bounded");
    stream.proxy.swallow_replies(false);
    until_confirmed(&stream.sink, &stream.name, events("a", 0..3)).await;
}

#[tokio::test]
async fn a_killed_or_frozen_server_is_an_outage_and_passes() {
    let Some(server) = Private::start(Service::Nats) else { return };
    let config = NatsConfig::new(server.address())
        .unwrap()
        .create_stream(NatsStream::new("ORDERS", ["orders"]))
        .timeout(Duration::from_secs(3));
    let sink = timeout(PATIENCE, config.connect()).await.unwrap().unwrap();
    assert!(publish(&sink, "orders", events("a", 0..10)).await.all_confirmed());

    server.kill();
    let failure = failure_of(publish(&sink, "orders", [event("a", 10)]).await);
    assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, "E-NATS-DOWN"));
    server.restart();
    let began = Instant::now();
    until_confirmed(&sink, "orders", events("a", 10..20)).await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());

    server.freeze();
    let failure = failure_of(publish(&sink, "orders", [event("a", 20)]).await);
    assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, "E-NATS-TIMEOUT"));
    let failure = timeout(PATIENCE, sink.check()).await.unwrap().unwrap_err();
    assert_eq!(failure.fault(), Fault::Unavailable);
    server.thaw();
    until_confirmed(&sink, "orders", events("a", 20..30)).await;

    let mut arrived = numbers(&Reader::open(server.address()).await.arrived("ORDERS").await);
    arrived.dedup();
    assert_eq!(arrived, (0..30).collect::<Vec<_>>(), "what was confirmed survived the crash");
}

async fn until_arrived(stream: &Stream, count: usize) {
    let arrive = async {
        while stream.arrived().await.len() < count {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, arrive).await.expect("they arrive");
}

/// Until then it is an outage.
pub(super) async fn until_confirmed(sink: &NatsSink, topic: &str, events: Vec<Event>) {
    let confirm = async {
        loop {
            let published = publish(sink, topic, events.clone()).await;
            if published.all_confirmed() {
                return;
            }
            assert_eq!(failure_of(published).fault(), Fault::Unavailable);
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, confirm).await.expect("they are confirmed");
}
