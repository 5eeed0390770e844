//! One trace from the HTTP request to the effect, as a collector gets it from every process on the
//! way: the service and the consumer, which use the library, and `semel relay` between them.

#![cfg(feature = "otlp")]

mod collector;
#[cfg(feature = "redis")]
mod service;

use self::collector::Collector;
use crate::shop::{Shop, all};

/// The W3C trace of somebody's request.
const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Runs the relay until nothing is left to publish, with a collector and more variables.
fn drain(shop: &Shop, collector: &Collector, variables: &[(&str, &str)]) {
    let relay = shop
        .command(&["relay", "--drain"])
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint())
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    assert_eq!(relay.status.code(), Some(0), "{}", all(&relay));
}

fn send(shop: &Shop) {
    let header = format!("traceparent={PARENT}");
    let event = ["--aggregate-type", "order", "--aggregate-id", "42", "--type", "Placed"];
    let send = ["send", "--database", "sqlite://shop.db", "--header", &header];
    shop.expect(0, &[&send[..], &event].concat());
}

/// Protobuf, unless JSON is asked for: what the specification says of who says nothing.
#[test]
fn a_collector_gets_the_trace_that_an_event_carries_in_the_encoding_that_is_asked_for() {
    let json = ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json");
    let named = ("OTEL_SERVICE_NAME", "orders-relay");
    for (variables, encoding, service) in [
        (&[][..], "application/x-protobuf", "semel"),
        (&[json, named], "application/json", "orders-relay"),
    ] {
        let (shop, collector) = (Shop::new(), Collector::start());
        send(&shop);
        drain(&shop, &collector, variables);
        let sent = collector.span("send order.events");
        assert_eq!((sent.encoding, &*sent.service), (encoding, service));
        assert_eq!(hex(&sent.span.trace_id), PARENT[3..35]);
        assert_eq!(hex(&sent.span.parent_span_id), PARENT[36..52]);
    }
}

#[test]
fn an_encoding_that_cannot_be_had_is_no_silence() {
    let shop = Shop::new();
    let relay = shop
        .command(&["relay", "--drain"])
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317")
        .env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        .output()
        .unwrap();
    let said = all(&relay);
    assert_eq!(relay.status.code(), Some(78), "{said}");
    assert!(said.contains("E-TRACES") && said.contains("http/protobuf"), "{said}");
}

/// A collector that is away costs the traces and nothing else.
#[test]
fn events_are_published_without_a_collector() {
    let shop = Shop::new();
    send(&shop);
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let relay = shop
        .command(&["relay", "--drain"])
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{closed}"))
        .output()
        .unwrap();
    assert_eq!(relay.status.code(), Some(0), "{}", all(&relay));
    assert_eq!(shop.published().len(), 1);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
