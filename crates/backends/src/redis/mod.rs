//! Redis: streams as a sink, and a store of idempotency keys.
//!
//! The topic is the stream, an event is one entry: its headers are the fields, and the last field,
//! `payload`, is the body. What goes to one stream goes in one transaction, so that an event is
//! never visible before the one it follows.
//!
//! | file | role |
//! |---|---|
//! | `config` | where the server is, and how streams are kept |
//! | `entry` | an event as one `XADD` |
//! | `rounds` | which messages of a batch can be sent together |
//! | `link` | the connection: made when it is needed, made anew when it broke |
//! | `keys` | [`IdempotencyStore`](semel_core::IdempotencyStore), one script per call |
//! | `key_admin` | [`KeyAdmin`](semel_core::idempotency::KeyAdmin) |
//! | `sink` | [`Sink`](semel_core::Sink), a transaction per stream |
//! | `error` | which error is which [`Fault`](semel_core::Fault) |
//!
//! ```no_run
//! use semel_backends::redis::RedisConfig;
//! use semel_core::{Event, Message, Sink};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let sink = RedisConfig::new("redis://localhost:6379")?.connect().await?;
//! let message = Message::first("orders", Event::new("order", "42", "OrderPlaced"));
//! assert!(sink.publish(&[message]).await.all_confirmed());
//! # Ok::<(), semel_core::Failure>(()) }).unwrap();
//! ```

mod config;
mod entry;
mod error;
mod key_admin;
mod keys;
mod link;
mod rounds;
mod sink;

pub use config::RedisConfig;
pub use keys::RedisKeys;
pub use sink::RedisSink;
