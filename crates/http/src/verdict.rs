//! What a handler can say about its own result, as an extension of its response.

use std::time::Duration;

/// Overrides the policy's judgement by status code.
///
/// Put it into the extensions of the response; it does not reach the client.
///
/// ```
/// use axum::{Extension, http::StatusCode, response::IntoResponse};
/// use semel_http::Verdict;
///
/// async fn charge() -> impl IntoResponse {
///     // The bank said no for good: a retry must get the same answer.
///     (StatusCode::BAD_GATEWAY, Extension(Verdict::Final), "card refused")
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Keep it, whatever its status.
    Final,
    /// Do not keep it: a retry runs the handler again.
    Retryable,
    /// Nobody knows whether it took effect: what the rules say about a crash follows. For answers
    /// such as 504, after whoever does the work was lost half-way.
    Unknown,
    /// Do not keep it: nothing was done, and the key is free even for another request. For
    /// validation errors that the client is going to correct.
    NotStarted,
}

/// How long this one result is kept, in place of what the policy says.
///
/// Put it into the extensions of the response; it does not reach the client.
///
/// ```
/// use axum::{Extension, response::IntoResponse};
/// use semel_http::Retention;
/// use std::time::Duration;
///
/// async fn transfer() -> impl IntoResponse {
///     (Extension(Retention(Duration::from_secs(30 * 86_400))), "transferred")
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention(pub Duration);
