//! A request, word by word.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderName, HeaderValue, Method, Request};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper_util::client::legacy::Error;
use tokio::time::sleep;

use super::probe::{Ground, bytes};
use super::reply::Reply;

pub(super) type Payload = UnsyncBoxBody<Bytes, io::Error>;

/// A request that can be changed and repeated.
#[derive(Clone)]
pub(super) struct Call {
    method: Method,
    instance: usize,
    path: String,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: Bytes,
    sent: Sent,
    is_http2: bool,
}

/// How the body goes out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sent {
    Whole,
    /// In pieces, without saying how long it is.
    InPieces,
    /// Only a part of what was announced, and then the client hangs up.
    CutOff,
}

impl Call {
    pub(super) fn new(method: Method, instance: usize, path: &str) -> Self {
        Self {
            method,
            instance,
            path: path.to_owned(),
            headers: Vec::new(),
            body: Bytes::new(),
            sent: Sent::Whole,
            is_http2: false,
        }
    }

    pub(super) fn method(mut self, method: &str) -> Self {
        self.method = method.parse().unwrap_or_default();
        self
    }

    /// To another address of the endpoint.
    pub(super) fn instance(mut self, instance: usize) -> Self {
        self.instance = instance;
        self
    }

    /// To another path below the same route.
    pub(super) fn path(mut self, end: &str) -> Self {
        let route = self.path.rsplit_once('/').map_or("", |(route, _)| route);
        self.path = format!("{route}/{end}");
        self
    }

    /// One line more.
    pub(super) fn header(self, name: &'static str, value: &str) -> Self {
        self.header_bytes(name, value.as_bytes())
    }

    pub(super) fn header_bytes(mut self, name: &'static str, value: &[u8]) -> Self {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            self.headers.push((HeaderName::from_static(name), value));
        }
        self
    }

    pub(super) fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(there, _)| there != name);
        self
    }

    /// In place of what it has under this name.
    pub(super) fn instead(self, name: &'static str, value: &str) -> Self {
        self.without(name).header(name, value)
    }

    pub(super) fn key(self, key: &[u8]) -> Self {
        self.without("idempotency-key").header_bytes("idempotency-key", key)
    }

    /// What the handler is asked to do.
    pub(super) fn act(self, words: &str) -> Self {
        self.instead("conform-act", words)
    }

    /// A header that the handler is asked to send.
    pub(super) fn respond_with(self, line: &str) -> Self {
        self.header("conform-header", line)
    }

    pub(super) fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    pub(super) fn in_pieces(mut self) -> Self {
        self.sent = Sent::InPieces;
        self
    }

    pub(super) fn cut_off(mut self) -> Self {
        self.sent = Sent::CutOff;
        self
    }

    pub(super) fn http2(mut self) -> Self {
        self.is_http2 = true;
        self
    }

    /// Sends it, and reads the answer to its end.
    pub(super) async fn send(self, ground: &Ground) -> Result<Reply, String> {
        let is_cut_off = self.sent == Sent::CutOff;
        let client = if self.is_http2 { &ground.http2 } else { &ground.http1 };
        let response = client.request(self.request(ground)?).await;
        let response =
            response.map_err(|error| if is_cut_off { "cut off".into() } else { told(&error) })?;
        Reply::read(response).await
    }

    fn request(self, ground: &Ground) -> Result<Request<Payload>, String> {
        let url = format!("{}{}", ground.bases[self.instance], self.path);
        let mut request = Request::builder().method(self.method).uri(url);
        if self.sent == Sent::CutOff {
            request = request.header("content-length", self.body.len() + 100);
        }
        for (name, value) in self.headers {
            request = request.header(name, value);
        }
        request.body(payload(self.body, self.sent)).map_err(|error| error.to_string())
    }
}

fn payload(body: Bytes, sent: Sent) -> Payload {
    let half = body.len() / 2;
    let pieces = [body.slice(..half), body.slice(half..)].map(|it| Ok(http_body::Frame::data(it)));
    match sent {
        Sent::Whole => Full::new(body).map_err(|never| match never {}).boxed_unsync(),
        Sent::InPieces => StreamBody::new(stream::iter(pieces)).boxed_unsync(),
        Sent::CutOff => {
            // Time for what was sent to arrive.
            let end = stream::once(async {
                sleep(Duration::from_millis(300)).await;
                Err(io::Error::other("hung up"))
            });
            StreamBody::new(stream::iter(pieces).chain(end)).boxed_unsync()
        }
    }
}

fn told(error: &Error) -> String {
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |it| it.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// A body of so many bytes.
pub(super) fn large(size: usize) -> Bytes {
    bytes(&"x".repeat(size))
}
