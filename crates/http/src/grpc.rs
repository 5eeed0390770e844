//! Keys of unary gRPC calls: messages, statuses, and refusals in the words of gRPC.
//!
//! Only the framing is looked at, never the messages, so any codec and any server will do.

use std::fmt::Write;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::poll_fn;
use http::Response;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use tokio::time::timeout;

use crate::body::{Body, Gathered, Head};
use crate::capture::Captured;
use crate::policy::Policy;
use crate::problem::Problem;

const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// Names the problem in the metadata of a refusal.
const PROBLEM: HeaderName = HeaderName::from_static("idempotency-problem");

/// Compressed or not, and the length.
const PREFIX: usize = 5;

/// How long after its message the end of a unary call may come.
const END: Duration = Duration::from_secs(5);

/// Whether the call is one that takes keys.
pub(crate) fn check(policy: &Policy, parts: &Parts) -> Result<(), Problem> {
    let content_type = parts.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let after = content_type.and_then(|value| value.strip_prefix(b"application/grpc"));
    match after {
        Some([] | [b'+' | b';', ..]) => {}
        _ => return Err(Problem::NotUnary("it is not of the type application/grpc")),
    }
    if policy.streaming_methods.iter().any(|path| path == parts.uri.path()) {
        return Err(Problem::NotUnary("this method is a stream"));
    }
    Ok(())
}

/// Reads the one message of a unary call, to the end of the call.
pub(crate) async fn message<B>(policy: &Policy, body: B) -> Result<Captured, Problem>
where
    B: http_body::Body<Data = Bytes>,
{
    let (mut body, mut head) = (std::pin::pin!(body), Head::default());
    let limit = policy.max_request_bytes;
    loop {
        let announced = announced(head.start());
        if announced.is_some_and(|length| length > limit) {
            return Err(Problem::BodyTooLarge { limit });
        }
        let whole = announced.map(|length| length + PREFIX);
        if whole.is_some_and(|whole| head.len() > whole) {
            return Err(Problem::NotUnary("it has more than one message"));
        }
        let next = poll_fn(|context| body.as_mut().poll_frame(context));
        let frame = if whole == Some(head.len()) {
            timeout(END, next).await.map_err(|_| Problem::NotUnary("it does not end"))?
        } else {
            next.await
        };
        match frame.map(|frame| frame.map(http_body::Frame::into_data)) {
            Some(Ok(Ok(data))) => head.push(data),
            Some(Err(_)) => return Err(Problem::BodyCutOff),
            // Its end, or trailers, which a client does not send.
            None | Some(Ok(Err(_))) if whole == Some(head.len()) => {
                return Ok(Captured { data: head.join(), trailers: None });
            }
            None | Some(Ok(Err(_))) => return Err(Problem::BodyCutOff),
        }
    }
}

fn announced(start: &[u8]) -> Option<usize> {
    let length = start.get(1..PREFIX)?.try_into().ok()?;
    usize::try_from(u32::from_be_bytes(length)).ok()
}

/// Whether a retry of the same call would get the same status. What was passed on as a stream has
/// run, whatever its status is going to be.
pub(crate) fn is_settled<B: http_body::Body>(headers: &HeaderMap, body: &Gathered<B>) -> bool {
    let trailers = match body {
        Gathered::Whole { trailers, .. } => trailers.as_deref(),
        Gathered::Rest { .. } | Gathered::Broken { .. } => return true,
    };
    let status = trailers.and_then(|trailers| trailers.get(STATUS)).or(headers.get(STATUS));
    // OK, INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS, FAILED_PRECONDITION, OUT_OF_RANGE.
    let settled: [&[u8]; 6] = [b"0", b"3", b"5", b"6", b"9", b"11"];
    status.is_some_and(|status| settled.contains(&status.as_bytes()))
}

/// An answer of headers alone, as gRPC has it.
pub(crate) fn refusal<B: http_body::Body>(problem: &Problem) -> Response<Body<B>> {
    let mut response = Response::new(Body::whole(Bytes::new(), None));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, CONTENT_TYPE);
    headers.insert(STATUS, code(problem).into());
    headers.insert(PROBLEM, HeaderValue::from_static(problem.name()));
    if let Ok(message) = HeaderValue::from_str(&escaped(&problem.detail())) {
        headers.insert(MESSAGE, message);
    }
    if problem.is_worth_repeating() {
        headers.insert(PUSHBACK, HeaderValue::from_static("1000"));
    }
    response
}

/// The number of a status, by the names that gRPC gives them.
fn code(problem: &Problem) -> u16 {
    const UNKNOWN: u16 = 2;
    const INVALID_ARGUMENT: u16 = 3;
    const RESOURCE_EXHAUSTED: u16 = 8;
    const FAILED_PRECONDITION: u16 = 9;
    const ABORTED: u16 = 10;
    const UNIMPLEMENTED: u16 = 12;
    const INTERNAL: u16 = 13;
    const UNAVAILABLE: u16 = 14;
    const UNAUTHENTICATED: u16 = 16;
    match problem {
        Problem::KeyMissing
        | Problem::KeyInvalid(_)
        | Problem::BodyCutOff
        | Problem::BodyAmbiguous => INVALID_ARGUMENT,
        Problem::CallerUnknown => UNAUTHENTICATED,
        Problem::BodyTooLarge { .. } => RESOURCE_EXHAUSTED,
        Problem::KeyReused | Problem::NotRetained { .. } => FAILED_PRECONDITION,
        Problem::InProgress => ABORTED,
        Problem::OutcomeUnknown { .. } => UNKNOWN,
        Problem::NotUnary(_) => UNIMPLEMENTED,
        Problem::NotCommitted | Problem::HandlerPanicked => INTERNAL,
        Problem::TooEarly | Problem::StoreUnavailable | Problem::Interrupted => UNAVAILABLE,
    }
}

/// As `grpc-message` is written.
fn escaped(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut escaped, byte| {
        match byte {
            b' '..=b'~' if byte != b'%' => escaped.push(char::from(byte)),
            // Writing to a string does not fail.
            _ => drop(write!(escaped, "%{byte:02X}")),
        }
        escaped
    })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::{StreamExt, stream};
    use http_body::Frame;
    use http_body_util::{Full, StreamBody};

    use super::*;
    use crate::scope::Scope;

    fn policy() -> Policy {
        Policy::grpc(Scope::single_tenant()).max_request_bytes(100)
    }

    async fn read(pieces: &[&'static [u8]]) -> Result<Bytes, &'static str> {
        let pieces = pieces.iter().map(|piece| Ok::<_, Infallible>(Frame::data((*piece).into())));
        let body = StreamBody::new(stream::iter(pieces.collect::<Vec<_>>()));
        let captured = message(&policy(), body).await;
        captured.map(|captured| captured.data).map_err(|problem| problem.name())
    }

    #[tokio::test]
    async fn a_message_may_come_in_any_pieces_but_alone_and_whole() {
        let whole: &[u8] = &[0, 0, 0, 0, 2, b'h', b'i'];
        assert_eq!(read(&[whole]).await.unwrap(), whole);
        assert_eq!(read(&[&whole[..1], &whole[1..4], b"", &whole[4..]]).await.unwrap(), whole);
        assert_eq!(read(&[&[1, 0, 0, 0, 0]]).await.unwrap(), &[1, 0, 0, 0, 0][..]);
        assert_eq!(read(&[whole, &whole[..1]]).await, Err("not-unary"));
        assert_eq!(read(&[&[whole, whole].concat().leak()[..]]).await, Err("not-unary"));
        for end in 0..whole.len() {
            assert_eq!(read(&[&whole[..end]]).await, Err("body-cut-off"), "cut at {end}");
        }
        assert_eq!(read(&[&[0, 0, 0, 0, 101]]).await, Err("body-too-large"));
        assert_eq!(read(&[&[0, 255, 255, 255, 255]]).await, Err("body-too-large"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_goes_on_after_its_message_is_a_stream() {
        let first = stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from_static(&[0; 5])))]);
        let body = StreamBody::new(first.chain(stream::pending()));
        let refused = message(&policy(), body).await.err().unwrap();
        assert_eq!((code(&refused), refused.name()), (12, "not-unary"));
    }

    #[test]
    fn only_grpc_takes_part() {
        let check = |content_type: Option<&str>| {
            let mut request = http::Request::post("/shop.Bank/Pay");
            if let Some(content_type) = content_type {
                request = request.header("content-type", content_type);
            }
            check(&policy(), &request.body(()).unwrap().into_parts().0).is_ok()
        };
        for good in ["application/grpc", "application/grpc+proto", "application/grpc;a=b"] {
            assert!(check(Some(good)), "{good}");
        }
        for bad in [None, Some("application/json"), Some("application/grpc-web")] {
            assert!(!check(bad), "{bad:?}");
        }
    }

    #[test]
    fn messages_are_escaped() {
        let problem = Problem::KeyInvalid("100 % \u{fc}\n".to_owned());
        let response = refusal::<Full<Bytes>>(&problem);
        let said = response.headers()["grpc-message"].to_str().unwrap();
        assert!(said.ends_with("100 %25 %C3%BC%0A."), "{said}");
    }
}
