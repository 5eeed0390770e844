//! A service that takes orders over HTTP and one that charges for them, with `semel relay` and Redis
//! between them: what a collector sees of one order.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use semel_backends::redis::RedisConfig;
use semel_backends::sqlite::{Sqlite, SqliteConfig, SqliteStore, Transaction};
use semel_core::{Event, HandlerError, Message};
use semel_http::{IdempotencyClaim, IdempotencyLayer, Policy, Scope};
use semel_relay::{Consumer, Stop};
use semel_testkit::services::{Service, service};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tracing::Instrument;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;

use super::collector::{Collected, Collector};
use super::drain;
use crate::shop::Shop;

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn from_the_request_to_the_effect_it_is_one_trace() {
    let Some(url) = service(Service::Redis) else { return };
    let (shop, collector) = (Shop::new(), Collector::start());
    let stream = format!("semel-traces-{}.order", std::process::id());
    shop.write_config(&format!(
        "[source.orders]\nurl = \"sqlite://shop.db\"\n[sink.out]\ntype = \"redis\"\n\
         url = \"{url}\"\n[pipeline.orders]\nfrom = \"orders\"\nto = \"out\"\ntopic = \"{stream}\"\n"
    ));
    let database = format!("sqlite://{}", shop.file("shop.db").display());
    let id = exporting(&collector, "orders", || {
        to_its_end(async {
            let store = open(&database, "create table orders (id text)").await;
            let address = serve(&store).await;
            let answer = tokio::task::spawn_blocking(move || ask(address)).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            sqlx::query_scalar::<_, String>("select id from semel_outbox")
                .fetch_one(store.pool())
                .await
                .unwrap()
        })
    });
    drain(&shop, &collector, &[]);
    let database = format!("sqlite://{}?mode=rwc", shop.file("payments.db").display());
    exporting(&collector, "payments", || {
        to_its_end(async {
            let store = open(&database, "create table payments (order_id text)").await;
            charge_all(&store, &url, &stream).await;
        });
    });
    judge(&collector, &stream, &id);
}

/// What the conventions for messaging ask for, and that nothing is outside of the trace.
fn judge(collector: &Collector, stream: &str, id: &str) {
    let request = collector.span("POST /orders");
    let sent = collector.span(&format!("send {stream}"));
    let processed = collector.span(&format!("process {stream}"));
    let effect = collector.span("charge the card");
    let all = [&request, &sent, &processed, &effect];
    assert_eq!(all.map(|one| &*one.service), ["orders", "semel", "payments", "payments"]);
    for one in collector.spans() {
        assert_eq!(one.span.trace_id, request.span.trace_id, "{one:#?}");
        assert_eq!(one.encoding, "application/x-protobuf");
    }
    let kind = |one: &Collected| SpanKind::try_from(one.span.kind).unwrap();
    assert_eq!(
        all.map(kind),
        [SpanKind::Server, SpanKind::Client, SpanKind::Consumer, SpanKind::Internal]
    );

    // The event was made in the request: there the sending and the processing belong.
    let made = &request.span.span_id;
    assert!(request.span.parent_span_id.is_empty(), "it is the beginning");
    for one in [&sent, &processed] {
        assert_eq!((&one.span.parent_span_id, one.links()), (made, vec![made.clone()]), "{one:#?}");
    }
    assert_eq!(effect.span.parent_span_id, processed.span.span_id);
    for (one, operation) in [(&sent, "send"), (&processed, "process")] {
        for (name, value) in [
            ("messaging.system", "redis"),
            ("messaging.destination.name", stream),
            ("messaging.operation.name", operation),
            ("messaging.operation.type", operation),
            ("semel.event.type", "OrderPlaced"),
            ("semel.attempt", "1"),
        ] {
            assert_eq!(one.attribute(name).as_deref(), Some(value), "{name} of {one:#?}");
        }
        let told = one.attribute("messaging.message.id").unwrap_or_default();
        assert_eq!(told, id, "the id of the event");
        assert_eq!(one.attribute("error.type"), None);
    }
}

/// Runs a service until nothing of it is left: the task of a request may outlive its answer for a moment, and
/// its span with it.
fn to_its_end<R>(service: impl Future<Output = R>) -> R {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(service)
}

/// Runs `work` as a service of this name, whose spans are exported.
fn exporting<R>(collector: &Collector, name: &'static str, work: impl FnOnce() -> R) -> R {
    let exporter = SpanExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(format!("{}/v1/traces", collector.endpoint()))
        .build()
        .unwrap();
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(Resource::builder().with_service_name(name).build())
        .build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer(name)).with_filter(
        Targets::new()
            .with_target("traces", tracing::Level::INFO)
            .with_target("semel_trace", tracing::Level::DEBUG),
    );
    let collecting = tracing_subscriber::registry().with(layer);
    let done = tracing::subscriber::with_default(collecting, work);
    provider.shutdown().unwrap();
    done
}

async fn open(database: &str, table: &'static str) -> SqliteStore {
    let store = SqliteConfig::new(database).unwrap().connect().await.unwrap();
    store.migrate().await.unwrap();
    sqlx::query(table).execute(store.pool()).await.unwrap();
    store
}

/// The order service. Says where it listens.
async fn serve(store: &SqliteStore) -> SocketAddr {
    let policy = Policy::ietf(Scope::single_tenant()).require_key();
    let keys = IdempotencyLayer::new(Arc::new(store.keys()), policy);
    let routes = Router::new()
        .route("/orders", post(place))
        .with_state(store.clone())
        .layer(keys)
        .layer(middleware::from_fn(traced));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, routes).await.unwrap() });
    address
}

/// A span for each request, as the middlewares of others make it.
async fn traced(request: Request, next: Next) -> Response {
    let span = tracing::info_span!(target: "traces", "POST /orders", otel.kind = "server");
    next.run(request).instrument(span).await
}

async fn place(State(store): State<SqliteStore>, claim: IdempotencyClaim) -> Response {
    let mut tx = store.begin().await.unwrap();
    sqlx::query("insert into orders values ('42')").execute(&mut *tx).await.unwrap();
    let placed = Event::new("order", "42", "OrderPlaced").with_json(&json!({ "cents": 99 }));
    store.outbox().append(&mut tx, placed.unwrap()).await.unwrap();
    let answer = claim.complete_in(&store.keys(), &mut tx, "placed".into_response()).await.unwrap();
    tx.commit().await.unwrap();
    answer.into_response()
}

fn ask(address: SocketAddr) -> String {
    let mut connection = TcpStream::connect(address).unwrap();
    connection.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!(
        "POST /orders HTTP/1.1\r\nhost: {address}\r\nidempotency-key: \"first\"\r\n\
         content-length: 0\r\nconnection: close\r\n\r\n"
    );
    connection.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    answer
}

/// The payment service, until it has taken up all there is.
async fn charge_all(store: &SqliteStore, url: &str, stream: &str) {
    let consumer = Consumer::builder("payments", store.inbox()).on("OrderPlaced", charge).build();
    let subscription = RedisConfig::new(url).unwrap().subscribe("payments", [stream]);
    let draining = consumer.drain(subscription.open().await.unwrap(), Stop::never());
    let report = timeout(PATIENCE, draining).await.unwrap().unwrap();
    assert_eq!(report.published, 1);
}

async fn charge(
    tx: &mut Transaction<'_, Sqlite>,
    _: serde_json::Value,
    message: &Message,
) -> Result<(), HandlerError> {
    let span = tracing::info_span!(target: "traces", "charge the card");
    let insert = sqlx::query("insert into payments values (?)").bind(&message.event.aggregate_id);
    insert.execute(&mut **tx).instrument(span).await?;
    Ok(())
}
