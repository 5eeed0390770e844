//! Headers that belong to one connection, and are not passed on.

use http::HeaderMap;
use http::header::{self, HeaderName};

/// Whether it belongs to every connection. `Trailer` does not: trailers are passed on.
fn is_of_the_connection(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "http2-settings"
            | "keep-alive"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// Takes them out, and what the `Connection` header names. Most messages have none.
pub(super) fn take_out(headers: &mut HeaderMap) {
    let mut out: Vec<HeaderName> =
        headers.keys().filter(|name| is_of_the_connection(name)).cloned().collect();
    if out.contains(&header::CONNECTION) {
        let lines = headers.get_all(header::CONNECTION).iter().filter_map(|it| it.to_str().ok());
        let named = lines.flat_map(|line| line.split(','));
        out.extend(named.filter_map(|name| name.trim().parse::<HeaderName>().ok()));
    }
    for name in out {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_connection_names_goes_with_it() {
        let all = [
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("trailer", "x-sum"),
            ("x-end", "1"),
        ];
        let mut headers: HeaderMap = all
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect();
        take_out(&mut headers);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["trailer", "x-end"]);
    }
}
