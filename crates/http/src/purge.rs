//! Deletes keys that nobody can ask for any more.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use semel_core::idempotency::IdempotencyStore;
use tokio::time::sleep;

/// How often it is looked for what is expired.
const EVERY: Duration = Duration::from_secs(60);

/// How many are deleted at once, so that nobody waits for it.
const CHUNK: usize = 1000;

/// Between one chunk and the next.
const BREATH: Duration = Duration::from_millis(100);

/// Deletes expired keys once a minute, a thousand at a time, and never ends: spawn it beside the
/// service, in every process that has the layer or in one of them.
///
/// A database keeps what is expired until somebody deletes it; nobody is answered with it, but the
/// table grows. Redis deletes by itself, and there this does nothing. `semel proxy` does it already.
///
/// ```
/// use semel_core::IdempotencyStore;
/// use semel_core::memory::MemoryKeys;
/// use semel_http::{IdempotencyLayer, Policy, Scope, purge};
/// use std::sync::Arc;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let keys: Arc<dyn IdempotencyStore> = Arc::new(MemoryKeys::new());
/// let purging = tokio::spawn(purge(Arc::clone(&keys)));
/// let layer = IdempotencyLayer::new(keys, Policy::ietf(Scope::authorization()));
/// // … serve …
/// purging.abort();
/// # });
/// ```
pub async fn purge(store: Arc<dyn IdempotencyStore>) -> Infallible {
    loop {
        let pause = match store.forget_expired(CHUNK).await {
            // More may be left.
            Ok(CHUNK) => BREATH,
            Ok(_) => EVERY,
            Err(failure) => {
                tracing::warn!(%failure, "cannot delete expired keys, will try again");
                EVERY
            }
        };
        sleep(pause).await;
    }
}
