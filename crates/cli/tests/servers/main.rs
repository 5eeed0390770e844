//! Commands against real database servers.

#![cfg(all(feature = "postgres", feature = "mysql"))]
#![expect(clippy::panic, clippy::unwrap_used, reason = "helpers of tests may panic")]

mod applied;
mod check;
mod down;
mod grants;
mod on_publish;
mod partitions;
mod refusals;
mod server;
