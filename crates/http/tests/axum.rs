//! What the `axum` feature adds.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::routing::post;
use http::StatusCode;
use semel_core::memory::MemoryKeys;
use semel_http::{Attempt, IdempotencyLayer};

use crate::support::*;

fn api_of(app: Router, layer: IdempotencyLayer) -> Api {
    Api { app, layer, runs: Arc::default() }
}

#[tokio::test]
async fn two_nested_routers_are_two_endpoints() {
    let layer = IdempotencyLayer::new(Arc::new(MemoryKeys::new()), ietf());
    let orders = |shop: &'static str| {
        Router::new().route("/orders", post(async move || shop)).layer(layer.clone())
    };
    let app = Router::new().nest("/one", orders("one")).nest("/two", orders("two"));
    let api = api_of(app, layer.clone());
    for shop in ["one", "two"] {
        for replay in [false, true] {
            let uri = format!("/{shop}/orders");
            let answer = api.send(keyed("k").uri(uri).body(Body::empty()).unwrap()).await;
            assert_eq!((&answer.body[..], answer.is_replay()), (shop.as_bytes(), replay));
        }
    }
}

#[tokio::test]
async fn the_attempt_is_an_extractor() {
    let layer = IdempotencyLayer::new(Arc::new(MemoryKeys::new()), ietf());
    let app = Router::new()
        .route("/orders", post(async |attempt: Attempt| attempt.number().to_string()))
        .route("/maybe", post(async |attempt: Option<Attempt>| attempt.is_some().to_string()))
        .layer(layer.clone());
    let api = api_of(app, layer);
    assert_eq!(api.post("k", "").await.body, "1");
    let keyless = |uri| http::Request::post(uri).body(Body::empty()).unwrap();
    assert_eq!(api.send(keyless("/orders")).await.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(api.send(keyless("/maybe")).await.body, "false");
    let with_key = keyed("k").uri("/maybe").body(Body::empty()).unwrap();
    assert_eq!(api.send(with_key).await.body, "true");
}
