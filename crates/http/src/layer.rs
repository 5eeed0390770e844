//! The layer that puts [`IdempotencyService`] around a service.

use std::sync::Arc;

#[cfg(feature = "proxy")]
use http::{Method, Request};
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
    observing: bool,
}

impl IdempotencyLayer {
    /// Keeps keys in this store, by this policy.
    #[must_use]
    pub fn new(store: Arc<dyn IdempotencyStore>, policy: Policy) -> Self {
        Self { engine: Engine::new(store), policy: Arc::new(policy), observing: false }
    }

    /// The same store and leases, for routes with another policy.
    #[must_use]
    pub fn with_policy(&self, policy: Policy) -> Self {
        Self { policy: Arc::new(policy), ..self.clone() }
    }

    /// Lets every request through, and only says in the log and in a metric what would have been
    /// done with it: to be tried in front of a service before it is relied on.
    ///
    /// What is seen is remembered under other names than in earnest, without any response.
    #[must_use]
    pub fn observing(mut self) -> Self {
        self.observing = true;
        self
    }

    /// Resolves when no handler with a key runs and every result is stored. Handlers go on after
    /// their clients went away, so wait for it after the server has stopped, for as long as you
    /// can afford.
    pub async fn drained(&self) {
        self.engine.leases.emptied().await;
    }

    /// Whether a request and its answer pass as if there were no layer.
    #[cfg(feature = "proxy")]
    pub(crate) fn ignores<B>(&self, request: &Request<B>) -> bool {
        // `OPTIONS` may be answered with the retention.
        !self.policy.concerns(request) && *request.method() != Method::OPTIONS
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = IdempotencyService<S>;

    fn layer(&self, inner: S) -> IdempotencyService<S> {
        let (engine, policy) = (self.engine.clone(), Arc::clone(&self.policy));
        IdempotencyService { inner, engine, policy, observing: self.observing }
    }
}
