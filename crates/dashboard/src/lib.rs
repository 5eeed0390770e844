//! How outboxes are doing, and repairing them: a web page, the API behind it, and health endpoints.
//!
//! | path | answers |
//! |---|---|
//! | `/` | the page: overview, events, dead letters, sources, sinks, consumers, keys, relays, activity |
//! | `/api/…` | what the page shows, as JSON; `/api/live` as server-sent events |
//! | `/metrics` | what this process counts, if it was told how |
//! | `/livez` | 200 while the process answers at all; depends on nothing |
//! | `/readyz` | 200 while your check succeeds, 503 and its reason otherwise |
//!
//! Everything comes from the database, so that the page tells the same whichever process serves it. It
//! makes no request to anybody else, and needs no build step.
//!
//! Who may do what is decided in one place, [`Access`]. It lets its callers in, and without any it lets
//! nobody in; [`Access::open`] lets everybody in who reaches it by an address of its own, as on a
//! loopback interface. Behind middleware of your own, put a [`Caller`] into the extensions of the
//! request:
//!
//! ```
//! use axum::{Extension, Router};
//! use semel_core::memory::MemoryDatabase;
//! use semel_dashboard::{Access, Caller, Dashboard, Pipeline, Role, router};
//! use std::sync::Arc;
//!
//! let database = Arc::new(MemoryDatabase::new());
//! let orders = Pipeline::new("orders", database.clone()).with_insight(database);
//! let dashboard = Dashboard::new(|| async { Ok(()) })
//!     .with(orders)
//!     .with_access(Access::default().host("ops.example.com"));
//! let app: Router = Router::new()
//!     .nest("/semel", router(dashboard))
//!     .layer(Extension(Caller::new("alice", Role::Viewer)));
//! ```

mod access;
mod api;
mod asked;
mod gauges;
mod guard;
mod health;
mod page;
mod pipeline;
mod quantiles;
mod sampler;
mod sentence;
mod wanted;

use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::middleware::{from_fn_with_state, map_response};
use axum::routing::{MethodRouter, get, post};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use semel_core::Failure;

pub use self::access::{Access, Caller, Role};
pub use self::pipeline::{Pipeline, SinkView};
use self::sampler::Sampler;

/// What the page shows, and to whom.
#[derive(Clone)]
pub struct Dashboard {
    pipelines: Arc<Vec<Pipeline>>,
    access: Arc<Access>,
    ready: Arc<Check>,
    metrics: Option<Arc<Render>>,
    sampler: Arc<Sampler>,
}

type Check = dyn Fn() -> BoxFuture<'static, Result<(), Failure>> + Send + Sync;
type Render = dyn Fn() -> String + Send + Sync;

impl Dashboard {
    /// Shows nothing yet. `ready` says whether the process can do its work now; it is asked by every
    /// `/readyz`, so it should be quick.
    pub fn new<F, Fut>(ready: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        Self {
            pipelines: Arc::default(),
            access: Arc::default(),
            ready: Arc::new(move || ready().boxed()),
            metrics: None,
            sampler: Arc::default(),
        }
    }

    /// Shows a pipeline as well.
    #[must_use]
    pub fn with(mut self, pipeline: Pipeline) -> Self {
        Arc::make_mut(&mut self.pipelines).push(pipeline);
        self
    }

    /// Says who may do what. Unless it is said, only those get in of whom the request has a [`Caller`].
    #[must_use]
    pub fn with_access(mut self, access: Access) -> Self {
        self.access = Arc::new(access);
        self
    }

    /// Says what `/metrics` answers, in the format of Prometheus. The latencies of
    /// `semel_end_to_end_latency_seconds` are shown too, if its buckets are there.
    #[must_use]
    pub fn with_metrics(mut self, render: impl Fn() -> String + Send + Sync + 'static) -> Self {
        self.metrics = Some(Arc::new(render));
        self
    }

    /// Looks at the pipelines again and again, for the charts. Without it that begins with the first
    /// visitor. It looks seldom enough to take no more than a twentieth of one connection's time, but
    /// at least every ten seconds.
    ///
    /// When this is dropped nobody looks any more, and the streams of `/api/live` end: a page that is
    /// open asks again, and is answered by whatever router is there by then.
    pub fn watch(&self) -> impl Future<Output = ()> + Send + use<> {
        sampler::run(self)
    }

    fn pipeline(&self, name: &str) -> Option<&Pipeline> {
        self.pipelines.iter().find(|pipeline| pipeline.name == name)
    }
}

/// The dashboard as a router, to be nested under any path or served by itself.
pub fn router(dashboard: Dashboard) -> Router {
    answers()
        .into_iter()
        .fold(Router::new(), |router, (path, answer)| router.route(path, answer))
        .layer(from_fn_with_state(dashboard.clone(), guard::admit))
        .layer(map_response(guard::lock_down))
        .with_state(dashboard)
}

/// Every path that the router answers, with its parameters in braces.
///
/// ```
/// assert!(semel_dashboard::paths().contains(&"/api/pipelines/{pipeline}/dead"));
/// ```
#[must_use]
pub fn paths() -> Vec<&'static str> {
    answers().into_iter().map(|(path, _)| path).collect()
}

fn answers() -> Vec<(&'static str, MethodRouter<Dashboard>)> {
    vec![
        ("/", get(page::show)),
        ("/assets/{file}", get(page::asset)),
        ("/metrics", get(health::metrics)),
        ("/livez", get(health::live)),
        ("/readyz", get(health::ready)),
        ("/api/overview", get(api::overview::overview)),
        ("/api/live", get(api::overview::live)),
        ("/api/pipelines/{pipeline}/history", get(api::overview::history)),
        ("/api/pipelines/{pipeline}/events", get(api::events::list)),
        ("/api/pipelines/{pipeline}/events/{id}", get(api::events::show)),
        ("/api/pipelines/{pipeline}/events/{id}/reveal", post(api::events::reveal)),
        ("/api/pipelines/{pipeline}/dead", get(api::events::troubles)),
        ("/api/pipelines/{pipeline}/changes", post(api::changes::change)),
        ("/api/pipelines/{pipeline}/workings", get(api::work::workings)),
        ("/api/pipelines/{pipeline}/consumers", get(api::work::consumers)),
        ("/api/pipelines/{pipeline}/keys", get(api::work::keys)),
        ("/api/pipelines/{pipeline}/keys/{key}/free", post(api::work::free)),
        ("/api/pipelines/{pipeline}/activity", get(api::work::activity)),
    ]
}

impl fmt::Debug for Dashboard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dashboard").finish_non_exhaustive()
    }
}
