//! RabbitMQ against the shared suite and against each line of its table of errors.

mod cluster;
mod errors;
mod letters;
mod order;
mod outages;
#[cfg(feature = "tls")]
mod secured;
mod subscription;

use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use lapin::options::{BasicGetOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use semel_backends::rabbitmq::{RabbitmqConfig, RabbitmqSink};
use semel_core::wire::{Binding, Format, decode};
use semel_core::{Event, Message, Published, Sink, Topic};
use semel_testkit::probe::{Probe, Skip};
use semel_testkit::proxy::Proxy;
use semel_testkit::services::{Service, python, service};
use semel_testkit::suites::sink::SinkProbe;
use tokio::time::timeout;

use crate::sinks::{failure_of, random_name};

semel_testkit::sink_suite!(Queue);

/// Long enough for anything that must happen; a test that waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// A queue of the test's own, a look into it that does not go through the sink, and a sink behind
/// a proxy.
struct Queue {
    name: String,
    sink: RabbitmqSink,
    proxy: Proxy,
    reader: Reader,
}

impl Queue {
    async fn with(
        arguments: FieldTable,
        configure: impl FnOnce(RabbitmqConfig) -> RabbitmqConfig,
    ) -> Option<Self> {
        let url = service(Service::Rabbitmq)?;
        let name = random_name("queue");
        let reader = Reader::open(&url).await;
        reader.declare(&name, arguments).await;
        let (proxy, through) = behind_proxy(&url).await;
        let config = RabbitmqConfig::new(&through).unwrap().timeout(Duration::from_secs(3));
        let sink = timeout(PATIENCE, configure(config).connect()).await.unwrap().unwrap();
        Some(Self { name, sink, proxy, reader })
    }

    fn message(&self, event: Event) -> Message {
        Message::first(self.name.as_str(), event)
    }

    async fn publish(&self, events: impl IntoIterator<Item = Event>) -> Published {
        publish(&self.sink, &self.name, events).await
    }

    async fn arrived(&self) -> Vec<Event> {
        self.reader.arrived(&self.name).await
    }
}

impl Probe for Queue {
    const BACKEND: &'static str = "rabbitmq";

    async fn fresh() -> Option<Self> {
        Self::with(FieldTable::default(), |config| config).await
    }
}

impl SinkProbe for Queue {
    type Sink = RabbitmqSink;

    fn sink(&self) -> &RabbitmqSink {
        &self.sink
    }

    fn topic(&self) -> Topic {
        Topic::from(self.name.as_str())
    }

    async fn arrived(&self) -> Result<Vec<Event>, Skip> {
        Ok(self.arrived().await)
    }

    fn refused(&self, event: Event) -> Result<Message, Skip> {
        Ok(Message::first("a queue that is not there", event))
    }

    fn proxy(&self) -> Option<&Proxy> {
        Some(&self.proxy)
    }
}

/// Takes messages out of queues, over a connection of its own.
struct Reader {
    channel: Channel,
    _connection: Connection,
    taken: Mutex<Vec<Event>>,
}

impl Reader {
    async fn open(url: &str) -> Self {
        let open = async {
            let connection = Connection::connect(url, ConnectionProperties::default()).await?;
            Ok::<_, lapin::Error>((connection.create_channel().await?, connection))
        };
        let (channel, connection) = timeout(PATIENCE, open).await.unwrap().unwrap();
        Self { channel, _connection: connection, taken: Mutex::default() }
    }

    /// Makes a durable queue that is gone when this reader is.
    async fn declare(&self, name: &str, arguments: FieldTable) {
        let options = QueueDeclareOptions { durable: true, exclusive: true, ..Default::default() };
        let declared = self.channel.queue_declare(name.into(), options, arguments);
        timeout(PATIENCE, declared).await.unwrap().unwrap();
    }

    /// Everything that ever arrived, in its order.
    async fn arrived(&self, queue: &str) -> Vec<Event> {
        while let Some(event) = self.take(queue).await {
            self.taken.lock().unwrap().push(event);
        }
        self.taken.lock().unwrap().clone()
    }

    async fn take(&self, queue: &str) -> Option<Event> {
        let get = self.channel.basic_get(queue.into(), BasicGetOptions { no_ack: true });
        let got = timeout(PATIENCE, get).await.unwrap().unwrap()?;
        Some(event_of(&got.delivery.properties, got.delivery.data.clone()))
    }
}

fn event_of(properties: &BasicProperties, body: Vec<u8>) -> Event {
    assert_eq!(*properties.delivery_mode(), Some(2), "persistent");
    let content_type = properties.content_type().as_ref().map(ToString::to_string);
    let headers = properties.headers().clone().unwrap_or_default();
    // The broker adds numbers of its own.
    let texts = headers.inner().iter().filter_map(|(name, value)| Some((name, text(value)?)));
    let texts: Vec<_> = texts.collect();
    let pairs = texts.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let event = decode(Binding::Amqp, content_type.as_deref(), pairs, Bytes::from(body)).unwrap();
    let id = properties.message_id().as_ref().unwrap().to_string();
    assert_eq!(id, event.id.to_string(), "the message id is the event id");
    event
}

fn text(value: &AMQPValue) -> Option<String> {
    let AMQPValue::LongString(text) = value else { return None };
    Some(String::from_utf8(text.as_bytes().to_vec()).unwrap())
}

async fn publish(
    sink: &RabbitmqSink,
    topic: &str,
    events: impl IntoIterator<Item = Event>,
) -> Published {
    let batch: Vec<_> = events.into_iter().map(|event| Message::first(topic, event)).collect();
    timeout(PATIENCE, sink.publish(&batch)).await.expect("an answer")
}

/// A proxy in front of the server, and the URL that leads through it.
async fn behind_proxy(url: &str) -> (Proxy, String) {
    let (login, rest) = url.split_once('@').unwrap();
    let (host, vhost) = rest.split_once('/').unwrap();
    let proxy = Proxy::start(host).await;
    let through = format!("{login}@{}/{vhost}", proxy.address());
    (proxy, through)
}

#[tokio::test]
async fn cloud_events_arrive_in_both_formats() {
    for format in [Format::CloudEventsBinary, Format::CloudEventsStructured] {
        let with = |config: RabbitmqConfig| config.format(format);
        let Some(queue) = Queue::with(FieldTable::default(), with).await else { return };
        let sent = Event::new("order", "42", "OrderPlaced").with_bytes("text/plain", "hello");
        assert!(queue.publish([sent.clone()]).await.all_confirmed());
        let arrived = queue.arrived().await;
        assert_eq!((arrived.len(), arrived[0].id), (1, sent.id));
        assert_eq!(arrived[0].payload, sent.payload);
    }
}

/// A client that is not ours reads what a user would look for.
#[tokio::test]
async fn a_python_client_reads_it() {
    const SCRIPT: &str = "
import sys, pika
channel = pika.BlockingConnection(pika.URLParameters(sys.argv[1])).channel()
method, properties, body = channel.basic_get(sys.argv[2], auto_ack=True)
print(properties.message_id, properties.content_type, properties.delivery_mode, body.decode())
print(properties.headers['semel-event-type'], properties.headers['tenant'])
";
    let Some(url) = service(Service::Rabbitmq) else { return };
    let Some(python) = python() else { return };
    let python = |arguments: &[&str]| {
        std::process::Command::new(&python).args(arguments).output().expect("python runs")
    };
    let name = random_name("python");
    let queue = semel_backends::rabbitmq::RabbitmqQueue::new(&name).unwrap();
    let sink = RabbitmqConfig::new(&url).unwrap().declare_queue(queue).connect().await.unwrap();
    let event = Event::new("order", "42", "OrderPlaced")
        .with_bytes("application/json", "{\"total\":99}")
        .with_header("tenant", "acme");
    let expected = format!("{} application/json 2 {{\"total\":99}}\nOrderPlaced acme\n", event.id);
    assert!(publish(&sink, &name, [event]).await.all_confirmed());
    let read = python(&["-c", SCRIPT, &url, &name]);
    let reader = Reader::open(&url).await;
    reader.channel.queue_delete(name.into(), Default::default()).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&read.stdout), expected, "{read:?}");
}
