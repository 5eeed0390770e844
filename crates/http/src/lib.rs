//! Idempotency keys: run an operation once, and answer every retry with the same result.
//!
//! ```
//! # use axum::{Router, routing::post};
//! # use semel_core::memory::MemoryKeys;
//! # use semel_http::{IdempotencyLayer, Policy, Scope};
//! # use std::sync::Arc;
//! # async fn place_order() {}
//! let keys = Arc::new(MemoryKeys::new());
//! let policy = Policy::ietf(Scope::authorization());
//! let app: Router = Router::new()
//!     .route("/orders", post(place_order))
//!     .layer(IdempotencyLayer::new(keys, policy));
//! ```
//!
//! A client sends `Idempotency-Key: <something unique>` with a POST or PATCH. The first request
//! with it runs the handler; every later one gets the same status, headers and body, marked
//! `Idempotent-Replayed: true`. [`IdempotencyLayer`] is a tower layer over the types of the `http`
//! crate, so it fits axum, hyper and whatever else speaks them; with [`Policy::grpc`] also tonic. [`Idempotent::run`] is the same
//! without HTTP, and [`client`](crate#features) is the other side.
//!
//! # What happens to a request
//!
//! | the request | the answer | the handler |
//! |---|---|---|
//! | has no key | as if the layer were not there; 400 if the route requires one | runs |
//! | has a key that is malformed, or sent twice | 400 | does not run |
//! | is the first with its key | the handler's | runs |
//! | differs from the first with its key | 422, whether the first is running or done | does not run |
//! | comes while the first is running | waits up to 1 s for its answer, then 409 with `Retry-After` | does not run |
//! | comes after the first was answered | the same status, headers and body | does not run |
//! | comes after the first was answered 5xx, 401, 403, 408, 421, 425 or 429 | the handler's | runs |
//! | comes after the first died half-way | the handler's, as attempt 2; or 409 "outcome unknown", by route | as the route says |
//! | comes after a response that was streamed or too large to keep | 409 "result not retained" | does not run |
//! | comes while the store is down | 503 with `Retry-After`; runs unprotected if the route fails open | does not run |
//! | comes 24 h after the first | the handler's: the key is forgotten | runs |
//!
//! Refusals are [problem documents](problem). All of it can be changed in the [`Policy`].
//!
//! # What is promised
//!
//! - **The handler runs in a task of its own.** A client that hangs up, or a timeout outside of the
//!   layer, never stops it half-way; its result is stored, and the retry gets it. Wait for
//!   [`IdempotencyLayer::drained`] before the process ends.
//! - **A claim is a lease with a token.** It is renewed while the handler runs, by another task. A
//!   process that was frozen past its lease cannot overwrite the result of the one that took over.
//!   The token protects what is stored under the key; see [`Attempt`] for effects elsewhere.
//! - **Keys belong to callers.** There is no default [`Scope`]; nobody gets another's response.
//!   Authenticate and authorise *outside* of this layer, so that a caller whose rights were
//!   withdrawn gets no replay, and a request that was turned away does not use its key up.
//! - **Nothing of a key or a body is logged or counted**: only a hash of the key is.
//!
//! # Limits
//!
//! - A database keeps what is expired until somebody deletes it: spawn [`purge`] beside the service.
//! - Bodies of requests with a key are read into memory before anything else, up to a limit.
//! - The part of a response that is streamed after the handler returned is not protected from a
//!   client that hangs up, and not repeated.
//! - Replays of a handler that answers `Access-Control-Allow-Origin` let browsers read the marker. If
//!   a layer outside of this one does that, it has to expose `Idempotent-Replayed` and `Retry-After`.
//! - A claim whose answer was lost on the way from the store is asked for once more; if the store
//!   stays away, it blocks its key for one lease.
//! - Keys are read from headers, not from bodies; how old a key is is not looked at. Clients learn how
//!   long results are kept by `OPTIONS` ([`headers::RETENTION`]).
//!
//! # Features
//!
//! - `axum`: the whole path of a nested router is part of the key, and [`Attempt`] is an extractor.
//!   Without it, a layer *inside* a nested router does not see the prefix that was cut off.
//! - `client`: module `client`, a reqwest client that repeats a call under one key.
//! - `encryption`: `Encrypted`, around any store: results that nobody reads who has only the store.
//! - `proxy`: module `proxy`, the same in front of a service in any language.
//! - `trace`: replays leave a span that points to the trace of the first request.

mod attempt;
mod body;
mod canonical;
mod capture;
mod claim;
#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "encryption")]
mod encryption;
mod engine;
#[cfg(feature = "axum")]
mod extract;
mod grpc;
pub mod headers;
mod key;
mod layer;
mod lease;
mod observe;
mod policy;
pub mod problem;
#[cfg(feature = "proxy")]
pub mod proxy;
mod purge;
mod record;
mod run;
mod scope;
mod service;
mod settle;
mod tally;
mod trace;
mod verdict;

pub use attempt::Attempt;
pub use body::Body;
pub use claim::IdempotencyClaim;
#[cfg(feature = "encryption")]
pub use encryption::{Encrypted, EncryptionKeys};
pub use key::IdempotencyKey;
pub use layer::IdempotencyLayer;
pub use policy::{Covers, Policy};
pub use purge::purge;
pub use run::{Idempotent, Ran, RunError};
pub use scope::Scope;
pub use service::{IdempotencyService, ResponseFuture};
pub use verdict::{Retention, Verdict};
