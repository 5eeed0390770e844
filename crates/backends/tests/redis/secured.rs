//! TLS: verified against the certificate that is given, and against nothing less.

use std::path::PathBuf;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use semel_backends::redis::RedisConfig;
use semel_core::Fault;
use semel_testkit::workload::events;
use tempfile::TempDir;

use super::server::{OwnServer, free_port};
use super::{BRIEFLY, connect, publish};

/// A key, and a certificate for it that it signed itself, in files.
fn certificate(folder: &TempDir, host: &str) -> (PathBuf, PathBuf) {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed([host.to_owned()]).unwrap();
    let (key_file, certificate_file) = (folder.path().join("key"), folder.path().join(host));
    std::fs::write(&key_file, signing_key.serialize_pem()).unwrap();
    std::fs::write(&certificate_file, cert.pem()).unwrap();
    (key_file, certificate_file)
}

#[tokio::test]
async fn tls_is_verified() {
    let folder = tempfile::tempdir().unwrap();
    let (_, other) = certificate(&folder, "other.example");
    let (key, trusted) = certificate(&folder, "localhost");
    let port = free_port().to_string();
    let (key, file) = (key.display().to_string(), trusted.display().to_string());
    let settings = [
        ["--tls-port", &*port],
        ["--tls-key-file", &key],
        ["--tls-cert-file", &file],
        ["--tls-ca-cert-file", &file],
        ["--tls-auth-clients", "no"],
    ];
    let Some(server) = OwnServer::start(&settings.concat()).await else { return };
    let config =
        |host: &str| RedisConfig::new(&format!("rediss://{host}:{port}")).unwrap().timeout(BRIEFLY);

    let sink = connect(config("localhost").ca_file(&trusted)).await.unwrap();
    assert!(publish(&sink, "orders", events("a", 0..2)).await.all_confirmed());
    assert_eq!(server.reader().await.count("orders").await, 2);

    let wrong = [
        ("no ca_file", config("localhost")),
        ("another certificate", config("localhost").ca_file(&other)),
        ("another host", config("127.0.0.1").ca_file(&trusted)),
        ("a URL without TLS", server.config().ca_file(&trusted)),
        ("no certificate", config("localhost").ca_file(&key)),
    ];
    for (what, config) in wrong {
        let failure = connect(config).await.expect_err(what);
        let got = (failure.fault(), failure.code());
        assert_eq!(got, (Fault::Misconfigured, "E-REDIS-TLS"), "{what}: {failure:?}");
    }
}
