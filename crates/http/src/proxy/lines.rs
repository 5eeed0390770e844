//! How requests reach the upstream: over HTTP/1.1 or HTTP/2, with TLS or without.

use std::error::Error;

use http::uri::{Authority, Parts, PathAndQuery, Scheme};
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::ClientConfig;

use super::connections::{Connections, Used};
use super::refusal::Refusal;
use super::upstream::Settings;
use crate::body::Body;

/// The connections to the upstream.
pub(super) enum Lines {
    Http1(Connections),
    /// One connection carries many requests.
    Http2(Client<HttpsConnector<HttpConnector>, Body<Incoming>>),
}

impl Lines {
    /// No connection is made before it is needed.
    pub(super) fn to(
        scheme: &Scheme,
        authority: &Authority,
        settings: Settings,
        tls: &ClientConfig,
    ) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(settings.connect_timeout));
        connector.enforce_http(false);
        let builder = HttpsConnectorBuilder::new().with_tls_config(tls.clone()).https_or_http();
        if settings.http2 {
            // A request is sent again over another connection only if nothing of it was sent.
            let client = Client::builder(TokioExecutor::new())
                .pool_timer(TokioTimer::new())
                .http2_only(true)
                .build(builder.enable_http2().wrap_connector(connector));
            return Self::Http2(client);
        }
        let mut parts = Parts::default();
        parts.scheme = Some(scheme.clone());
        parts.authority = Some(authority.clone());
        parts.path_and_query = Some(PathAndQuery::from_static("/"));
        // All three parts are there, so that it is a URI.
        let upstream = Uri::from_parts(parts).unwrap_or_default();
        Self::Http1(Connections::new(upstream, builder.enable_http1().wrap_connector(connector)))
    }

    /// Sends a request, and gives the head of its answer, with the connection if it is its alone.
    pub(super) async fn send(
        &self,
        request: Request<Body<Incoming>>,
    ) -> Result<(Response<Incoming>, Option<Used>), Refusal> {
        match self {
            Self::Http1(connections) => {
                connections.send(request).await.map(|(response, used)| (response, Some(used)))
            }
            Self::Http2(client) => match client.request(request).await {
                Ok(response) => Ok((response, None)),
                // Whatever else went wrong, something may have been sent.
                Err(error) if error.is_connect() => {
                    Err(unanswered(Refusal::UpstreamUnreachable, &error))
                }
                Err(error) => Err(unanswered(Refusal::UpstreamLost, &error)),
            },
        }
    }
}

/// Says why there is no answer.
pub(super) fn unanswered(refusal: Refusal, error: &(dyn Error + 'static)) -> Refusal {
    tracing::warn!(error = %with_causes(error), "the upstream did not answer");
    refusal
}

fn with_causes(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
