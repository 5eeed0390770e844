//! How fast events go through the NATS JetStream sink, beside a bare loop of the same client library
//! in the same run. `cargo bench -p semel-backends --features nats --bench nats`
//!
//! The server is that of `SEMEL_TEST_NATS_URL`; the stream is kept in a file and gone at the end.
//! Arguments: events (100000), payload bytes (200), rounds (3), batch (1000), lanes (10000, 100, 20).

#![expect(clippy::print_stdout, reason = "it reports to the terminal")]

use std::error::Error;
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream::{self, Context};
use futures_util::future::try_join_all;
use semel_backends::nats::{NatsConfig, NatsSink, NatsStream};
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
    let Ok(server) = std::env::var("SEMEL_TEST_NATS_URL") else {
        println!("SEMEL_TEST_NATS_URL is not set: nothing to measure");
        return Ok(());
    };
    let bench = Bench::open(&server).await?;
    for lanes in lanes {
        let (mut sink, mut bare) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            // New ids each time: the stream drops those it knows.
            sink.push(bench.through_the_sink(&bench.messages(count, bytes, lanes), batch).await?);
            bare.push(bench.bare(&bench.messages(count, bytes, lanes), batch).await?);
        }
        let (sink, bare) = (median(sink), median(bare));
        println!(
            "batches of {batch}, {lanes} lanes: {} ({:.2} of the bare client, {})",
            rate(count, sink),
            bare.as_secs_f64() / sink.as_secs_f64(),
            rate(count, bare),
        );
    }
    bench.context.delete_stream(&bench.stream).await?;
    Ok(())
}

struct Bench {
    stream: String,
    sink: NatsSink,
    context: Context,
}

impl Bench {
    async fn open(server: &str) -> Outcome<Self> {
        let stream = format!("semel-bench-{}", EventId::now());
        let made = NatsStream::new(stream.clone(), [stream.clone()]);
        let sink = NatsConfig::new(server)?.create_stream(made).connect().await?;
        let context = jetstream::new(async_nats::connect(server).await?);
        Ok(Self { stream, sink, context })
    }

    fn messages(&self, count: usize, bytes: usize, lanes: usize) -> Vec<Message> {
        let made = |number: usize| {
            let event = Event::new("order", (number % lanes).to_string(), "OrderPlaced");
            Message::first(self.stream.as_str(), event.with_bytes("text/plain", vec![b'x'; bytes]))
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

    /// The same bytes on the wire, made beforehand, sent together and acknowledged together; nothing
    /// is kept in order.
    async fn bare(&self, messages: &[Message], batch: usize) -> Outcome<Duration> {
        let mut ready: Vec<_> = messages.iter().map(|message| Some(headers(message))).collect();
        let began = Instant::now();
        for (batch, ready) in messages.chunks(batch).zip(ready.chunks_mut(batch)) {
            let send = async |(message, headers): (&Message, HeaderMap)| {
                let (subject, body) = (self.stream.clone(), message.event.payload.bytes().clone());
                self.context.publish_with_headers(subject, headers, body).await?.await
            };
            let ready = ready.iter_mut().filter_map(Option::take);
            try_join_all(batch.iter().zip(ready).map(send)).await?;
        }
        self.ended(began).await
    }

    async fn ended(&self, began: Instant) -> Outcome<Duration> {
        let took = began.elapsed();
        self.context.get_stream(&self.stream).await?.purge().await?;
        Ok(took)
    }
}

fn headers(message: &Message) -> HeaderMap {
    let mut headers = HeaderMap::new();
    Format::Plain.headers(&message.event, Binding::Nats, &mut |name, value| {
        headers.insert(name, value);
    });
    headers.insert("Nats-Msg-Id", message.event.id.to_string());
    headers
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn rate(count: usize, time: Duration) -> String {
    format!("{:.0} events/s", count as f64 / time.as_secs_f64())
}
