//! How fast events go through the Redis Streams sink, beside a bare loop of pipelined `XADD` with the
//! same client library in the same run. `cargo bench -p semel-backends --features redis --bench redis`
//!
//! The server is that of `SEMEL_TEST_REDIS_URL`; the streams are gone at the end.
//! Arguments: events (100000), payload bytes (200), rounds (3), batch (1000), lanes (10000, 100, 20).

#![expect(clippy::print_stdout, reason = "it reports to the terminal")]

use std::error::Error;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo, Pipeline, cmd};
use semel_backends::redis::{RedisConfig, RedisSink};
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
    let Ok(server) = std::env::var("SEMEL_TEST_REDIS_URL") else {
        println!("SEMEL_TEST_REDIS_URL is not set: nothing to measure");
        return Ok(());
    };
    let mut bench = Bench::open(&server).await?;
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
    stream: String,
    sink: RedisSink,
    connection: MultiplexedConnection,
}

impl Bench {
    async fn open(server: &str) -> Outcome<Self> {
        let stream = format!("semel-bench-{}", EventId::now());
        let sink = RedisConfig::new(server)?.connect().await?;
        let patient = AsyncConnectionConfig::new().set_response_timeout(None);
        let at_once = TcpSettings::default().set_nodelay(true);
        let client = Client::open(server.into_connection_info()?.set_tcp_settings(at_once))?;
        let connection = client.get_multiplexed_async_connection_with_config(&patient).await?;
        Ok(Self { stream, sink, connection })
    }

    fn messages(&self, count: usize, bytes: usize, lanes: usize) -> Vec<Message> {
        let made = |number: usize| {
            let event = Event::new("order", (number % lanes).to_string(), "OrderPlaced");
            Message::first(self.stream.as_str(), event.with_bytes("text/plain", vec![b'x'; bytes]))
        };
        (0..count).map(made).collect()
    }

    async fn through_the_sink(&mut self, messages: &[Message], batch: usize) -> Outcome<Duration> {
        let began = Instant::now();
        for batch in messages.chunks(batch) {
            assert!(self.sink.publish(batch).await.all_confirmed());
        }
        self.ended(began).await
    }

    /// The same bytes on the wire, pipelined; an error in the middle would not stop what follows.
    async fn bare(&mut self, messages: &[Message], batch: usize) -> Outcome<Duration> {
        let began = Instant::now();
        for batch in messages.chunks(batch) {
            let mut commands = Pipeline::with_capacity(batch.len());
            for message in batch {
                commands.add_command(add(message));
            }
            let _ids: Vec<String> = commands.query_async(&mut self.connection).await?;
        }
        self.ended(began).await
    }

    async fn ended(&mut self, began: Instant) -> Outcome<Duration> {
        let took = began.elapsed();
        let deleted = cmd("DEL").arg(&self.stream).exec_async(&mut self.connection).await;
        deleted.map(|()| took).map_err(Into::into)
    }
}

fn add(message: &Message) -> Cmd {
    let mut command = cmd("XADD");
    command.arg(message.topic.as_str()).arg("*");
    Format::Plain.headers(&message.event, Binding::Redis, &mut |name, value| {
        command.arg(name).arg(value);
    });
    command.arg("payload").arg(&message.event.payload.bytes()[..]);
    command
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn rate(count: usize, time: Duration) -> String {
    format!("{:.0} events/s", count as f64 / time.as_secs_f64())
}
