//! NATS JetStream against the shared suite and against each line of its table of errors.

mod cluster;
mod errors;
mod letters;
mod order;
mod outages;
mod remade;
mod subscription;

use std::sync::Mutex;
use std::time::Duration;

use async_nats::jetstream;
use async_nats::jetstream::context::Context;
use async_nats::jetstream::stream::{Config, StorageType};
use semel_backends::nats::{NatsConfig, NatsSink};
use semel_core::wire::{Binding, Format, decode};
use semel_core::{Event, EventId, Failure, Message, Publication, Published, Sink, Topic, Verdict};
use semel_testkit::probe::{Probe, Skip};
use semel_testkit::proxy::Proxy;
use semel_testkit::services::{Service, python, service};
use semel_testkit::suites::sink::SinkProbe;
use semel_testkit::workload::{events, numbers};
use tokio::time::timeout;

semel_testkit::sink_suite!(Stream);

/// Long enough for anything that must happen; a test that waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// A stream of the test's own, a look into it that does not go through the sink, and a sink behind
/// a proxy.
struct Stream {
    name: String,
    sink: NatsSink,
    proxy: Proxy,
    reader: Reader,
}

impl Stream {
    async fn with(change: impl FnOnce(&mut Config), format: Format) -> Option<Self> {
        let url = service(Service::Nats)?;
        let name = random_name("stream");
        let reader = Reader::open(&url).await;
        let mut config = Config {
            name: name.clone(),
            subjects: vec![name.clone(), format!("{name}.>")],
            storage: StorageType::Memory,
            max_message_size: 200_000,
            ..Config::default()
        };
        change(&mut config);
        timeout(PATIENCE, reader.context.create_stream(config)).await.unwrap().unwrap();
        let proxy = Proxy::start(url.trim_start_matches("nats://")).await;
        let config = NatsConfig::new(&proxy.address()).unwrap().format(format);
        let connect = config.timeout(Duration::from_secs(3)).connect();
        let sink = timeout(PATIENCE, connect).await.unwrap().unwrap();
        Some(Self { name, sink, proxy, reader })
    }

    async fn fresh() -> Option<Self> {
        Self::with(|_| {}, Format::Plain).await
    }

    async fn publish(&self, events: impl IntoIterator<Item = Event>) -> Published {
        publish(&self.sink, &self.name, events).await
    }

    async fn arrived(&self) -> Vec<Event> {
        self.reader.arrived(&self.name).await
    }
}

impl Probe for Stream {
    const BACKEND: &'static str = "nats";

    async fn fresh() -> Option<Self> {
        Self::fresh().await
    }
}

impl SinkProbe for Stream {
    type Sink = NatsSink;

    fn sink(&self) -> &NatsSink {
        &self.sink
    }

    fn topic(&self) -> Topic {
        Topic::from(self.name.as_str())
    }

    async fn arrived(&self) -> Result<Vec<Event>, Skip> {
        Ok(self.arrived().await)
    }

    /// More than the stream takes: the server turns it down.
    fn refused(&self, event: Event) -> Result<Message, Skip> {
        let event = event.with_bytes("application/octet-stream", vec![0; 300_000]);
        Ok(Message::first(self.name.as_str(), event))
    }

    fn proxy(&self) -> Option<&Proxy> {
        Some(&self.proxy)
    }
}

/// Reads streams over a connection of its own.
struct Reader {
    context: Context,
    read: Mutex<Vec<Event>>,
}

impl Reader {
    async fn open(url: &str) -> Self {
        let client = timeout(PATIENCE, async_nats::connect(url)).await.unwrap().unwrap();
        Self { context: jetstream::new(client), read: Mutex::default() }
    }

    /// How many were to be stored only right behind another one.
    async fn in_runs(&self, stream: &str) -> usize {
        let mut stream = timeout(PATIENCE, self.context.get_stream(stream)).await.unwrap().unwrap();
        let last = timeout(PATIENCE, stream.info()).await.unwrap().unwrap().state.last_sequence;
        let mut count = 0;
        for sequence in 1..=last {
            let message = timeout(PATIENCE, stream.get_raw_message(sequence)).await.unwrap();
            let condition = async_nats::header::NATS_EXPECTED_LAST_MESSAGE_ID;
            count += usize::from(message.unwrap().headers.get(condition).is_some());
        }
        count
    }

    /// Everything that ever arrived, in its order.
    async fn arrived(&self, stream: &str) -> Vec<Event> {
        let stream = timeout(PATIENCE, self.context.get_stream(stream)).await.unwrap().unwrap();
        loop {
            let next = self.read.lock().unwrap().len() as u64 + 1;
            let message = timeout(PATIENCE, stream.get_raw_message(next)).await.unwrap();
            let Ok(message) = message else { break };
            let pairs: Vec<_> = message
                .headers
                .iter()
                .flat_map(|(name, values)| values.iter().map(move |value| (name.as_ref(), value)))
                .map(|(name, value): (&str, _)| (name, value.as_str()))
                .collect();
            let event = decode(Binding::Nats, None, pairs, message.payload).unwrap();
            let id = message.headers.get("Nats-Msg-Id").unwrap().as_str();
            let (of_event, of_subject) = id.split_once('/').unwrap();
            assert_eq!(of_event.split('+').next(), Some(event.id.to_string().as_str()));
            assert_eq!(of_subject, message.subject.as_str());
            self.read.lock().unwrap().push(event);
        }
        self.read.lock().unwrap().clone()
    }
}

async fn publish(
    sink: &NatsSink,
    topic: &str,
    events: impl IntoIterator<Item = Event>,
) -> Published {
    let batch: Vec<_> = events.into_iter().map(|event| Message::first(topic, event)).collect();
    timeout(PATIENCE, sink.publish(&batch)).await.expect("an answer")
}

/// The failure of the whole call, or that of the first message that failed.
fn failure_of(published: Published) -> Failure {
    let shown = format!("{published:?}");
    let failed =
        |verdict| if let Verdict::Failed(failure) = verdict { Some(failure) } else { None };
    let failure = match published {
        Published::None(failure) => Some(failure),
        Published::Each(verdicts) => verdicts.into_iter().find_map(failed),
        Published::All => None,
    };
    failure.unwrap_or_else(|| unreachable!("nothing failed: {shown}"))
}

fn random_name(kind: &str) -> String {
    format!("semel-test-{kind}-{}", EventId::now())
}

#[tokio::test]
async fn cloud_events_arrive_in_both_formats() {
    for format in [Format::CloudEventsBinary, Format::CloudEventsStructured] {
        let Some(stream) = Stream::with(|_| {}, format).await else { return };
        let sent = Event::new("order", "42", "OrderPlaced").with_bytes("text/plain", "hello");
        assert!(stream.publish([sent.clone()]).await.all_confirmed());
        let arrived = stream.arrived().await;
        assert_eq!((arrived.len(), arrived[0].id), (1, sent.id));
        assert_eq!(arrived[0].payload, sent.payload);
    }
}

/// The stream's window drops what comes again, and still acknowledges it.
#[tokio::test]
async fn a_repetition_within_the_window_arrives_once() {
    let Some(stream) = Stream::fresh().await else { return };
    let event = Event::new("order", "42", "OrderPlaced");
    for _ in 0..3 {
        assert!(stream.publish([event.clone()]).await.all_confirmed());
    }
    assert_eq!(stream.arrived().await.len(), 1);
}

/// What an operator replays is no repetition, however often, nor what is behind it in its lane.
#[tokio::test]
async fn what_is_replayed_within_the_window_arrives_again() {
    let Some(stream) = Stream::fresh().await else { return };
    let lane = events("a", 0..3);
    assert!(stream.publish(lane.clone()).await.all_confirmed());
    let replayed = |event: &Event| {
        let mut message = Message::first(stream.name.as_str(), event.clone());
        message.publication = Publication::Again;
        message
    };
    let batch: Vec<_> = lane.iter().map(replayed).collect();
    for _ in 0..2 {
        let published = timeout(PATIENCE, stream.sink.publish(&batch)).await.unwrap();
        assert!(published.all_confirmed(), "{published:?}");
    }
    assert_eq!(numbers(&stream.arrived().await), [0, 1, 2, 0, 1, 2, 0, 1, 2]);
}

/// The stream looks for repetitions in all its subjects: two pipelines may send one event to two of
/// them.
#[tokio::test]
async fn an_event_for_two_subjects_of_a_stream_arrives_under_both() {
    let Some(stream) = Stream::fresh().await else { return };
    let lane = events("a", 0..3);
    for subject in ["one", "two", "one", "two"] {
        let topic = format!("{}.{subject}", stream.name);
        let published = publish(&stream.sink, &topic, lane.clone()).await;
        assert!(published.all_confirmed(), "{subject}: {published:?}");
    }
    assert_eq!(numbers(&stream.arrived().await), [0, 1, 2, 0, 1, 2], "once under each of them");
}

/// A client that is not ours reads what a user would look for.
#[tokio::test]
async fn a_python_client_reads_it() {
    const SCRIPT: &str = "
import asyncio, sys, nats
async def main():
    client = await nats.connect(sys.argv[1])
    message = await client.jetstream().get_msg(sys.argv[2], seq=1)
    headers = message.headers
    print(headers['Nats-Msg-Id'], message.subject, message.data.decode())
    print(headers['content-type'], headers['semel-event-type'], headers['tenant'])
    await client.close()
asyncio.run(main())
";
    let Some(url) = service(Service::Nats) else { return };
    let Some(stream) = Stream::fresh().await else { return };
    let Some(python) = python() else { return };
    let python = |arguments: &[&str]| {
        std::process::Command::new(&python).args(arguments).output().expect("python runs")
    };
    let event = Event::new("order", "42", "OrderPlaced")
        .with_bytes("application/json", "{\"total\":99}")
        .with_header("tenant", "acme");
    let topic = format!("{}.placed", stream.name);
    let expected = format!(
        "{}/{topic} {topic} {{\"total\":99}}\napplication/json OrderPlaced acme\n",
        event.id
    );
    assert!(publish(&stream.sink, &topic, [event]).await.all_confirmed());
    let read = python(&["-c", SCRIPT, &url, &stream.name]);
    assert_eq!(String::from_utf8_lossy(&read.stdout), expected, "{read:?}");
}
