//! Pipelines as they are configured: where events come from, and where they go.

#[cfg(any(feature = "kafka", feature = "nats", feature = "rabbitmq", feature = "redis"))]
mod brokers;
mod mapped;
#[cfg(feature = "webhook")]
mod webhook;
