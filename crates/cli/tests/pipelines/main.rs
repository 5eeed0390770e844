//! Pipelines as they are configured: where events come from, and where they go.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

#[cfg(any(feature = "kafka", feature = "nats", feature = "rabbitmq", feature = "redis"))]
mod brokers;
mod mapped;
#[path = "../shop/mod.rs"]
mod shop;
#[cfg(feature = "webhook")]
mod webhook;
