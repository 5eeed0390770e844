//! The service: the rows, the event that tells of them and the answer under the client's key are one
//! transaction.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use semel::Event;
use semel::backends::sqlite::{Sqlite, SqliteConfig, SqliteStore, Transaction};
use semel::http::{IdempotencyClaim, IdempotencyLayer, Policy, Scope};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::Outcome;

/// What the service says when it can be asked, and when it stands where it is to be killed.
pub(crate) const READY: &str = "ready";

/// The steps of a payment, in their order.
pub(crate) const PAYMENT: [&str; 7] =
    [ARRIVED, CLAIMED, "the payment is written", TOLD, KEPT, COMMITTED, ANSWERED];
/// The steps of a transfer, in their order.
pub(crate) const TRANSFER: [&str; 9] = [
    ARRIVED,
    CLAIMED,
    "the money is taken",
    "the money is given",
    "the transfer is written",
    TOLD,
    KEPT,
    COMMITTED,
    ANSWERED,
];
const ARRIVED: &str = "the request has arrived";
const CLAIMED: &str = "the key is claimed";
const TOLD: &str = "the event is written";
const KEPT: &str = "the answer is written";
/// From here on it is in the books.
pub(crate) const COMMITTED: &str = "all of it is committed";
pub(crate) const ANSWERED: &str = "the answer is about to leave";

/// How long a key is taken for one in use when its process is gone. A service of yours may wait
/// longer: 30 s is usual.
const LEASE: Duration = Duration::from_secs(1);

#[derive(Clone)]
struct Bank {
    store: SqliteStore,
    /// Where the story kills it; nowhere, if this is empty.
    last_step: Arc<str>,
}

#[derive(Deserialize, Serialize)]
struct Payment {
    customer: String,
    cents: i64,
    reference: String,
}

#[derive(Deserialize, Serialize)]
struct Transfer {
    from: String,
    to: String,
    cents: i64,
    reference: String,
}

pub(crate) async fn serve(database: &str, address: &str, last_step: &str) -> Outcome {
    let store = SqliteConfig::new(database)?.connect().await?;
    store.migrate().await?;
    let mut tx = store.begin().await?;
    sqlx::raw_sql(include_str!("tables.sql")).execute(&mut *tx).await?;
    tx.commit().await?;

    let policy = Policy::ietf(Scope::authorization()).require_key();
    let policy = policy.rules(|rules| rules.lease = LEASE);
    let keys = IdempotencyLayer::new(Arc::new(store.keys()), policy);
    let bank = Bank { store, last_step: last_step.into() };
    let routes = Router::new()
        .route("/payments", post(pay))
        .route("/transfers", post(transfer))
        .with_state(bank.clone())
        .layer(keys)
        .layer(from_fn_with_state(bank, around));
    let listener = TcpListener::bind(address).await?;
    println!("{READY}");
    Ok(axum::serve(listener, routes).await?)
}

async fn pay(
    State(bank): State<Bank>,
    claim: IdempotencyClaim,
    Json(payment): Json<Payment>,
) -> Result<Response, Trouble> {
    bank.reach(CLAIMED).await;
    if payment.cents <= 0 {
        return Ok((StatusCode::UNPROCESSABLE_ENTITY, "nothing to pay").into_response());
    }
    let mut tx = bank.store.begin().await?;
    sqlx::query("INSERT INTO payments (customer, cents, reference) VALUES (?1, ?2, ?3)")
        .bind(&payment.customer)
        .bind(payment.cents)
        .bind(&payment.reference)
        .execute(&mut *tx)
        .await?;
    bank.reach("the payment is written").await;
    let event = Event::new("customer", &payment.customer, "PaymentTaken").with_json(&payment)?;
    let paid = json!({ "paid": payment.cents });
    bank.finish(claim, tx, event, paid).await
}

async fn transfer(
    State(bank): State<Bank>,
    claim: IdempotencyClaim,
    Json(transfer): Json<Transfer>,
) -> Result<Response, Trouble> {
    bank.reach(CLAIMED).await;
    let mut tx = bank.store.begin().await?;
    let take = "UPDATE accounts SET cents = cents - ?1 WHERE name = ?2 AND cents >= ?1";
    let taken = sqlx::query(take).bind(transfer.cents).bind(&transfer.from);
    let taken = taken.execute(&mut *tx).await?.rows_affected();
    bank.reach("the money is taken").await;
    let give = "UPDATE accounts SET cents = cents + ?1 WHERE name = ?2";
    let given = sqlx::query(give).bind(transfer.cents).bind(&transfer.to);
    let given = given.execute(&mut *tx).await?.rows_affected();
    bank.reach("the money is given").await;
    if transfer.cents <= 0 || taken + given < 2 {
        // Nothing is committed; the layer keeps this answer like every other one.
        return Ok((StatusCode::UNPROCESSABLE_ENTITY, "no such transfer").into_response());
    }
    sqlx::query("INSERT INTO transfers (cents, reference) VALUES (?1, ?2)")
        .bind(transfer.cents)
        .bind(&transfer.reference)
        .execute(&mut *tx)
        .await?;
    bank.reach("the transfer is written").await;
    let event = Event::new("account", &transfer.from, "MoneyMoved").with_json(&transfer)?;
    let moved = json!({ "moved": transfer.cents });
    bank.finish(claim, tx, event, moved).await
}

impl Bank {
    /// What every request ends with: the event, the answer under the key, the commit.
    async fn finish(
        &self,
        claim: IdempotencyClaim,
        mut tx: Transaction<'static, Sqlite>,
        event: Event,
        answer: Value,
    ) -> Result<Response, Trouble> {
        self.store.outbox().append(&mut tx, event).await?;
        self.reach(TOLD).await;
        let answer = (StatusCode::CREATED, Json(answer)).into_response();
        let answer = claim.complete_in(&self.store.keys(), &mut tx, answer).await?;
        self.reach(KEPT).await;
        tx.commit().await?;
        self.reach(COMMITTED).await;
        Ok(answer.into_response())
    }

    /// At its last step it says so, and stands there until it is killed.
    async fn reach(&self, step: &str) {
        if *self.last_step == *step {
            println!("{step}");
            pending::<()>().await;
        }
    }
}

async fn around(State(bank): State<Bank>, request: Request, next: Next) -> Response {
    bank.reach(ARRIVED).await;
    let response = next.run(request).await;
    bank.reach(ANSWERED).await;
    response
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
