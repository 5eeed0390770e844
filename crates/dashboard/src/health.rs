//! Whether the process lives, whether it can do its work, and what it counts.

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

use crate::Dashboard;

/// Depends on nothing: a restart would not bring a database back.
pub(crate) async fn live() -> &'static str {
    "alive\n"
}

/// Says why not by its code alone: anybody may ask.
pub(crate) async fn ready(State(dashboard): State<Dashboard>) -> (StatusCode, String) {
    match (dashboard.ready)().await {
        Ok(()) => (StatusCode::OK, "ready\n".to_owned()),
        Err(failure) => (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", failure.code())),
    }
}

pub(crate) async fn metrics(State(dashboard): State<Dashboard>) -> Response {
    match &dashboard.metrics {
        Some(render) => {
            ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], render()).into_response()
        }
        None => (StatusCode::NOT_FOUND, "this process counts nothing here\n").into_response(),
    }
}
