//! Business rows, events and key in one transaction: a service that moves money is killed at every
//! step, and what its handler may do after the commit, or without one.

mod bank;
#[cfg(feature = "sqlite")]
mod claim;

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{Response, StatusCode};
use axum::middleware::{Next, from_fn};
use futures_util::future::{BoxFuture, join_all, poll_fn};
use semel_core::IdempotencyStore;
use semel_http::{IdempotencyLayer, Policy, Scope};
use tokio::time::timeout;
use tower::ServiceExt;

/// A service that moves money, without its layer, and its keys.
pub(crate) struct Service {
    routes: Router,
    keys: Arc<dyn IdempotencyStore>,
}

/// Where a process dies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Death {
    /// When what the handler waits for the n-th time has come.
    AtWait(usize),
    /// This long after the handler has started.
    After(Duration),
    /// When the handler has returned, before the layer knows.
    AfterHandler,
    /// When the layer has answered, before the client knows.
    AfterAnswer,
    Never,
}

impl Death {
    fn parse(text: &str) -> Self {
        match text {
            "handler" => Self::AfterHandler,
            "answer" => Self::AfterAnswer,
            step => match step.strip_prefix("after-") {
                Some(number) => {
                    let longer = 1.3_f64.powi(number.parse().unwrap());
                    Self::After(Duration::from_micros(50).mul_f64(longer))
                }
                None => Self::AtWait(step.split('.').next().unwrap().parse().unwrap()),
            },
        }
    }
}

const SERVICE: &str = "SEMEL_TEST_TRANSFER_SERVICE";
const DEATH: &str = "SEMEL_TEST_TRANSFER_DEATH";
const LEASE: Duration = Duration::from_secs(1);
const START: i64 = 1000;

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn killed_at_every_step_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("bank.db").display());
    bank::open(&url).await;
    kill_at_every_step(&url).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn killed_at_every_step_on_postgres() {
    let Some(database) = crate::postgres::Database::new().await else { return };
    bank::open(&database.url()).await;
    kill_at_every_step(&database.url()).await;
}

#[cfg(feature = "mysql")]
#[tokio::test]
async fn killed_at_every_step_on_mysql() {
    let Some(database) = crate::mysql::Database::new().await else { return };
    bank::open(&database.url()).await;
    kill_at_every_step(&database.url()).await;
}

/// One transfer per step, each killed there; then each is sent again, with its key.
async fn kill_at_every_step(url: &str) {
    let (mut keys, mut survivors, mut last) = (Vec::new(), 0, 0);
    for death in steps(url) {
        let has_died = dies(url, &death).await;
        keys.push(death);
        (survivors, last) = if has_died { (survivors, 0) } else { (survivors + 1, last + 1) };
        // Nothing was left to wait for.
        if last == 3 {
            break;
        }
    }
    assert!(last == 3 && keys.len() - survivors >= 5, "{survivors} of {} lived", keys.len());

    let service = bank::connect(url).await;
    let app = protected(service, Death::Never);
    let retries = join_all(keys.iter().map(|key| send(app.clone(), key))).await;
    let replays = retries.iter().filter(|(_, _, is_replay)| *is_replay).count();
    for ((status, body, _), key) in retries.iter().zip(&keys) {
        assert_eq!((*status, body.as_str()), (StatusCode::CREATED, r#"{"moved":1}"#), "step {key}");
    }
    // All that were committed: at least those that returned.
    let returned = survivors + 2;
    assert!((returned..keys.len()).contains(&replays), "{replays} of {} replayed", keys.len());

    let moved = i64::try_from(keys.len()).unwrap();
    let books = bank::books(url).await;
    assert_eq!(
        books.balances,
        [("alice".to_owned(), START - moved), ("bob".to_owned(), START + moved)]
    );
    keys.sort();
    assert_eq!(books.transfers, keys, "one transfer per key");
    assert_eq!(books.events, moved, "one event per transfer");
}

/// A server mostly answers later than it is asked, so each of its answers is a step; three times,
/// since a process that was held up may find the answer there. SQLite is often there at once, and
/// time has to be cut into steps.
fn steps(url: &str) -> impl Iterator<Item = String> {
    let is_file = url.starts_with("sqlite");
    let steps = (1..60).flat_map(move |number| {
        let rounds = if is_file { 1 } else { 3 };
        let name = move |round| match is_file {
            true => format!("after-{number}"),
            false => format!("{number}.{round}"),
        };
        (0..rounds).map(name)
    });
    ["handler", "answer"].map(str::to_owned).into_iter().chain(steps)
}

async fn dies(url: &str, death: &str) -> bool {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "transfer::a_service_that_dies"]).env(SERVICE, url).env(DEATH, death);
    let child = child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let ended = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap().status);
    let status = timeout(Duration::from_secs(60), ended).await.unwrap().unwrap();
    assert!(status.success() || status.code().is_none(), "{status} at step {death}");
    !status.success()
}

/// What the child does; on its own it does nothing.
#[tokio::test]
async fn a_service_that_dies() {
    let (Ok(url), Ok(key)) = (std::env::var(SERVICE), std::env::var(DEATH)) else { return };
    let death = Death::parse(&key);
    let app = protected(bank::connect(&url).await, death);
    let (status, ..) = send(app, &key).await;
    assert_eq!(status, StatusCode::CREATED);
    if death == Death::AfterAnswer {
        std::process::abort();
    }
}

fn protected(service: Service, death: Death) -> Router {
    let policy = Policy::ietf(Scope::single_tenant()).require_key().rules(|rules| {
        (rules.lease, rules.wait) = (LEASE, 20 * LEASE);
    });
    let layer = IdempotencyLayer::new(service.keys, policy);
    let dying = move |request: Request, next: Next| dying(next.run(request), death);
    service.routes.layer(from_fn(dying)).layer(layer)
}

fn dying<F>(handler: F, death: Death) -> BoxFuture<'static, Response<Body>>
where
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let (mut handler, mut waits) = (Box::pin(handler), 0);
    if let Death::After(time) = death {
        std::thread::spawn(move || {
            std::thread::sleep(time);
            std::process::abort();
        });
    }
    Box::pin(poll_fn(move |context| {
        if waits > 0 && Death::AtWait(waits) == death {
            std::process::abort();
        }
        waits += 1;
        let polled = handler.as_mut().poll(context);
        if let (Poll::Ready(_), Death::AfterHandler) = (&polled, death) {
            std::process::abort();
        }
        polled
    }))
}

/// Status, body, and whether it is a replay.
async fn send(app: Router, key: &str) -> (StatusCode, String, bool) {
    let order = format!(r#"{{"from":"alice","to":"bob","amount":1,"reference":"{key}"}}"#);
    let request = Request::post("/transfers")
        .header("content-type", "application/json")
        .header("idempotency-key", format!("key-{key}"))
        .body(Body::from(order))
        .unwrap();
    let response = timeout(Duration::from_secs(60), app.oneshot(request)).await.unwrap().unwrap();
    let (status, is_replay) =
        (response.status(), response.headers().contains_key("idempotent-replayed"));
    let body = to_bytes(response.into_body(), 10_000).await.unwrap();
    (status, String::from_utf8_lossy(&body).into_owned(), is_replay)
}
