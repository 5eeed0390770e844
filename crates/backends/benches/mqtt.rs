//! How fast events go through the MQTT sink, beside a bare loop of `rumqttc` in the same run.
//! `cargo bench -p semel-backends --features mqtt --bench mqtt`
//!
//! The broker is that of `SEMEL_TEST_MQTT_URL`; nobody subscribes. Both speak MQTT 5, so both have at
//! most as many messages under way as the broker allows (Mosquitto: 20 unless set).
//! Arguments: events (50000), payload bytes (200), rounds (3), batch (1000), lanes (10000, 100, 20).

#![expect(clippy::print_stdout, reason = "it reports to the terminal")]

use std::error::Error;
use std::time::{Duration, Instant};

use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{Packet, PublishProperties};
use rumqttc::v5::{AsyncClient, Event as Happened, MqttOptions};
use semel_backends::mqtt::{MqttConfig, MqttSink};
use semel_core::wire::{Binding, Format};
use semel_core::{Event, EventId, Message, Sink};
use tokio::sync::mpsc;

type Outcome<T> = Result<T, Box<dyn Error>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let mut numbers = std::env::args().filter_map(|argument| argument.parse::<usize>().ok());
    let count = numbers.next().unwrap_or(50_000);
    let bytes = numbers.next().unwrap_or(200);
    let rounds = numbers.next().unwrap_or(3);
    let batch = numbers.next().unwrap_or(1_000);
    let lanes = numbers.next().map_or(vec![10_000, 100, 20], |lanes| vec![lanes]);
    let Ok(broker) = std::env::var("SEMEL_TEST_MQTT_URL") else {
        println!("SEMEL_TEST_MQTT_URL is not set: nothing to measure");
        return Ok(());
    };
    let mut bare_client = Bare::open(&broker).await?;
    let sink = MqttConfig::new(&broker)?.connect().await?;
    for lanes in lanes {
        let (mut ours, mut bare) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            ours.push(through_the_sink(&sink, &messages(count, bytes, lanes), batch).await);
            bare.push(bare_client.send(&messages(count, bytes, lanes), batch).await?);
        }
        let (ours, bare) = (median(ours), median(bare));
        println!(
            "batches of {batch}, {lanes} lanes: {} ({:.2} of the bare client, {})",
            rate(count, ours),
            bare.as_secs_f64() / ours.as_secs_f64(),
            rate(count, bare),
        );
    }
    Ok(())
}

const TOPIC: &str = "semel/bench";

fn messages(count: usize, bytes: usize, lanes: usize) -> Vec<Message> {
    let made = |number: usize| {
        let event = Event::new("order", (number % lanes).to_string(), "OrderPlaced");
        Message::first(TOPIC, event.with_bytes("text/plain", vec![b'x'; bytes]))
    };
    (0..count).map(made).collect()
}

async fn through_the_sink(sink: &MqttSink, messages: &[Message], batch: usize) -> Duration {
    let began = Instant::now();
    for batch in messages.chunks(batch) {
        assert!(sink.publish(batch).await.all_confirmed());
    }
    began.elapsed()
}

/// The client library as its examples use it.
struct Bare {
    client: AsyncClient,
    acknowledged: mpsc::UnboundedReceiver<()>,
}

impl Bare {
    async fn open(broker: &str) -> Outcome<Self> {
        let address = broker.trim_start_matches("mqtt://");
        let (host, port) = address.rsplit_once(':').ok_or("no port")?;
        let options = MqttOptions::new(format!("bench-{}", EventId::now()), host, port.parse()?);
        let (client, mut events) = AsyncClient::new(options, 1_000);
        let (heard, acknowledged) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok(happened) = events.poll().await {
                if matches!(happened, Happened::Incoming(Packet::PubAck(_))) {
                    let _ = heard.send(());
                }
            }
        });
        Ok(Self { client, acknowledged })
    }

    /// The same bytes on the wire, with headers made beforehand; nothing is kept in order.
    async fn send(&mut self, messages: &[Message], batch: usize) -> Outcome<Duration> {
        let mut ready: Vec<_> = messages.iter().map(|message| Some(properties(message))).collect();
        let began = Instant::now();
        for (batch, ready) in messages.chunks(batch).zip(ready.chunks_mut(batch)) {
            for (message, properties) in batch.iter().zip(ready.iter_mut().filter_map(Option::take))
            {
                let (qos, body) = (QoS::AtLeastOnce, message.event.payload.bytes().clone());
                self.client.publish_with_properties(TOPIC, qos, false, body, properties).await?;
            }
            for _ in batch {
                self.acknowledged.recv().await.ok_or("the connection was lost")?;
            }
        }
        Ok(began.elapsed())
    }
}

fn properties(message: &Message) -> PublishProperties {
    let mut properties = PublishProperties {
        content_type: Some("text/plain".into()),
        ..PublishProperties::default()
    };
    Format::Plain.headers(&message.event, Binding::Mqtt, &mut |name, value| {
        properties.user_properties.push((name.into(), value.into()));
    });
    properties
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn rate(count: usize, time: Duration) -> String {
    format!("{:.0} events/s", count as f64 / time.as_secs_f64())
}
