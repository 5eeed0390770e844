//! A collector of traces that speaks OTLP over HTTP, in both encodings, and keeps what it gets.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

const PROTOBUF: &str = "application/x-protobuf";
const JSON: &str = "application/json";

/// A collector; it lives as long as the process.
#[derive(Clone)]
pub(crate) struct Collector {
    address: SocketAddr,
    spans: Arc<Mutex<Vec<Collected>>>,
}

/// A span as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Collected {
    /// Who says that it sent it.
    pub(crate) service: String,
    /// In which encoding.
    pub(crate) encoding: &'static str,
    pub(crate) span: Span,
}

impl Collector {
    pub(crate) fn start() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let collector = Self { address, spans: Arc::default() };
        let routes = Router::new().route("/v1/traces", post(collect)).with_state(collector.clone());
        // A runtime of its own: exporters wait for it without giving theirs away.
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                axum::serve(listener, routes).await.unwrap();
            });
        });
        collector
    }

    /// What `OTEL_EXPORTER_OTLP_ENDPOINT` says.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All that came so far.
    pub(crate) fn spans(&self) -> Vec<Collected> {
        self.spans.lock().unwrap().clone()
    }

    /// The only span of this name.
    pub(crate) fn span(&self, name: &str) -> Collected {
        let all = self.spans();
        let found: Vec<_> = all.iter().filter(|collected| collected.span.name == name).collect();
        let [one] = found[..] else { panic!("{} times {name} in {all:#?}", found.len()) };
        one.clone()
    }
}

impl Collected {
    /// A value of its attributes, as text.
    pub(crate) fn attribute(&self, name: &str) -> Option<String> {
        text(&self.span.attributes, name)
    }

    /// Which spans it points to, by their ids.
    pub(crate) fn links(&self) -> Vec<Vec<u8>> {
        self.span.links.iter().map(|link| link.span_id.clone()).collect()
    }
}

async fn collect(
    State(collector): State<Collector>,
    headers: HeaderMap,
    body: Bytes,
) -> impl IntoResponse {
    let encoding = headers.get(CONTENT_TYPE).map(|value| value.to_str().unwrap().to_owned());
    let request: Result<ExportTraceServiceRequest, String> = match encoding.as_deref() {
        Some(PROTOBUF) => {
            ExportTraceServiceRequest::decode(body).map_err(|error| error.to_string())
        }
        Some(JSON) => serde_json::from_slice(&body).map_err(|error| error.to_string()),
        other => Err(format!("content type {other:?}")),
    };
    let encoding = if encoding.as_deref() == Some(JSON) { JSON } else { PROTOBUF };
    let request = match request {
        Ok(request) => request,
        Err(error) => return (StatusCode::BAD_REQUEST, error).into_response(),
    };
    for resource in request.resource_spans {
        let attributes = resource.resource.unwrap_or_default().attributes;
        let service = text(&attributes, "service.name").unwrap_or_default();
        let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
        let mut kept = collector.spans.lock().unwrap();
        kept.extend(spans.map(|span| Collected { service: service.clone(), encoding, span }));
    }
    let answer = ExportTraceServiceResponse::default();
    let answer = match encoding {
        JSON => serde_json::to_vec(&answer).unwrap(),
        _ => answer.encode_to_vec(),
    };
    ([(CONTENT_TYPE, encoding)], answer).into_response()
}

fn text(attributes: &[KeyValue], name: &str) -> Option<String> {
    let found = attributes.iter().find(|pair| pair.key == name)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        Value::IntValue(number) => Some(number.to_string()),
        other => panic!("{name} is {other:?}"),
    }
}
