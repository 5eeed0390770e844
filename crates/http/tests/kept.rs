//! Which results are kept.

use axum::Extension;
use axum::body::Body;
use axum::extract::Request;
use axum::response::IntoResponse;
use http::StatusCode;
use semel_core::idempotency::AfterCrash;
use semel_http::{Attempt, Policy, Scope, Verdict};

use crate::support::*;

/// The handler answers with the status in the path.
fn echo(policy: Policy) -> Api {
    api(policy, |_, request: Request| async move {
        StatusCode::from_bytes(&request.uri().path().as_bytes()[1..]).unwrap()
    })
}

async fn is_kept(api: &Api, status: u16) -> bool {
    let request = || keyed("k").uri(format!("/{status}")).body(Body::empty()).unwrap();
    let first = api.send(request()).await;
    assert_eq!((first.status.as_u16(), first.is_replay()), (status, false));
    let again = api.send(request()).await;
    assert_eq!(again.status.as_u16(), status);
    again.is_replay()
}

const TRANSIENT: [u16; 6] = [401, 403, 408, 421, 425, 429];

#[tokio::test]
async fn by_default_server_errors_and_transient_refusals_release_the_key() {
    let api = echo(ietf());
    for status in [200, 201, 204, 301, 303, 400, 404, 409, 410, 422] {
        assert!(is_kept(&api, status).await, "{status}");
    }
    for status in TRANSIENT.into_iter().chain([500, 502, 503, 504]) {
        assert!(!is_kept(&api, status).await, "{status}");
    }
}

#[tokio::test]
async fn the_stripe_profile_keeps_server_errors_too() {
    // One key per operation: there it covers no path.
    for status in [200, 404, 500, 503] {
        assert!(is_kept(&echo(Policy::stripe(Scope::single_tenant())), status).await, "{status}");
    }
    for status in TRANSIENT {
        assert!(!is_kept(&echo(Policy::stripe(Scope::single_tenant())), status).await, "{status}");
    }
}

#[tokio::test]
async fn a_policy_can_choose_by_status() {
    let api = echo(ietf().keep_if(|status| status.is_success()));
    assert!(is_kept(&api, 200).await);
    assert!(!is_kept(&api, 404).await);
}

#[tokio::test]
async fn the_handlers_verdict_overrides_the_status() {
    let cases = [
        (StatusCode::INTERNAL_SERVER_ERROR, Verdict::Final, true),
        (StatusCode::TOO_MANY_REQUESTS, Verdict::Final, true),
        (StatusCode::OK, Verdict::Retryable, false),
        (StatusCode::UNPROCESSABLE_ENTITY, Verdict::NotStarted, false),
    ];
    for (status, verdict, kept) in cases {
        let api = api(ietf(), move |_, _| async move { (status, Extension(verdict)) });
        assert_eq!(api.post("k", "").await.status, status);
        assert_eq!(api.post("k", "").await.is_replay(), kept, "{verdict:?}");
    }
}

/// The upstream was lost half-way: the rules on crashes decide.
#[tokio::test]
async fn an_unknown_outcome_is_the_next_attempt_or_never_run_again() {
    let lost = |_, request: Request| async move {
        let attempt = request.extensions().get::<Attempt>().unwrap().number();
        (StatusCode::GATEWAY_TIMEOUT, Extension(Verdict::Unknown), attempt.to_string())
    };
    let again = api(ietf(), lost);
    assert_eq!(again.post("k", "1").await.body, "1");
    assert_eq!(again.post("k", "2").await.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(again.post("k", "1").await.body, "2");

    let never = api(ietf().rules(|rules| rules.after_crash = AfterCrash::Uncertain), lost);
    assert_eq!(never.post("k", "1").await.status, StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(never.post("k", "1").await.problem(), "outcome-unknown");
    assert_eq!(never.runs(), 1);
}

#[tokio::test]
async fn after_not_started_the_key_may_carry_a_corrected_request() {
    let api = api(ietf(), |number, request: Request| async move {
        if number == 1 {
            return (StatusCode::BAD_REQUEST, Extension(Verdict::NotStarted)).into_response();
        }
        place_order(number, request).await
    });
    assert_eq!(api.post("k", "{\"total\":-1}").await.status, StatusCode::BAD_REQUEST);
    assert_eq!(api.post("k", "{\"total\":1}").await.status, StatusCode::CREATED);
    assert!(api.post("k", "{\"total\":1}").await.is_replay());
}
