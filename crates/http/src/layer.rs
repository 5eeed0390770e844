//! The layer that puts [`IdempotencyService`] around a service.

use std::sync::Arc;

use semel_core::idempotency::IdempotencyStore;
use tower_layer::Layer;

use crate::engine::Engine;
use crate::policy::Policy;
use crate::service::IdempotencyService;

/// Gives a service idempotency keys. See the [crate documentation](crate) for what it does.
///
/// ```
/// use axum::{Router, routing::post};
/// use semel_core::memory::MemoryKeys;
/// use semel_http::{IdempotencyLayer, Policy, Scope};
/// use std::sync::Arc;
///
/// let keys = IdempotencyLayer::new(Arc::new(MemoryKeys::new()), Policy::ietf(Scope::authorization()));
/// let strict = keys.with_policy(Policy::ietf(Scope::authorization()).require_key());
/// let app: Router = Router::new()
///     .route("/orders", post(|| async { "placed" }).layer(keys.clone()))
///     .route("/payments", post(|| async { "paid" }).layer(strict));
/// ```
#[derive(Clone, Debug)]
pub struct IdempotencyLayer {
    engine: Engine,
    policy: Arc<Policy>,
}

impl IdempotencyLayer {
    /// Keeps keys in this store, by this policy.
    #[must_use]
    pub fn new(store: Arc<dyn IdempotencyStore>, policy: Policy) -> Self {
        Self { engine: Engine::new(store), policy: Arc::new(policy) }
    }

    /// The same store and leases, for routes with another policy.
    #[must_use]
    pub fn with_policy(&self, policy: Policy) -> Self {
        Self { engine: self.engine.clone(), policy: Arc::new(policy) }
    }

    /// Resolves when no handler with a key runs and every result is stored. Handlers go on after
    /// their clients went away, so wait for it after the server has stopped, for as long as you
    /// can afford.
    pub async fn drained(&self) {
        self.engine.leases.emptied().await;
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = IdempotencyService<S>;

    fn layer(&self, inner: S) -> IdempotencyService<S> {
        IdempotencyService::new(inner, self.engine.clone(), Arc::clone(&self.policy))
    }
}
