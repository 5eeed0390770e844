//! RabbitMQ as a sink and as a source: AMQP 0-9-1 with publisher confirms and the mandatory flag, and
//! acknowledgements after the effect.
//!
//! A message counts as delivered when every queue it was routed to has it (on disk for durable
//! queues, on a majority for quorum queues) and there was at least one such queue. The topic is the
//! routing key; without an exchange it is the name of the queue.
//!
//! | file | role |
//! |---|---|
//! | `config` | where the broker is, what to publish to, what to declare |
//! | `link` | the connection: made when it is needed, made anew when it broke |
//! | `message` | an event as an AMQP message, and what AMQP cannot carry |
//! | `subscription` | [`Source`](semel_core::Source): a queue, and the dead letters of it |
//! | `sink` | [`Sink`](semel_core::Sink), in waves of one message per lane |
//! | `error` | which error is which [`Fault`](semel_core::Fault) |
//!
//! ```no_run
//! use semel_backends::rabbitmq::RabbitmqConfig;
//! use semel_core::{Event, Message, Sink};
//!
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let sink = RabbitmqConfig::new("amqp://guest:guest@localhost:5672/%2f")?
//!     .exchange("events")?
//!     .connect()
//!     .await?;
//! let message = Message::first("order.placed", Event::new("order", "42", "OrderPlaced"));
//! assert!(sink.publish(&[message]).await.all_confirmed());
//! # Ok::<(), semel_core::Failure>(()) }).unwrap();
//! ```

mod answers;
mod config;
mod dead_queue;
mod error;
mod link;
mod message;
mod sink;
mod subscription;

pub use config::{ExchangeKind, QueueKind, RabbitmqConfig, RabbitmqQueue};
pub use sink::RabbitmqSink;
pub use subscription::{RabbitmqSubscription, RabbitmqSubscriptionConfig};

/// What OpenTelemetry calls it.
const SYSTEM: &str = "rabbitmq";
