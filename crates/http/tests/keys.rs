//! Which requests need a key, and what a key looks like.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::extract::Request;
use http::{HeaderName, Method, StatusCode};

use crate::support::*;

fn without_key(method: Method) -> Request {
    Request::builder().method(method).uri("/orders").body(Body::empty()).unwrap()
}

#[tokio::test]
async fn without_a_key_a_request_passes_unless_one_is_required() {
    let api = orders(ietf());
    let answer = api.send(without_key(Method::POST)).await;
    assert_eq!((answer.status, api.runs()), (StatusCode::CREATED, 1));
    assert!(answer.headers.keys().all(|name| !name.as_str().starts_with("idempot")));

    let strict = orders(ietf().require_key());
    let answer = strict.send(without_key(Method::POST)).await;
    assert_eq!((answer.status, strict.runs()), (StatusCode::BAD_REQUEST, 0));
    assert_eq!(answer.problem(), "key-missing");
}

#[tokio::test]
async fn only_post_and_patch_take_keys_unless_told_otherwise() {
    let api = orders(ietf().require_key());
    let mut expected = 0;
    for method in [Method::GET, Method::HEAD, Method::OPTIONS, Method::PUT, Method::DELETE] {
        for _ in 0..2 {
            let answer = api.send(keyed("k").method(&method).body(Body::empty()).unwrap()).await;
            expected += 1;
            assert!(!answer.is_replay());
            assert_eq!(api.runs(), expected, "{method}");
        }
        api.send(without_key(method)).await;
        expected += 1;
    }
    for method in [Method::POST, Method::PATCH] {
        for replay in [false, true] {
            let answer = api.send(keyed("k").method(&method).body(Body::empty()).unwrap()).await;
            assert_eq!(answer.is_replay(), replay, "{method}");
        }
    }

    let api = orders(ietf().methods([Method::DELETE]));
    for replay in [false, true] {
        let delete = keyed("k").method(Method::DELETE).body(Body::empty()).unwrap();
        assert_eq!(api.send(delete).await.is_replay(), replay);
        assert!(!api.post("k", "").await.is_replay());
    }
}

#[tokio::test]
async fn bare_and_quoted_spellings_are_one_key() {
    let api = orders(ietf());
    api.post("abc", "{}").await;
    for spelling in ["\"abc\"", "\"abc\";p=1", " abc "] {
        assert!(api.post(spelling, "{}").await.is_replay(), "{spelling}");
    }
    assert_eq!(api.runs(), 1);
}

#[tokio::test]
async fn wrong_keys_are_refused_before_the_store_is_asked() {
    let long = "k".repeat(256);
    let lenient: &[&[u8]] =
        &[b"", b"  ", b"\"\"", b"a b", b"\"a", b"k\xff", long.as_bytes(), b"\"a\", \"b\""];
    let store = Arc::new(Flaky::new());
    let api = api_on(store.clone(), ietf(), place_order);
    for key in lenient {
        let request = Request::builder().method(Method::POST).header(KEY, *key);
        let answer = api.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", String::from_utf8_lossy(key));
        assert_eq!(answer.problem(), "key-invalid");
    }
    let twice = keyed("a").header(KEY, "a").body(Body::empty()).unwrap();
    assert_eq!(api.send(twice).await.problem(), "key-invalid");
    assert_eq!((api.runs(), store.claims.load(Ordering::SeqCst)), (0, 0));
    assert_eq!(api.post(&long[..255], "").await.status, StatusCode::CREATED);
}

#[tokio::test]
async fn stricter_syntax_by_option() {
    let cases = [
        (ietf().quoted_keys_only(), "abc", "\"abc\"", "Structured Field String"),
        (ietf().min_key_bytes(4), "abc", "abcd", "at least 4"),
        (
            ietf().uuid_keys_only(),
            "abc",
            "00000000-0000-0000-0000-000000000000",
            "such as 0190b6e8-7a3c-7def-8000-0123456789ab",
        ),
    ];
    for (policy, wrong, right, hint) in cases {
        let api = orders(policy);
        let answer = api.post(wrong, "").await;
        assert_eq!(answer.problem(), "key-invalid");
        assert!(answer.json()["detail"].as_str().unwrap().contains(hint), "{answer:?}");
        assert_eq!(api.post(right, "").await.status, StatusCode::CREATED);
        assert_eq!(api.runs(), 1);
    }
}

#[tokio::test]
async fn another_header_takes_the_place_of_the_usual_one() {
    let paypal = HeaderName::from_static("paypal-request-id");
    let api = orders(ietf().key_headers([paypal.clone()]));
    for replay in [false, true] {
        let request = Request::builder().method(Method::POST).header(&paypal, "k");
        let answer = api.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.is_replay(), replay);
    }
    for _ in 0..2 {
        assert!(!api.post("k", "").await.is_replay(), "the usual header is ignored");
    }
}

#[tokio::test]
async fn early_data_needs_a_key() {
    let api = orders(ietf());
    let early = |builder: http::request::Builder| {
        builder.header("early-data", "1").body(Body::empty()).unwrap()
    };
    let answer = api.send(early(Request::builder().method(Method::POST))).await;
    assert_eq!((answer.status.as_u16(), api.runs()), (425, 0));
    assert_eq!(answer.problem(), "too-early");
    assert_eq!(api.send(early(keyed("k"))).await.status, StatusCode::CREATED);
    assert!(api.send(early(keyed("k"))).await.is_replay());
}

#[tokio::test]
async fn docs_can_be_your_own() {
    let api = orders(ietf().require_key().docs("https://example.com/errors/"));
    let answer = api.send(without_key(Method::POST)).await;
    assert_eq!(answer.json()["type"], "https://example.com/errors/key-missing");
}

#[tokio::test]
async fn a_layer_inside_another_leaves_the_request_alone() {
    let outer = orders(hasty());
    let app = outer.app.clone().layer(outer.layer.with_policy(hasty()));
    let api = Api { app, ..outer };
    assert_eq!(api.post("k", "").await.status, StatusCode::CREATED);
    assert!(api.post("k", "").await.is_replay());
}
