//! What comes in: requests that two readers could understand differently stay outside.

use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, Request, Uri};

use super::hops;
use super::refusal::Refusal;
use crate::headers::{ATTEMPT, FENCE};

/// Checks a request, and takes out what is not to be passed on.
///
/// The server underneath has refused malformed lines, lengths that differ, and codings whose end
/// cannot be known. Of a length *and* a chunked coding it keeps the coding, as RFC 9112 has it, and
/// closes the connection afterwards.
pub(super) fn admit<B>(mut request: Request<B>) -> Result<Request<B>, Refusal> {
    if request.method() == Method::CONNECT {
        return Err(Refusal::NotSupported("this is no tunnel"));
    }
    check_coding(request.headers())?;
    let host = host(request.uri(), request.headers())?;
    check_path(request.uri().path())?;
    let headers = request.headers_mut();
    hops::take_out(headers);
    headers.insert(header::HOST, host);
    for ours in [ATTEMPT, FENCE, header::EXPECT] {
        headers.remove(ours);
    }
    Ok(request)
}

/// A body in another coding could not be framed anew without being decoded.
fn check_coding(headers: &HeaderMap) -> Result<(), Refusal> {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let chunked = codings.next().is_none_or(|it| it.as_bytes().eq_ignore_ascii_case(b"chunked"));
    if chunked && codings.next().is_none() {
        return Ok(());
    }
    Err(Refusal::NotSupported("of the transfer codings only chunked is known here"))
}

/// The one host the request is for.
fn host(uri: &Uri, headers: &HeaderMap) -> Result<HeaderValue, Refusal> {
    let mut lines = headers.get_all(header::HOST).iter();
    let (first, more) = (lines.next(), lines.next().is_some());
    if more {
        return Err(Refusal::BadRequest("it names more than one host"));
    }
    match (uri.authority(), first) {
        (None, Some(host)) => Ok(host.clone()),
        (Some(authority), host) => {
            let authority = authority.as_str();
            if host.is_some_and(|host| !host.as_bytes().eq_ignore_ascii_case(authority.as_bytes()))
            {
                return Err(Refusal::BadRequest("it names two different hosts"));
            }
            HeaderValue::from_str(authority).map_err(|_| Refusal::BadRequest("its host is unclear"))
        }
        (None, None) => Err(Refusal::BadRequest("it names no host")),
    }
}

/// The rules of a route are chosen by the path, so nobody may spell it in a way that the upstream
/// reads as another.
fn check_path(path: &str) -> Result<(), Refusal> {
    let is_dots = |segment: &str| {
        // Most begin with something else, and cost no more than this.
        segment.starts_with(['.', '%']) && {
            let segment = segment.replace("%2e", ".").replace("%2E", ".");
            segment == "." || segment == ".."
        }
    };
    if !path.starts_with('/') {
        return Err(Refusal::BadRequest("its path does not begin with a slash"));
    }
    if path.contains('\\') || path.split('/').any(is_dots) {
        return Err(Refusal::BadRequest("its path has . or .. as a part, or a backslash"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(uri: &str, headers: &[(&str, &str)]) -> Result<Request<()>, Refusal> {
        let mut request = Request::post(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        admit(request.body(()).unwrap())
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_refused() {
        let refused = [
            with("/", &[]),
            with("/", &[("host", "a"), ("host", "a")]),
            with("http://a/", &[("host", "b")]),
            with("/orders/../payments", &[("host", "a")]),
            with("/orders/%2E%2e/payments", &[("host", "a")]),
            with("/orders/.", &[("host", "a")]),
            with("*", &[("host", "a")]),
            with("/", &[("host", "a"), ("transfer-encoding", "gzip, chunked")]),
            with(
                "/",
                &[("host", "a"), ("transfer-encoding", "gzip"), ("transfer-encoding", "chunked")],
            ),
        ];
        for (number, result) in refused.into_iter().enumerate() {
            assert!(result.is_err(), "case {number} was let in");
        }
        let connect = Request::connect("a:80").header("host", "a:80").body(()).unwrap();
        assert!(admit(connect).is_err());
    }

    #[test]
    fn what_is_let_in_has_one_host_and_none_of_our_own_headers() {
        let sent = [
            ("idempotency-attempt", "7"),
            ("idempotency-fence", "9"),
            ("transfer-encoding", "Chunked"),
            ("idempotency-key", "k"),
        ];
        let request = with("http://shop/v1.0/..orders", &sent).unwrap();
        let mut left: Vec<_> = request.headers().keys().map(http::HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["host", "idempotency-key"]);
        assert_eq!(request.headers()["host"], "shop");
    }
}
