//! Reads a request for its fingerprint and a response for its record, within limits.

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::request::Parts;
use http::{Response, StatusCode, response};
use semel_core::idempotency::{Ending, Fingerprint, ScopedKey};

use crate::body::{Body, Gathered, Read, gather, read};
use crate::canonical::{Ambiguous, canonical_json};
use crate::claim::Recorded;
use crate::engine::Job;
use crate::grpc;
use crate::headers::STATUS;
use crate::policy::{Covers, Policy, Profile};
use crate::problem::Problem;
use crate::record;
use crate::settle::{Kept, Settlement};
use crate::trace::FirstTrace;
use crate::verdict::{Retention, Verdict};

/// Changes whenever the fingerprint is computed differently.
const FINGERPRINT_VERSION: &[u8] = b"semel-http 1";

/// The stored key of a request.
pub(crate) fn scoped_key(policy: &Policy, parts: &Parts) -> Result<ScopedKey, Problem> {
    let key =
        policy.key_syntax.read(&parts.headers, &policy.key_headers).map_err(Problem::KeyInvalid)?;
    let Some(key) = key else {
        // Only early data brings a request here that neither has nor needs a key.
        return Err(if policy.key_required { Problem::KeyMissing } else { Problem::TooEarly });
    };
    if policy.profile == Profile::Grpc {
        grpc::check(policy, parts)?;
    }
    let scope = policy.scope.resolve(parts).ok_or(Problem::CallerUnknown)?;
    Ok(match policy.key_covers {
        Covers::Endpoint => {
            ScopedKey::new(&["http", &scope, parts.method.as_str(), path(parts), &key])
        }
        Covers::Tenant => ScopedKey::new(&["http", &scope, &key]),
    })
}

/// The path the client asked for, whatever routers have cut off it since.
fn path(parts: &Parts) -> &str {
    #[cfg(feature = "axum")]
    if let Some(axum::extract::OriginalUri(uri)) = parts.extensions.get() {
        return uri.path();
    }
    parts.uri.path()
}

/// A request that was read to its end.
pub(crate) struct Captured {
    pub(crate) data: Bytes,
    pub(crate) trailers: Option<Box<HeaderMap>>,
}

/// Reads the whole body. What is cut off or too large is never run.
pub(crate) async fn request<B>(policy: &Policy, body: B) -> Result<Captured, Problem>
where
    B: http_body::Body<Data = Bytes>,
{
    if policy.profile == Profile::Grpc {
        // Boxed: with its timer it would make the future of every request larger.
        return Box::pin(grpc::message(policy, body)).await;
    }
    let limit = policy.max_request_bytes;
    if usize::try_from(body.size_hint().lower()).map_or(true, |least| least > limit) {
        return Err(Problem::BodyTooLarge { limit });
    }
    match read(std::pin::pin!(body), limit, None).await {
        Read::Whole { data, trailers } => Ok(Captured { data, trailers }),
        Read::Part { .. } => Err(Problem::BodyTooLarge { limit }),
        Read::Broken { .. } => Err(Problem::BodyCutOff),
    }
}

/// What is asked of the store for this request.
pub(crate) fn job(
    policy: &Policy,
    parts: &Parts,
    key: ScopedKey,
    body: &[u8],
) -> Result<Job, Problem> {
    let content_type = parts.headers.get(header::CONTENT_TYPE);
    let canonical = if policy.canonical_json && content_type.is_some_and(is_json) {
        canonical_json(body).map_err(|Ambiguous| Problem::BodyAmbiguous)?
    } else {
        None
    };
    let secret = policy.fingerprint_secret.as_ref().map_or("", |secret| secret.reveal());
    let fingerprint = Fingerprint::new(&[
        FINGERPRINT_VERSION,
        secret.as_bytes(),
        // So that equal bodies under two keys cannot be told to be equal.
        key.as_bytes(),
        parts.method.as_str().as_bytes(),
        path(parts).as_bytes(),
        parts.uri.query().unwrap_or_default().as_bytes(),
        content_type.map_or(b"", HeaderValue::as_bytes),
        canonical.as_deref().unwrap_or(body),
    ]);
    Ok(Job { key, fingerprint, rules: policy.rules })
}

fn is_json(content_type: &HeaderValue) -> bool {
    let essence = essence(content_type);
    essence.eq_ignore_ascii_case("application/json")
        || essence.len() > 5 && essence[essence.len() - 5..].eq_ignore_ascii_case("+json")
}

fn essence(content_type: &HeaderValue) -> &str {
    let text = content_type.to_str().unwrap_or_default();
    text.split(';').next().unwrap_or_default().trim()
}

/// Reads a response as far as it can be kept, and says what to keep of it.
pub(crate) async fn response<B>(
    policy: &Policy,
    trace: Option<&FirstTrace>,
    response: Response<B>,
) -> (Response<Body<B>>, Settlement)
where
    B: http_body::Body<Data = Bytes>,
{
    let (mut parts, body) = response.into_parts();
    if parts.extensions.remove::<Recorded>().is_some() {
        return (Response::from_parts(parts, body.into()), Settlement::Recorded);
    }
    let verdict = parts.extensions.remove::<Verdict>();
    if verdict == Some(Verdict::Unknown) {
        let settlement = Settlement::unknown(&policy.rules);
        return (Response::from_parts(parts, body.into()), settlement);
    }
    // What gRPC says of a call comes at its end, and is looked at then.
    let is_grpc = policy.profile == Profile::Grpc;
    let by_end = is_grpc && verdict.is_none() && parts.status == StatusCode::OK;
    if !by_end && !policy.keeps(verdict, parts.status) {
        return (Response::from_parts(parts, body.into()), Settlement::Release);
    }
    let (body, kept) = kept(policy, trace, &mut parts, body).await;
    let settlement = if by_end && !grpc::is_settled(&parts.headers, &body) {
        Settlement::Release
    } else {
        Settlement::Keep(kept)
    };
    (Response::from_parts(parts, body.into()), settlement)
}

/// Reads a response as far as it can be kept, whatever its status.
pub(crate) async fn kept<B>(
    policy: &Policy,
    trace: Option<&FirstTrace>,
    parts: &mut response::Parts,
    body: B,
) -> (Gathered<B>, Kept)
where
    B: http_body::Body<Data = Bytes>,
{
    let keep = parts.extensions.remove::<Retention>().map_or(policy.rules.keep, |own| own.0);
    let gathered = if is_event_stream(parts) {
        Gathered::Rest { head: Bytes::new(), rest: Box::pin(body) }
    } else {
        gather(body, policy.max_response_bytes, policy.stream_after).await
    };
    let kept = match &gathered {
        Gathered::Whole { data, trailers } if is_as_long_as_announced(parts, data) => {
            let (headers, trailers) = (&parts.headers, trailers.as_deref());
            let allowed = &policy.replay_headers;
            let payload = record::encode(parts.status, trace, headers, allowed, trailers, data);
            Kept::new(Ending::Succeeded, payload, keep)
        }
        _ => {
            parts.headers.insert(STATUS, HeaderValue::from_static("not-retained"));
            Kept::new(Ending::NotRetained, record::encode_tombstone(parts.status), keep)
        }
    };
    (gathered, kept)
}

fn is_event_stream(parts: &response::Parts) -> bool {
    let content_type = parts.headers.get(header::CONTENT_TYPE);
    content_type.is_some_and(|value| essence(value).eq_ignore_ascii_case("text/event-stream"))
}

fn is_as_long_as_announced(parts: &response::Parts, data: &Bytes) -> bool {
    let announced = parts.headers.get(header::CONTENT_LENGTH);
    let length = |value: &HeaderValue| value.to_str().ok()?.parse::<usize>().ok();
    announced.is_none_or(|announced| length(announced) == Some(data.len()))
}
