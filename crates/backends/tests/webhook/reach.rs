//! What may be reached, and whom to trust.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use semel_backends::webhook::WebhookConfig;
use semel_core::{Fault, Sink, Verdict};
use tempfile::TempDir;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use super::endpoint::{Endpoint, failure, message, say, serve, status, verdicts};

#[tokio::test]
async fn private_addresses_are_refused_in_every_spelling() {
    let hosts = [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "0",
        "10.0.0.1",
        "169.254.169.254",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:a9fe:a9fe]",
        "[fd00::1]",
        "１２７.0.0.1",
    ];
    for host in hosts {
        let config = WebhookConfig::new(&format!("https://{host}/latest/meta-data")).unwrap();
        let failure = config.connect().await.unwrap_err();
        assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-WEBHOOK-ADDRESS"));
        assert!(failure.fix().unwrap().contains("allow"), "{host}");
    }
}

#[tokio::test]
async fn a_name_that_leads_to_a_private_address_is_not_connected_to() {
    let endpoint = Endpoint::start(|_| status(200)).await;
    let url = format!("http://localhost:{}/", endpoint.address.port());
    let config = WebhookConfig::new(&url).unwrap().plain_http(true);
    let sink = config.clone().connect().await.unwrap();
    let verdicts = verdicts(sink.publish(&[message("a", 1)]).await, 1);
    for failure in [failure(&verdicts[0]), &sink.check().await.unwrap_err()] {
        assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-WEBHOOK-ADDRESS"));
    }
    assert_eq!(endpoint.seen().len(), 0);

    let allowed = config.allow("127.0.0.0/8").unwrap().connect().await.unwrap();
    assert!(allowed.publish(&[message("a", 1)]).await.all_confirmed());
}

#[tokio::test]
async fn wrong_settings_are_told_at_once() {
    for url in ["", "partner.example", "ftp://partner.example", "https://", "http://a b/"] {
        let failure = WebhookConfig::new(url).unwrap_err();
        assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-WEBHOOK-URL"));
    }
    let plain = WebhookConfig::new("http://partner.example/?token=hunter2").unwrap();
    let failure = plain.connect().await.unwrap_err();
    assert_eq!(failure.code(), "E-WEBHOOK-URL");
    assert!(failure.fix().unwrap().contains("plain_http"));
    assert!(!format!("{failure:?}").contains("hunter2"));
    let config = WebhookConfig::new("https://partner.example").unwrap();
    let failure = config.clone().allow("10.0.0.0/99").unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-WEBHOOK-ALLOW"));
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.pem");
    std::fs::write(&empty, "no certificate").unwrap();
    for path in [empty, folder.path().join("missing.pem")] {
        let failure = config.clone().ca_file(path).connect().await.unwrap_err();
        assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-WEBHOOK-CA"));
    }
}

/// A server with a certificate of an authority nobody knows.
struct Private {
    port: u16,
    ca_file: PathBuf,
    _folder: TempDir,
}

impl Private {
    async fn start(name: &str, expires: i32) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let folder = tempfile::tempdir().unwrap();
        let ca_file = folder.path().join("ca.pem");
        std::fs::write(&ca_file, authority.self_signed(&key).unwrap().pem()).unwrap();
        let issuer = Issuer::new(authority, key);
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_after = date_time_ymd(expires, 1, 1);
        let certificate = params.signed_by(&key, &issuer).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let address = serve(move |stream| {
            let acceptor = acceptor.clone();
            async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    let thanks = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                    say(stream, thanks, Duration::ZERO).await;
                }
            }
        })
        .await;
        Self { port: address.port(), ca_file, _folder: folder }
    }

    fn config(&self) -> WebhookConfig {
        let url = format!("https://localhost:{}/hooks", self.port);
        WebhookConfig::new(&url).unwrap().allow("127.0.0.1").unwrap()
    }

    async fn verdict(&self, config: WebhookConfig) -> Verdict {
        let sink = config.connect().await.unwrap();
        verdicts(sink.publish(&[message("a", 1)]).await, 1).remove(0)
    }
}

#[tokio::test]
async fn an_unknown_authority_is_not_trusted_unless_it_is_given() {
    let private = Private::start("localhost", 2099).await;
    let sink = private.config().connect().await.unwrap();
    let verdict = verdicts(sink.publish(&[message("a", 1)]).await, 1).remove(0);
    for failure in [failure(&verdict), &sink.check().await.unwrap_err()] {
        assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-WEBHOOK-TLS"));
        assert!(failure.fix().unwrap().contains("ca_file"));
    }
    let trusting = private.config().ca_file(&private.ca_file);
    assert_eq!(private.verdict(trusting).await, Verdict::Confirmed);
}

#[tokio::test]
async fn a_certificate_of_another_name_is_not_trusted() {
    let private = Private::start("elsewhere.example", 2099).await;
    let verdict = private.verdict(private.config().ca_file(&private.ca_file)).await;
    let failure = failure(&verdict);
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-WEBHOOK-TLS"));
}

#[tokio::test]
async fn an_expired_certificate_is_an_outage() {
    let private = Private::start("localhost", 2001).await;
    let verdict = private.verdict(private.config().ca_file(&private.ca_file)).await;
    let failure = failure(&verdict);
    assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, "E-WEBHOOK-DOWN"));
}
