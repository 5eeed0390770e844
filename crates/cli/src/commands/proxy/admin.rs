//! Health and metrics of the proxy, for those who look after it.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;
use semel_core::IdempotencyStore;
use semel_core::idempotency::{ScopedKey, Token};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;

/// What can be asked.
#[derive(Clone)]
pub(super) struct Admin {
    pub(super) store: Arc<dyn IdempotencyStore>,
    pub(super) metrics: PrometheusHandle,
    /// Whether the proxy has been told to stop.
    pub(super) stopped: watch::Receiver<bool>,
}

impl Admin {
    pub(super) async fn serve(self, listener: TcpListener) {
        let app = Router::new()
            // Depends on nothing: a restart would not bring a store back.
            .route("/livez", get(|| async { "alive\n" }))
            .route("/readyz", get(ready))
            .route("/metrics", get(metrics))
            .with_state(self);
        if let Err(error) = axum::serve(listener, app).await {
            tracing::error!(%error, "health and metrics have ended");
        }
    }
}

/// Whether the store answers; the upstream is not asked.
async fn ready(State(admin): State<Admin>) -> (StatusCode, String) {
    const PATIENCE: Duration = Duration::from_secs(2);
    if *admin.stopped.borrow() {
        return (StatusCode::SERVICE_UNAVAILABLE, "stopping\n".into());
    }
    // A claim that nobody has: the question changes nothing.
    let key = ScopedKey::new(&["semel", "ready?"]);
    let question = admin.store.renew(&key, Token(0), PATIENCE);
    match timeout(PATIENCE, question).await {
        Ok(Ok(_)) => (StatusCode::OK, "ready\n".into()),
        Ok(Err(failure)) => {
            (StatusCode::SERVICE_UNAVAILABLE, format!("{}: {failure}\n", failure.code()))
        }
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "the store does not answer\n".into()),
    }
}

async fn metrics(State(admin): State<Admin>) -> String {
    admin.metrics.render()
}
