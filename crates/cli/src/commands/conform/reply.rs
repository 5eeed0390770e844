//! An answer, and what can be said of it.

use std::fmt;

use bytes::Bytes;
use http::{HeaderMap, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;

use super::Wrong;
use super::probe::ensure;

/// An answer that was read to its end.
#[derive(Clone)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) trailers: Option<HeaderMap>,
    /// Whether the body ended as it should.
    pub(super) is_whole: bool,
    /// How long the end of the body came after its first piece.
    pub(super) streamed: std::time::Duration,
}

const MARKER: &str = "idempotent-replayed";

impl Reply {
    pub(super) async fn read(response: Response<Incoming>) -> Result<Self, String> {
        let (parts, mut incoming) = response.into_parts();
        let (mut body, mut trailers, mut is_whole, mut first) = (Vec::new(), None, true, None);
        while let Some(frame) = incoming.frame().await {
            match frame.map(http_body::Frame::into_data) {
                Ok(Ok(data)) => {
                    first.get_or_insert_with(std::time::Instant::now);
                    body.extend_from_slice(&data);
                }
                Ok(Err(other)) => trailers = other.into_trailers().ok(),
                Err(_) => {
                    is_whole = false;
                    break;
                }
            }
        }
        Ok(Self {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: body.into(),
            trailers,
            is_whole,
            streamed: first.map_or_else(Default::default, |first| first.elapsed()),
        })
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The values of all lines of this name.
    pub(super) fn lines(&self, name: &str) -> Vec<&[u8]> {
        self.headers.get_all(name).iter().map(http::HeaderValue::as_bytes).collect()
    }

    pub(super) fn is_replayed(&self) -> bool {
        self.header(MARKER) == Some("true")
    }

    /// Whether the endpoint itself says that nothing was run, because it could not ask its store.
    pub(super) fn is_of_no_store(&self) -> bool {
        let content_type = self.header("content-type").unwrap_or_default();
        self.status == 503
            && content_type.starts_with("application/problem+json")
            && self.header("retry-after").is_some()
    }

    pub(super) fn is(&self, status: u16) -> Result<(), Wrong> {
        ensure(self.status == status, || format!("{self} where {status} is right"))
    }

    /// That the handler gave it just now, with this status.
    pub(super) fn is_first(&self, status: u16) -> Result<(), Wrong> {
        self.is(status)?;
        ensure(self.header(MARKER).is_none(), || format!("{self} is marked as a replay"))
    }

    /// That it is a replay of the other.
    pub(super) fn repeats(&self, first: &Self) -> Result<(), Wrong> {
        self.is(first.status)?;
        ensure(self.is_replayed(), || format!("{self} is not marked as a replay"))?;
        ensure(self.body == first.body, || format!("{self} has another body than {first}"))
    }

    /// That it is a problem document with this status; the document.
    pub(super) fn problem(&self, status: u16) -> Result<Value, Wrong> {
        self.is(status)?;
        let content_type = self.header("content-type").unwrap_or_default();
        ensure(content_type.starts_with("application/problem+json"), || {
            format!("{self} is of type {content_type:?}, and no problem document")
        })?;
        ensure(self.header(MARKER).is_none(), || format!("{self} is marked as a replay"))?;
        let document: Value = serde_json::from_slice(&self.body)
            .map_err(|error| Wrong::Failed(format!("{self} is no JSON: {error}")))?;
        for member in ["type", "title", "detail"] {
            let has = document[member].as_str().is_some_and(|text| !text.is_empty());
            ensure(has, || format!("{self} has no {member:?}"))?;
        }
        ensure(document["status"] == status, || format!("{self} has another status inside"))?;
        Ok(document)
    }

    /// That it tells of a request in progress, and when to come again.
    pub(super) fn is_in_progress(&self) -> Result<(), Wrong> {
        self.problem(409)?;
        let after = self.header("retry-after").and_then(|after| after.parse::<u64>().ok());
        ensure(after.is_some_and(|after| after >= 1), || {
            format!("{self} has Retry-After {after:?}")
        })
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text: String = String::from_utf8_lossy(&self.body).chars().take(120).collect();
        write!(f, "{} {text:?}", self.status)
    }
}
