//! Brokers that hang, crash, and come back.

use std::time::{Duration, Instant};

use semel_backends::mqtt::{MqttConfig, MqttSink};
use semel_core::{Event, Fault, Sink};
use semel_testkit::services::{Private, Service};
use semel_testkit::workload::{event, events, numbers};
use tokio::time::{sleep, timeout};

use super::server::{Script, Scripted};
use super::{BRIEFLY, PATIENCE, Place, Reader, connect, failure_of, publish};

/// The outcome is unknown: the events come again, by the caller alone, and in order.
#[tokio::test]
async fn a_cut_between_sending_and_confirming_repeats_and_loses_nothing() {
    let Some(place) = Place::fresh().await else { return };
    place.proxy.swallow_replies(true);
    let batch = [event("a", 0), event("a", 1), event("b", 2)];
    let began = Instant::now();
    let (published, _) = tokio::join!(place.publish(batch.clone()), async {
        place.reader.until_arrived(2).await;
        place.proxy.cut();
    });
    let failure = failure_of(published);
    assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, "E-MQTT-DOWN"));
    assert!(began.elapsed() < BRIEFLY, "a lost connection is not waited for");
    place.proxy.swallow_replies(false);
    until_confirmed(&place.sink, &place.topic, batch.to_vec()).await;
    let arrived = numbers(&place.reader.until_arrived(5).await);
    // 1 was behind 0, which was not confirmed.
    assert_eq!(arrived, [0, 2, 0, 2, 1]);
}

#[tokio::test]
async fn no_acknowledgement_in_time_is_an_outage() {
    let Some(place) = Place::fresh().await else { return };
    place.proxy.swallow_replies(true);
    let failure = failure_of(place.publish([event("a", 0)]).await);
    assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, "E-MQTT-TIMEOUT"));
    let began = Instant::now();
    let failure = timeout(PATIENCE, place.sink.check()).await.unwrap().unwrap_err();
    assert_eq!(failure.fault(), Fault::Unavailable);
    assert!(began.elapsed() < Duration::from_secs(7), "a probe is bounded");
    place.proxy.swallow_replies(false);
    until_confirmed(&place.sink, &place.topic, events("a", 0..3)).await;
}

/// The lane takes longer than a probe waits, and fills the window to its end.
#[tokio::test]
async fn a_long_lane_keeps_neither_probes_nor_others_waiting() {
    let patient = |config: MqttConfig| config.max_in_flight(1).timeout(Duration::from_secs(20));
    let Some(place) = Place::with(None, patient).await else { return };
    place.proxy.delay_replies(Duration::from_millis(250));
    let (long, other, probe) = tokio::join!(
        place.publish(events("a", 0..30)),
        place.publish([event("b", 100)]),
        timeout(PATIENCE, place.sink.check()),
    );
    probe.unwrap().expect("the broker is there");
    assert!(long.all_confirmed() && other.all_confirmed(), "{long:?} {other:?}");
    let mut arrived = numbers(&place.reader.until_arrived(31).await);
    let turn = arrived.iter().position(|number| *number == 100).unwrap();
    assert!(turn < 3, "it waited for {turn} of the lane");
    arrived.remove(turn);
    assert_eq!(arrived, (0..30).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_killed_or_frozen_broker_is_an_outage_and_passes() {
    let Some(server) = Private::start(Service::Mqtt) else { return };
    let address = server.address().trim_start_matches("mqtt://");
    let sink = connect(MqttConfig::new(server.address()).unwrap().timeout(BRIEFLY)).await.unwrap();
    let reader = Reader::open(address, "orders", None).await;
    assert!(publish(&sink, "orders", events("a", 0..10)).await.all_confirmed());
    assert_eq!(numbers(&reader.until_arrived(10).await), (0..10).collect::<Vec<_>>());

    server.kill();
    let failure = failure_of(publish(&sink, "orders", [event("a", 10)]).await);
    assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, "E-MQTT-DOWN"));
    server.restart();
    let reader = Reader::open(address, "orders", None).await;
    let began = Instant::now();
    until_confirmed(&sink, "orders", events("a", 10..20)).await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());

    server.freeze();
    let failure = failure_of(publish(&sink, "orders", [event("a", 20)]).await);
    assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, "E-MQTT-TIMEOUT"));
    let failure = timeout(PATIENCE, sink.check()).await.unwrap().unwrap_err();
    assert_eq!(failure.fault(), Fault::Unavailable);
    server.thaw();
    until_confirmed(&sink, "orders", events("a", 20..30)).await;

    let complete = async {
        while !numbers(&reader.arrived()).contains(&29) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, complete).await.expect("all arrive");
    let mut first = Vec::new();
    for number in numbers(&reader.arrived()) {
        if !first.contains(&number) {
            first.push(number);
        }
    }
    assert_eq!(first, (10..30).collect::<Vec<_>>(), "first arrivals are in order");
}

/// That the broker has not answered yet when the time for the next ping comes, is no sign of its end.
#[tokio::test]
async fn a_probe_just_before_the_pulse_ends_no_connection() {
    // It wants to hear of the client every two seconds, which has a pulse of one.
    let greeting = Some(&[0x20, 6, 0, 0, 3, 0x13, 0, 2][..]);
    let dawdles = Duration::from_millis(300);
    let broker = Scripted::start(Script { greeting, dawdles, ..Script::default() }).await;
    let sink = connect(broker.config()).await.unwrap();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(4) {
        timeout(PATIENCE, sink.check()).await.unwrap().expect("it answers");
    }
    assert_eq!(broker.names().len(), 1, "connections");
}

/// Until then it is an outage.
async fn until_confirmed(sink: &MqttSink, topic: &str, events: Vec<Event>) {
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
