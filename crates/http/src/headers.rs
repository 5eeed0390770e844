//! Which headers of a response are stored and replayed.

use http::header::{self, HeaderMap, HeaderName};

/// Set on every replayed response, to `true`.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Set on a response that a retry will not get again: `unprotected` (the store was down, and the
/// request ran all the same), `not-stored` (the store failed afterwards), `not-retained` (too
/// large, or streamed).
pub const STATUS: HeaderName = HeaderName::from_static("idempotency-status");

/// For how many seconds a result is kept, set on the answer to `OPTIONS`: clients learn it without
/// running anything.
pub const RETENTION: HeaderName = HeaderName::from_static("idempotency-retention");

/// Which attempt a request is; the proxy sets it on what it sends upstream.
pub const ATTEMPT: HeaderName = HeaderName::from_static("idempotency-attempt");

/// The token of an attempt: greater than that of every earlier one under the same key. The proxy
/// sets it on what it sends upstream.
pub const FENCE: HeaderName = HeaderName::from_static("idempotency-fence");

/// What an upstream says about its own answer, in the words of [`Verdict`](crate::Verdict):
/// `final`, `retryable`, `unknown` or `not-started`. The proxy heeds it, and takes it out.
pub const VERDICT: HeaderName = HeaderName::from_static("idempotency-verdict");

/// For how many seconds an upstream wants its answer kept. The proxy heeds it, and takes it out.
pub const KEEP: HeaderName = HeaderName::from_static("idempotency-keep");

const ALLOWED: [HeaderName; 15] = [
    header::ACCESS_CONTROL_ALLOW_CREDENTIALS,
    header::ACCESS_CONTROL_ALLOW_ORIGIN,
    header::ACCESS_CONTROL_EXPOSE_HEADERS,
    header::CACHE_CONTROL,
    header::CONTENT_DISPOSITION,
    header::CONTENT_ENCODING,
    header::CONTENT_LANGUAGE,
    header::CONTENT_LOCATION,
    header::CONTENT_TYPE,
    header::ETAG,
    header::EXPIRES,
    header::LAST_MODIFIED,
    header::LINK,
    header::LOCATION,
    header::VARY,
];

/// Credentials, and what belongs to one connection or one moment.
const REFUSED: [HeaderName; 17] = [
    header::AUTHORIZATION,
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::DATE,
    header::SET_COOKIE,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::WWW_AUTHENTICATE,
    HeaderName::from_static("age"),
    HeaderName::from_static("authentication-info"),
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("set-cookie2"),
    HeaderName::from_static("x-auth-token"),
    REPLAYED,
    STATUS,
];

/// The allow-list of a policy.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReplayHeaders {
    pub(crate) also: Vec<HeaderName>,
    pub(crate) all: bool,
}

impl ReplayHeaders {
    /// The headers to store, in their order.
    pub(crate) fn select<'h>(
        &'h self,
        headers: &'h HeaderMap,
    ) -> impl Iterator<Item = (&'h HeaderName, &'h header::HeaderValue)> {
        headers.iter().filter(|(name, _)| self.allows(name) && !is_hop_by_hop(headers, name))
    }

    fn allows(&self, name: &HeaderName) -> bool {
        let wanted = self.all
            || ALLOWED.contains(name)
            || name.as_str().starts_with("x-")
            || self.also.contains(name);
        wanted && !REFUSED.contains(name) && !name.as_str().starts_with("proxy-")
    }
}

/// Whether the `Connection` header claims this one.
fn is_hop_by_hop(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','))
        .any(|token| token.trim().eq_ignore_ascii_case(name.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(list: &ReplayHeaders, headers: &[(&'static str, &'static str)]) -> Vec<String> {
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect();
        list.select(&headers).map(|(name, _)| name.to_string()).collect()
    }

    #[test]
    fn content_location_and_custom_headers_are_kept() {
        let headers = [("content-type", "a/b"), ("location", "/1"), ("x-mine", "1"), ("foo", "1")];
        let list = ReplayHeaders::default();
        assert_eq!(selected(&list, &headers), ["content-type", "location", "x-mine"]);
        let with_foo = ReplayHeaders { also: vec![HeaderName::from_static("foo")], all: false };
        assert_eq!(selected(&with_foo, &headers).len(), 4);
    }

    #[test]
    fn credentials_and_connection_headers_are_refused_even_if_listed() {
        let names = [
            "set-cookie",
            "authorization",
            "www-authenticate",
            "proxy-authenticate",
            "proxy-authorization",
            "connection",
            "keep-alive",
            "te",
            "trailer",
            "transfer-encoding",
            "upgrade",
            "date",
            "content-length",
            "idempotent-replayed",
        ];
        let also = names.iter().map(|name| HeaderName::from_static(name)).collect();
        for list in [ReplayHeaders { also, all: false }, ReplayHeaders { also: vec![], all: true }]
        {
            for name in names {
                assert_eq!(selected(&list, &[(name, "v")]), [""; 0], "{name}");
            }
        }
    }

    #[test]
    fn what_the_connection_header_names_is_not_kept() {
        let headers = [("connection", "close, X-Hop"), ("x-hop", "1"), ("x-end", "1")];
        assert_eq!(selected(&ReplayHeaders::default(), &headers), ["x-end"]);
    }
}
