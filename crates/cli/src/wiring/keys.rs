//! Where idempotency keys are kept, by URL.

use std::sync::Arc;

use semel_core::idempotency::KeyAdmin;
use semel_core::memory::MemoryKeys;
use semel_core::{Failure, IdempotencyStore};

use super::{DatabaseKind, Missing};

/// Keys, for those who use them and for those who look after them.
pub(crate) trait Keys: IdempotencyStore + KeyAdmin {}

impl<T: IdempotencyStore + KeyAdmin> Keys for T {}

/// Opens the store that a URL means: `memory:`, `redis://…`, or a database with semel's tables.
pub(crate) async fn connect_keys(url: &str) -> Result<Arc<dyn Keys>, Failure> {
    if url == "memory:" {
        return Ok(Arc::new(MemoryKeys::new()));
    }
    #[cfg(feature = "redis")]
    if url.starts_with("redis:") || url.starts_with("rediss:") {
        let config = semel_backends::redis::RedisConfig::new(url)?;
        return Ok(Arc::new(config.connect_keys().await?));
    }
    let kind = DatabaseKind::of_url(url).map_err(|why| {
        let also = if cfg!(feature = "redis") { ", or be redis://… or memory:" } else { "" };
        Failure::misconfigured("E-STORE-URL", format!("{why}{also}"))
            .with_fix("give --store a URL such as redis://127.0.0.1:6379")
    })?;
    let database = (kind.connect)(url.to_owned(), Missing::Refuse).await?;
    database.tables().await?.check()?;
    Ok(database.keys())
}
