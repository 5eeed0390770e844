//! TLS: verified against the certificate that is given, and against nothing less.

use std::time::Duration;

use semel_backends::rabbitmq::{QueueKind, RabbitmqConfig, RabbitmqQueue};
use semel_core::Fault;
use semel_testkit::services::{Private, Service};
use semel_testkit::workload::{events, numbers};
use tokio::time::timeout;

use super::{PATIENCE, Reader, publish};
use crate::certificates::Certificates;

#[tokio::test]
async fn tls_is_verified() {
    let certificates = Certificates::new();
    let (_, other) = certificates.of("other.example");
    let (key, trusted) = certificates.of("localhost");
    // Nobody holds it until the server does.
    let port = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().port()
    };
    let (listeners, files) = (
        format!("[{{\"127.0.0.1\",{port}}}]"),
        format!("[{{certfile,{trusted:?}}},{{keyfile,{key:?}}}]"),
    );
    let options = ["-rabbit", "ssl_listeners", &listeners, "-rabbit", "ssl_options", &files];
    let Some(server) = Private::start_with(Service::Rabbitmq, &options) else { return };
    let config = |host: &str| {
        let url = format!("amqps://guest:guest@{host}:{port}/%2f");
        RabbitmqConfig::new(&url).unwrap().timeout(Duration::from_secs(10))
    };

    let queue = RabbitmqQueue::new("orders").unwrap().kind(QueueKind::Classic);
    let trusting = config("localhost").ca_file(&trusted).declare_queue(queue);
    let sink = timeout(PATIENCE, trusting.connect()).await.unwrap().unwrap();
    assert!(publish(&sink, "orders", events("a", 0..3)).await.all_confirmed());
    let reader = Reader::open(server.address()).await;
    assert_eq!(numbers(&reader.arrived("orders").await), [0, 1, 2]);

    let wrong = [
        ("no ca_file", config("localhost")),
        ("another certificate", config("localhost").ca_file(&other)),
        ("another host", config("127.0.0.1").ca_file(&trusted)),
    ];
    for (what, config) in wrong {
        let failure = timeout(PATIENCE, config.connect()).await.unwrap().expect_err(what);
        let got = (failure.fault(), failure.code());
        assert_eq!(got, (Fault::Misconfigured, "E-RABBITMQ-TLS"), "{what}: {failure:?}");
        assert!(failure.fix().is_some(), "{what}: {failure:?}");
    }
}
