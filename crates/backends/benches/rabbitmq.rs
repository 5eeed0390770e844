//! How fast events go through the RabbitMQ sink, beside a bare loop of the same client library with
//! confirms and the mandatory flag in the same run.
//! `cargo bench -p semel-backends --features rabbitmq --bench rabbitmq`
//!
//! The server is that of `SEMEL_TEST_RABBITMQ_URL`; the queue is classic, durable and gone at the end.
//! Arguments: events (100000), payload bytes (200), rounds (3), batch (1000), lanes (10000, 100, 20).

#![expect(clippy::print_stdout, reason = "it reports to the terminal")]

use std::error::Error;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use semel_backends::rabbitmq::{RabbitmqConfig, RabbitmqSink};
use semel_core::wire::{Binding, Format};
use semel_core::{Event, EventId, Message, Sink};

type Outcome<T> = Result<T, Box<dyn Error>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let mut numbers = std::env::args().filter_map(|argument| argument.parse::<usize>().ok());
    let count = numbers.next().unwrap_or(100_000);
    let bytes = numbers.next().unwrap_or(200);
    let rounds = numbers.next().unwrap_or(3);
    let batch = numbers.next().unwrap_or(1_000);
    let lanes = numbers.next().map_or(vec![10_000, 100, 20], |lanes| vec![lanes]);
    let Ok(server) = std::env::var("SEMEL_TEST_RABBITMQ_URL") else {
        println!("SEMEL_TEST_RABBITMQ_URL is not set: nothing to measure");
        return Ok(());
    };
    let bench = Bench::open(&server).await?;
    for lanes in lanes {
        let messages = bench.messages(count, bytes, lanes);
        let (mut sink, mut bare) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            sink.push(bench.through_the_sink(&messages, batch).await?);
            bare.push(bench.bare(&messages, batch).await?);
        }
        let (sink, bare) = (median(sink), median(bare));
        println!(
            "batches of {batch}, {lanes} lanes: {} ({:.2} of the bare client, {})",
            rate(count, sink),
            bare.as_secs_f64() / sink.as_secs_f64(),
            rate(count, bare),
        );
    }
    Ok(())
}

struct Bench {
    queue: String,
    sink: RabbitmqSink,
    channel: Channel,
    _connection: Connection,
}

impl Bench {
    async fn open(server: &str) -> Outcome<Self> {
        let connection = Connection::connect(server, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        let queue = format!("semel-bench-{}", EventId::now());
        let options = QueueDeclareOptions { durable: true, exclusive: true, ..Default::default() };
        channel.queue_declare(queue.as_str().into(), options, FieldTable::default()).await?;
        let sink = RabbitmqConfig::new(server)?.connect().await?;
        Ok(Self { queue, sink, channel, _connection: connection })
    }

    fn messages(&self, count: usize, bytes: usize, lanes: usize) -> Vec<Message> {
        let made = |number: usize| {
            let event = Event::new("order", (number % lanes).to_string(), "OrderPlaced");
            Message::first(self.queue.as_str(), event.with_bytes("text/plain", vec![b'x'; bytes]))
        };
        (0..count).map(made).collect()
    }

    async fn through_the_sink(&self, messages: &[Message], batch: usize) -> Outcome<Duration> {
        let began = Instant::now();
        for batch in messages.chunks(batch) {
            assert!(self.sink.publish(batch).await.all_confirmed());
        }
        self.ended(began).await
    }

    /// The same bytes on the wire, made beforehand, sent together and confirmed together; nothing
    /// is kept in order, and nobody looks at what was returned.
    async fn bare(&self, messages: &[Message], batch: usize) -> Outcome<Duration> {
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let mut ready: Vec<_> = messages.iter().map(|message| Some(properties(message))).collect();
        let began = Instant::now();
        for (batch, ready) in messages.chunks(batch).zip(ready.chunks_mut(batch)) {
            let send = async |(message, properties): (&Message, BasicProperties)| {
                let (key, body) = (self.queue.as_str().into(), message.event.payload.bytes());
                self.channel.basic_publish("".into(), key, options, body, properties).await?.await
            };
            let ready = ready.iter_mut().filter_map(Option::take);
            let answers = try_join_all(batch.iter().zip(ready).map(send)).await?;
            assert!(answers.iter().all(lapin::Confirmation::is_ack));
        }
        self.ended(began).await
    }

    async fn ended(&self, began: Instant) -> Outcome<Duration> {
        let took = began.elapsed();
        self.channel.queue_purge(self.queue.as_str().into(), Default::default()).await?;
        Ok(took)
    }
}

fn properties(message: &Message) -> BasicProperties {
    let mut headers = FieldTable::default();
    Format::Plain.headers(&message.event, Binding::Amqp, &mut |name, value| {
        headers.insert(name.into(), AMQPValue::LongString(value.into()));
    });
    BasicProperties::default()
        .with_content_type("text/plain".into())
        .with_headers(headers)
        .with_delivery_mode(2)
        .with_message_id(message.event.id.to_string().into())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn rate(count: usize, time: Duration) -> String {
    format!("{:.0} events/s", count as f64 / time.as_secs_f64())
}
