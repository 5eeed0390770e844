//! Whose key it is.

use axum::body::Body;
use axum::extract::Request;
use http::{HeaderName, StatusCode};
use semel_http::{Policy, Scope};

use crate::support::*;

fn from(account: Option<&str>, key: &str) -> Request {
    let request = keyed(key);
    let request = match account {
        Some(account) => request.header("x-account", account),
        None => request,
    };
    request.body(Body::empty()).unwrap()
}

fn by_account() -> Api {
    orders(Policy::ietf(Scope::header(HeaderName::from_static("x-account"))))
}

#[tokio::test]
async fn tenants_do_not_see_each_other() {
    let api = by_account();
    let one = api.send(from(Some("acme"), "k")).await;
    let other = api.send(from(Some("globex"), "k")).await;
    assert_ne!(one.body, other.body);
    assert_eq!(api.send(from(Some("acme"), "k")).await.body, one.body);
    assert_eq!(api.send(from(Some("globex"), "k")).await.body, other.body);
    assert_eq!(api.runs(), 2);
}

#[tokio::test]
async fn names_cannot_be_glued_together() {
    let api = by_account();
    for (account, key) in [("a", "b:c"), ("a:b", "c"), ("ab", "c"), ("a", "bc")] {
        assert!(!api.send(from(Some(account), key)).await.is_replay(), "{account} {key}");
    }
    assert_eq!(api.runs(), 4);
}

#[tokio::test]
async fn a_caller_without_a_name_is_refused_and_gets_nobodys_response() {
    let api = by_account();
    api.send(from(Some("acme"), "k")).await;
    for nameless in [None, Some(""), Some(" ")] {
        let answer = api.send(from(nameless, "k")).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN);
        assert_eq!(answer.problem(), "caller-unknown");
    }
    assert_eq!(api.runs(), 1);
}

#[tokio::test]
async fn a_principal_keeps_its_replays_when_its_token_changes() {
    #[derive(Clone)]
    struct Principal(&'static str);

    let scope = Scope::by(|parts| parts.extensions.get().map(|Principal(name)| (*name).to_owned()));
    let api = orders(Policy::ietf(scope));
    let with_token = |token: &str| {
        let mut request = keyed("k").header("authorization", token).body(Body::empty()).unwrap();
        request.extensions_mut().insert(Principal("acme"));
        request
    };
    api.send(with_token("Bearer 1")).await;
    assert!(api.send(with_token("Bearer 2")).await.is_replay());
    assert_eq!(api.post("k", "").await.status, StatusCode::FORBIDDEN);
}
