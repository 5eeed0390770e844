//! Redis against the shared suites and against each line of its table of errors.

mod consumer;
mod errors;
mod inbox;
mod keys;
mod order;
mod outages;
#[cfg(feature = "tls")]
mod secured;
mod server;
mod subscription;
mod warnings;

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd, FromRedisValue, cmd};
use semel_backends::redis::{RedisConfig, RedisSink};
use semel_core::wire::{Binding, Format, decode};
use semel_core::{Event, Failure, Message, Published, Sink, Topic};
use semel_testkit::probe::{Probe, Skip};
use semel_testkit::proxy::Proxy;
use semel_testkit::services::{Service, service};
use semel_testkit::suites::sink::SinkProbe;
use tokio::time::timeout;

use crate::sinks::{failure_of, random_name};

semel_testkit::sink_suite!(Stream);

/// Long enough for anything that must happen; a test that waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a test's own sink waits for an answer.
const BRIEFLY: Duration = Duration::from_secs(3);

/// Larger than this is refused in tests on the server that all share.
const MOST_BYTES: usize = 200_000;

/// A stream of the test's own, a look into it that does not go through the sink, and a sink behind
/// a proxy.
struct Stream {
    name: String,
    sink: RedisSink,
    proxy: Proxy,
    reader: Reader,
}

impl Stream {
    async fn with(change: impl FnOnce(RedisConfig) -> RedisConfig) -> Option<Self> {
        let url = service(Service::Redis)?;
        let proxy = Proxy::start(url.trim_start_matches("redis://")).await;
        let config = RedisConfig::new(&format!("redis://{}", proxy.address())).unwrap();
        let config = change(config.timeout(BRIEFLY).max_field_bytes(MOST_BYTES));
        let sink = connect(config).await.unwrap();
        Some(Self { name: random_name("stream"), sink, proxy, reader: Reader::open(&url).await })
    }

    async fn fresh() -> Option<Self> {
        Self::with(|config| config).await
    }

    async fn publish(&self, events: impl IntoIterator<Item = Event>) -> Published {
        publish(&self.sink, &self.name, events).await
    }

    async fn arrived(&self) -> Vec<Event> {
        self.reader.arrived(&self.name).await
    }
}

impl Probe for Stream {
    const BACKEND: &'static str = "redis";

    async fn fresh() -> Option<Self> {
        Self::fresh().await
    }
}

impl SinkProbe for Stream {
    type Sink = RedisSink;

    fn sink(&self) -> &RedisSink {
        &self.sink
    }

    fn topic(&self) -> Topic {
        Topic::from(self.name.as_str())
    }

    async fn arrived(&self) -> Result<Vec<Event>, Skip> {
        Ok(self.arrived().await)
    }

    fn refused(&self, event: Event) -> Result<Message, Skip> {
        let event = event.with_bytes("application/octet-stream", vec![0; MOST_BYTES + 1]);
        Ok(Message::first(self.name.as_str(), event))
    }

    fn proxy(&self) -> Option<&Proxy> {
        Some(&self.proxy)
    }
}

/// Talks to a server over a connection of its own.
struct Reader(MultiplexedConnection);

impl Reader {
    async fn open(url: &str) -> Self {
        let client = Client::open(url).unwrap();
        let connect = client.get_multiplexed_async_connection();
        Self(timeout(PATIENCE, connect).await.unwrap().unwrap())
    }

    async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> T {
        let mut connection = self.0.clone();
        timeout(PATIENCE, command.query_async(&mut connection)).await.unwrap().unwrap()
    }

    /// `CONFIG SET`.
    async fn set(&self, setting: &str, value: &str) {
        self.ask::<()>(cmd("CONFIG").arg("SET").arg(setting).arg(value)).await;
    }

    async fn count(&self, stream: &str) -> usize {
        self.ask(cmd("XLEN").arg(stream)).await
    }

    /// Everything in a stream, in its order.
    async fn arrived(&self, stream: &str) -> Vec<Event> {
        type Entry = (String, Vec<(String, Vec<u8>)>);
        let entries: Vec<Entry> = self.ask(cmd("XRANGE").arg(stream).arg("-").arg("+")).await;
        entries.into_iter().map(|(_, fields)| event_of(fields)).collect()
    }
}

fn event_of(mut fields: Vec<(String, Vec<u8>)>) -> Event {
    let (name, body) = fields.pop().unwrap();
    assert_eq!(name, "payload", "the body is the last field");
    let pairs = fields.iter().map(|(name, value)| (&**name, std::str::from_utf8(value).unwrap()));
    decode(Binding::Redis, None, pairs, body.into()).unwrap()
}

async fn connect(config: RedisConfig) -> Result<RedisSink, Failure> {
    timeout(PATIENCE, config.connect()).await.expect("an answer")
}

async fn publish(
    sink: &RedisSink,
    topic: &str,
    events: impl IntoIterator<Item = Event>,
) -> Published {
    let batch: Vec<_> = events.into_iter().map(|event| Message::first(topic, event)).collect();
    send(sink, &batch).await
}

async fn send(sink: &RedisSink, batch: &[Message]) -> Published {
    timeout(PATIENCE, sink.publish(batch)).await.expect("an answer")
}

#[tokio::test]
async fn cloud_events_arrive_in_both_formats() {
    for format in [Format::CloudEventsBinary, Format::CloudEventsStructured] {
        let Some(stream) = Stream::with(|config| config.format(format)).await else { return };
        let sent = Event::new("order", "42", "OrderPlaced").with_bytes("text/plain", "hello");
        assert!(stream.publish([sent.clone()]).await.all_confirmed());
        let arrived = stream.arrived().await;
        assert_eq!((arrived.len(), arrived[0].id), (1, sent.id));
        assert_eq!(arrived[0].payload, sent.payload);
    }
}

#[tokio::test]
async fn a_header_cannot_stand_for_the_body() {
    let Some(stream) = Stream::fresh().await else { return };
    let sent = Event::new("order", "42", "OrderPlaced")
        .with_bytes("text/plain", "the body")
        .with_header("payload", "not the body");
    assert!(stream.publish([sent.clone()]).await.all_confirmed());
    assert_eq!(stream.arrived().await, [sent]);
}

#[tokio::test]
async fn a_stream_is_kept_short_when_asked_for() {
    let prefix = random_name("prefix:");
    let change = |config: RedisConfig| config.key_prefix(&*prefix).max_len(100);
    let Some(stream) = Stream::with(change).await else { return };
    for start in (0..5_000).step_by(1_000) {
        let batch = semel_testkit::workload::events("a", start..start + 1_000);
        assert!(stream.publish(batch).await.all_confirmed());
    }
    let count = stream.reader.count(&format!("{prefix}{}", stream.name)).await;
    assert!((100..1_000).contains(&count), "{count}");
}

/// A tool that is not ours reads what a user would look for.
#[tokio::test]
async fn redis_cli_reads_it() {
    let Some(url) = service(Service::Redis) else { return };
    let Some(stream) = Stream::fresh().await else { return };
    let event = Event::new("order", "42", "OrderPlaced")
        .with_bytes("application/json", "{\"total\":99}")
        .with_header("tenant", "acme");
    let id = event.id.to_string();
    assert!(stream.publish([event]).await.all_confirmed());
    let read = std::process::Command::new("redis-cli")
        .args(["-u", &url, "XRANGE", &stream.name, "-", "+"])
        .output()
        .expect("redis-cli runs");
    let read = String::from_utf8(read.stdout).unwrap();
    let lines: Vec<_> = read.lines().collect();
    let has = |name: &str, value: &str| lines.windows(2).any(|pair| pair == [name, value]);
    assert!(has("semel-event-id", &id), "{read}");
    assert!(has("content-type", "application/json"), "{read}");
    assert!(has("semel-event-type", "OrderPlaced"), "{read}");
    assert!(has("semel-aggregate-id", "42"), "{read}");
    assert!(has("tenant", "acme"), "{read}");
    assert!(has("payload", "{\"total\":99}"), "{read}");
}
