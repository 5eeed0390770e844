//! An orders API behind the layer, a clock that follows tokio's, and a store that misbehaves.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::request::Builder;
use http::{HeaderMap, Method, StatusCode};
use http_body_util::BodyExt;
use semel_core::idempotency::{Claim, Fingerprint, IdempotencyStore, Record, ScopedKey, Token};
use semel_core::memory::MemoryKeys;
use semel_core::{Clock, Failure, Holding, Timestamp};
use semel_http::{IdempotencyLayer, Policy, Scope};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tower::ServiceExt;

pub(crate) const KEY: &str = "idempotency-key";
pub(crate) const MARKER: &str = "idempotent-replayed";

/// Tokio's clock, so that paused tests move the store's time too.
#[derive(Debug)]
pub(crate) struct TokioClock(Instant);

impl TokioClock {
    pub(crate) fn shared() -> Arc<Self> {
        Arc::new(Self(Instant::now()))
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        Timestamp::constant(1_767_225_600, 0) + self.0.elapsed()
    }
}

/// The service under test.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) app: Router,
    pub(crate) layer: IdempotencyLayer,
    pub(crate) runs: Arc<AtomicUsize>,
}

/// An orders API in which `handler` gets the number of the execution and the request.
pub(crate) fn api_on<F, Fut, R>(store: Arc<dyn IdempotencyStore>, policy: Policy, handler: F) -> Api
where
    F: Fn(usize, Request) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = R> + Send + 'static,
    R: IntoResponse,
{
    let layer = IdempotencyLayer::new(store, policy);
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = {
        let runs = Arc::clone(&runs);
        move |request: Request| {
            let run = handler(runs.fetch_add(1, Ordering::SeqCst) + 1, request);
            async move { run.await.into_response() }
        }
    };
    let app = Router::new().fallback(counted).layer(layer.clone());
    Api { app, layer, runs }
}

pub(crate) fn api<F, Fut, R>(policy: Policy, handler: F) -> Api
where
    F: Fn(usize, Request) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = R> + Send + 'static,
    R: IntoResponse,
{
    api_on(Arc::new(MemoryKeys::with_clock(TokioClock::shared())), policy, handler)
}

/// 201 with a JSON body and a location, different for every execution.
pub(crate) async fn place_order(number: usize, _: Request) -> Response {
    let location = format!("/orders/{number}");
    let headers = [("location", location.as_str()), ("content-type", "application/json")];
    (StatusCode::CREATED, headers, format!("{{\"order\": {number}}}")).into_response()
}

pub(crate) fn orders(policy: Policy) -> Api {
    api(policy, place_order)
}

/// One tenant, the default profile.
pub(crate) fn ietf() -> Policy {
    Policy::ietf(Scope::single_tenant())
}

/// The same, without waiting for a request in progress.
pub(crate) fn hasty() -> Policy {
    ietf().rules(|rules| rules.wait = Duration::ZERO)
}

impl Api {
    pub(crate) async fn send(&self, request: Request) -> Answer {
        let response = self.app.clone().oneshot(request).await.unwrap();
        Answer::of(response).await
    }

    pub(crate) async fn post(&self, key: &str, body: &'static str) -> Answer {
        self.send(post(key, body)).await
    }

    pub(crate) fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

pub(crate) fn post(key: &str, body: &'static str) -> Request {
    keyed(key).body(Body::from(body)).unwrap()
}

/// A POST to `/orders` with a key.
pub(crate) fn keyed(key: &str) -> Builder {
    Request::builder().method(Method::POST).uri("/orders").header(KEY, key)
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) async fn of(response: Response) -> Self {
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Self { status: parts.status, headers: parts.headers, body }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header(MARKER) == Some("true")
    }

    /// The name of the problem, after checking that the answer is a proper one.
    pub(crate) fn problem(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        assert_eq!(self.header("content-language"), Some("en"));
        assert!(!self.is_replay());
        let json = self.json();
        assert_eq!(json["status"], self.status.as_u16());
        assert!(json["title"].is_string() && json["detail"].is_string());
        let docs = json["type"].as_str().unwrap();
        assert_eq!(self.header("link"), Some(&*format!("<{docs}>; rel=\"describedby\"")));
        docs.strip_prefix(Policy::DOCS).unwrap().to_owned()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// Lets a handler report that it has started, and holds it until it may go on.
#[derive(Clone)]
pub(crate) struct Gate {
    started: Arc<Semaphore>,
    open: Arc<Semaphore>,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self { started: Arc::new(Semaphore::new(0)), open: Arc::new(Semaphore::new(0)) }
    }

    /// Called by the handler.
    pub(crate) async fn pass(&self) {
        self.started.add_permits(1);
        self.open.acquire().await.unwrap().forget();
    }

    /// Waits until one more handler is at the gate.
    pub(crate) async fn reached(&self) {
        self.started.acquire().await.unwrap().forget();
    }

    /// Lets one handler go on.
    pub(crate) fn open(&self) {
        self.open.add_permits(1);
    }
}

/// A store in memory whose calls fail when told to.
pub(crate) struct Flaky {
    inner: MemoryKeys,
    pub(crate) down: AtomicBool,
    /// This many completions fail.
    pub(crate) failing_completions: AtomicUsize,
    /// This many completions take effect but report a failure.
    pub(crate) lying_completions: AtomicUsize,
    /// This many completions are sent twice, as a client does whose connection broke.
    pub(crate) doubled_completions: AtomicUsize,
    pub(crate) claims: AtomicUsize,
    /// Claims wait here if set.
    pub(crate) claim_gate: OnceLock<Gate>,
}

impl Flaky {
    pub(crate) fn new() -> Self {
        Self::on(TokioClock::shared())
    }

    pub(crate) fn on(clock: Arc<dyn Clock>) -> Self {
        Self {
            inner: MemoryKeys::with_clock(clock),
            down: AtomicBool::new(false),
            failing_completions: AtomicUsize::new(0),
            lying_completions: AtomicUsize::new(0),
            doubled_completions: AtomicUsize::new(0),
            claims: AtomicUsize::new(0),
            claim_gate: OnceLock::new(),
        }
    }

    /// How many keys there are.
    pub(crate) fn len(&self) -> usize {
        self.inner.len()
    }

    fn check(&self) -> Result<(), Failure> {
        if self.down.load(Ordering::SeqCst) { Err(unreachable_store()) } else { Ok(()) }
    }
}

fn unreachable_store() -> Failure {
    Failure::unavailable("E-TEST", "the store is down")
}

fn take_one(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok()
}

#[async_trait]
impl IdempotencyStore for Flaky {
    async fn claim(
        &self,
        key: &ScopedKey,
        print: &Fingerprint,
        lease: Duration,
    ) -> Result<Claim, Failure> {
        self.claims.fetch_add(1, Ordering::SeqCst);
        if let Some(gate) = self.claim_gate.get() {
            gate.pass().await;
        }
        self.check()?;
        self.inner.claim(key, print, lease).await
    }

    async fn complete(
        &self,
        key: &ScopedKey,
        token: Token,
        record: Record,
        keep: Duration,
    ) -> Result<Holding, Failure> {
        self.check()?;
        if take_one(&self.failing_completions) {
            return Err(unreachable_store());
        }
        if take_one(&self.doubled_completions) {
            let _ = self.inner.complete(key, token, record.clone(), keep).await?;
        }
        let held = self.inner.complete(key, token, record, keep).await;
        if take_one(&self.lying_completions) { Err(unreachable_store()) } else { held }
    }

    async fn renew(
        &self,
        key: &ScopedKey,
        token: Token,
        lease: Duration,
    ) -> Result<Holding, Failure> {
        self.check()?;
        self.inner.renew(key, token, lease).await
    }

    async fn release(&self, key: &ScopedKey, token: Token) -> Result<Holding, Failure> {
        self.check()?;
        self.inner.release(key, token).await
    }

    async fn forget_expired(&self, limit: usize) -> Result<usize, Failure> {
        self.check()?;
        self.inner.forget_expired(limit).await
    }
}
