//! The shared suite of sinks.

use std::sync::Arc;
use std::time::Duration;

use semel_backends::kafka::ExactlyOnceSink;
use semel_core::coordination::Share;
use semel_core::{Event, Message, Topic};
use semel_testkit::probe::{Probe, Skip};
use semel_testkit::proxy::Proxy;
use semel_testkit::suites::sink::SinkProbe;

use super::random_id;
use crate::kafka::lab::Lab;
use crate::kafka::{config, topics};

struct ExactlyOnce {
    lab: Arc<Lab>,
    door: usize,
    sink: ExactlyOnceSink,
    topic: String,
}

impl ExactlyOnce {
    fn door(&self) -> &Proxy {
        self.lab.door(self.door)
    }
}

impl Probe for ExactlyOnce {
    const BACKEND: &'static str = "kafka, exactly once";

    async fn fresh() -> Option<Self> {
        let lab = Lab::open().await?;
        let door = lab.next_door();
        let topic = topics::random_topic();
        topics::create(&lab.plain, &topic, &[]).await;
        let config = config(&lab.door(door).address()).patience(Duration::from_secs(5));
        let sink = config.connect_exactly_once(&random_id(), Share::WHOLE).await;
        Some(Self { lab, door, sink: sink.expect("connected"), topic })
    }
}

impl SinkProbe for ExactlyOnce {
    type Sink = ExactlyOnceSink;

    fn sink(&self) -> &ExactlyOnceSink {
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

    /// A transaction takes many answers.
    const SLOW: Duration = Duration::from_millis(100);

    fn proxy(&self) -> Option<&Proxy> {
        Some(self.door())
    }
}

semel_testkit::sink_suite!(ExactlyOnce);
