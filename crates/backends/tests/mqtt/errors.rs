//! Set-ups that are wrong and messages that cannot be carried. The broker is a real Mosquitto, and
//! where that cannot be made to say something, a scripted one.

use std::collections::HashMap;

use semel_backends::mqtt::{MqttConfig, MqttSink, MqttVersion};
use semel_core::{Failure, Fault, Message, Published, Sink, Verdict};
use semel_testkit::workload::{event, events, numbers};
use tokio::time::timeout;

use super::server::{OwnServer, Script, Scripted};
use super::{PATIENCE, Place, Reader, connect, failure_of, publish};
use crate::certificates::Certificates;

fn assert_told(failure: &Failure, fault: Fault, code: &str) {
    assert_eq!((failure.fault(), failure.code()), (fault, code), "{failure:?}");
    assert!(failure.fix().is_some(), "{failure:?}");
}

#[test]
fn a_wrong_url_is_misconfigured_and_not_repeated() {
    let wrong = ["", "broker:1883", "http://u:secret@host", "mqtt://u:secret@", "mqtt://h/secret"];
    for url in wrong {
        let failure = MqttConfig::new(url).unwrap_err();
        assert_told(&failure, Fault::Misconfigured, "E-MQTT-URL");
        assert!(!failure.to_string().contains("secret"), "{failure}");
    }
    let failure = MqttVersion::try_from(4).unwrap_err();
    assert_told(&failure, Fault::Misconfigured, "E-MQTT-VERSION");
}

#[tokio::test]
async fn nobody_listening_is_an_outage() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = MqttConfig::new(&format!("mqtt://{unused}")).unwrap();
    let failure = connect(config).await.unwrap_err();
    assert_told(&failure, Fault::Unavailable, "E-MQTT-DOWN");
}

#[tokio::test]
async fn what_is_no_mqtt_is_an_outage() {
    const PAGE: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n\
        Connection: close\r\nContent-Length: 11\r\n\r\nBad Request";
    let server = Scripted::start(Script { greeting: Some(PAGE), ..Script::default() }).await;
    let failure = connect(server.config()).await.unwrap_err();
    assert_told(&failure, Fault::Unavailable, "E-MQTT-DOWN");
}

#[tokio::test]
async fn wrong_logins_and_missing_rights_are_misconfigured() {
    let Some(server) = OwnServer::with_users().await else { return };
    for config in [server.login("shop", "wrong"), server.config()] {
        let failure = connect(config).await.unwrap_err();
        assert_told(&failure, Fault::Misconfigured, "E-MQTT-ACCESS");
    }
    let url = format!("mqtt://shop:s%65cret@{}", server.address);
    let sink = connect(MqttConfig::new(&url).unwrap()).await.unwrap();
    assert!(publish(&sink, "allowed", [event("a", 0)]).await.all_confirmed());
    let failure = failure_of(publish(&sink, "forbidden", [event("a", 1)]).await);
    assert_told(&failure, Fault::Misconfigured, "E-MQTT-ACCESS");
    assert!(failure.to_string().contains("forbidden"), "{failure}");
    assert!(publish(&sink, "allowed", [event("a", 1)]).await.all_confirmed());
}

/// The broker itself turns the third down, and takes what comes after it.
#[tokio::test]
async fn what_is_too_large_for_the_broker_is_refused_and_holds_its_lane_back() {
    let Some(server) = OwnServer::start("message_size_limit 10000").await else { return };
    let reader = Reader::open(&server.address, "orders", None).await;
    let sink = connect(server.config()).await.unwrap();
    let large = event("a", 2).with_bytes("text/plain", "x".repeat(20_000));
    let mut batch = events("a", 0..5);
    batch[2] = large;
    batch.extend(events("b", 10..13));
    let published = publish(&sink, "orders", batch).await;
    let Published::Each(verdicts) = published else { panic!("{published:?}") };
    assert_eq!(verdicts[..2], [Verdict::Confirmed, Verdict::Confirmed]);
    let Verdict::Failed(failure) = &verdicts[2] else { panic!("{verdicts:?}") };
    assert_told(failure, Fault::Refused, "E-MQTT-TOO-LARGE");
    assert!(failure.to_string().contains("0x95"), "the broker said so: {failure}");
    assert_eq!(verdicts[3..5], [Verdict::Behind, Verdict::Behind]);
    assert!(verdicts[5..].iter().all(|verdict| *verdict == Verdict::Confirmed));
    assert!(publish(&sink, "orders", [event("c", 20)]).await.all_confirmed());
    let mut arrived = numbers(&reader.until_arrived(6).await);
    arrived.sort_unstable();
    assert_eq!(arrived, [0, 1, 10, 11, 12, 20]);
}

#[tokio::test]
async fn the_brokers_largest_packet_is_known_beforehand() {
    let Some(server) = OwnServer::start("max_packet_size 10000").await else { return };
    let sink = connect(server.config()).await.unwrap();
    let large = event("a", 0).with_bytes("text/plain", "x".repeat(20_000));
    let failure = failure_of(publish(&sink, "orders", [large]).await);
    assert_told(&failure, Fault::Refused, "E-MQTT-TOO-LARGE");
    assert!(failure.to_string().contains("the limit is 10000"), "{failure}");
    assert!(publish(&sink, "orders", [event("a", 1)]).await.all_confirmed());
}

#[tokio::test]
async fn a_topic_that_is_none_is_refused() {
    let Some(place) = Place::fresh().await else { return };
    for topic in ["", "orders/+", "#", "$SYS/broker/uptime", "a\0b", "a\nb"] {
        let failure = failure_of(publish(&place.sink, topic, [event("a", 0)]).await);
        assert_told(&failure, Fault::Refused, "E-MQTT-TOPIC");
    }
    assert!(place.publish([event("a", 1)]).await.all_confirmed());
}

#[tokio::test]
async fn a_content_type_cannot_break_out_of_its_header() {
    let Some(place) = Place::fresh().await else { return };
    let broken = event("a", 0).with_bytes("text/plain\r\nevil: two", "");
    assert_told(&failure_of(place.publish([broken]).await), Fault::Refused, "E-MQTT-HEADER");
    assert!(place.publish([event("a", 1)]).await.all_confirmed());
}

#[tokio::test]
async fn a_message_that_nobody_subscribes_to_is_success_unless_one_is_required() {
    let Some(server) = OwnServer::start("").await else { return };
    let easy = connect(server.config()).await.unwrap();
    assert!(publish(&easy, "orders", [event("a", 0)]).await.all_confirmed());
    let strict = connect(server.config().require_subscriber(true)).await.unwrap();
    let failure = failure_of(publish(&strict, "orders", [event("a", 0)]).await);
    assert_told(&failure, Fault::Transient, "E-MQTT-NO-SUBSCRIBER");
    let reader = Reader::open(&server.address, "orders", None).await;
    assert!(publish(&strict, "orders", [event("a", 0)]).await.all_confirmed());
    reader.until_arrived(1).await;
}

#[tokio::test]
async fn a_broker_without_what_is_needed_is_misconfigured() {
    let Some(server) = OwnServer::start("max_qos 0").await else { return };
    let failure = connect(server.config()).await.unwrap_err();
    assert_told(&failure, Fault::Misconfigured, "E-MQTT-BROKER");
    let Some(server) = OwnServer::start("retain_available false").await else { return };
    let failure = connect(server.config().retain(true)).await.unwrap_err();
    assert_told(&failure, Fault::Misconfigured, "E-MQTT-BROKER");
    connect(server.config()).await.expect("nothing is retained");
}

/// Two under one name take turns: the broker says so, and it passes.
#[tokio::test]
async fn another_one_with_the_same_name_is_an_outage() {
    let Some(server) = OwnServer::start("").await else { return };
    let first = connect(server.config().client_id("relay")).await.unwrap();
    let second = connect(server.config().client_id("relay")).await.unwrap();
    assert!(publish(&second, "orders", [event("a", 0)]).await.all_confirmed());
    assert!(publish(&first, "orders", [event("a", 1)]).await.all_confirmed(), "it connects anew");
    timeout(PATIENCE, first.check()).await.unwrap().unwrap();
}

/// Unless a name is set: sinks of one configuration do not end each other, and each keeps its own.
#[tokio::test]
async fn sinks_of_one_configuration_have_names_of_their_own() {
    let server = Scripted::start(Script { ends: Some(("end", 0x8b)), ..Script::default() }).await;
    let config = server.config();
    let first = connect(config.clone()).await.unwrap();
    connect(config).await.unwrap();
    failure_of(publish(&first, "end", [event("a", 0)]).await);
    assert!(publish(&first, "orders", [event("a", 1)]).await.all_confirmed(), "it connects anew");
    let names = server.names();
    assert_eq!(names.len(), 3, "{names:?}");
    assert_ne!(names[0], names[1]);
    assert_eq!(names[0], names[2]);
}

/// Every reason that an acknowledgement can have, by a scripted broker.
#[tokio::test]
async fn every_reason_of_an_acknowledgement_has_its_line() {
    use Fault::{Misconfigured, Refused, Transient, Unavailable};
    let cases = [
        (0x80, Transient, "E-MQTT-REJECTED"),
        (0x83, Transient, "E-MQTT-REJECTED"),
        (0x87, Misconfigured, "E-MQTT-ACCESS"),
        (0x90, Refused, "E-MQTT-TOPIC"),
        (0x91, Transient, "E-MQTT-REJECTED"),
        (0x95, Refused, "E-MQTT-TOO-LARGE"),
        (0x97, Unavailable, "E-MQTT-QUOTA"),
        (0x99, Refused, "E-MQTT-PAYLOAD"),
        (0xff, Transient, "E-MQTT-REJECTED"),
    ];
    for (reason, fault, code) in cases {
        let reasons = HashMap::from([("bad", reason)]);
        let server = Scripted::start(Script { reasons, ..Script::default() }).await;
        let sink = connect(server.config()).await.unwrap();
        assert_told(&failure_of_the_second(&sink, ["good", "bad", "after"]).await, fault, code);
        assert_eq!(server.received(), ["good", "bad"], "what is behind was not sent");
        assert!(publish(&sink, "good", [event("a", 3)]).await.all_confirmed());
    }
}

/// Publishes one lane, each event to its topic: the first is confirmed, the third is not sent.
async fn failure_of_the_second(sink: &MqttSink, topics: [&str; 3]) -> Failure {
    let lane = topics.into_iter().zip(events("a", 0..3));
    let batch: Vec<_> = lane.map(|(topic, event)| Message::first(topic, event)).collect();
    let published = timeout(PATIENCE, sink.publish(&batch)).await.unwrap();
    let verdicts = if let Published::Each(verdicts) = published { verdicts } else { Vec::new() };
    let around = (verdicts.first(), verdicts.get(2));
    assert_eq!(around, (Some(&Verdict::Confirmed), Some(&Verdict::Behind)), "{verdicts:?}");
    let failure = if let Verdict::Failed(failure) = &verdicts[1] { Some(failure) } else { None };
    failure.expect("the second message failed").clone()
}

#[tokio::test]
async fn every_reason_against_a_connection_has_its_line() {
    use Fault::{Misconfigured, Unavailable};
    let cases: [(&'static [u8], _, _); 6] = [
        (&[0x20, 3, 0, 0x84, 0], Misconfigured, "E-MQTT-VERSION"),
        (&[0x20, 2, 0, 1], Misconfigured, "E-MQTT-VERSION"),
        (&[0x20, 3, 0, 0x85, 0], Misconfigured, "E-MQTT-BROKER"),
        (&[0x20, 3, 0, 0x8a, 0], Misconfigured, "E-MQTT-ACCESS"),
        (&[0x20, 3, 0, 0x89, 0], Unavailable, "E-MQTT-DOWN"),
        (&[0x20, 3, 0, 0x97, 0], Unavailable, "E-MQTT-QUOTA"),
    ];
    for (greeting, fault, code) in cases {
        let script = Script { greeting: Some(greeting), ..Script::default() };
        let server = Scripted::start(script).await;
        assert_told(&connect(server.config()).await.unwrap_err(), fault, code);
    }
}

/// A broker that ends the connection for a message says why, and is not asked again and again.
#[tokio::test]
async fn the_reason_of_an_ended_connection_is_told() {
    use Fault::{Misconfigured, Unavailable};
    let cases = [
        (0x8b, Unavailable, "E-MQTT-DOWN"),
        (0x8e, Unavailable, "E-MQTT-DOWN"),
        (0x97, Unavailable, "E-MQTT-QUOTA"),
        (0x87, Misconfigured, "E-MQTT-ACCESS"),
        (0x95, Misconfigured, "E-MQTT-BROKER"),
    ];
    for (reason, fault, code) in cases {
        let script = Script { ends: Some(("bad", reason)), ..Script::default() };
        let server = Scripted::start(script).await;
        let sink = connect(server.config()).await.unwrap();
        assert_told(&failure_of(publish(&sink, "bad", [event("a", 0)]).await), fault, code);
        assert!(publish(&sink, "good", [event("a", 1)]).await.all_confirmed());
    }
}

#[tokio::test]
async fn what_was_confirmed_before_a_connection_ended_stays_confirmed() {
    let server = Scripted::start(Script { ends: Some(("end", 0x8b)), ..Script::default() }).await;
    let sink = connect(server.config()).await.unwrap();
    let failure = failure_of_the_second(&sink, ["good", "end", "after"]).await;
    assert_told(&failure, Fault::Unavailable, "E-MQTT-DOWN");
    assert_eq!(server.received(), ["good", "end"], "what is behind was not sent");
}

#[tokio::test]
async fn tls_is_verified() {
    let certificates = Certificates::new();
    let (_, other) = certificates.of("other.example");
    let (key, own) = certificates.of("localhost");
    let settings = format!("keyfile {}\ncertfile {}", key.display(), own.display());
    let Some(server) = OwnServer::start(&settings).await else { return };
    let port = server.address.rsplit_once(':').unwrap().1;
    let config = |host: &str| MqttConfig::new(&format!("mqtts://{host}:{port}")).unwrap();

    for version in [MqttVersion::V5, MqttVersion::V3] {
        let trusting = config("localhost").ca_file(&own).version(version).unwrap();
        let sink = connect(trusting).await.unwrap();
        assert!(publish(&sink, "orders", events("a", 0..20)).await.all_confirmed());
    }
    let wrong = [
        ("no ca_file", config("localhost")),
        ("another certificate", config("localhost").ca_file(&other)),
        ("another host", config("127.0.0.1").ca_file(&own)),
        ("a URL without TLS", server.config().ca_file(&own)),
        ("no certificate", config("localhost").ca_file(&key)),
        ("no file", config("localhost").ca_file(own.with_extension("missing"))),
    ];
    for (what, config) in wrong {
        let failure = connect(config).await.expect_err(what);
        assert_told(&failure, Fault::Misconfigured, "E-MQTT-TLS");
    }
}
