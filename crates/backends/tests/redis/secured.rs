//! TLS: verified against the certificate that is given, and against nothing less.

use semel_backends::redis::RedisConfig;
use semel_core::Fault;
use semel_testkit::workload::events;

use super::server::{OwnServer, free_port};
use super::{BRIEFLY, connect, publish};
use crate::certificates::Certificates;

#[tokio::test]
async fn tls_is_verified() {
    let certificates = Certificates::new();
    let (_, other) = certificates.of("other.example");
    let (key, trusted) = certificates.of("localhost");
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
