//! Redis: streams as a sink and as a subscription, a store of idempotency keys, and an inbox for effects in Redis.
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
//! | `owned` | which slots of a cluster the node had, when it does not have them any more |
//! | `link` | the connection: made when it is needed, made anew when it broke |
//! | `script` | a Lua script that the server knows |
//! | `inbox` | [`InboxStore`](semel_core::InboxStore), where the effect is in Redis too |
//! | `keys` | [`IdempotencyStore`](semel_core::IdempotencyStore), one script per call |
//! | `key_admin` | [`KeyAdmin`](semel_core::idempotency::KeyAdmin) |
//! | `sink` | [`Sink`](semel_core::Sink), a transaction per stream |
//! | `subscription` | [`Source`](semel_core::Source), a member of a consumer group |
//! | `group` | what a member says to the server |
//! | `watch` | waiting for new entries |
//! | `arrivals` | what is in streams, for whoever verifies |
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

mod arrivals;
mod config;
mod dead_queue;
mod entry;
mod error;
mod group;
mod inbox;
mod key_admin;
mod keys;
mod link;
mod nodes;
mod owned;
mod rounds;
mod script;
mod sink;
mod subscription;
mod watch;

pub use ::redis::{Cmd, cmd};
pub use config::RedisConfig;
pub use inbox::{RedisInbox, RedisTx};
pub use keys::RedisKeys;
pub use sink::RedisSink;
pub use subscription::{RedisSubscription, RedisSubscriptionConfig};

/// What OpenTelemetry calls it.
const SYSTEM: &str = "redis";
