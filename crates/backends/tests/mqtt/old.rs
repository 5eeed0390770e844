//! MQTT 3.1.1: no headers, so the suite uses structured CloudEvents; and what it cannot tell.

use semel_backends::mqtt::{MqttConfig, MqttSink, MqttVersion};
use semel_core::wire::Format;
use semel_core::{Event, Fault, Message, Topic};
use semel_testkit::probe::{Probe, Skip};
use semel_testkit::proxy::Proxy;
use semel_testkit::services::{Service, service};
use semel_testkit::suites::sink::SinkProbe;
use semel_testkit::workload::event;

use super::server::OwnServer;
use super::{Place, connect, publish};

semel_testkit::sink_suite!(OldPlace);

struct OldPlace(Place);

fn old(config: MqttConfig) -> MqttConfig {
    config.version(MqttVersion::V3).unwrap()
}

impl Probe for OldPlace {
    const BACKEND: &'static str = "mqtt-3";
    const QUIET: std::time::Duration = Place::QUIET;

    async fn fresh() -> Option<Self> {
        let structured =
            |config: MqttConfig| old(config).format(Format::CloudEventsStructured).unwrap();
        Place::with(Some("application/cloudevents+json"), structured).await.map(Self)
    }
}

impl SinkProbe for OldPlace {
    type Sink = MqttSink;

    fn sink(&self) -> &MqttSink {
        self.0.sink()
    }

    fn topic(&self) -> Topic {
        self.0.topic()
    }

    async fn arrived(&self) -> Result<Vec<Event>, Skip> {
        self.0.arrived().await
    }

    fn refused(&self, event: Event) -> Result<Message, Skip> {
        self.0.refused(event)
    }

    fn proxy(&self) -> Option<&Proxy> {
        self.0.proxy()
    }
}

/// Plain is the payload alone.
#[tokio::test]
async fn plain_messages_are_the_payload_alone() {
    let Some(url) = service(Service::Mqtt) else { return };
    let sink = connect(old(MqttConfig::new(&url).unwrap()).retain(true)).await.unwrap();
    let topic = super::random_name("plain");
    let sent = event("a", 1).with_bytes("text/plain", "hello");
    assert!(publish(&sink, &topic, [sent]).await.all_confirmed());
    let (host, port) = url.trim_start_matches("mqtt://").rsplit_once(':').unwrap();
    let read = std::process::Command::new("mosquitto_sub")
        .args(["-V", "5", "-h", host, "-p", port, "-C", "1", "-W", "20", "-t", &topic])
        .args(["-F", "[%p][%C][%P]"])
        .output()
        .expect("mosquitto_sub runs");
    assert_eq!(String::from_utf8_lossy(&read.stdout), "[hello][][]\n", "{read:?}");
}

#[test]
fn binary_cloud_events_are_refused_when_the_configuration_is_read() {
    let config = || MqttConfig::new("mqtt://broker").unwrap();
    let failures = [
        old(config()).format(Format::CloudEventsBinary).unwrap_err(),
        config().format(Format::CloudEventsBinary).unwrap().version(MqttVersion::V3).unwrap_err(),
    ];
    for failure in failures {
        assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-MQTT-FORMAT"));
        assert!(failure.fix().is_some());
    }
}

/// The broker drops what it does not want and acknowledges it: only MQTT 5 has a word for no.
#[tokio::test]
async fn what_the_broker_silently_drops_is_refused_by_our_own_limit() {
    let Some(server) = OwnServer::start("message_size_limit 1000").await else { return };
    let large = || event("a", 0).with_bytes("text/plain", "x".repeat(2000));
    let unaware = connect(old(server.config())).await.unwrap();
    assert!(publish(&unaware, "orders", [large()]).await.all_confirmed(), "and it is lost");
    let aware = connect(old(server.config()).max_message_bytes(1000)).await.unwrap();
    let failure = super::failure_of(publish(&aware, "orders", [large()]).await);
    assert_eq!((failure.fault(), failure.code()), (Fault::Refused, "E-MQTT-TOO-LARGE"));
}

#[tokio::test]
async fn a_wrong_password_is_misconfigured() {
    let Some(server) = OwnServer::with_users().await else { return };
    let failure = connect(old(server.login("shop", "wrong"))).await.unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-MQTT-ACCESS"));
    let sink = connect(old(server.login("shop", "secret"))).await.unwrap();
    assert!(publish(&sink, "allowed", [event("a", 0)]).await.all_confirmed());
}
