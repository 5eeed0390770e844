//! Clients that hang up, handlers that panic, processes that die, owners that wake up late.

use std::convert::Infallible;
use std::future::Ready;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::response::Response;
use http::StatusCode;
use semel_core::idempotency::AfterCrash;
use semel_core::memory::{ManualClock, MemoryKeys};
use semel_http::{Attempt, IdempotencyLayer, Policy};
use tower::{Layer, ServiceExt};

use crate::support::*;

const LEASE: Duration = Duration::from_secs(30);

fn gated(policy: Policy, gate: &Gate) -> Api {
    let gate = gate.clone();
    api(policy, move |number, request| {
        let gate = gate.clone();
        async move {
            gate.pass().await;
            place_order(number, request).await
        }
    })
}

#[tokio::test(start_paused = true)]
async fn a_client_that_hangs_up_does_not_stop_the_handler() {
    let gate = Gate::new();
    let api = gated(ietf(), &gate);
    let client = tokio::spawn({
        let api = api.clone();
        async move { api.post("k", "").await }
    });
    gate.reached().await;
    client.abort();
    assert!(client.await.unwrap_err().is_cancelled());
    gate.open();
    api.layer.drained().await;
    let retry = api.post("k", "").await;
    assert_eq!((retry.status, retry.is_replay(), api.runs()), (StatusCode::CREATED, true, 1));
}

#[tokio::test(start_paused = true)]
async fn an_outer_timeout_does_not_stop_the_handler() {
    let gate = Gate::new();
    let api = gated(ietf(), &gate);
    let timed_out = tokio::time::timeout(Duration::from_secs(2), api.post("k", "")).await;
    assert!(timed_out.is_err());
    gate.open();
    api.layer.drained().await;
    assert!(api.post("k", "").await.is_replay());
    assert_eq!(api.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_hangs_up_during_the_claim_leaves_the_key_free() {
    let (gate, store) = (Gate::new(), Arc::new(Flaky::new()));
    assert!(store.claim_gate.set(gate.clone()).is_ok());
    let api = api_on(store, hasty(), place_order);
    let client = tokio::spawn({
        let api = api.clone();
        async move { api.post("k", "").await }
    });
    gate.reached().await;
    client.abort();
    assert!(client.await.unwrap_err().is_cancelled());
    gate.open(); // the claim of the client that left is made now, and given back
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
    gate.open();
    assert_eq!(api.post("k", "").await.status, StatusCode::CREATED);
    assert_eq!(api.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn drained_waits_for_running_handlers() {
    let gate = Gate::new();
    let api = gated(ietf(), &gate);
    api.layer.drained().await;
    let client = tokio::spawn({
        let api = api.clone();
        async move { api.post("k", "").await }
    });
    gate.reached().await;
    let drained = tokio::time::timeout(Duration::from_secs(60), api.layer.drained()).await;
    assert!(drained.is_err(), "a handler runs");
    gate.open();
    api.layer.drained().await;
    client.await.unwrap();
}

fn panics_once(policy: Policy) -> Api {
    api(policy, |number, request| async move {
        assert_ne!(number, 1, "the handler fails on purpose");
        place_order(number, request).await
    })
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_500_and_by_default_the_retry_runs() {
    let api = panics_once(ietf());
    let first = api.post("k", "").await;
    assert_eq!((first.status.as_u16(), first.problem()), (500, "handler-panicked".to_owned()));
    assert_eq!(api.post("k", "").await.status, StatusCode::CREATED);
    assert_eq!(api.runs(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_panics_before_it_returns_a_future_is_no_different() {
    let layer = IdempotencyLayer::new(Arc::new(MemoryKeys::new()), hasty());
    let service = layer.layer(tower::service_fn(|_| -> Ready<Result<Response, Infallible>> {
        panic!("on purpose")
    }));
    for _ in 0..2 {
        let response = service.clone().oneshot(post("k", "")).await.unwrap();
        assert_eq!(response.status().as_u16(), 500, "the key was released");
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_panic_a_careful_route_says_that_the_outcome_is_unknown() {
    let api = panics_once(ietf().rules(|rules| rules.after_crash = AfterCrash::Uncertain));
    assert_eq!(api.post("k", "").await.status.as_u16(), 500);
    for _ in 0..2 {
        let retry = api.post("k", "").await;
        assert_eq!((retry.status.as_u16(), retry.problem()), (409, "outcome-unknown".to_owned()));
        assert_eq!(retry.json()["operation"].as_str().unwrap().len(), 64);
        assert_eq!(retry.header("retry-after"), None);
    }
    assert_eq!(api.runs(), 1);
}

/// Runs a request in a runtime that is torn down while the handler runs: what a killed process
/// leaves behind is its lease.
fn die_mid_handler(api: &Api, gate: &Gate) {
    let (api, gate) = (api.clone(), gate.clone());
    let process = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_time()
            .build()
            .unwrap();
        runtime.block_on(async {
            let client = tokio::spawn(async move { api.post("k", "").await });
            gate.reached().await;
            drop(client);
        });
        runtime.shutdown_background();
    });
    process.join().unwrap();
}

fn on_manual_clock(policy: Policy, gate: &Gate) -> (Api, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::default());
    let gate = gate.clone();
    let store = Arc::new(MemoryKeys::with_clock(clock.clone()));
    let api = api_on(store, policy, move |number, request: Request| {
        let gate = gate.clone();
        async move {
            let attempt = request.extensions().get::<Attempt>().unwrap().clone();
            if number == 1 {
                gate.pass().await;
            }
            let mut response: Response = place_order(number, request).await;
            let seen = attempt.number().into();
            response.headers_mut().insert("x-attempt", seen);
            response
        }
    });
    (api, clock)
}

#[tokio::test]
async fn after_a_crash_the_key_is_blocked_for_the_lease_and_then_run_again_as_attempt_two() {
    let gate = Gate::new();
    let (api, clock) = on_manual_clock(hasty(), &gate);
    die_mid_handler(&api, &gate);
    clock.advance(LEASE - Duration::from_millis(1));
    assert_eq!(api.post("k", "").await.problem(), "in-progress");
    clock.advance(Duration::from_millis(1));
    let retry = api.post("k", "").await;
    assert_eq!((retry.status, retry.header("x-attempt")), (StatusCode::CREATED, Some("2")));
    assert!(api.post("k", "").await.is_replay());
    assert_eq!(api.runs(), 2);
}

#[tokio::test]
async fn after_a_crash_a_careful_route_runs_nothing() {
    let gate = Gate::new();
    let policy = hasty().rules(|rules| rules.after_crash = AfterCrash::Uncertain);
    let (api, clock) = on_manual_clock(policy, &gate);
    die_mid_handler(&api, &gate);
    assert_eq!(api.post("k", "").await.problem(), "in-progress");
    clock.advance(LEASE);
    for _ in 0..3 {
        assert_eq!(api.post("k", "").await.problem(), "outcome-unknown");
    }
    assert_eq!(api.runs(), 1);
}

#[tokio::test]
async fn a_client_that_hangs_up_while_taking_over_does_not_hide_the_crash() {
    let (gate, claims) = (Gate::new(), Gate::new());
    let clock = Arc::new(ManualClock::default());
    let store = Arc::new(Flaky::on(clock.clone()));
    let policy = hasty().rules(|rules| rules.after_crash = AfterCrash::Uncertain);
    let held = gate.clone();
    let api = api_on(store.clone(), policy, move |number, _| {
        let gate = held.clone();
        async move {
            if number == 1 {
                gate.pass().await;
            }
        }
    });
    die_mid_handler(&api, &gate);
    clock.advance(LEASE);
    assert!(store.claim_gate.set(claims.clone()).is_ok());
    let client = tokio::spawn({
        let api = api.clone();
        async move { api.post("k", "").await }
    });
    claims.reached().await;
    client.abort();
    assert!(client.await.unwrap_err().is_cancelled());
    claims.open(); // the claim of the client that left is made now: attempt 2
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
    clock.advance(LEASE);
    claims.open();
    let retry = api.post("k", "").await;
    assert_eq!((retry.status.as_u16(), api.runs()), (409, 1));
    assert_eq!(retry.problem(), "outcome-unknown");
}

#[tokio::test]
async fn the_result_of_an_owner_that_lost_its_lease_is_refused() {
    let gate = Gate::new();
    let (api, clock) = on_manual_clock(hasty(), &gate);
    let frozen = tokio::spawn({
        let api = api.clone();
        async move { api.post("k", "").await }
    });
    gate.reached().await;
    clock.advance(LEASE);
    let successor = api.post("k", "").await;
    assert_eq!((successor.header("x-attempt"), api.runs()), (Some("2"), 2));
    gate.open();
    let late = frozen.await.unwrap();
    assert_eq!((late.is_replay(), &late.body), (true, &successor.body), "all get one answer");
    let retry = api.post("k", "").await;
    assert_eq!((retry.is_replay(), &retry.body), (true, &successor.body));
    assert_eq!(api.runs(), 2);
}

#[tokio::test]
async fn a_late_result_is_stored_if_nobody_took_over() {
    let gate = Gate::new();
    let (api, clock) = on_manual_clock(hasty(), &gate);
    let frozen = tokio::spawn({
        let api = api.clone();
        async move { api.post("k", "").await }
    });
    gate.reached().await;
    clock.advance(2 * LEASE);
    gate.open();
    assert_eq!(frozen.await.unwrap().status, StatusCode::CREATED);
    assert!(api.post("k", "").await.is_replay());
    assert_eq!(api.runs(), 1);
}

#[tokio::test]
async fn a_late_owner_does_not_touch_a_successor_that_still_runs() {
    let gate = Gate::new();
    let clock = Arc::new(ManualClock::default());
    let store = Arc::new(MemoryKeys::with_clock(clock.clone()));
    let held = gate.clone();
    let api = api_on(store, hasty(), move |number, request| {
        let gate = held.clone();
        async move {
            gate.pass().await;
            place_order(number, request).await
        }
    });
    let send = || {
        let api = api.clone();
        tokio::spawn(async move { api.post("k", "").await })
    };
    let first = send();
    gate.reached().await;
    clock.advance(LEASE);
    let second = send();
    gate.reached().await;
    gate.open(); // permits are taken in order: the first one goes on
    let late = first.await.unwrap();
    assert_eq!(late.header("idempotency-status"), Some("not-stored"));
    assert_eq!(api.post("k", "").await.problem(), "in-progress");
    gate.open();
    let second = second.await.unwrap();
    assert_eq!(api.post("k", "").await.body, second.body);
}
