//! What `docs/conformance.md` asks an endpoint to offer, as an axum application.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Path, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Extension, Router};
use futures_util::{StreamExt, stream};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use http_body_util::StreamBody;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use semel_core::idempotency::{AfterCrash, IdempotencyStore};
use semel_http::{Attempt, Covers, IdempotencyLayer, Policy, Retention, Scope, Verdict};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// The rules of the routes, as the proxy reads them.
pub(crate) const RULES: &str = include_str!("rules.toml");

const ROUTES: [&str; 19] = [
    "default",
    "required",
    "strict",
    "uuid",
    "long",
    "header",
    "methods",
    "reject",
    "wait",
    "raw",
    "canonical",
    "tenant",
    "endpoint",
    "stripe",
    "lease",
    "careful",
    "brief",
    "small",
    "headers",
];

/// The same rules for the layer.
fn policy(route: &str) -> Policy {
    const SECOND: Duration = Duration::from_secs(1);
    let scope = Scope::header(HeaderName::from_static("conform-tenant"));
    let policy = Policy::ietf(scope.clone());
    let hasty = policy.clone().rules(|rules| {
        rules.wait = Duration::ZERO;
        rules.lease = 4 * SECOND;
    });
    match route {
        "required" => policy.require_key(),
        "strict" => policy.quoted_keys_only(),
        "uuid" => policy.uuid_keys_only(),
        "long" => policy.min_key_bytes(16),
        "header" => policy.key_headers([HeaderName::from_static("paypal-request-id")]),
        "methods" => policy.methods([Method::POST, Method::PUT, Method::DELETE]),
        "reject" => policy.rules(|rules| rules.wait = Duration::ZERO),
        "wait" => policy.rules(|rules| rules.wait = 3 * SECOND),
        "canonical" => policy.canonical_json(),
        "tenant" => policy.key_covers(Covers::Tenant),
        "stripe" => Policy::stripe(scope),
        "lease" => hasty,
        "careful" => hasty.rules(|rules| rules.after_crash = AfterCrash::Uncertain),
        "brief" => policy.rules(|rules| rules.keep = 6 * SECOND),
        "small" => policy.max_request_bytes(1024).max_response_bytes(1024),
        "headers" => policy.replay_all_headers(),
        _ => policy,
    }
}

/// Where the fixture stands.
pub(crate) enum Place {
    Bare,
    BehindProxy,
    Layered(Arc<dyn IdempotencyStore>),
}

/// The application, listening.
pub(crate) struct Fixture {
    pub(crate) address: String,
    cases: Cases,
    serving: JoinHandle<()>,
}

/// The executions of each case.
type Cases = Arc<Mutex<HashMap<String, Vec<Value>>>>;

impl Fixture {
    pub(crate) async fn start(place: Place) -> Self {
        Self::on(Cases::default(), place).await
    }

    /// Another instance that counts in the same place.
    pub(crate) async fn another(&self, place: Place) -> Self {
        Self::on(Arc::clone(&self.cases), place).await
    }

    async fn on(cases: Cases, place: Place) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let serving = tokio::spawn(serve(listener, app(Arc::clone(&cases), place)));
        Self { address, cases, serving }
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn app(cases: Cases, place: Place) -> Router {
    let mut routes = ROUTES.to_vec();
    let mut app = Router::new();
    let orders = || any(act).with_state(Arc::clone(&cases));
    if let Place::Layered(store) = place {
        let keys = IdempotencyLayer::new(store, policy("default"));
        routes.push("guarded");
        for route in &routes {
            let orders = orders().layer(keys.with_policy(policy(route)));
            app = app.route(&format!("/conform/{route}/{{*more}}"), orders);
        }
        app = app.layer(middleware::from_fn(guard)).layer(Extension(Inside));
    } else {
        app = app.route("/conform/{route}/{*more}", orders());
    }
    let about = json!({
        "routes": routes,
        "control_headers": ["idempotency-verdict", "idempotency-keep"],
    })
    .to_string();
    let cases = get(|State(cases): State<Cases>, Path(case): Path<String>| async move {
        let runs = cases.lock().unwrap().get(&case).cloned().unwrap_or_default();
        json!({ "runs": runs }).to_string()
    })
    .with_state(cases);
    app.route("/conform", get(|| async { about })).route("/conform/cases/{case}", cases)
}

/// That the keys are in the same process.
#[derive(Clone, Copy)]
struct Inside;

/// Turns away who may not, before the keys are asked.
async fn guard(request: Request, next: Next) -> Response {
    let is_revoked = request.headers().get("authorization").is_some_and(|it| it == "revoked");
    if is_revoked { StatusCode::FORBIDDEN.into_response() } else { next.run(request).await }
}

/// That nothing is to be answered.
#[derive(Clone, Copy)]
struct Vanish;

async fn serve(listener: TcpListener, app: Router) {
    while let Ok((stream, _)) = listener.accept().await {
        let app = tower_service(app.clone());
        tokio::spawn(async move {
            let builder = auto::Builder::new(TokioExecutor::new());
            let service = TowerToHyperService::new(app);
            builder.serve_connection(TokioIo::new(stream), service).await.ok();
        });
    }
}

/// An error closes the connection, or resets the stream.
fn tower_service(
    app: Router,
) -> impl tower::Service<
    http::Request<hyper::body::Incoming>,
    Response = Response,
    Error = &'static str,
    Future: Send,
> + Clone
+ Send
+ 'static {
    tower::service_fn(move |request: http::Request<hyper::body::Incoming>| {
        let answering = tower::ServiceExt::oneshot(app.clone(), request.map(Body::new));
        async move {
            let response: Result<Response, Infallible> = answering.await;
            let response = response.unwrap_or_else(|never| match never {});
            if response.extensions().get::<Vanish>().is_some() {
                return Err("vanished");
            }
            Ok(response)
        }
    })
}

/// Counts an execution, and does what the request asks for.
async fn act(
    State(cases): State<Cases>,
    inside: Option<Extension<Inside>>,
    attempt: Option<Extension<Attempt>>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let run = match &attempt {
        Some(Extension(attempt)) => {
            json!({"attempt": attempt.number(), "fence": attempt.token().0})
        }
        None => json!({
            "attempt": text("idempotency-attempt").map(|it| it.parse::<u32>().unwrap()),
            "fence": text("idempotency-fence").map(|it| it.parse::<u64>().unwrap()),
        }),
    };
    let mut run = run;
    run["key"] = text("idempotency-key").into();
    let case = text("conform-case").unwrap_or_default().to_owned();
    let number = {
        let mut cases = cases.lock().unwrap();
        let runs = cases.entry(case).or_default();
        runs.push(run);
        runs.len()
    };
    let acts = Acts::read(&parts.headers);
    sleep(acts.millis("after")).await;
    acts.answer(number, body, inside.is_some(), &parts.headers)
}

/// The words of `Conform-Act`.
struct Acts(HashMap<String, String>);

impl Acts {
    fn read(headers: &HeaderMap) -> Self {
        let words = headers.get("conform-act").and_then(|value| value.to_str().ok());
        let words = words.unwrap_or_default().split(' ').map(|word| {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            (name.to_owned(), value.to_owned())
        });
        Self(words.collect())
    }

    fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.0.get(name).map(|value| value.parse().unwrap())
    }

    fn millis(&self, name: &str) -> Duration {
        Duration::from_millis(self.number(name).unwrap_or(0))
    }

    fn answer(&self, number: usize, body: Bytes, inside: bool, asked: &HeaderMap) -> Response {
        if self.has("vanish") && !inside {
            return Extension(Vanish).into_response();
        }
        assert!(!self.has("panic") || !inside, "as it was asked to");
        let status = if self.has("vanish") { Some(502) } else { self.number("status") };
        let status = if self.has("panic") { Some(500) } else { status };
        let status = u16::try_from(status.unwrap_or(201)).unwrap();
        let mut response = Response::new(self.body(number, body));
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        let headers = response.headers_mut();
        headers.insert("location", format!("/orders/{number}").parse().unwrap());
        headers.insert("content-type", HeaderValue::from_static("application/json"));
        if self.has("short") {
            headers.insert("content-length", HeaderValue::from_static("100"));
        }
        if self.has("trailer") {
            headers.insert("trailer", HeaderValue::from_static("x-conform-end"));
        }
        for line in asked.get_all("conform-header") {
            let (name, value) = line.to_str().unwrap().split_once(": ").unwrap();
            headers.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        self.direct(&mut response, inside);
        response
    }

    fn body(&self, number: usize, sent: Bytes) -> Body {
        let order = Bytes::from(format!("{{\"order\":{number}}}"));
        if self.number("status") == Some(204) {
            Body::empty()
        } else if self.has("echo") {
            Body::from(sent)
        } else if let Some(size) = self.number("bytes") {
            Body::from(vec![b'x'; usize::try_from(size).unwrap()])
        } else if self.has("short") {
            let broken = stream::once(async {
                // Time for the head to go out.
                sleep(Duration::from_millis(200)).await;
                Err(std::io::Error::other("as it was asked to"))
            });
            Body::from_stream(stream::iter([Ok(order)]).chain(broken))
        } else if self.has("pieces") {
            Body::new(StreamBody::new(pieces(&order, self.millis("pause"), self.has("trailer"))))
        } else {
            Body::from(order)
        }
    }

    /// Says what is to be kept: to the layer, or to the proxy.
    fn direct(&self, response: &mut Response, inside: bool) {
        let verdicts = [
            ("final", Verdict::Final),
            ("retryable", Verdict::Retryable),
            ("not-started", Verdict::NotStarted),
            ("vanish", Verdict::Unknown),
        ];
        for (word, verdict) in verdicts.into_iter().filter(|(word, _)| self.has(word)) {
            if inside {
                response.extensions_mut().insert(verdict);
            } else {
                response.headers_mut().insert("idempotency-verdict", word.parse().unwrap());
            }
        }
        if let Some(seconds) = self.number("keep") {
            if inside {
                response.extensions_mut().insert(Retention(Duration::from_secs(seconds)));
            } else {
                response.headers_mut().insert("idempotency-keep", seconds.into());
            }
        }
    }
}

type Frames = stream::BoxStream<'static, Result<http_body::Frame<Bytes>, Infallible>>;

/// The body in two pieces, of a length that nobody announces.
fn pieces(whole: &Bytes, pause: Duration, trailer: bool) -> Frames {
    let half = whole.len() / 2;
    let (first, rest) = (whole.slice(..half), whole.slice(half..));
    let rest = stream::once(async move {
        sleep(pause).await;
        Ok(http_body::Frame::data(rest))
    });
    let pieces = stream::iter([Ok(http_body::Frame::data(first))]).chain(rest);
    if !trailer {
        return pieces.boxed();
    }
    let end = HeaderMap::from_iter([(
        HeaderName::from_static("x-conform-end"),
        HeaderValue::from_static("yes"),
    )]);
    pieces.chain(stream::iter([Ok(http_body::Frame::trailers(end))])).boxed()
}
