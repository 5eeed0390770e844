//! How an outbox is doing: a web page, the JSON behind it, and health endpoints.
//!
//! | path | answers |
//! |---|---|
//! | `/` | one page: backlog by state, oldest age, parked lanes, dead letters; no outside requests |
//! | `/api/status` | counts by state, age of the oldest pending event, parked lanes |
//! | `/api/events` | a page of events, by filter; without their payloads |
//! | `/livez` | 200 while the process answers at all; depends on nothing |
//! | `/readyz` | 200 while your check succeeds, 503 and its reason otherwise |
//!
//! It only reads: every method but GET and HEAD is refused. It asks nobody who they are: bind it to
//! loopback, or put it behind your own authentication.
//!
//! ```
//! use axum::Router;
//! use semel_core::memory::MemoryDatabase;
//! use semel_dashboard::{Dashboard, router};
//! use std::sync::Arc;
//!
//! let database = Arc::new(MemoryDatabase::new());
//! let dashboard = Dashboard::new(database, || async { Ok(()) });
//! let app: Router = Router::new().nest("/semel", router(dashboard));
//! ```

mod api;
mod guard;
mod health;
mod page;

use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::middleware::{from_fn, map_response};
use axum::routing::get;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use semel_core::{AdminStore, Failure};

/// What the dashboard looks at.
#[derive(Clone)]
pub struct Dashboard {
    admin: Arc<dyn AdminStore>,
    ready: Arc<Check>,
}

type Check = dyn Fn() -> BoxFuture<'static, Result<(), Failure>> + Send + Sync;

impl Dashboard {
    /// Looks at this store. `ready` says whether the process can do its work now; it is asked by
    /// every `/readyz`, so it should be quick.
    pub fn new<F, Fut>(admin: Arc<dyn AdminStore>, ready: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        Self { admin, ready: Arc::new(move || ready().boxed()) }
    }
}

/// The dashboard as a router, to be nested under any path or served by itself.
pub fn router(dashboard: Dashboard) -> Router {
    Router::new()
        .route("/", get(page::show))
        .route("/api/status", get(api::status))
        .route("/api/events", get(api::events))
        .route("/livez", get(health::live))
        .route("/readyz", get(health::ready))
        .with_state(dashboard)
        .layer(from_fn(guard::only_reading))
        .layer(map_response(guard::lock_down))
}

impl fmt::Debug for Dashboard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dashboard").finish_non_exhaustive()
    }
}
