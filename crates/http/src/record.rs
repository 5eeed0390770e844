//! How a response is written into the store and read back.
//!
//! Version 1: version byte, status, headers, trailers, body. Numbers are little-endian; a map is
//! its number of lines, then name and value of each with their lengths. Version 2 has the trace of
//! the request behind the version byte: one byte for its length, and the text.

use bytes::{Buf, Bytes};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};

use crate::body::Body;
use crate::headers::ReplayHeaders;
use crate::trace::FirstTrace;

const VERSION: u8 = 1;
const TRACED: u8 = 2;

/// What is stored of a response.
pub(crate) fn encode(
    status: StatusCode,
    trace: Option<&FirstTrace>,
    headers: &HeaderMap,
    allowed: &ReplayHeaders,
    trailers: Option<&HeaderMap>,
    body: &[u8],
) -> Vec<u8> {
    // Head, and a byte for whoever wraps it.
    const FIXED: usize = 1 + 2 + 2 + 2 + 1;
    let lines = |map| allowed.select(map);
    let maps = [Some(headers), trailers];
    let size: usize = maps
        .into_iter()
        .flatten()
        .flat_map(lines)
        .map(|(name, value)| 6 + name.as_str().len() + value.len())
        .sum();
    let trace = trace.and_then(|trace| Some((u8::try_from(trace.as_bytes().len()).ok()?, trace)));
    let traced = trace.map_or(0, |(length, _)| 1 + usize::from(length));
    let mut bytes = Vec::with_capacity(FIXED + traced + size + body.len());
    match trace {
        None => bytes.push(VERSION),
        Some((length, trace)) => {
            bytes.extend_from_slice(&[TRACED, length]);
            bytes.extend_from_slice(trace.as_bytes());
        }
    }
    bytes.extend_from_slice(&status.as_u16().to_le_bytes());
    for map in maps {
        put_lines(&mut bytes, map.into_iter().flat_map(lines));
    }
    bytes.extend_from_slice(body);
    bytes
}

fn put_lines<'h>(
    bytes: &mut Vec<u8>,
    lines: impl Iterator<Item = (&'h HeaderName, &'h HeaderValue)>,
) {
    // The http crate limits a map to 2^15 lines, a name to 2^16 - 1 bytes.
    let count_at = bytes.len();
    bytes.extend_from_slice(&[0; 2]);
    let mut count = 0_u16;
    for (name, value) in lines {
        count += 1;
        let name = name.as_str();
        bytes.extend_from_slice(&u16::try_from(name.len()).unwrap_or(u16::MAX).to_le_bytes());
        bytes.extend_from_slice(name.as_bytes());
        bytes.extend_from_slice(&u32::try_from(value.len()).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend_from_slice(value.as_bytes());
    }
    bytes[count_at..][..2].copy_from_slice(&count.to_le_bytes());
}

/// The response that was stored, with its [`FirstTrace`] among the extensions; `None` if this
/// release cannot read it.
pub(crate) fn decode<B: http_body::Body>(mut bytes: Bytes) -> Option<Response<Body<B>>> {
    let trace = match bytes.try_get_u8().ok()? {
        VERSION => None,
        TRACED => {
            let length = bytes.try_get_u8().ok()?;
            let text = take(&mut bytes, usize::from(length))?;
            HeaderValue::from_maybe_shared(text).ok().and_then(FirstTrace::from_value)
        }
        _ => return None,
    };
    let status = StatusCode::from_u16(bytes.try_get_u16_le().ok()?).ok()?;
    let headers = take_lines(&mut bytes)?;
    let trailers = take_lines(&mut bytes)?;
    let trailers = (!trailers.is_empty()).then(|| Box::new(trailers));
    let mut response = Response::new(Body::whole(bytes, trailers));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    if let Some(trace) = trace {
        response.extensions_mut().insert(trace);
    }
    Some(response)
}

fn take_lines(bytes: &mut Bytes) -> Option<HeaderMap> {
    let count = bytes.try_get_u16_le().ok()?;
    let mut lines = HeaderMap::with_capacity(usize::from(count).min(64));
    for _ in 0..count {
        let length = bytes.try_get_u16_le().ok()?;
        let name = HeaderName::from_bytes(&take(bytes, usize::from(length))?).ok()?;
        let length = usize::try_from(bytes.try_get_u32_le().ok()?).ok()?;
        let value = HeaderValue::from_maybe_shared(take(bytes, length)?).ok()?;
        lines.try_append(name, value).ok()?;
    }
    Some(lines)
}

fn take(bytes: &mut Bytes, length: usize) -> Option<Bytes> {
    (length <= bytes.len()).then(|| bytes.split_to(length))
}

/// What is stored of a response that is not retained.
pub(crate) fn encode_tombstone(status: StatusCode) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(3);
    bytes.extend_from_slice(&status.as_u16().to_le_bytes());
    bytes
}

/// The status of a response that was not retained, if it was noted.
pub(crate) fn decode_tombstone(mut bytes: Bytes) -> Option<StatusCode> {
    StatusCode::from_u16(bytes.try_get_u16_le().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, Full};

    use super::*;

    fn example() -> (HeaderMap, HeaderMap, Vec<u8>) {
        let mut headers = HeaderMap::new();
        headers.append("x-repeated", "1".parse().unwrap());
        headers.append("location", "/orders/1".parse().unwrap());
        headers.append("x-repeated", HeaderValue::from_bytes(b"\xe9\xff").unwrap());
        let trailers = HeaderMap::from_iter([(
            HeaderName::from_static("x-checksum"),
            HeaderValue::from_static("42"),
        )]);
        (headers, trailers, (0..=255).collect())
    }

    #[tokio::test]
    async fn status_headers_trailers_and_all_bytes_survive() {
        let (headers, trailers, body) = example();
        let all = ReplayHeaders::default();
        let bytes = encode(StatusCode::CREATED, None, &headers, &all, Some(&trailers), &body);
        assert_eq!(bytes.len() + 1, bytes.capacity(), "room for exactly one more byte");

        let response = decode::<Full<Bytes>>(bytes.into()).unwrap();
        assert_eq!(response.status(), StatusCode::CREATED);
        assert_eq!(response.headers(), &headers);
        let collected = response.into_body().collect().await.unwrap();
        assert_eq!(collected.trailers(), Some(&trailers));
        assert_eq!(collected.to_bytes(), body);
    }

    #[test]
    fn the_trace_of_the_first_is_kept_where_there_is_one() {
        let (headers, trailers, body) = example();
        let all = ReplayHeaders::default();
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let first = FirstTrace::from_value(HeaderValue::from_static(parent)).unwrap();
        let bytes = encode(StatusCode::OK, Some(&first), &headers, &all, Some(&trailers), &body);
        assert_eq!(bytes.len() + 1, bytes.capacity(), "room for exactly one more byte");
        for end in 0..bytes.len() - body.len() {
            let cut = Bytes::copy_from_slice(&bytes[..end]);
            assert!(decode::<Full<Bytes>>(cut).is_none(), "cut at {end}");
        }
        let response = decode::<Full<Bytes>>(bytes.into()).unwrap();
        assert_eq!(response.headers(), &headers);
        assert_eq!(response.extensions().get(), Some(&first));
    }

    #[test]
    fn what_is_cut_off_or_of_a_later_version_cannot_be_read() {
        let (headers, trailers, _) = example();
        let all = ReplayHeaders::default();
        let bytes = encode(StatusCode::OK, None, &headers, &all, Some(&trailers), b"");
        for end in 0..bytes.len() {
            let cut = Bytes::copy_from_slice(&bytes[..end]);
            assert!(decode::<Full<Bytes>>(cut).is_none(), "cut at {end}");
        }
        let mut later = bytes.clone();
        later[0] = TRACED + 1;
        assert!(decode::<Full<Bytes>>(later.into()).is_none());
        assert!(decode::<Full<Bytes>>(bytes.into()).is_some());
    }

    #[test]
    fn a_tombstone_keeps_the_status() {
        let note = encode_tombstone(StatusCode::ACCEPTED).into();
        assert_eq!(decode_tombstone(note), Some(StatusCode::ACCEPTED));
        assert_eq!(decode_tombstone(Bytes::new()), None);
    }

    /// What is in the store may be of another release, or broken.
    #[test]
    fn fuzzed_any_bytes_are_a_record_or_none() {
        let (headers, trailers, body) = example();
        let all = ReplayHeaders::default();
        let whole = encode(StatusCode::CREATED, None, &headers, &all, Some(&trailers), &body);
        let small = encode(StatusCode::OK, None, &HeaderMap::new(), &all, None, b"");
        semel_testkit::fuzz::fuzz(&[whole, small, encode_tombstone(StatusCode::OK)], |bytes| {
            let bytes = Bytes::copy_from_slice(bytes);
            decode_tombstone(bytes.clone());
            if let Some(response) = decode::<Full<Bytes>>(bytes.clone()) {
                assert!(response.headers().len() <= bytes.len());
            }
        });
    }
}
