//! Whether the process lives, and whether it can do its work.

use axum::extract::State;
use axum::http::StatusCode;

use crate::Dashboard;

/// Depends on nothing: a restart would not bring a database back.
pub(crate) async fn live() -> &'static str {
    "alive\n"
}

pub(crate) async fn ready(State(dashboard): State<Dashboard>) -> (StatusCode, String) {
    match (dashboard.ready)().await {
        Ok(()) => (StatusCode::OK, "ready\n".to_owned()),
        Err(failure) => {
            (StatusCode::SERVICE_UNAVAILABLE, format!("{}: {failure}\n", failure.code()))
        }
    }
}
