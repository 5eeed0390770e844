//! Every keyed request is counted once, under what became of it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use semel_core::idempotency::AfterCrash;
use semel_core::telemetry::{IDEMPOTENCY_REQUESTS, IDEMPOTENCY_RUNNING};
use semel_http::{Policy, Verdict};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::support::*;

#[derive(Default)]
struct Counts(Mutex<BTreeMap<String, Arc<AtomicU64>>>);

impl Counts {
    fn cell(&self, key: &Key) -> Arc<AtomicU64> {
        let label = key.labels().next().map(|label| label.value().to_owned());
        let name = label.unwrap_or_else(|| key.name().to_owned());
        Arc::clone(self.0.lock().unwrap().entry(name).or_default())
    }

    fn all(&self) -> BTreeMap<String, u64> {
        let counts = self.0.lock().unwrap();
        counts.iter().map(|(name, count)| (name.clone(), count.load(Ordering::SeqCst))).collect()
    }
}

impl Recorder for Counts {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        assert_eq!(key.name(), IDEMPOTENCY_REQUESTS.name);
        Counter::from_arc(self.cell(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        assert_eq!(key.name(), IDEMPOTENCY_RUNNING.name);
        Gauge::from_arc(self.cell(key))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[test]
fn outcomes_add_up_to_the_keyed_requests() {
    let counts = Counts::default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    metrics::with_local_recorder(&counts, || runtime.block_on(requests_of_all_kinds()));
    let mut all = counts.all();
    assert_eq!(all.remove(IDEMPOTENCY_RUNNING.name), Some(0f64.to_bits()));
    let expected = [
        ("executed", 3),
        ("fenced", 1),
        ("gone", 1),
        ("hung_up", 1),
        ("in_progress", 1),
        ("mismatch", 1),
        ("not_retained", 1),
        ("not_stored", 1),
        ("panicked", 1),
        ("rejected", 1),
        ("released", 1),
        ("replayed", 2),
        ("store_error", 1),
        ("uncertain", 1),
        ("unknown", 1),
        ("unprotected", 1),
    ];
    assert_eq!(all, expected.map(|(name, count)| (name.to_owned(), count)).into());
}

const LEASE: Duration = Duration::from_secs(30);
const LONG: Duration = Duration::from_secs(60);

async fn requests_of_all_kinds() {
    let store = Arc::new(Flaky::new());
    let policy = hasty().max_response_bytes(10).rules(|rules| rules.lease = LEASE);
    let api = api_on(store.clone(), policy.clone(), |_, request: Request| async move {
        match request.uri().path() {
            "/slow" => sleep(Duration::from_secs(1)).await,
            "/long" => sleep(LONG).await,
            "/panic" => panic!("on purpose"),
            "/large" => return http::Response::new(Body::from(vec![0; 11])),
            "/500" => return http::Response::builder().status(500).body(Body::empty()).unwrap(),
            _ => {}
        }
        http::Response::new(Body::empty())
    });
    let unkeyed = Request::builder().method("POST").body(Body::empty()).unwrap();
    api.send(unkeyed).await;
    api.send(to("/", "k")).await; // executed
    api.send(to("/", "k")).await; // replayed
    api.send(to("/?a", "k")).await; // mismatch
    api.send(to("/", "")).await; // rejected
    api.send(to("/panic", "k")).await; // panicked
    api.send(to("/large", "k")).await; // not retained
    api.send(to("/large", "k")).await; // gone
    api.send(to("/500", "k")).await; // released

    let slow = tokio::spawn({
        let (api, slow) = (api.clone(), to("/slow", "k"));
        async move { api.send(slow).await } // executed
    });
    tokio::task::yield_now().await;
    api.send(to("/slow", "k")).await; // in progress
    let patient = api.layer.with_policy(ietf());
    let waiting = Api { app: axum::Router::new().layer(patient), ..api.clone() };
    let brief = Duration::from_millis(1);
    assert!(timeout(brief, waiting.send(to("/slow", "k"))).await.is_err()); // hung up
    slow.await.unwrap();
    api.send(to("/slow", "k")).await; // replayed

    lose_track(&api, &store, policy.clone()).await;
    store.failing_completions.store(1, Ordering::SeqCst);
    api.send(to("/", "late")).await; // not stored
    api.layer.drained().await;
    store.down.store(true, Ordering::SeqCst);
    api.send(to("/", "down")).await; // store error
    let open = api_on(store, policy.fail_open(), place_order);
    open.send(to("/", "down")).await; // unprotected
}

fn to(path: &str, key: &str) -> Request {
    keyed(key).uri(path).body(Body::empty()).unwrap()
}

/// Answers of which nobody knows whether they count, and one that comes too late.
async fn lose_track(api: &Api, store: &Arc<Flaky>, policy: Policy) {
    let careful = policy.rules(|rules| rules.after_crash = AfterCrash::Uncertain);
    let careful = api_on(store.clone(), careful, |_, _| async {
        let mut lost = http::Response::new(Body::empty());
        lost.extensions_mut().insert(Verdict::Unknown);
        lost
    });
    careful.send(to("/lost", "k")).await; // unknown
    careful.send(to("/lost", "k")).await; // uncertain
    let mut long = JoinSet::new();
    let sent = || {
        let (api, long) = (api.clone(), to("/long", "k"));
        async move { api.send(long).await }
    };
    long.spawn(sent()); // fenced: it cannot renew its lease, and the next one takes over
    tokio::task::yield_now().await;
    store.down.store(true, Ordering::SeqCst);
    sleep(LEASE + Duration::from_secs(1)).await;
    store.down.store(false, Ordering::SeqCst);
    long.spawn(sent()); // executed
    long.join_all().await;
}
