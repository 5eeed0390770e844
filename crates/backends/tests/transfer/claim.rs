//! What a handler may do with its claim, and what the client gets.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use semel_backends::sqlite::{Sqlite, SqliteStore, Transaction};
use semel_core::Secret;
use semel_http::{Encrypted, EncryptionKeys, IdempotencyClaim, IdempotencyLayer, Policy, Scope};
use tower::ServiceExt;

use crate::sqlite::Database;

const LEASE: Duration = Duration::from_secs(30);

struct Shop {
    database: Database,
    app: Router,
    runs: Arc<AtomicUsize>,
}

#[derive(Debug, PartialEq)]
struct Answer {
    status: u16,
    body: String,
    is_replay: bool,
}

/// A service whose handler gets the number of its run, the claim, and the store.
async fn shop<F, Fut>(handler: F) -> Shop
where
    F: Fn(usize, IdempotencyClaim, SqliteStore) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Response> + Send + 'static,
{
    let database = Database::new().await;
    let mut tx = database.store.begin().await.unwrap();
    sqlx::query("CREATE TABLE orders (run INTEGER)").execute(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
    let runs = Arc::new(AtomicUsize::new(0));
    let (store, counter) = (database.store.clone(), Arc::clone(&runs));
    let handler = async move |claim: IdempotencyClaim| {
        let run = counter.fetch_add(1, Ordering::SeqCst) + 1;
        handler(run, claim, store).await
    };
    let policy = Policy::ietf(Scope::single_tenant()).max_response_bytes(1000).rules(|rules| {
        (rules.lease, rules.wait) = (LEASE, Duration::ZERO);
    });
    let layer = IdempotencyLayer::new(Arc::new(database.store.keys()), policy);
    Shop { database, app: Router::new().route("/", post(handler)).layer(layer), runs }
}

impl Shop {
    async fn post(&self) -> Answer {
        let request =
            Request::post("/").header("idempotency-key", "k").body(Body::empty()).unwrap();
        let response = self.app.clone().oneshot(request).await.unwrap();
        let (status, is_replay) =
            (response.status().as_u16(), response.headers().contains_key("idempotent-replayed"));
        let body = to_bytes(response.into_body(), 10_000).await.unwrap();
        Answer { status, body: String::from_utf8_lossy(&body).into_owned(), is_replay }
    }

    /// The runs whose order was committed, and how many runs there were.
    async fn orders(&self) -> (Vec<i64>, usize) {
        let orders =
            sqlx::query_scalar("SELECT run FROM orders").fetch_all(self.database.store.pool());
        (orders.await.unwrap(), self.runs.load(Ordering::SeqCst))
    }
}

fn placed(run: usize) -> Answer {
    Answer { status: 201, body: format!("order {run}"), is_replay: false }
}

fn replayed(run: usize) -> Answer {
    Answer { is_replay: true, ..placed(run) }
}

/// An order and its answer, in a transaction that is not committed yet.
async fn order(
    run: usize,
    claim: &IdempotencyClaim,
    store: &SqliteStore,
) -> (Transaction<'static, Sqlite>, Response) {
    let mut tx = store.begin().await.unwrap();
    let insert = sqlx::query("INSERT INTO orders VALUES (?1)").bind(i64::try_from(run).unwrap());
    insert.execute(&mut *tx).await.unwrap();
    let response = (StatusCode::CREATED, format!("order {run}")).into_response();
    let response = claim.complete_in(&store.keys(), &mut tx, response).await.unwrap();
    (tx, response.into_response())
}

#[tokio::test]
async fn the_answer_that_was_committed_is_given_and_replayed() {
    let shop = shop(|run, claim, store| async move {
        let (tx, response) = order(run, &claim, &store).await;
        tx.commit().await.unwrap();
        response
    })
    .await;
    assert_eq!(shop.post().await, placed(1));
    assert_eq!(shop.post().await, replayed(1));
    assert_eq!(shop.orders().await, (vec![1], 1));
}

#[tokio::test]
async fn an_error_after_the_commit_changes_nothing() {
    let shop = shop(|run, claim, store| async move {
        let (tx, _) = order(run, &claim, &store).await;
        tx.commit().await.unwrap();
        (StatusCode::INTERNAL_SERVER_ERROR, "the mail was not sent").into_response()
    })
    .await;
    assert_eq!(shop.post().await, replayed(1));
    assert_eq!(shop.post().await, replayed(1));
    assert_eq!(shop.orders().await, (vec![1], 1));
}

#[tokio::test]
async fn a_panic_after_the_commit_changes_nothing() {
    let shop = shop(|run, claim, store| async move {
        let (tx, response) = order(run, &claim, &store).await;
        tx.commit().await.unwrap();
        assert_eq!(response.status(), 0, "on purpose");
        response
    })
    .await;
    assert_eq!(shop.post().await.status, 500);
    assert_eq!(shop.post().await, replayed(1));
    assert_eq!(shop.orders().await, (vec![1], 1));
}

#[tokio::test]
async fn after_a_rollback_the_key_is_free() {
    let shop = shop(|run, claim, store| async move {
        let (tx, response) = order(run, &claim, &store).await;
        if run == 1 {
            tx.rollback().await.unwrap();
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        }
        tx.commit().await.unwrap();
        response
    })
    .await;
    assert_eq!(shop.post().await.status, 500);
    assert_eq!(shop.post().await, placed(2));
    assert_eq!(shop.post().await, replayed(2));
    assert_eq!(shop.orders().await, (vec![2], 2));
}

#[tokio::test]
async fn after_a_rollback_what_is_answered_is_judged_as_usual() {
    let shop = shop(|run, claim, store| async move {
        let (tx, _) = order(run, &claim, &store).await;
        tx.rollback().await.unwrap();
        (StatusCode::PAYMENT_REQUIRED, "no money").into_response()
    })
    .await;
    let first = shop.post().await;
    assert_eq!((first.status, first.is_replay), (402, false));
    assert_eq!(shop.post().await, Answer { is_replay: true, ..first });
    assert_eq!(shop.orders().await, (vec![], 1));
}

#[tokio::test]
async fn an_answer_without_its_commit_is_an_error() {
    let shop = shop(|run, claim, store| async move {
        let (tx, response) = order(run, &claim, &store).await;
        if run > 1 {
            tx.commit().await.unwrap();
        }
        response
    })
    .await;
    let first = shop.post().await;
    assert_eq!(first.status, 500);
    assert!(first.body.contains("not-committed"), "{}", first.body);
    assert_eq!(shop.post().await, placed(2));
    assert_eq!(shop.post().await, replayed(2));
    assert_eq!(shop.orders().await, (vec![2], 2));
}

#[tokio::test]
async fn a_transaction_is_tried_again_under_the_same_claim() {
    let shop = shop(|run, claim, store| async move {
        let (tx, _) = order(run, &claim, &store).await;
        tx.rollback().await.unwrap();
        let (tx, response) = order(run, &claim, &store).await;
        tx.commit().await.unwrap();
        response
    })
    .await;
    assert_eq!(shop.post().await, placed(1));
    assert_eq!(shop.post().await, replayed(1));
    assert_eq!(shop.orders().await, (vec![1], 1));
}

#[tokio::test]
async fn a_claim_whose_lease_is_lost_commits_nothing() {
    let (started, go_on) =
        (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let (reached, gate) = (Arc::clone(&started), Arc::clone(&go_on));
    let shop = shop(move |run, claim, store| {
        let (reached, gate) = (Arc::clone(&reached), Arc::clone(&gate));
        async move {
            if run == 1 {
                reached.notify_one();
                gate.notified().await;
                let mut tx = store.begin().await.unwrap();
                let response = StatusCode::CREATED.into_response();
                let lost = claim.complete_in(&store.keys(), &mut tx, response).await.unwrap_err();
                return (StatusCode::SERVICE_UNAVAILABLE, lost.code()).into_response();
            }
            let (tx, response) = order(run, &claim, &store).await;
            tx.commit().await.unwrap();
            response
        }
    })
    .await;
    let (late, ()) = tokio::join!(shop.post(), async {
        started.notified().await;
        shop.database.clock.advance(LEASE);
        assert_eq!(shop.post().await, placed(2));
        go_on.notify_one();
    });
    assert_eq!((late.status, late.body.as_str()), (503, "E-KEY-LOST"));
    assert_eq!(shop.post().await, replayed(2));
    assert_eq!(shop.orders().await, (vec![2], 2));
}

#[tokio::test]
async fn an_answer_too_large_to_keep_is_given_once_and_never_run_again() {
    let shop = shop(|_, claim, store| async move {
        let mut tx = store.begin().await.unwrap();
        let large = "x".repeat(5000).into_response();
        let response = claim.complete_in(&store.keys(), &mut tx, large).await.unwrap();
        tx.commit().await.unwrap();
        response.into_response()
    })
    .await;
    assert_eq!(shop.post().await.body.len(), 5000);
    let retry = shop.post().await;
    assert!(retry.status == 409 && retry.body.contains("not-retained"), "{retry:?}");
    assert_eq!(shop.orders().await, (vec![], 1));
}

/// Nothing of the answer is in the file, and the claim is completed in the transaction all the same.
#[tokio::test]
async fn an_encrypted_answer_is_committed_and_replayed() {
    let database = Database::new().await;
    let secret = Secret::new("5zTqXwQ1pJx0V8hY3y4a6c7d8e9f0A1B2C3D4E5F6G8=");
    let keys = Encrypted::new(database.store.keys(), EncryptionKeys::parse(&secret).unwrap());
    let (store, own) = (database.store.clone(), keys.clone());
    let handler = async move |claim: IdempotencyClaim| {
        let mut tx = store.begin().await.unwrap();
        let response = "the balance is 42".into_response();
        let response = claim.complete_in(&own, &mut tx, response).await.unwrap();
        tx.commit().await.unwrap();
        response.into_response()
    };
    let layer = IdempotencyLayer::new(Arc::new(keys), Policy::ietf(Scope::single_tenant()));
    let app = Router::new().route("/", post(handler)).layer(layer);
    let file = database.file();
    let shop = Shop { database, app, runs: Arc::default() };
    for is_replay in [false, true] {
        let answer = Answer { status: 200, body: "the balance is 42".into(), is_replay };
        assert_eq!(shop.post().await, answer);
    }
    let folder = std::fs::read_dir(file.parent().unwrap()).unwrap();
    let mut bytes = Vec::new();
    for part in folder {
        bytes.extend(std::fs::read(part.unwrap().path()).unwrap());
    }
    assert!(bytes.windows(10).any(|part| part == b"semel_keys"));
    assert!(!bytes.windows(7).any(|part| part == b"balance"));
}
