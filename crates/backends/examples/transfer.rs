//! Money moves once per key: the balances, the event that tells of it, and the key with its answer
//! are one transaction.
//!
//! ```sh
//! cargo run -p semel-backends --features sqlite --example transfer
//! curl -i 127.0.0.1:3000/transfers -H 'Authorization: alice' -H 'Idempotency-Key: rent-11' \
//!      --json '{"from": "alice", "to": "bob", "amount": 25}'
//! ```
//!
//! Send it as often as you like, and kill the service whenever you like: 25 have moved.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use semel_backends::sqlite::{SqliteConfig, SqliteStore};
use semel_core::Event;
use semel_http::{IdempotencyClaim, IdempotencyLayer, Policy, Scope};
use serde_json::{Value, json};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = SqliteConfig::new("sqlite://bank.db")?.connect().await?;
    open_accounts(&store).await?;
    let policy = Policy::ietf(Scope::authorization()).require_key();
    let keys = IdempotencyLayer::new(Arc::new(store.keys()), policy);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    axum::serve(listener, routes(store).layer(keys)).await?;
    Ok(())
}

pub(crate) fn routes(store: SqliteStore) -> Router {
    Router::new().route("/transfers", post(transfer)).with_state(store)
}

async fn transfer(
    State(store): State<SqliteStore>,
    claim: IdempotencyClaim,
    Json(order): Json<Value>,
) -> Result<Response, Trouble> {
    let word = |name: &str| order[name].as_str().unwrap_or_default();
    let (from, to, amount) = (word("from"), word("to"), order["amount"].as_i64().unwrap_or(0));

    let mut tx = store.begin().await?;
    let paid =
        sqlx::query("UPDATE accounts SET balance = balance - ?1 WHERE name = ?2 AND balance >= ?1")
            .bind(amount)
            .bind(from)
            .execute(&mut *tx)
            .await?;
    let received = sqlx::query("UPDATE accounts SET balance = balance + ?1 WHERE name = ?2")
        .bind(amount)
        .bind(to)
        .execute(&mut *tx)
        .await?;
    if amount <= 0 || paid.rows_affected() + received.rows_affected() < 2 {
        // Nothing is committed; the layer keeps this answer like every other one.
        return Ok((StatusCode::UNPROCESSABLE_ENTITY, "no such transfer").into_response());
    }
    sqlx::query("INSERT INTO transfers (reference) VALUES (?1)")
        .bind(word("reference"))
        .execute(&mut *tx)
        .await?;
    let event = Event::new("account", from, "MoneyMoved").with_json(&order)?;
    store.outbox().append(&mut tx, event).await?;

    let response = (StatusCode::CREATED, Json(json!({ "moved": amount }))).into_response();
    let response = claim.complete_in(&store.keys(), &mut tx, response).await?;
    tx.commit().await?;
    Ok(response.into_response())
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

pub(crate) async fn open_accounts(store: &SqliteStore) -> Result<(), Box<dyn std::error::Error>> {
    store.migrate().await?;
    let mut tx = store.begin().await?;
    for sql in [
        "CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, balance INTEGER NOT NULL)",
        "CREATE TABLE IF NOT EXISTS transfers (reference TEXT NOT NULL)",
        "INSERT OR IGNORE INTO accounts VALUES ('alice', 1000), ('bob', 1000)",
    ] {
        sqlx::query(sql).execute(&mut *tx).await?;
    }
    tx.commit().await?;
    Ok(())
}
