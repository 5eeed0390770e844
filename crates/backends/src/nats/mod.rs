//! NATS JetStream as a sink and as a subscription.
//!
//! A message counts as delivered when the stream has acknowledged it. The topic is the subject;
//! event id and subject travel as `Nats-Msg-Id`, by which the stream drops repetitions within its
//! window.
//!
//! | file | role |
//! |---|---|
//! | `config` | where the server is, and the stream to make |
//! | `message` | an event as headers and subject, and what NATS cannot carry |
//! | `runs` | what of a lane is sent together, and what follows when the stream turns some of it down |
//! | `streams` | which streams may get a lane in one piece |
//! | `trouble` | what the client library says beside its answers: lost connections, missing rights |
//! | `sink` | [`Sink`](semel_core::Sink), lane by lane, all of a batch together |
//! | `link` | the connection of both |
//! | `subscription` | [`Source`](semel_core::Source) over a durable pull consumer |
//! | `pull` | the task that takes messages in, and keeps them |
//! | `error` | which error is which [`Fault`](semel_core::Fault) |
//!
//! ```no_run
//! use semel_backends::nats::{NatsConfig, NatsStream};
//! use semel_core::{Event, Message, Sink};
//!
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let sink = NatsConfig::new("nats://localhost:4222")?
//!     .create_stream(NatsStream::new("ORDERS", ["order.>"]))
//!     .connect()
//!     .await?;
//! let message = Message::first("order.placed", Event::new("order", "42", "OrderPlaced"));
//! assert!(sink.publish(&[message]).await.all_confirmed());
//! # Ok::<(), semel_core::Failure>(()) }).unwrap();
//! ```

mod arrivals;
mod config;
mod dead_queue;
mod error;
mod link;
mod message;
mod pull;
mod runs;
mod sink;
mod streams;
mod subscription;
mod trouble;

pub use config::{NatsConfig, NatsStream};
pub use sink::NatsSink;
pub use subscription::{NatsSubscription, NatsSubscriptionConfig};

/// What OpenTelemetry calls it.
const SYSTEM: &str = "nats";
