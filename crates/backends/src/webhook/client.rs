//! The HTTP client: HTTP/1.1 with connections that are kept, TLS by rustls and ring.
//!
//! It follows no redirects and uses no proxy, so the address that was checked is the one that is
//! connected to.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use semel_core::Failure;

use super::address::Guard;

pub(super) type HttpClient = Client<HttpsConnector<HttpConnector<Guard>>, Full<Bytes>>;

/// Shorter than the patience of common servers, so that a request seldom meets a connection that
/// its server just closed.
const IDLE: Duration = Duration::from_secs(4);

/// A client that connects only to what the guard lets pass.
pub(super) fn client(
    guard: Guard,
    roots: RootCertStore,
    connect: Duration,
) -> Result<HttpClient, Failure> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| {
            Failure::misconfigured("E-WEBHOOK-TLS", "webhook: no TLS").with_source(error)
        })?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut tcp = HttpConnector::new_with_resolver(guard);
    tcp.set_connect_timeout(Some(connect));
    tcp.set_nodelay(true);
    tcp.enforce_http(false);
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_http1()
        .wrap_connector(tcp);
    Ok(Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .build(connector))
}

/// Whom to trust: what the operating system trusts, and the given authorities.
pub(super) fn roots(ca_file: Option<&Path>) -> Result<RootCertStore, Failure> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = ca_file {
        let certificates: Vec<_> = CertificateDer::pem_file_iter(path)
            .and_then(Iterator::collect)
            .map_err(|error| wrong_ca(path, &error.to_string()))?;
        let (added, _) = roots.add_parsable_certificates(certificates);
        if added == 0 {
            return Err(wrong_ca(path, "it has no certificate"));
        }
    }
    Ok(roots)
}

fn wrong_ca(path: &Path, why: &str) -> Failure {
    let what = format!("webhook: cannot read authorities from {}: {why}", path.display());
    Failure::misconfigured("E-WEBHOOK-CA", what).with_fix("give a file of PEM certificates")
}
