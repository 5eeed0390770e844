//! Commands against real database servers.

#![cfg(all(feature = "postgres", feature = "mysql"))]

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
pub(crate) mod server;
#[cfg(feature = "page")]
mod tailing;
