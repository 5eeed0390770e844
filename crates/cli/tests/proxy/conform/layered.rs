//! The layer inside an application.

use std::sync::Arc;

use semel_core::idempotency::IdempotencyStore;
use semel_core::memory::MemoryKeys;

use super::conforms;
use super::fixture::{Fixture, Place};
use crate::proxy::program::sqlite;

/// Two applications on a store.
async fn layers_conform(store: Arc<dyn IdempotencyStore>) {
    let one = Fixture::start(Place::Layered(Arc::clone(&store))).await;
    let other = one.another(Place::Layered(store)).await;
    conforms(&[&one.address, &other.address], &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_layer_conforms_in_memory() {
    layers_conform(Arc::new(MemoryKeys::new())).await;
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread")]
async fn the_layer_conforms_on_redis() {
    let Some(url) = crate::proxy::program::redis() else { return };
    let config = semel_backends::redis::RedisConfig::new(&url).unwrap();
    layers_conform(Arc::new(config.connect_keys().await.unwrap())).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn the_layer_conforms_on_postgres() {
    let Some(url) = crate::proxy::program::postgres().await else { return };
    let config = semel_backends::postgres::PostgresConfig::new(&url).unwrap();
    layers_conform(Arc::new(config.connect().await.unwrap().keys())).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn the_layer_conforms_on_mysql() {
    let Some(url) = crate::proxy::program::mysql().await else { return };
    let config = semel_backends::mysql::MysqlConfig::new(&url).unwrap();
    layers_conform(Arc::new(config.connect().await.unwrap().keys())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_layer_conforms_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let config = semel_backends::sqlite::SqliteConfig::new(&sqlite(folder.path())).unwrap();
    layers_conform(Arc::new(config.connect().await.unwrap().keys())).await;
}
