//! The shared suite of sinks.

use std::sync::Arc;
use std::time::Duration;

use semel_backends::kafka::KafkaSink;
use semel_core::{Event, Message, Topic};
use semel_testkit::probe::{Probe, Skip};
use semel_testkit::proxy::Proxy;
use semel_testkit::suites::sink::SinkProbe;

use super::lab::Lab;
use super::{config, topics};

struct Kafka {
    lab: Arc<Lab>,
    door: usize,
    sink: KafkaSink,
    topic: String,
}

impl Kafka {
    fn door(&self) -> &Proxy {
        self.lab.door(self.door)
    }
}

impl Probe for Kafka {
    const BACKEND: &'static str = "kafka";

    async fn fresh() -> Option<Self> {
        let lab = Lab::open().await?;
        let door = lab.next_door();
        let topic = topics::random_topic();
        topics::create(&lab.plain, &topic, &[]).await;
        let config = config(&lab.door(door).address()).patience(Duration::from_secs(3));
        let sink = config.connect().await.expect("connected");
        Some(Self { lab, door, sink, topic })
    }
}

impl SinkProbe for Kafka {
    type Sink = KafkaSink;

    fn sink(&self) -> &KafkaSink {
        &self.sink
    }

    fn topic(&self) -> Topic {
        Topic::from(self.topic.as_str())
    }

    async fn arrived(&self) -> Result<Vec<Event>, Skip> {
        Ok(topics::read(&self.lab.plain, &[&self.topic]).await)
    }

    fn refused(&self, event: Event) -> Result<Message, Skip> {
        let large = event.with_bytes("application/octet-stream", vec![7; 2 * 1024 * 1024]);
        Ok(Message::first(self.topic(), large))
    }

    fn proxy(&self) -> Option<&Proxy> {
        Some(self.door())
    }
}

semel_testkit::sink_suite!(Kafka);
