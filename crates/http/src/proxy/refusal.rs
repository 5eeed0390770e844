//! What the proxy itself says no to, as problem documents.

use http::header::{self, HeaderValue};
use http::{Response, StatusCode};
use serde_json::json;

use super::answer::Answer;
use crate::verdict::Verdict;

/// Why a request was not answered by the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    BadRequest(&'static str),
    NotSupported(&'static str),
    UpstreamUnreachable,
    UpstreamLost,
    UpstreamTimeout,
}

const DOCS: &str = "https://docs.rs/semel-http/latest/semel_http/proxy/index.html#";

impl Refusal {
    /// Name, status, title and what it means.
    fn facts(self) -> (&'static str, StatusCode, &'static str, &'static str) {
        match self {
            Self::BadRequest(why) => ("bad-request", StatusCode::BAD_REQUEST, "Bad request", why),
            Self::NotSupported(why) => {
                ("not-supported", StatusCode::NOT_IMPLEMENTED, "Not supported", why)
            }
            Self::UpstreamUnreachable => (
                "upstream-unreachable",
                StatusCode::BAD_GATEWAY,
                "Upstream unreachable",
                "There is no connection to the upstream; nothing was sent.",
            ),
            Self::UpstreamLost => (
                "upstream-lost",
                StatusCode::BAD_GATEWAY,
                "Upstream lost",
                "The connection was lost before there was an answer; what took effect is unknown.",
            ),
            Self::UpstreamTimeout => (
                "upstream-timeout",
                StatusCode::GATEWAY_TIMEOUT,
                "Upstream timeout",
                "There was no answer in time; what took effect is unknown.",
            ),
        }
    }

    /// What becomes of the key.
    fn verdict(self) -> Verdict {
        match self {
            Self::UpstreamLost | Self::UpstreamTimeout => Verdict::Unknown,
            _ => Verdict::NotStarted,
        }
    }

    pub(super) fn response(self) -> Response<Answer> {
        let (name, status, title, detail) = self.facts();
        let document = json!({
            "type": format!("{DOCS}{name}"),
            "title": title,
            "status": status.as_u16(),
            "detail": detail,
        });
        let mut response = Response::new(Answer::said(document.to_string()));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if matches!(self, Self::BadRequest(_) | Self::NotSupported(_)) {
            // Nobody knows for sure where its next request begins.
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response.extensions_mut().insert(self.verdict());
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_is_documented_with_its_status() {
        let docs = include_str!("mod.rs");
        let all = [
            Refusal::BadRequest(""),
            Refusal::NotSupported(""),
            Refusal::UpstreamUnreachable,
            Refusal::UpstreamLost,
            Refusal::UpstreamTimeout,
        ];
        for refusal in all {
            let (name, status, ..) = refusal.facts();
            let heading = format!("//! ## {name}\n//! `{}`", status.as_u16());
            assert!(docs.contains(&heading), "no section {heading:?}");
        }
    }
}
