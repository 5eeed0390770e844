//! What only PostgreSQL has: its outbox and inbox in partitions, and events that are messages in its log.

use std::time::Duration;

use semel_backends::postgres::PostgresConfig;
use semel_core::Failure;
use semel_core::coordination::Share;

use super::{Database, Listening};

pub(super) async fn connect(url: String) -> Result<Box<dyn Database>, Failure> {
    let config = PostgresConfig::new(&url)?;
    // Each share keeps one; they are opened when they are needed.
    Ok(Box::new(config.connections(Share::MOST + 10).connect().await?))
}

pub(super) async fn partition(url: String, span: Duration) -> Result<bool, Failure> {
    PostgresConfig::new(&url)?.connect().await?.partition(span).await
}

pub(super) async fn partition_inbox(url: String, span: Duration) -> Result<bool, Failure> {
    let store = PostgresConfig::new(&url)?.connect().await?;
    store.partition_inbox(span).await
}

pub(super) async fn prepare_messages(url: String) -> Result<(), Failure> {
    PostgresConfig::new(&url)?.connect().await?.prepare_messages().await
}

pub(super) async fn carry_messages(
    url: String,
    pipeline: String,
    all: bool,
) -> Result<Listening, Failure> {
    let store = PostgresConfig::new(&url)?.connect().await?;
    let carrying = store.carry_messages(&pipeline).await?;
    if all {
        carrying.caught_up().await?;
    }
    Ok(Box::new(carrying))
}

pub(super) async fn is_carried(url: String) -> Result<bool, Failure> {
    PostgresConfig::new(&url)?.connect().await?.is_carried().await
}

pub(super) async fn count_messages(url: String) -> Result<u64, Failure> {
    PostgresConfig::new(&url)?.connect().await?.count_messages().await
}
