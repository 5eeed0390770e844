//! What holds for every answer: reading only, and headers that leave browsers no freedom.

use std::sync::LazyLock;

use axum::extract::Request;
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::page;

/// Refuses everything that could change something, known path or not.
pub(crate) async fn only_reading(request: Request, next: Next) -> Response {
    match *request.method() {
        Method::GET | Method::HEAD => next.run(request).await,
        _ => {
            let allow = [(header::ALLOW, "GET, HEAD")];
            (StatusCode::METHOD_NOT_ALLOWED, allow, "the dashboard only reads\n").into_response()
        }
    }
}

/// Adds the security headers.
pub(crate) async fn lock_down(mut response: Response) -> Response {
    const FIXED: [(HeaderName, HeaderValue); 5] = [
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            HeaderValue::from_static("same-origin"),
        ),
    ];
    let headers = response.headers_mut();
    headers.extend(FIXED);
    headers.insert(header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY.clone());
    response
}

/// Only the page's own script and style, by their hashes, may run; only its own API may be asked.
static CONTENT_SECURITY_POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let policy = format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        page::hash_of("script"),
        page::hash_of("style"),
    );
    HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
});
