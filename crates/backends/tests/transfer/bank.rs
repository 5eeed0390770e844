//! The service on each database, and what its books say.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use semel_core::Event;
use semel_http::IdempotencyClaim;
use serde_json::{Value, json};

use super::Service;

/// What the tables say.
pub(crate) struct Books {
    pub(crate) balances: Vec<(String, i64)>,
    pub(crate) transfers: Vec<String>,
    pub(crate) events: i64,
}

/// The service on a database; how it is connected to differs.
macro_rules! bank {
    ($module:ident, $config:ident, $store:ident, $outbox:literal, $connect:expr) => {
        mod $module {
            use semel_backends::$module::{$config, $store};

            use super::*;

            pub(super) async fn connect(url: &str) -> $store {
                let connecting: fn($config) -> $config = $connect;
                connecting($config::new(url).unwrap()).connect().await.unwrap()
            }

            pub(super) async fn open(url: &str) {
                let store = connect(url).await;
                store.migrate().await.unwrap();
                let tables = "CREATE TABLE accounts (name VARCHAR(20) PRIMARY KEY, balance BIGINT NOT NULL); \
                    CREATE TABLE transfers (reference VARCHAR(20) NOT NULL); \
                    INSERT INTO accounts VALUES ('alice', 1000), ('bob', 1000)";
                sqlx::raw_sql(tables).execute(store.pool()).await.unwrap();
            }

            pub(super) fn service(store: $store) -> Service {
                let keys = Arc::new(store.keys());
                let routes = Router::new().route("/transfers", post(transfer)).with_state(store);
                Service { routes, keys }
            }

            async fn transfer(
                State(store): State<$store>,
                claim: IdempotencyClaim,
                Json(order): Json<Value>,
            ) -> Response {
                let mut tx = store.begin().await.unwrap();
                let reference = order["reference"].as_str().unwrap();
                for sql in [
                    "UPDATE accounts SET balance = balance - 1 WHERE name = 'alice'",
                    "UPDATE accounts SET balance = balance + 1 WHERE name = 'bob'",
                    &format!("INSERT INTO transfers VALUES ('{reference}')"),
                ] {
                    sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut *tx).await.unwrap();
                }
                let event = Event::new("account", "alice", "MoneyMoved").with_json(&order).unwrap();
                store.outbox().append(&mut tx, event).await.unwrap();
                let response = (StatusCode::CREATED, Json(json!({ "moved": 1 }))).into_response();
                let response = claim.complete_in(&store.keys(), &mut tx, response).await.unwrap();
                tx.commit().await.unwrap();
                response.into_response()
            }

            pub(super) async fn books(url: &str) -> Books {
                let store = connect(url).await;
                let balances = sqlx::query_as("SELECT name, balance FROM accounts ORDER BY name");
                let transfers =
                    sqlx::query_scalar("SELECT reference FROM transfers ORDER BY reference");
                let events = sqlx::query_scalar(concat!("SELECT count(*) FROM ", $outbox));
                Books {
                    balances: balances.fetch_all(store.pool()).await.unwrap(),
                    transfers: transfers.fetch_all(store.pool()).await.unwrap(),
                    events: events.fetch_one(store.pool()).await.unwrap(),
                }
            }
        }
    };
}

#[cfg(feature = "mysql")]
bank!(mysql, MysqlConfig, MysqlStore, "semel_outbox", |config| config.connections(20));
#[cfg(feature = "postgres")]
bank!(postgres, PostgresConfig, PostgresStore, "semel.outbox", |config| config.connections(20));
#[cfg(feature = "sqlite")]
bank!(sqlite, SqliteConfig, SqliteStore, "semel_outbox", |config| {
    config.durability(semel_backends::sqlite::Durability::ProcessCrash)
});

macro_rules! by_scheme {
    ($url:ident, $module:ident => $what:expr) => {
        match $url.split(':').next() {
            #[cfg(feature = "mysql")]
            Some("mysql") => {
                use mysql as $module;
                $what
            }
            #[cfg(feature = "postgres")]
            Some("postgres" | "postgresql") => {
                use postgres as $module;
                $what
            }
            #[cfg(feature = "sqlite")]
            Some("sqlite") => {
                use sqlite as $module;
                $what
            }
            _ => unreachable!("no database of this build"),
        }
    };
}

/// Makes the tables, with 1000 in each account.
pub(crate) async fn open(url: &str) {
    by_scheme!(url, database => database::open(url).await);
}

pub(crate) async fn connect(url: &str) -> Service {
    by_scheme!(url, database => database::service(database::connect(url).await))
}

pub(crate) async fn books(url: &str) -> Books {
    by_scheme!(url, database => database::books(url).await)
}
