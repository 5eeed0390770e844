//! A reverse proxy that gives a service in any language idempotency keys.
//!
//! ```no_run
//! use semel_core::memory::MemoryKeys;
//! use semel_http::proxy::{Proxy, Upstream};
//! use semel_http::{IdempotencyLayer, Policy, Scope};
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let policy = Policy::ietf(Scope::authorization());
//! let keys = IdempotencyLayer::new(Arc::new(MemoryKeys::new()), policy.clone());
//! let strict = keys.with_policy(policy.require_key());
//! let proxy = Proxy::new(Upstream::new("http://127.0.0.1:3000")?, keys)
//!     .route("/payments/**".parse()?, strict);
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
//! proxy.serve(listener, std::future::pending(), Duration::from_secs(30)).await;
//! # Ok(()) }
//! ```
//!
//! A request with a key is read into memory, sent upstream once, and its answer kept: everything
//! that the [documentation of the crate](crate) says of a handler holds for the upstream. A request
//! without one is passed on as it comes, byte by byte. Clients speak HTTP/1.1 or HTTP/2, with TLS if the
//! proxy has an [`Identity`] to show.
//!
//! # What goes upstream
//!
//! The message as it was read, framed anew: nothing of the client's own framing is passed on.
//! Headers of the connection are taken out, `X-Forwarded-For` and `Via` are added, `Host` stays. A
//! request with a key also has [`Idempotency-Attempt`](crate::headers::ATTEMPT) and
//! [`Idempotency-Fence`](crate::headers::FENCE); what a client sends under these names is dropped.
//! Nothing is sent twice: a request is sent again only if no byte of it has left.
//!
//! # Refusals
//!
//! Beside [those of the layer](crate::problem), as problem documents of the same kind:
//!
//! ## bad-request
//! `400`. The request can be read in more than one way: several hosts, a path that is not plain, a
//! coding of the body that a proxy cannot keep. It was not sent.
//!
//! ## not-supported
//! `501`. `CONNECT`, or a transfer coding other than chunked. It was not sent.
//!
//! ## upstream-unreachable
//! `502`. There is no connection to the upstream. Nothing was sent, and the key is free.
//!
//! ## upstream-lost
//! `502`. The connection was lost before there was an answer. What took effect is unknown; the
//! route's rules on crashes say whether a retry with the same key runs it again.
//!
//! ## upstream-timeout
//! `504`. There was no answer in time. As upstream-lost.

mod answer;
mod answers;
mod connections;
mod gate;
mod hops;
mod lines;
mod refusal;
mod route;
mod serve;
mod tls;
mod upstream;
mod workers;

use std::fmt;

use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use tower_layer::Layer;
use tower_service::Service;

pub use self::answer::Answer;
use self::answers::Answers;
pub use self::route::PathPattern;
pub use self::serve::Ended;
pub use self::tls::Identity;
pub use self::upstream::Upstream;
use crate::body::Body;
use crate::layer::IdempotencyLayer;

/// A service in any language, with idempotency keys. See the [module](self).
#[derive(Clone)]
pub struct Proxy {
    upstream: Upstream,
    otherwise: IdempotencyLayer,
    routes: Vec<(PathPattern, Option<IdempotencyLayer>)>,
    identity: Option<Identity>,
}

/// The address of who is at the other end of a connection, as it is told to the upstream.
#[derive(Clone)]
struct Peer(HeaderValue);

impl Proxy {
    /// Stands in front of `upstream`, with these rules for all paths that have none of their own.
    #[must_use]
    pub fn new(upstream: Upstream, keys: IdempotencyLayer) -> Self {
        Self { upstream, otherwise: keys, routes: Vec::new(), identity: None }
    }

    /// Speaks TLS to its clients, and nothing else.
    #[must_use]
    pub fn tls(mut self, identity: Identity) -> Self {
        self.identity = Some(identity);
        self
    }

    /// Other rules for some paths: made by [`IdempotencyLayer::with_policy`] from that of
    /// [`Proxy::new`]. Of several patterns that match, the one with the most literal parts decides.
    #[must_use]
    pub fn route(self, paths: PathPattern, keys: IdempotencyLayer) -> Self {
        self.with(paths, Some(keys))
    }

    /// Paths that have nothing to do with keys.
    #[must_use]
    pub fn pass(self, paths: PathPattern) -> Self {
        self.with(paths, None)
    }

    fn with(mut self, paths: PathPattern, keys: Option<IdempotencyLayer>) -> Self {
        self.routes.push((paths, keys));
        // Stable: of equals the first decides.
        self.routes.sort_by_key(|(paths, _)| std::cmp::Reverse(paths.weight()));
        self
    }

    fn keys_for(&self, path: &str) -> Option<&IdempotencyLayer> {
        let found = self.routes.iter().find(|(paths, _)| paths.matches(path));
        found.map_or(Some(&self.otherwise), |(_, keys)| keys.as_ref())
    }
}

/// The proxy as one worker has it. Connections, counters and whatever else is touched by every
/// request are its own, so that cores do not wait for each other's memory.
struct Share {
    proxy: Proxy,
    answers: Answers,
}

impl Share {
    fn of(proxy: &Proxy) -> Self {
        let proxy = Proxy { upstream: proxy.upstream.apart(), ..proxy.clone() };
        Self { proxy, answers: Answers::new() }
    }

    async fn answer(&self, peer: &Peer, request: Request<Incoming>) -> Response<Body<Answer>> {
        let response = match gate::admit(request) {
            Err(refusal) => refusal.response().map(Body::from),
            Ok(request) => self.pass_on(peer, request).await,
        };
        self.answers.count(response.status());
        response
    }

    async fn pass_on(&self, peer: &Peer, mut request: Request<Incoming>) -> Response<Body<Answer>> {
        let upstream = &self.proxy.upstream;
        match self.proxy.keys_for(request.uri().path()) {
            Some(keys) if !keys.ignores(&request) => {
                request.extensions_mut().insert(peer.clone());
                let answered = keys.layer(upstream.clone()).call(request).await;
                answered.unwrap_or_else(|never| match never {})
            }
            _ => upstream.answer(request.map(Body::from), Some(peer)).await.map(Body::from),
        }
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("upstream", &self.upstream)
            .field("routes", &self.routes.iter().map(|(paths, _)| paths).collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
