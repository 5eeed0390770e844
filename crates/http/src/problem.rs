//! Every refusal of the layer, as an `application/problem+json` document (RFC 9457).
//!
//! The `type` of each points here. In the `stripe` profile the same facts are told in Stripe's
//! words: `{"error": {"type": …, "code": …, "message": …, "doc_url": …}}`. Over gRPC they are statuses,
//! and the metadata `idempotency-problem` has the name: see [`Policy::grpc`].
//!
//! # key-missing
//! `400`. The route needs an idempotency key and the request has none. Send one: a new random value,
//! such as a UUID, per operation, and the same value with every retry of it.
//!
//! # key-invalid
//! `400`. The key is empty, too long, sent twice, or has characters that are not visible ASCII; the
//! `detail` says which. Correct it; the request was not run.
//!
//! # caller-unknown
//! `403`. Keys belong to callers, and the request does not say who is calling. It was not run.
//!
//! # too-early
//! `425`. The request has no key and came as TLS early data, which can be repeated by anybody. Send
//! it again after the handshake, or with a key.
//!
//! # body-too-large
//! `413`. The body of a request with a key is larger than the limit. It was not run.
//!
//! # body-cut-off
//! `400`. The body ended early. The request was not run; send it again with the same key.
//!
//! # body-ambiguous
//! `400`. A JSON object in the body has two members of the same name. It was not run.
//!
//! # not-unary
//! `501`, only over gRPC: UNIMPLEMENTED. Keys are for unary calls; streams take none. It was not run.
//!
//! # key-reused
//! `422` (`400` in the `stripe` profile). The key was used before, for a different request. Retries
//! must repeat the request exactly; another operation needs another key. It was not run.
//!
//! # in-progress
//! `409` with `Retry-After`. The first request with this key is still running. Ask again with the
//! same key to get its answer.
//!
//! # not-retained
//! `409` without `Retry-After`. The operation was run, but its response was too large, was streamed,
//! or cannot be read any more. It is not run again; `original_status` tells how it ended, if that
//! is known. Do not send it with a new key: look for its effect.
//!
//! # outcome-unknown
//! `409` without `Retry-After`. The server died or panicked while it ran the operation, and nobody
//! knows what took effect. It is not run again under this key. Quote `operation` to the operator.
//!
//! # not-committed
//! `500`. The handler answered before its transaction was committed: nothing took effect, and the key
//! is free. Send it again with the same key.
//!
//! # store-unavailable
//! `503` with `Retry-After`. The keys cannot be reached, so nothing was run. Send it again with the
//! same key.
//!
//! # interrupted
//! `503` with `Retry-After`. The server is shutting down, and the operation may have been run. Send
//! it again with the same key.
//!
//! # handler-panicked
//! `500`. The handler panicked; the operation may have been run in part. The route's rules say
//! whether a retry with the same key runs it again.

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Response, StatusCode};
use semel_core::idempotency::ScopedKey;
use serde_json::{Value, json};

use crate::body::Body;
use crate::grpc;
use crate::policy::{Policy, Profile};

/// The header, the marker and all refusals as components of an OpenAPI 3 document, to be merged
/// into your own.
///
/// ```
/// let fragment: serde_json::Value = serde_json::from_str(semel_http::problem::OPENAPI)?;
/// let key = &fragment["components"]["parameters"]["IdempotencyKey"];
/// assert_eq!(key["name"], "Idempotency-Key");
/// # Ok::<(), serde_json::Error>(())
/// ```
pub const OPENAPI: &str = include_str!("../assets/openapi.json");

/// Why a request was not answered by its handler.
#[derive(Debug)]
pub(crate) enum Problem {
    KeyMissing,
    KeyInvalid(String),
    CallerUnknown,
    TooEarly,
    BodyTooLarge { limit: usize },
    BodyCutOff,
    BodyAmbiguous,
    NotUnary(&'static str),
    KeyReused,
    InProgress,
    NotRetained { operation: ScopedKey, status: Option<StatusCode> },
    OutcomeUnknown { operation: ScopedKey },
    NotCommitted,
    StoreUnavailable,
    Interrupted,
    HandlerPanicked,
}

/// Seconds after which a client should ask again.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

impl Problem {
    /// What it is called in the documentation.
    pub(crate) fn name(&self) -> &'static str {
        self.facts().0
    }

    /// Name, status and title.
    fn facts(&self) -> (&'static str, u16, &'static str) {
        match self {
            Self::KeyMissing => ("key-missing", 400, "Idempotency key missing"),
            Self::KeyInvalid(_) => ("key-invalid", 400, "Idempotency key invalid"),
            Self::CallerUnknown => ("caller-unknown", 403, "Caller unknown"),
            Self::TooEarly => ("too-early", 425, "Too early"),
            Self::BodyTooLarge { .. } => ("body-too-large", 413, "Request body too large"),
            Self::BodyCutOff => ("body-cut-off", 400, "Request body cut off"),
            Self::BodyAmbiguous => ("body-ambiguous", 400, "Request body ambiguous"),
            Self::NotUnary(_) => ("not-unary", 501, "Keys are for unary calls"),
            Self::KeyReused => ("key-reused", 422, "Idempotency key used for another request"),
            Self::InProgress => ("in-progress", 409, "A request with this key is outstanding"),
            Self::NotRetained { .. } => ("not-retained", 409, "Result not retained"),
            Self::OutcomeUnknown { .. } => ("outcome-unknown", 409, "Outcome unknown"),
            Self::NotCommitted => ("not-committed", 500, "Transaction not committed"),
            Self::StoreUnavailable => ("store-unavailable", 503, "Idempotency unavailable"),
            Self::Interrupted => ("interrupted", 503, "Server is shutting down"),
            Self::HandlerPanicked => ("handler-panicked", 500, "Internal error"),
        }
    }

    pub(crate) fn detail(&self) -> String {
        match self {
            Self::KeyMissing => "This operation needs an idempotency key; send a new one per \
                                 operation and repeat it with every retry."
                .into(),
            Self::KeyInvalid(reason) => format!("The idempotency key is not usable: {reason}."),
            Self::CallerUnknown => "Keys belong to callers, and this request names none.".into(),
            Self::TooEarly => "Send the request again without early data, or with a key.".into(),
            Self::BodyTooLarge { limit } => {
                format!("A request with an idempotency key may have {limit} bytes of body.")
            }
            Self::BodyCutOff => "The request body ended early; nothing was run.".into(),
            Self::BodyAmbiguous => "A JSON object has two members of the same name.".into(),
            Self::NotUnary(reason) => {
                format!("Idempotency keys are for unary gRPC calls: {reason}.")
            }
            Self::KeyReused => "The key was used before for a request that differs from this one; \
                                nothing was run."
                .into(),
            Self::InProgress => "The first request with this key is still running; ask again with \
                                 the same key."
                .into(),
            Self::NotRetained { .. } => "The operation was run, but its response is not there to \
                                         be repeated. It was not run again."
                .into(),
            Self::OutcomeUnknown { .. } => "An earlier attempt ended half-way, and what took \
                                            effect is unknown. It was not run again."
                .into(),
            Self::NotCommitted => {
                "The transaction of the operation was not committed; nothing took \
                                   effect. Send the request again with the same key."
                    .into()
            }
            Self::StoreUnavailable => "The idempotency keys cannot be reached; nothing was run. \
                                       Send the request again with the same key."
                .into(),
            Self::Interrupted => "The operation may have been run. Send the request again with \
                                  the same key."
                .into(),
            Self::HandlerPanicked => "The handler failed unexpectedly.".into(),
        }
    }

    /// The answer for the client.
    pub(crate) fn response<B: http_body::Body>(&self, policy: &Policy) -> Response<Body<B>> {
        if policy.profile == Profile::Grpc {
            return grpc::refusal(self);
        }
        let (name, status, _) = self.facts();
        let status = match (self, policy.profile) {
            (Self::KeyReused, Profile::Stripe) => 400,
            _ => status,
        };
        let docs = format!("{}{name}", policy.docs);
        let (content_type, document) = match policy.profile {
            Profile::Ietf | Profile::Grpc => {
                ("application/problem+json", self.problem_json(status, &docs))
            }
            Profile::Stripe => ("application/json", self.stripe_json(&docs)),
        };
        let body = Body::whole(Bytes::from(document.to_string()), None);
        let mut response = Response::new(body);
        *response.status_mut() =
            StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(header::CONTENT_LANGUAGE, HeaderValue::from_static("en"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Ok(link) = HeaderValue::from_str(&format!("<{docs}>; rel=\"describedby\"")) {
            headers.insert(header::LINK, link);
        }
        if self.is_worth_repeating() {
            headers.insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        response
    }

    /// Whether the same request with the same key may soon have another answer.
    pub(crate) fn is_worth_repeating(&self) -> bool {
        matches!(self, Self::InProgress | Self::StoreUnavailable | Self::Interrupted)
    }

    fn problem_json(&self, status: u16, docs: &str) -> Value {
        let (_, _, title) = self.facts();
        let mut problem =
            json!({"type": docs, "title": title, "status": status, "detail": self.detail()});
        if let Self::NotRetained { operation, .. } | Self::OutcomeUnknown { operation } = self {
            problem["operation"] = operation.to_string().into();
        }
        if let Self::NotRetained { status: Some(original), .. } = self {
            problem["original_status"] = original.as_u16().into();
        }
        problem
    }

    fn stripe_json(&self, docs: &str) -> Value {
        let kind = match self {
            Self::KeyReused
            | Self::InProgress
            | Self::NotRetained { .. }
            | Self::OutcomeUnknown { .. } => "idempotency_error",
            Self::NotCommitted
            | Self::StoreUnavailable
            | Self::Interrupted
            | Self::HandlerPanicked => "api_error",
            _ => "invalid_request_error",
        };
        let mut error = json!({"type": kind, "message": self.detail(), "doc_url": docs});
        if matches!(self, Self::InProgress) {
            error["code"] = "idempotency_key_in_use".into();
        }
        json!({"error": error})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> [Problem; 16] {
        let operation = ScopedKey::new(&["k"]);
        [
            Problem::KeyMissing,
            Problem::KeyInvalid(String::new()),
            Problem::CallerUnknown,
            Problem::TooEarly,
            Problem::BodyTooLarge { limit: 1 },
            Problem::BodyCutOff,
            Problem::BodyAmbiguous,
            Problem::NotUnary(""),
            Problem::KeyReused,
            Problem::InProgress,
            Problem::NotRetained { operation, status: Some(StatusCode::CREATED) },
            Problem::OutcomeUnknown { operation },
            Problem::NotCommitted,
            Problem::StoreUnavailable,
            Problem::Interrupted,
            Problem::HandlerPanicked,
        ]
    }

    fn fragment() -> Value {
        serde_json::from_str(OPENAPI).unwrap()
    }

    #[test]
    fn every_problem_is_documented_with_its_status() {
        let docs = include_str!("problem.rs");
        for problem in all() {
            let (name, status, _) = problem.facts();
            let heading = format!("//! # {name}\n//! `{status}`");
            assert!(docs.contains(&heading), "no section {heading:?}");
        }
        let sections = docs.lines().filter(|line| line.starts_with("//! # ")).count();
        assert_eq!(sections, all().len());
    }

    #[test]
    fn the_openapi_fragment_has_every_problem_of_http_and_no_other_response() {
        let fragment = fragment();
        let responses = fragment["components"]["responses"].as_object().unwrap();
        let mut described = std::collections::BTreeSet::new();
        for problem in all().iter().filter(|it| !matches!(it, Problem::NotUnary(_))) {
            let (name, status, _) = problem.facts();
            let response = &responses[&format!("Idempotency{status}")];
            let description = response["description"].as_str().unwrap();
            assert!(description.contains(name), "{name} is not in the OpenAPI fragment");
            let can_be_repeated = response["headers"]["Retry-After"].is_object();
            assert!(can_be_repeated || !problem.is_worth_repeating(), "{name}");
            described.insert(status);
        }
        assert_eq!(responses.len(), described.len());
    }

    #[test]
    fn every_document_is_as_the_openapi_fragment_says() {
        let schema = &fragment()["components"]["schemas"]["IdempotencyProblem"];
        for problem in all() {
            let (name, status, _) = problem.facts();
            let document = problem.problem_json(status, "https://shop.example/errors#x");
            for required in schema["required"].as_array().unwrap() {
                assert!(document.get(required.as_str().unwrap()).is_some(), "{name}: {required}");
            }
            for (member, value) in document.as_object().unwrap() {
                let expected = &schema["properties"][member]["type"];
                let found = if value.is_u64() { "integer" } else { "string" };
                assert_eq!(expected, found, "{name}: {member}");
            }
        }
    }

    #[test]
    fn every_reference_of_the_openapi_fragment_leads_somewhere() {
        fn check(value: &Value, root: &Value) -> usize {
            let inner = match value {
                Value::Object(members) => members.values().map(|it| check(it, root)).sum(),
                Value::Array(items) => items.iter().map(|it| check(it, root)).sum(),
                _ => 0,
            };
            let Some(reference) = value.get("$ref") else { return inner };
            let pointer = reference.as_str().unwrap().strip_prefix('#').unwrap();
            assert!(root.pointer(pointer).is_some(), "{reference}");
            inner + 1
        }
        assert!(check(&fragment(), &fragment()) > 8);
        for name in ["IdempotentReplayed", "IdempotencyStatus", "IdempotencyRetention"] {
            assert!(fragment()["components"]["headers"][name].is_object());
        }
    }
}
