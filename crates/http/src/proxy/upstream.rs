//! The service behind the proxy: one request sent, never twice, and what became of it.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Response, Uri, Version};
use hyper::body::Incoming;
use metrics::{Counter, counter};
use rustls::{ClientConfig, RootCertStore};
use semel_core::Failure;
use semel_core::telemetry::PROXY_UPSTREAM_FAILED;
use tokio::time::timeout;
use tower_service::Service;

use super::answer::Answer;
use super::lines::Lines;
use super::refusal::Refusal;
use super::{Peer, hops, tls};
use crate::attempt::Attempt;
use crate::body::Body;
use crate::headers::{ATTEMPT, FENCE, KEEP, VERDICT};
use crate::verdict::{Retention, Verdict};

/// The service behind the proxy.
///
/// ```
/// use semel_http::proxy::Upstream;
/// use std::time::Duration;
///
/// let shop = Upstream::new("http://127.0.0.1:3000")?.timeout(Duration::from_secs(20));
/// let other = Upstream::new("https://shop.example")?;
/// assert!(Upstream::new("https://shop.example/orders").is_err());
/// # Ok::<(), semel_core::Failure>(())
/// ```
#[derive(Clone)]
pub struct Upstream(Arc<Reached>);

/// Where it is, and the connections to it.
struct Reached {
    scheme: Scheme,
    authority: Authority,
    settings: Settings,
    tls: ClientConfig,
    lines: Lines,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    timeout: Duration,
    pub(super) connect_timeout: Duration,
    pub(super) http2: bool,
}

impl Upstream {
    /// A service at `http://HOST:PORT` or `https://HOST:PORT`. The certificate of the latter must
    /// be for this host, and signed by an authority that the operating system trusts.
    ///
    /// # Errors
    /// `Misconfigured` if it is no such URL.
    pub fn new(url: &str) -> Result<Self, Failure> {
        // It may hold a password: it is not repeated.
        let wrong = || {
            Failure::misconfigured("E-PROXY-UPSTREAM", "the upstream is no URL that can be used")
                .with_fix("write http://HOST:PORT or https://HOST:PORT, without a login or a path")
        };
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let is_bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'));
        let scheme = uri.scheme().filter(|it| [Scheme::HTTP, Scheme::HTTPS].contains(it));
        let (Some(authority), Some(scheme), true) = (authority, scheme, is_bare) else {
            return Err(wrong());
        };
        let settings = Settings {
            timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(5),
            http2: false,
        };
        let is_secure = *scheme == Scheme::HTTPS;
        let tls = tls::trusting(if is_secure { tls::system() } else { RootCertStore::empty() })?;
        Ok(Self::at(scheme.clone(), authority, settings, tls))
    }

    /// Believes only certificates that are signed by these authorities, as PEM.
    ///
    /// # Errors
    /// `Misconfigured` if they cannot be read.
    pub fn authorities(self, pem: &[u8]) -> Result<Self, Failure> {
        let Reached { scheme, authority, settings, .. } = &*self.0;
        let tls = tls::trusting(tls::authorities(pem)?)?;
        Ok(Self::at(scheme.clone(), authority, *settings, tls))
    }

    /// How long a request with a key may take, from its sending to the answer, and from each piece
    /// of the answer to the next; 60 s unless set.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        self.with(|settings| settings.timeout = timeout)
    }

    /// How long a connection may take to be made; 5 s unless set.
    #[must_use]
    pub fn connect_timeout(self, timeout: Duration) -> Self {
        self.with(|settings| settings.connect_timeout = timeout)
    }

    /// Speaks HTTP/2 to it, in place of HTTP/1.1; also without TLS.
    #[must_use]
    pub fn http2(self) -> Self {
        self.with(|settings| settings.http2 = true)
    }

    /// The same, with connections of its own; nothing that a request touches is shared with others.
    pub(super) fn apart(&self) -> Self {
        count_from_zero();
        self.with(|_| {})
    }

    fn with(&self, change: impl FnOnce(&mut Settings)) -> Self {
        let Reached { scheme, authority, settings, tls, .. } = &*self.0;
        let mut settings = *settings;
        change(&mut settings);
        Self::at(scheme.clone(), authority, settings, tls.clone())
    }

    fn at(scheme: Scheme, authority: &Authority, settings: Settings, tls: ClientConfig) -> Self {
        // A copy of the bytes: a clone would count its users together with the original.
        let copied =
            Authority::from_maybe_shared(Bytes::copy_from_slice(authority.as_str().as_bytes()));
        let authority = copied.unwrap_or_else(|_| authority.clone());
        let lines = Lines::to(&scheme, &authority, settings, &tls);
        Self(Arc::new(Reached { scheme, authority, settings, tls, lines }))
    }

    /// The answer to a request, or why there is none. `peer` is who asked, unless the request knows.
    pub(super) async fn answer(
        &self,
        request: Request<Body<Incoming>>,
        peer: Option<&Peer>,
    ) -> Response<Answer> {
        let sent = self.0.send(request, peer).await;
        sent.unwrap_or_else(|refusal| told(refusal).response())
    }
}

impl Reached {
    async fn send(
        &self,
        mut request: Request<Body<Incoming>>,
        peer: Option<&Peer>,
    ) -> Result<Response<Answer>, Refusal> {
        let attempt = request.extensions().get::<Attempt>().cloned();
        let known = request.extensions_mut().remove::<Peer>();
        self.address(&mut request, attempt.as_ref())?;
        if let Some(Peer(address)) = peer.or(known.as_ref()) {
            append(request.headers_mut(), FORWARDED_FOR, address);
        }
        let sent = self.lines.send(request);
        // What has no key is passed on at its own pace.
        let patience = attempt.map(|_| self.settings.timeout);
        let answered = match patience {
            Some(patience) => {
                timeout(patience, sent).await.map_err(|_| Refusal::UpstreamTimeout)?
            }
            None => sent.await,
        };
        let (mut response, used) = answered?;
        hops::take_out(response.headers_mut());
        heed_directives(&mut response);
        *response.version_mut() = Version::HTTP_11;
        Ok(response.map(|body| Answer::upstream(body, patience, used)))
    }

    /// Makes it a request to the upstream.
    fn address(
        &self,
        request: &mut Request<Body<Incoming>>,
        attempt: Option<&Attempt>,
    ) -> Result<(), Refusal> {
        self.direct(request.uri_mut())?;
        *request.version_mut() =
            if self.settings.http2 { Version::HTTP_2 } else { Version::HTTP_11 };
        let length = length(request.body());
        let headers = request.headers_mut();
        frame_anew(headers, length);
        if self.settings.http2 {
            let host = headers.remove(header::HOST);
            headers.extend(host.map(|host| (FORWARDED_HOST, host)));
        } else {
            join_cookies(headers);
            headers.insert(header::CONNECTION, HeaderValue::from_static("te"));
        }
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
        if let Some(attempt) = attempt {
            headers.insert(ATTEMPT, attempt.number().into());
            headers.insert(FENCE, attempt.token().0.into());
        }
        headers.append(header::VIA, HeaderValue::from_static("1.1 semel"));
        Ok(())
    }

    /// HTTP/1.1 names only the path, and the host in a header.
    fn direct(&self, uri: &mut Uri) -> Result<(), Refusal> {
        let is_http2 = self.settings.http2;
        if !is_http2 && uri.authority().is_none() {
            return Ok(());
        }
        let mut parts = std::mem::take(uri).into_parts();
        parts.scheme = is_http2.then(|| self.scheme.clone());
        parts.authority = is_http2.then(|| self.authority.clone());
        parts.path_and_query.get_or_insert(PathAndQuery::from_static("/"));
        *uri = Uri::from_parts(parts).map_err(|_| Refusal::BadRequest("its path is unclear"))?;
        Ok(())
    }
}

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// What the upstream says about its answer goes to the layer, and never to the client.
fn heed_directives(response: &mut Response<Incoming>) {
    let headers = response.headers_mut();
    let verdict = headers.remove(VERDICT);
    let verdict = verdict.as_ref().and_then(|value| match value.as_bytes() {
        b"final" => Some(Verdict::Final),
        b"retryable" => Some(Verdict::Retryable),
        b"unknown" => Some(Verdict::Unknown),
        b"not-started" => Some(Verdict::NotStarted),
        _ => None,
    });
    let keep = headers.remove(KEEP);
    let keep = keep.and_then(|seconds| seconds.to_str().ok()?.parse().ok());
    if let Some(verdict) = verdict {
        response.extensions_mut().insert(verdict);
    }
    if let Some(seconds) = keep {
        response.extensions_mut().insert(Retention(Duration::from_secs(seconds)));
    }
}

fn length(body: &Body<Incoming>) -> Option<u64> {
    http_body::Body::size_hint(body).exact()
}

/// A length stays if it is that of the body; everything else about framing is up to the client
/// library, which knows the body.
fn frame_anew(headers: &mut HeaderMap, length: Option<u64>) {
    let announced = headers.remove(header::CONTENT_LENGTH);
    if announced.is_some()
        && let Some(length) = length
    {
        headers.insert(header::CONTENT_LENGTH, length.into());
    }
}

/// HTTP/2 lets clients send one cookie per line.
fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(header::COOKIE).iter().nth(1).is_none() {
        return;
    }
    let lines: Vec<_> = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&lines.join(&b"; "[..])) {
        headers.insert(header::COOKIE, joined);
    }
}

/// Adds to a list: to what came before, in one line.
fn append(headers: &mut HeaderMap, name: HeaderName, value: &HeaderValue) {
    let before: Vec<_> =
        headers.get_all(&name).iter().filter_map(|line| line.to_str().ok()).collect();
    let list = if before.is_empty() {
        Ok(value.clone())
    } else {
        HeaderValue::from_bytes(&[before.join(", ").as_bytes(), value.as_bytes()].join(&b", "[..]))
    };
    if let Ok(list) = list {
        headers.insert(name, list);
    }
}

impl Service<Request<Body<Incoming>>> for Upstream {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Answer>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body<Incoming>>) -> Self::Future {
        let upstream = self.clone();
        async move { Ok(upstream.answer(request, None).await) }.boxed()
    }
}

fn told(refusal: Refusal) -> Refusal {
    if let Some(failures) = failures(refusal) {
        failures.increment(1);
    }
    refusal
}

/// A number that is first seen as 1 has not grown, and whoever waits for it to grow is not told.
fn count_from_zero() {
    let all = [Refusal::UpstreamUnreachable, Refusal::UpstreamTimeout, Refusal::UpstreamLost];
    for failures in all.into_iter().filter_map(failures) {
        failures.increment(0);
    }
}

/// Where it is counted, if it is the upstream's.
fn failures(refusal: Refusal) -> Option<Counter> {
    let how = match refusal {
        Refusal::UpstreamUnreachable => "unreachable",
        Refusal::UpstreamTimeout => "timeout",
        Refusal::UpstreamLost => "lost",
        Refusal::BadRequest(_) | Refusal::NotSupported(_) => return None,
    };
    Some(counter!(PROXY_UPSTREAM_FAILED.name, "how" => how))
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream")
            .field("authority", &self.0.authority)
            .field("settings", &self.0.settings)
            .finish_non_exhaustive()
    }
}
