//! MQTT against the shared suite, in both versions, and against each line of its table of errors.

mod errors;
mod old;
mod outages;
mod server;

use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{Packet, Publish};
use rumqttc::v5::{AsyncClient, Event as Happened, EventLoop, MqttOptions};
use semel_backends::mqtt::{MqttConfig, MqttSink};
use semel_core::wire::{Binding, Format, decode};
use semel_core::{Event, Failure, Message, Published, Sink, Topic};
use semel_testkit::probe::{Probe, Skip};
use semel_testkit::proxy::Proxy;
use semel_testkit::services::{Service, service};
use semel_testkit::suites::sink::SinkProbe;
use semel_testkit::workload::{event, events, numbers};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::sinks::{failure_of, random_name};

semel_testkit::sink_suite!(Place);

/// Long enough for anything that must happen; a test that waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a sink waits in tests.
const BRIEFLY: Duration = Duration::from_secs(3);

/// A topic of the test's own, a subscriber to it that is not ours, and a sink behind a proxy.
struct Place {
    topic: String,
    sink: MqttSink,
    proxy: Proxy,
    reader: Reader,
}

impl Place {
    async fn with(
        content_type: Option<&'static str>,
        configure: impl FnOnce(MqttConfig) -> MqttConfig,
    ) -> Option<Self> {
        let url = service(Service::Mqtt)?;
        let topic = random_name("topic");
        let address = url.trim_start_matches("mqtt://");
        let reader = Reader::open(address, &format!("{topic}/#"), content_type).await;
        let proxy = Proxy::start(address).await;
        let config = MqttConfig::new(&format!("mqtt://{}", proxy.address())).unwrap();
        let sink = connect(configure(config.timeout(BRIEFLY))).await.unwrap();
        Some(Self { topic, sink, proxy, reader })
    }

    async fn fresh() -> Option<Self> {
        Self::with(None, |config| config).await
    }

    async fn publish(&self, events: impl IntoIterator<Item = Event>) -> Published {
        publish(&self.sink, &self.topic, events).await
    }
}

impl Probe for Place {
    const BACKEND: &'static str = "mqtt";
    /// The broker acknowledges before the subscriber has it.
    const QUIET: Duration = Duration::from_millis(200);

    async fn fresh() -> Option<Self> {
        Self::fresh().await
    }
}

impl SinkProbe for Place {
    type Sink = MqttSink;

    fn sink(&self) -> &MqttSink {
        &self.sink
    }

    fn topic(&self) -> Topic {
        Topic::from(self.topic.as_str())
    }

    async fn arrived(&self) -> Result<Vec<Event>, Skip> {
        Ok(self.reader.arrived())
    }

    /// A topic that has a wildcard is a filter. What the broker refuses itself is in `errors`.
    fn refused(&self, event: Event) -> Result<Message, Skip> {
        Ok(Message::first(format!("{}/+", self.topic).as_str(), event))
    }

    fn proxy(&self) -> Option<&Proxy> {
        Some(&self.proxy)
    }
}

/// Subscribes with the event loop of `rumqttc`, and keeps what comes.
struct Reader {
    got: Arc<Mutex<Vec<Event>>>,
    task: JoinHandle<()>,
}

impl Reader {
    /// Subscribes, also after a lost connection. A message of MQTT 3.1.1 does not say what it is.
    async fn open(address: &str, filter: &str, content_type: Option<&'static str>) -> Self {
        let (host, port) = address.rsplit_once(':').unwrap();
        let mut options = MqttOptions::new(random_name("reader"), host, port.parse().unwrap());
        options.set_max_packet_size(Some(16 * 1024 * 1024));
        let (client, events) = AsyncClient::new(options, 10);
        let got = Arc::new(Mutex::default());
        let (subscribed, mut until_subscribed) = watch::channel(false);
        let keep = {
            let got = Arc::clone(&got);
            move |publish: &Publish| {
                let mut got: std::sync::MutexGuard<'_, Vec<Event>> = got.lock().unwrap();
                got.push(read(publish, content_type));
            }
        };
        let task = tokio::spawn(listen(client, events, filter.to_owned(), subscribed, keep));
        let ready = until_subscribed.wait_for(|subscribed| *subscribed);
        timeout(PATIENCE, ready).await.unwrap().unwrap();
        Self { got, task }
    }

    fn arrived(&self) -> Vec<Event> {
        self.got.lock().unwrap().clone()
    }

    async fn until_arrived(&self, count: usize) -> Vec<Event> {
        let arrive = async {
            while self.arrived().len() < count {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(PATIENCE, arrive).await.expect("they arrive");
        self.arrived()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn listen(
    client: AsyncClient,
    mut events: EventLoop,
    filter: String,
    subscribed: watch::Sender<bool>,
    keep: impl Fn(&Publish),
) {
    loop {
        match events.poll().await {
            Ok(Happened::Incoming(Packet::ConnAck(_))) => {
                client.subscribe(&filter, QoS::AtLeastOnce).await.unwrap();
            }
            Ok(Happened::Incoming(Packet::SubAck(_))) => drop(subscribed.send_replace(true)),
            Ok(Happened::Incoming(Packet::Publish(publish))) => keep(&publish),
            Ok(_) => {}
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

fn read(publish: &Publish, content_type: Option<&str>) -> Event {
    let properties = publish.properties.clone().unwrap_or_default();
    let content_type = properties.content_type.as_deref().or(content_type);
    let pairs = properties.user_properties.iter().map(|(name, value)| (&**name, &**value));
    decode(Binding::Mqtt, content_type, pairs, publish.payload.clone()).unwrap()
}

async fn connect(config: MqttConfig) -> Result<MqttSink, Failure> {
    timeout(PATIENCE, config.connect()).await.expect("an answer")
}

async fn publish(
    sink: &MqttSink,
    topic: &str,
    events: impl IntoIterator<Item = Event>,
) -> Published {
    let batch: Vec<_> = events.into_iter().map(|event| Message::first(topic, event)).collect();
    timeout(PATIENCE, sink.publish(&batch)).await.expect("an answer")
}

#[tokio::test]
async fn cloud_events_arrive_in_both_formats() {
    for format in [Format::CloudEventsBinary, Format::CloudEventsStructured] {
        let made = Place::with(None, |config| config.format(format).unwrap()).await;
        let Some(place) = made else { return };
        let sent = Event::new("order", "42", "OrderPlaced").with_bytes("text/plain", "hello");
        assert!(place.publish([sent.clone()]).await.all_confirmed());
        let arrived = place.reader.until_arrived(1).await;
        assert_eq!((arrived.len(), arrived[0].id), (1, sent.id));
        assert_eq!(arrived[0].payload, sent.payload);
    }
}

/// More lanes than the broker takes at once, and one message at a time.
#[tokio::test]
async fn a_small_window_keeps_order_and_loses_nothing() {
    let Some(place) = Place::with(None, |config| config.max_in_flight(1)).await else { return };
    let batch = (0..5).flat_map(|number| ["a", "b", "c"].map(|lane| event(lane, number)));
    assert!(place.publish(batch).await.all_confirmed());
    let arrived = place.reader.until_arrived(15).await;
    let lane = arrived.iter().filter(|event| event.aggregate_id == "b").cloned();
    assert_eq!(numbers(&lane.collect::<Vec<_>>()), [0, 1, 2, 3, 4]);
}

#[tokio::test]
async fn a_retained_message_waits_for_later_subscribers() {
    let Some(place) = Place::with(None, |config| config.retain(true)).await else { return };
    assert!(place.publish(events("a", 0..3)).await.all_confirmed());
    let url = service(Service::Mqtt).unwrap();
    let late = Reader::open(url.trim_start_matches("mqtt://"), &place.topic, None).await;
    assert_eq!(numbers(&late.until_arrived(1).await), [2]);
    // An empty retained message removes it.
    let empty = event("a", 3).with_bytes("text/plain", "");
    assert!(place.publish([empty]).await.all_confirmed());
}

/// A client that is not ours reads what a user would look for.
#[tokio::test]
async fn mosquitto_sub_reads_it() {
    let Some(url) = service(Service::Mqtt) else { return };
    let kept = Place::with(None, |config| config.retain(true)).await;
    let Some(place) = kept else { return };
    let event = Event::new("order", "42", "OrderPlaced")
        .with_bytes("application/json", "{\"total\":99}")
        .with_header("tenant", "acme");
    let topic = format!("{}/placed", place.topic);
    assert!(publish(&place.sink, &topic, [event.clone()]).await.all_confirmed());
    let (host, port) = url.trim_start_matches("mqtt://").rsplit_once(':').unwrap();
    let read = Command::new("mosquitto_sub")
        .args(["-V", "5", "-h", host, "-p", port, "-q", "1", "-C", "1", "-W", "20"])
        .args(["-t", &topic, "-F", "%t %p\n%C\n%P"])
        .output()
        .expect("mosquitto_sub runs");
    let said = String::from_utf8_lossy(&read.stdout).into_owned();
    let expected = format!("{topic} {{\"total\":99}}\napplication/json\n");
    assert!(said.starts_with(&expected), "{said} {read:?}");
    for header in [
        format!("semel-event-id:{}", event.id),
        "semel-event-type:OrderPlaced".into(),
        "tenant:acme".into(),
    ] {
        assert!(said.contains(&header), "{header}: {said}");
    }
}
