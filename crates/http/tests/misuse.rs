//! One key for two requests.

use axum::body::Body;
use axum::extract::Request;
use http::{Method, StatusCode};
use semel_core::Secret;
use semel_http::{Covers, Policy, Scope};

use crate::support::*;

fn variants() -> Vec<(&'static str, Request)> {
    let json = "{\"total\":1}";
    let typed = || keyed("k").header("content-type", "application/json");
    vec![
        ("body", typed().body(Body::from("{\"total\":2}")).unwrap()),
        ("no body", typed().body(Body::empty()).unwrap()),
        ("query", typed().uri("/orders?dry=1").body(Body::from(json)).unwrap()),
        ("content type", keyed("k").body(Body::from(json)).unwrap()),
        ("path", typed().uri("/payments").body(Body::from(json)).unwrap()),
        ("method", typed().method(Method::PATCH).body(Body::from(json)).unwrap()),
    ]
}

fn original() -> Request {
    let typed = keyed("k").header("content-type", "application/json");
    typed.body(Body::from("{\"total\":1}")).unwrap()
}

#[tokio::test]
async fn another_request_under_the_key_is_refused_and_harms_nothing() {
    let api = orders(ietf().key_covers(Covers::Tenant));
    let first = api.send(original()).await;
    for round in 0..2 {
        for (name, request) in variants() {
            let answer = api.send(request).await;
            assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY, "{name}, round {round}");
            assert_eq!(answer.problem(), "key-reused");
            assert_eq!((answer.header("retry-after"), answer.header("location")), (None, None));
            assert!(
                !String::from_utf8_lossy(&answer.body).contains("order\""),
                "nothing stored leaks"
            );
        }
    }
    let again = api.send(original()).await;
    assert_eq!((again.is_replay(), &again.body, api.runs()), (true, &first.body, 1));
}

#[tokio::test]
async fn by_default_another_endpoint_is_another_operation() {
    let api = orders(ietf());
    api.send(original()).await;
    for (name, request) in variants() {
        let answer = api.send(request).await;
        let expected = match name {
            "path" | "method" => StatusCode::CREATED,
            _ => StatusCode::UNPROCESSABLE_ENTITY,
        };
        assert_eq!(answer.status, expected, "{name}");
    }
    assert_eq!(api.runs(), 3);
}

#[tokio::test]
async fn a_different_request_while_the_first_runs_is_a_mismatch_not_a_conflict() {
    let gate = Gate::new();
    let held = gate.clone();
    let api = api(ietf(), move |number, request| {
        let gate = held.clone();
        async move {
            gate.pass().await;
            place_order(number, request).await
        }
    });
    let first = tokio::spawn({
        let api = api.clone();
        async move { api.post("k", "one").await }
    });
    gate.reached().await;
    let answer = api.post("k", "two").await;
    assert_eq!((answer.status.as_u16(), answer.problem()), (422, "key-reused".to_owned()));
    gate.open();
    assert_eq!(first.await.unwrap().status, StatusCode::CREATED);
    assert!(api.post("k", "one").await.is_replay());
}

#[tokio::test]
async fn the_stripe_profile_says_it_in_stripes_words() {
    let api = orders(Policy::stripe(Scope::single_tenant()));
    api.send(original()).await;
    for (name, request) in variants() {
        if name == "method" {
            continue; // PATCH takes no key there.
        }
        let answer = api.send(request).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{name}");
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(answer.json()["error"]["type"], "idempotency_error");
        assert!(answer.json()["error"]["message"].is_string());
    }
    assert_eq!(api.runs(), 1);
}

#[tokio::test]
async fn json_is_compared_by_bytes_or_by_meaning() {
    let tidy = "{\"a\":1,\"b\":[true,null]}";
    let untidy = "{ \"b\": [true, null],\n\"a\": 1 }";
    let json = |body: &'static str| {
        keyed("k")
            .header("content-type", "application/json; charset=utf-8")
            .body(Body::from(body))
            .unwrap()
    };
    let raw = orders(ietf());
    raw.send(json(tidy)).await;
    assert_eq!(raw.send(json(untidy)).await.status.as_u16(), 422);

    let canonical = orders(ietf().canonical_json());
    canonical.send(json(tidy)).await;
    assert!(canonical.send(json(untidy)).await.is_replay());
    assert_eq!(canonical.send(json("{\"a\":2,\"b\":[true,null]}")).await.status.as_u16(), 422);

    let ambiguous = canonical.send(json("{\"a\":1,\"a\":2}")).await;
    assert_eq!((ambiguous.status.as_u16(), canonical.runs()), (400, 1));
    assert_eq!(ambiguous.problem(), "body-ambiguous");
}

#[tokio::test]
async fn the_fingerprint_depends_on_its_secret() {
    let store = std::sync::Arc::new(semel_core::memory::MemoryKeys::new());
    let secret = |secret| ietf().fingerprint_secret(Secret::new(secret));
    let one = api_on(store.clone(), secret("one"), place_order);
    let other = api_on(store, secret("other"), place_order);
    one.post("k", "{}").await;
    assert!(one.post("k", "{}").await.is_replay());
    assert_eq!(other.post("k", "{}").await.status.as_u16(), 422);
}
