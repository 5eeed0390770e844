//! The endpoint under test, and one behaviour's own corner of it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use semel_core::{EventId, Failure};
use serde::Deserialize;
use tokio::time::{Instant, sleep, timeout};

use super::Wrong;
use super::call::{Call, Payload};
use super::reply::Reply;
use crate::exit::Problem;

/// The endpoint, at one address or several.
pub(super) struct Ground {
    pub(super) bases: Vec<String>,
    pub(super) http1: Client<HttpConnector, Payload>,
    pub(super) http2: Client<HttpConnector, Payload>,
    fixture: Fixture,
}

/// What the endpoint says of itself.
#[derive(Deserialize)]
struct Fixture {
    routes: Vec<String>,
    /// Headers between its parts that no client may see.
    #[serde(default)]
    control_headers: Vec<String>,
}

/// One execution, as the handler saw it.
#[derive(Deserialize)]
pub(super) struct Run {
    pub(super) attempt: Option<u32>,
    pub(super) fence: Option<u64>,
    pub(super) key: Option<String>,
}

impl Ground {
    /// Asks the endpoint what it has.
    pub(super) async fn open(urls: &[String]) -> Result<Self, Problem> {
        // A connection each: one that the server closes after a refusal is not used again.
        let client = || {
            let mut builder = Client::builder(TokioExecutor::new());
            builder.pool_timer(TokioTimer::new()).pool_max_idle_per_host(0);
            builder
        };
        let bases: Vec<String> =
            urls.iter().map(|url| url.trim_end_matches('/').to_owned()).collect();
        for base in &bases {
            check_url(base)?;
        }
        let fixture = Fixture { routes: Vec::new(), control_headers: Vec::new() };
        let (http1, http2) = (client().build_http(), client().http2_only(true).build_http());
        let mut ground = Self { bases, http1, http2, fixture };
        for instance in 0..ground.bases.len() {
            let call = Call::new(Method::GET, instance, "");
            let fixture = match ground.send(&call).await {
                Ok(reply) => serde_json::from_slice(&reply.body).map_err(|error| {
                    format!("{} with a body that is not as documented: {error}", reply.status)
                }),
                Err(error) => Err(error),
            };
            ground.fixture = fixture.map_err(|why| no_endpoint(&ground.bases[instance], &why))?;
        }
        Ok(ground)
    }

    pub(super) fn has(&self, route: &str) -> bool {
        self.fixture.routes.iter().any(|there| there == route)
    }

    /// Sends it; again if the endpoint had no store for a while, since nothing was run then.
    async fn send(&self, call: &Call) -> Result<Reply, String> {
        const PATIENCE: Duration = Duration::from_secs(30);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = timeout(PATIENCE, call.clone().send(self)).await;
            let reply = answer.unwrap_or_else(|_| Err(format!("no answer after {PATIENCE:?}")))?;
            if !reply.is_of_no_store() || Instant::now() > deadline {
                return Ok(reply);
            }
            sleep(Duration::from_millis(100)).await;
        }
    }
}

const EFFECT: &str = "nothing was tried";

fn check_url(url: &str) -> Result<(), Problem> {
    let uri = url.parse::<Uri>().ok();
    if uri.is_some_and(|uri| uri.scheme_str() == Some("http") && uri.query().is_none()) {
        return Ok(());
    }
    let failure = Failure::misconfigured("E-CONFORM-URL", "this is no URL that can be used")
        .with_fix("write http://HOST:PORT/PATH; TLS is not spoken");
    Err(Problem::new(failure, url, EFFECT).of_usage())
}

fn no_endpoint(base: &str, why: &str) -> Problem {
    let what = format!("it does not answer as docs/conformance.md asks for: {why}");
    let failure = Failure::unavailable("E-CONFORM-ENDPOINT", what)
        .with_fix(format!("look at what it says: curl -i {base}"));
    Problem::new(failure, base, EFFECT)
}

/// One behaviour's own corner: a name to count executions by, and a key.
#[derive(Clone)]
pub(super) struct Probe {
    pub(super) ground: Arc<Ground>,
    case: String,
    pub(super) key: String,
}

impl Probe {
    pub(super) fn new(ground: &Arc<Ground>) -> Self {
        let (case, key) = (EventId::now().to_string(), EventId::now().to_string());
        Self { ground: Arc::clone(ground), case, key }
    }

    /// The same with another key, to count in the same place.
    pub(super) fn anew(&self) -> Self {
        Self { key: EventId::now().to_string(), ..self.clone() }
    }

    /// A POST with the key to the orders of a route.
    pub(super) fn post(&self, route: &str) -> Call {
        Call::new(Method::POST, 0, &format!("/{route}/orders"))
            .header("conform-case", &self.case)
            .header("conform-tenant", "acme")
            .header("content-type", "application/json")
            .header("idempotency-key", &self.key)
            .body("{\"total\":99,\"currency\":\"EUR\"}")
    }

    pub(super) async fn send(&self, call: &Call) -> Result<Reply, Wrong> {
        self.ground.send(call).await.map_err(Wrong::Failed)
    }

    /// Sends it while the caller does something else.
    pub(super) fn start(&self, call: &Call) -> Started {
        let (probe, call) = (self.clone(), call.clone());
        Started(tokio::spawn(async move { probe.send(&call).await }))
    }

    /// The executions so far, in the order they began.
    pub(super) async fn runs(&self) -> Result<Vec<Run>, Wrong> {
        #[derive(Deserialize)]
        struct Case {
            runs: Vec<Run>,
        }
        let call = Call::new(Method::GET, 0, &format!("/cases/{}", self.case));
        let reply = self.send(&call).await?;
        let case = serde_json::from_slice::<Case>(&reply.body);
        case.map(|case| case.runs).map_err(|error| {
            Wrong::Failed(format!("the executions cannot be read ({error}): {reply}"))
        })
    }

    /// That there were so many executions, and no more.
    pub(super) async fn ran(&self, times: usize) -> Result<(), Wrong> {
        let runs = self.runs().await?.len();
        ensure(runs == times, || format!("{runs} executions where {times} are right"))
    }

    /// Waits until so many executions have begun.
    pub(super) async fn begun(&self, times: usize) -> Result<(), Wrong> {
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.runs().await?.len() < times {
            ensure(Instant::now() < deadline, || format!("execution {times} does not begin"))?;
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Repeats a call for as long as another is said to be in progress.
    pub(super) async fn settled(&self, call: &Call) -> Result<Reply, Wrong> {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let reply = self.send(call).await?;
            let is_waiting = reply.status == 409 && reply.header("retry-after").is_some();
            if !is_waiting {
                return Ok(reply);
            }
            ensure(Instant::now() < deadline, || format!("it stays in progress: {reply}"))?;
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// That no header between the endpoint's own parts has come through.
    pub(super) fn hides_controls(&self, reply: &Reply) -> Result<(), Wrong> {
        let shown = self.ground.fixture.control_headers.iter();
        let shown: Vec<_> = shown.filter(|name| reply.header(name).is_some()).collect();
        ensure(shown.is_empty(), || format!("the client sees {shown:?}"))
    }
}

/// A call that is under way; hung up on when dropped.
pub(super) struct Started(tokio::task::JoinHandle<Result<Reply, Wrong>>);

impl Started {
    pub(super) async fn reply(mut self) -> Result<Reply, Wrong> {
        let ended = (&mut self.0).await;
        ended.unwrap_or_else(|_| Err(Wrong::Failed("the call broke off".into())))
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Fails with these words unless it is so.
pub(super) fn ensure(is_so: bool, otherwise: impl FnOnce() -> String) -> Result<(), Wrong> {
    if is_so { Ok(()) } else { Err(Wrong::Failed(otherwise())) }
}

/// The same bytes, as a piece of a body.
pub(super) fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}
