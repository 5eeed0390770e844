//! Two requests with one key at the same time.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use semel_core::memory::MemoryKeys;
use semel_http::Attempt;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::support::*;

/// A handler that takes this long.
fn slow(policy: semel_http::Policy, takes: Duration) -> Api {
    api(policy, move |number, request| async move {
        sleep(takes).await;
        place_order(number, request).await
    })
}

fn in_background(api: &Api) -> tokio::task::JoinHandle<Answer> {
    let api = api.clone();
    tokio::spawn(async move { api.post("k", "").await })
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_waits_for_the_first_and_gets_its_answer() {
    let api = slow(ietf(), Duration::from_millis(800));
    let first = in_background(&api);
    sleep(Duration::from_millis(1)).await;
    let second = api.post("k", "").await;
    assert_eq!((second.status, second.is_replay()), (StatusCode::CREATED, true));
    assert_eq!((second.body, api.runs()), (first.await.unwrap().body, 1));
}

#[tokio::test(start_paused = true)]
async fn after_a_second_it_is_refused_and_later_replayed() {
    let api = slow(ietf(), Duration::from_secs(5));
    let first = in_background(&api);
    sleep(Duration::from_millis(1)).await;
    let asked = Instant::now();
    let second = api.post("k", "").await;
    assert_eq!(asked.elapsed(), Duration::from_secs(1));
    assert_eq!((second.status, second.problem()), (StatusCode::CONFLICT, "in-progress".to_owned()));
    assert_eq!(second.header("retry-after"), Some("1"));
    first.await.unwrap();
    assert!(api.post("k", "").await.is_replay(), "the refusal itself is not stored");
    assert_eq!(api.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn with_a_wait_of_zero_it_is_refused_at_once() {
    let api = slow(hasty(), Duration::from_millis(10));
    let first = in_background(&api);
    sleep(Duration::from_millis(1)).await;
    let asked = Instant::now();
    assert_eq!(api.post("k", "").await.problem(), "in-progress");
    assert_eq!(asked.elapsed(), Duration::ZERO);
    first.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn when_the_first_is_not_kept_exactly_one_waiter_goes_next() {
    let api = api(ietf(), |number, request| async move {
        sleep(Duration::from_millis(100)).await;
        if number == 1 {
            return http::Response::builder().status(503).body(axum::body::Body::empty()).unwrap();
        }
        place_order(number, request).await
    });
    let mut all: JoinSet<_> = (0..10)
        .map(|_| {
            let api = api.clone();
            async move { api.post("k", "").await }
        })
        .collect();
    let (mut created, mut failed, mut replayed) = (0, 0, 0);
    while let Some(answer) = all.join_next().await {
        match answer.unwrap() {
            answer if answer.is_replay() => replayed += 1,
            answer if answer.status == StatusCode::CREATED => created += 1,
            answer => failed += usize::from(answer.status == 503),
        }
    }
    assert_eq!((created, failed, replayed, api.runs()), (1, 1, 8, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_hundred_at_once_run_once() {
    for instances in [1, 3] {
        let store = Arc::new(MemoryKeys::new());
        let apis: Vec<_> = (0..instances)
            .map(|_| {
                // All get the answer, however slow the machine is.
                let patient = ietf().rules(|rules| rules.wait = Duration::from_secs(60));
                api_on(store.clone(), patient, |number, request| async move {
                    sleep(Duration::from_millis(20)).await;
                    place_order(number, request).await
                })
            })
            .collect();
        let mut all = JoinSet::new();
        for number in 0..200 {
            let api = apis[number % instances].clone();
            all.spawn(async move { api.post("k", "{}").await });
        }
        let answers = all.join_all().await;
        let firsts = answers.iter().filter(|answer| answer.header(MARKER).is_none()).count();
        assert!(answers.iter().all(|answer| answer.status == StatusCode::CREATED));
        assert!(answers.iter().all(|answer| answer.body == answers[0].body));
        assert_eq!(firsts, 1);
        assert_eq!(apis.iter().map(Api::runs).sum::<usize>(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_goes_away_disturbs_nobody() {
    let api = slow(ietf(), Duration::from_millis(500));
    let first = in_background(&api);
    sleep(Duration::from_millis(1)).await;
    let (leaving, staying) = (in_background(&api), in_background(&api));
    sleep(Duration::from_millis(100)).await;
    leaving.abort();
    assert_eq!(first.await.unwrap().status, StatusCode::CREATED);
    assert!(staying.await.unwrap().is_replay());
    assert_eq!(api.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_outlives_its_lease_keeps_it() {
    let api = slow(hasty(), Duration::from_secs(100));
    let first = in_background(&api);
    for _ in 0..9 {
        sleep(Duration::from_secs(11)).await;
        assert_eq!(api.post("k", "").await.problem(), "in-progress");
    }
    assert_eq!(first.await.unwrap().status, StatusCode::CREATED);
    assert!(api.post("k", "").await.is_replay());
    assert_eq!(api.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn routes_with_a_short_lease_are_renewed_in_time_beside_long_ones() {
    let long = slow(hasty(), Duration::from_secs(60));
    let policy = hasty().rules(|rules| rules.lease = Duration::from_secs(3));
    let app = long.app.clone();
    let _first = in_background(&long);
    sleep(Duration::from_millis(1)).await;

    let short = axum::Router::new()
        .fallback(async || {
            sleep(Duration::from_secs(10)).await;
            "slow"
        })
        .layer(long.layer.with_policy(policy));
    let short = Api { app: short, ..long.clone() };
    let request = || keyed("k").uri("/short").body(axum::body::Body::empty()).unwrap();
    let first = tokio::spawn({
        let short = short.clone();
        async move { short.send(request()).await }
    });
    for _ in 0..9 {
        sleep(Duration::from_secs(1)).await;
        assert_eq!(short.send(request()).await.problem(), "in-progress");
    }
    assert_eq!(first.await.unwrap().body, "slow");
    drop(app);
}

#[tokio::test(start_paused = true)]
async fn the_handler_sees_its_attempt() {
    let api = api(ietf(), |_, request: axum::extract::Request| async move {
        let attempt = request.extensions().get::<Attempt>().unwrap();
        assert!(attempt.is_held());
        format!("{} {}", attempt.number(), attempt.child("bank"))
    });
    let first = api.post("k", "").await;
    assert!(first.body.starts_with(b"1 "));
    assert_ne!(api.post("other", "").await.body, first.body);
}
