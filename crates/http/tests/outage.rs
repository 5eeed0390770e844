//! A store that fails before, during and after the handler.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::StatusCode;
use tokio::time::sleep;

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_means_503_and_nothing_runs() {
    let store = Arc::new(Flaky::new());
    let api = api_on(store.clone(), ietf(), place_order);
    store.down.store(true, Ordering::SeqCst);
    let answer = api.post("k", "").await;
    assert_eq!((answer.status.as_u16(), answer.problem()), (503, "store-unavailable".to_owned()));
    assert_eq!((answer.header("retry-after"), api.runs()), (Some("1"), 0));
    store.down.store(false, Ordering::SeqCst);
    assert_eq!(api.post("k", "").await.status, StatusCode::CREATED);
}

#[tokio::test(start_paused = true)]
async fn requests_without_a_key_do_not_need_the_store() {
    let store = Arc::new(Flaky::new());
    store.down.store(true, Ordering::SeqCst);
    let api = api_on(store, ietf(), place_order);
    let mut request = post("k", "");
    request.headers_mut().remove(KEY);
    assert_eq!(api.send(request).await.status, StatusCode::CREATED);
}

#[tokio::test(start_paused = true)]
async fn a_route_that_fails_open_runs_and_says_so() {
    let store = Arc::new(Flaky::new());
    store.down.store(true, Ordering::SeqCst);
    let api = api_on(store, ietf().fail_open(), place_order);
    let answer = api.post("k", "").await;
    assert_eq!((answer.status, api.runs()), (StatusCode::CREATED, 1));
    assert_eq!(answer.header("idempotency-status"), Some("unprotected"));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_at_completion_loses_neither_the_answer_nor_the_result() {
    let store = Arc::new(Flaky::new());
    let api = api_on(store.clone(), hasty(), place_order);
    store.failing_completions.store(10, Ordering::SeqCst);
    let first = api.post("k", "").await;
    assert_eq!(first.status, StatusCode::CREATED);
    assert_eq!(first.header("idempotency-status"), Some("not-stored"));
    // The lease is kept alive all the while: ten failures take longer than it lasts.
    while store.failing_completions.load(Ordering::SeqCst) > 0 {
        assert_eq!(api.post("k", "").await.problem(), "in-progress");
        sleep(Duration::from_secs(1)).await;
    }
    api.layer.drained().await;
    let retry = api.post("k", "").await;
    assert_eq!((retry.is_replay(), &retry.body, api.runs()), (true, &first.body, 1));
}

#[tokio::test(start_paused = true)]
async fn an_outage_longer_than_the_lease_still_loses_nothing_if_nobody_else_could_ask() {
    let store = Arc::new(Flaky::new());
    let switch = store.clone();
    let api = api_on(store.clone(), hasty(), move |number, request| {
        switch.down.store(true, Ordering::SeqCst);
        place_order(number, request)
    });
    let first = api.post("k", "").await;
    assert_eq!(first.header("idempotency-status"), Some("not-stored"));
    sleep(Duration::from_secs(300)).await;
    store.down.store(false, Ordering::SeqCst);
    api.layer.drained().await;
    assert_eq!(api.post("k", "").await.body, first.body);
    assert_eq!(api.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_completion_whose_answer_is_lost_is_recognised_as_ones_own() {
    let store = Arc::new(Flaky::new());
    let api = api_on(store.clone(), hasty(), place_order);
    store.lying_completions.store(1, Ordering::SeqCst);
    let first = api.post("k", "").await;
    api.layer.drained().await;
    let retry = api.post("k", "").await;
    assert_eq!((retry.is_replay(), &retry.body, api.runs()), (true, &first.body, 1));
}

#[tokio::test(start_paused = true)]
async fn a_completion_sent_twice_is_not_mistaken_for_a_successors() {
    let store = Arc::new(Flaky::new());
    let api = api_on(store.clone(), hasty(), place_order);
    store.doubled_completions.store(1, Ordering::SeqCst);
    let first = api.post("k", "").await;
    assert!(!first.is_replay());
    assert_eq!(first.header("idempotency-status"), None);
    assert!(api.post("k", "").await.is_replay());
}

#[tokio::test(start_paused = true)]
async fn a_release_that_fails_is_tried_again() {
    let store = Arc::new(Flaky::new());
    let switch = store.clone();
    let api = api_on(store.clone(), hasty(), move |number, request| {
        let switch = switch.clone();
        async move {
            if number == 1 {
                switch.down.store(true, Ordering::SeqCst);
                return http::Response::builder().status(500).body("".into()).unwrap();
            }
            place_order(number, request).await
        }
    });
    assert_eq!(api.post("k", "").await.status.as_u16(), 500);
    store.down.store(false, Ordering::SeqCst);
    api.layer.drained().await;
    assert_eq!(api.post("k", "").await.status, StatusCode::CREATED);
}
