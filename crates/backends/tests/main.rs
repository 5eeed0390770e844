//! All backends against the shared suites and against what is particular to each.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test reports by panicking")]

#[cfg(feature = "aws")]
mod aws;
#[cfg(any(
    feature = "mqtt",
    feature = "nats",
    all(feature = "tls", any(feature = "rabbitmq", feature = "redis"))
))]
mod certificates;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod consumers;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod drivers;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod mapped;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod merged;
#[cfg(feature = "mqtt")]
mod mqtt;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "ndjson")]
mod ndjson;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod outboxes;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
#[cfg(feature = "redis")]
mod redis;
#[cfg(any(feature = "aws", feature = "mqtt", feature = "rabbitmq", feature = "redis"))]
mod sinks;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod transfer;
#[cfg(feature = "webhook")]
mod webhook;
