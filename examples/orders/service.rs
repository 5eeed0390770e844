//! The order service: the order, the event that tells of it and the answer under the client's key
//! are one transaction.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use semel::Event;
use semel::backends::postgres::PostgresStore;
use semel::http::{IdempotencyClaim, IdempotencyLayer, Policy, Scope};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::signal::ctrl_c;
use uuid::Uuid;

use crate::{Outcome, Shop};

/// What a client asks for, and what events carry.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Order {
    pub(crate) customer: String,
    pub(crate) product: String,
    pub(crate) quantity: i64,
    pub(crate) cents: i64,
}

pub(crate) async fn serve(shop: &Shop) -> Outcome {
    let policy = Policy::ietf(Scope::single_tenant())
        .require_key()
        .rules(|rules| rules.lease = shop.gone_after);
    let keys = IdempotencyLayer::new(Arc::new(shop.store.keys()), policy);
    let routes = Router::new()
        .route("/orders", post(place))
        .with_state(shop.store.clone())
        .layer(keys.clone());
    let listener = TcpListener::bind(&shop.address).await?;
    let interrupted = async {
        ctrl_c().await.ok();
    };
    axum::serve(listener, routes).with_graceful_shutdown(interrupted).await?;
    keys.drained().await;
    Ok(())
}

async fn place(
    State(store): State<PostgresStore>,
    claim: IdempotencyClaim,
    Json(order): Json<Order>,
) -> Result<Response, Trouble> {
    let id = Uuid::now_v7().to_string();
    let mut tx = store.begin().await?;
    sqlx::query("INSERT INTO orders VALUES ($1, $2, $3, $4, $5)")
        .bind(&id)
        .bind(&order.customer)
        .bind(&order.product)
        .bind(order.quantity)
        .bind(order.cents)
        .execute(&mut *tx)
        .await?;
    let placed = Event::new("order", &id, "OrderPlaced").with_json(&order)?;
    store.outbox().append(&mut tx, placed).await?;

    let answer = (StatusCode::CREATED, Json(json!({ "order": id }))).into_response();
    let answer = claim.complete_in(&store.keys(), &mut tx, answer).await?;
    tx.commit().await?;
    Ok(answer.into_response())
}

/// 500 for all of them: nothing was committed, the key is free, and a retry runs.
struct Trouble(Box<dyn std::error::Error>);

impl<E: std::error::Error + 'static> From<E> for Trouble {
    fn from(error: E) -> Self {
        Self(Box::new(error))
    }
}

impl IntoResponse for Trouble {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, self.0.to_string()).into_response()
    }
}
