//! Commands against real database servers.

#![cfg(all(feature = "postgres", feature = "mysql"))]
#![expect(clippy::panic, clippy::unwrap_used, reason = "helpers of tests may panic")]

mod applied;
mod check;
#[cfg(feature = "proxy")]
mod documented;
mod down;
#[cfg(feature = "proxy")]
mod examples;
mod grants;
mod mapped;
mod on_publish;
mod partitions;
#[cfg(all(feature = "kafka", feature = "mqtt", feature = "rabbitmq", feature = "redis"))]
mod quickstart;
mod refusals;
mod server;
#[cfg(feature = "proxy")]
#[path = "../shell/mod.rs"]
mod shell;
#[cfg(feature = "page")]
mod tailing;
