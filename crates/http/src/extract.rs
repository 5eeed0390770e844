//! [`Attempt`] and [`IdempotencyClaim`] as extractors of axum handlers.

use std::convert::Infallible;

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use http::StatusCode;
use http::request::Parts;

use crate::attempt::Attempt;
use crate::claim::IdempotencyClaim;

/// For routes that always have a key.
///
/// ```
/// use axum::{Router, routing::post};
/// use semel_http::Attempt;
///
/// async fn charge(attempt: Attempt) -> String {
///     format!("attempt {}", attempt.number())
/// }
/// let app: Router = Router::new().route("/charges", post(charge));
/// ```
impl<S: Sync> FromRequestParts<S> for Attempt {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        parts.extensions.get().cloned().ok_or(KEYLESS)
    }
}

/// For routes on which a key is optional.
impl<S: Sync> OptionalFromRequestParts<S> for Attempt {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get().cloned())
    }
}

/// For routes that always have a key.
impl<S: Sync> FromRequestParts<S> for IdempotencyClaim {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Self::of(&parts.extensions).ok_or(KEYLESS)
    }
}

/// For routes on which a key is optional.
impl<S: Sync> OptionalFromRequestParts<S> for IdempotencyClaim {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(Self::of(&parts.extensions))
    }
}

const KEYLESS: (StatusCode, &str) = (
    StatusCode::INTERNAL_SERVER_ERROR,
    "this route needs an idempotency key: put it behind a layer that requires one",
);
