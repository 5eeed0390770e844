//! Keys of unary calls, over TCP between a server and a client of tonic.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, stream};
use http::uri::PathAndQuery;
use semel_core::idempotency::IdempotencyStore;
use semel_core::memory::MemoryKeys;
use semel_http::{Attempt, IdempotencyLayer, Policy, Scope};
use tokio::time::timeout;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::MetadataMap;
use tonic::server::{NamedService, UnaryService};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Response, Status};
use tower::Service;

use crate::support::*;

/// Messages that are bytes, so that nothing has to be generated.
#[derive(Clone, Copy)]
struct Plain;

impl Codec for Plain {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(message);
        Ok(())
    }
}

impl Decoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

/// `Pay` answers `paid N`, or with the status whose number the message is; `Watch` with a stream.
#[derive(Clone, Default)]
struct Bank {
    runs: Arc<AtomicUsize>,
    gate: Option<Gate>,
}

impl NamedService for Bank {
    const NAME: &'static str = "shop.Bank";
}

impl Service<http::Request<tonic::body::Body>> for Bank {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let bank = self.clone();
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(Plain);
            Ok(match request.uri().path() {
                "/shop.Bank/Pay" => grpc.unary(bank, request).await,
                _ => grpc.server_streaming(Watch(bank), request).await,
            })
        })
    }
}

impl UnaryService<Bytes> for Bank {
    type Response = Bytes;
    type Future = BoxFuture<'static, Result<Response<Bytes>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let bank = self.clone();
        Box::pin(async move {
            let run = bank.runs.fetch_add(1, Ordering::SeqCst) + 1;
            if let Some(gate) = &bank.gate {
                gate.pass().await;
            }
            let mut metadata = MetadataMap::new();
            metadata.insert("receipt", run.into());
            metadata.insert("set-cookie", "secret".parse().unwrap());
            assert_ne!(request.get_ref(), "panic", "on purpose");
            if let Ok(code) = String::from_utf8_lossy(request.get_ref()).parse::<i32>() {
                let said = format!("100 % of run {run}");
                return Err(Status::with_metadata(Code::from(code), said, metadata));
            }
            let attempt = request.extensions().get::<Attempt>().map_or(0, Attempt::number);
            let mut response = Response::new(format!("paid {run}, attempt {attempt}").into());
            *response.metadata_mut() = metadata;
            Ok(response)
        })
    }
}

struct Watch(Bank);

impl tonic::server::ServerStreamingService<Bytes> for Watch {
    type Response = Bytes;
    type ResponseStream = stream::BoxStream<'static, Result<Bytes, Status>>;
    type Future = std::future::Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        self.0.runs.fetch_add(1, Ordering::SeqCst);
        let messages = request.get_ref().len();
        let stream = stream::repeat(Bytes::from(vec![7; 1000])).map(Ok).take(messages);
        std::future::ready(Ok(Response::new(stream.boxed())))
    }
}

struct Shop {
    bank: Bank,
    channel: Channel,
    layer: IdempotencyLayer,
}

async fn shop_on(store: Arc<dyn IdempotencyStore>, policy: Policy, bank: Bank) -> Shop {
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = incoming.local_addr().unwrap();
    let layer = IdempotencyLayer::new(store, policy);
    let server = Server::builder().layer(layer.clone()).add_service(bank.clone());
    tokio::spawn(server.serve_with_incoming(incoming));
    let channel = Channel::from_shared(format!("http://{address}")).unwrap();
    Shop { bank, channel: channel.connect().await.unwrap(), layer }
}

/// The same bank, without a layer, behind a proxy that has it.
#[cfg(feature = "proxy")]
async fn shop_behind_a_proxy(policy: Policy) -> Shop {
    use semel_http::proxy::{Proxy, Upstream};

    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let upstream = Upstream::new(&format!("http://{}", incoming.local_addr().unwrap())).unwrap();
    let bank = Bank::default();
    tokio::spawn(Server::builder().add_service(bank.clone()).serve_with_incoming(incoming));
    let layer = IdempotencyLayer::new(Arc::new(MemoryKeys::new()), policy);
    let proxy = Proxy::new(upstream.http2(), layer.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let channel = format!("http://{}", listener.local_addr().unwrap());
    let grace = Duration::from_secs(1);
    tokio::spawn(async move { proxy.serve(listener, std::future::pending(), grace).await });
    let channel = Channel::from_shared(channel).unwrap().connect().await.unwrap();
    Shop { bank, channel, layer }
}

#[cfg(feature = "proxy")]
#[tokio::test]
async fn a_proxy_does_the_same() {
    let shop = shop_behind_a_proxy(policy()).await;
    let first = shop.pay(Some("k"), "rent").await.unwrap();
    let retry = shop.pay(Some("k"), "rent").await.unwrap();
    assert_eq!((retry.get_ref(), is_replay(retry.metadata())), (first.get_ref(), true));
    for replay in [false, true] {
        let status = shop.pay(Some("missing"), "5").await.unwrap_err();
        assert_eq!((status.code(), is_replay(status.metadata())), (Code::NotFound, replay));
        assert_eq!(status.message(), "100 % of run 2");
    }
    let refused = refusal(shop.pay(Some("k"), "other").await);
    assert_eq!(refused, (Code::FailedPrecondition, "key-reused".to_owned()));
    assert_eq!((shop.watch("stream", 9).await.unwrap(), shop.runs()), (9, 3));
    shop.pay(None, "rent").await.unwrap();
    assert_eq!(shop.runs(), 4);
}

#[cfg(feature = "proxy")]
#[tokio::test]
async fn a_proxy_refuses_streams_with_a_key() {
    let declared = policy().streaming_methods(["/shop.Bank/Watch"]);
    let shop = shop_behind_a_proxy(declared).await;
    let path = PathAndQuery::from_static("/shop.Bank/Pay");
    let two = stream::iter(["a", "b"].map(Bytes::from));
    let answer = shop.client().await.client_streaming(request(Some("k"), two), path, Plain).await;
    assert_eq!(refusal(answer), (Code::Unimplemented, "not-unary".to_owned()));
    assert_eq!(shop.watch("k", 3).await.unwrap_err().code(), Code::Unimplemented);
    assert_eq!(shop.runs(), 0);
}

fn policy() -> Policy {
    Policy::grpc(Scope::single_tenant())
        .max_response_bytes(5000)
        .rules(|rules| rules.wait = Duration::ZERO)
}

async fn shop() -> Shop {
    shop_on(Arc::new(MemoryKeys::new()), policy(), Bank::default()).await
}

fn request<M>(key: Option<&'static str>, message: M) -> Request<M> {
    let mut request = Request::new(message);
    if let Some(key) = key {
        request.metadata_mut().insert("idempotency-key", key.parse().unwrap());
    }
    request
}

impl Shop {
    async fn client(&self) -> tonic::client::Grpc<Channel> {
        let mut client = tonic::client::Grpc::new(self.channel.clone());
        client.ready().await.unwrap();
        client
    }

    async fn pay(
        &self,
        key: Option<&'static str>,
        message: &str,
    ) -> Result<Response<Bytes>, Status> {
        let path = PathAndQuery::from_static("/shop.Bank/Pay");
        let message = Bytes::copy_from_slice(message.as_bytes());
        let mut client = self.client().await;
        let call = client.unary(request(key, message), path, Plain);
        timeout(Duration::from_secs(30), call).await.unwrap()
    }

    /// How many messages came.
    async fn watch(&self, key: &'static str, messages: usize) -> Result<usize, Status> {
        let path = PathAndQuery::from_static("/shop.Bank/Watch");
        let mut client = self.client().await;
        let call = request(Some(key), Bytes::from(vec![0; messages]));
        let stream = client.server_streaming(call, path, Plain).await?.into_inner();
        let all: Vec<Result<Bytes, Status>> = stream.collect().await;
        all.into_iter().collect::<Result<Vec<_>, _>>().map(|all| all.len())
    }

    fn runs(&self) -> usize {
        self.bank.runs.load(Ordering::SeqCst)
    }
}

/// What was refused, and with which status.
#[track_caller]
fn refusal(answer: Result<Response<Bytes>, Status>) -> (Code, String) {
    let status = answer.unwrap_err();
    let problem = status.metadata().get("idempotency-problem").expect("a refusal");
    let is_worth_repeating = matches!(status.code(), Code::Aborted | Code::Unavailable);
    let pushback = status.metadata().get("grpc-retry-pushback-ms");
    assert_eq!(pushback.is_some(), is_worth_repeating, "{status:?}");
    assert!(!status.message().is_empty());
    (status.code(), problem.to_str().unwrap().to_owned())
}

fn is_replay(metadata: &MetadataMap) -> bool {
    metadata.get(MARKER).is_some_and(|marker| marker == "true")
}

#[tokio::test]
async fn a_retry_gets_the_same_message_status_and_metadata() {
    let shop = shop().await;
    let first = shop.pay(Some("a"), "rent").await.unwrap();
    let retry = shop.pay(Some("a"), "rent").await.unwrap();
    assert_eq!(first.get_ref(), "paid 1, attempt 1");
    assert_eq!(retry.get_ref(), first.get_ref());
    assert_eq!(retry.metadata().get("receipt"), first.metadata().get("receipt"));
    assert_eq!((is_replay(first.metadata()), is_replay(retry.metadata())), (false, true));
    assert!(retry.metadata().get("set-cookie").is_none(), "cookies are never replayed");
    let keyless = shop.pay(None, "rent").await.unwrap();
    assert_eq!((keyless.get_ref().as_ref(), shop.runs()), (&b"paid 2, attempt 0"[..], 2));
}

#[tokio::test]
async fn statuses_that_would_come_again_are_kept_and_others_free_the_key() {
    let shop = shop().await;
    let keys = [
        "k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7", "k8", "k9", "k10", "k11", "k12", "k13",
        "k14", "k15", "k16",
    ];
    for (code, key) in (1..=16).zip(&keys[1..]) {
        let first = shop.pay(Some(key), &code.to_string()).await.unwrap_err();
        let retry = shop.pay(Some(key), &code.to_string()).await.unwrap_err();
        assert_eq!((first.code(), retry.code()), (Code::from(code), Code::from(code)));
        let is_kept = [3, 5, 6, 9, 11].contains(&code);
        assert_eq!(is_replay(retry.metadata()), is_kept, "{retry:?}");
        assert_eq!(first.message() == retry.message(), is_kept, "{retry:?}");
        let receipt = |status: &Status| status.metadata().get("receipt").cloned();
        assert_eq!(receipt(&first) == receipt(&retry), is_kept);
    }
    assert_eq!(shop.runs(), 16 + 11);
}

#[tokio::test]
async fn refusals_have_their_statuses() {
    let store = Arc::new(Flaky::new());
    let shop = shop_on(store.clone(), policy().require_key(), Bank::default()).await;
    let problem = |code, name: &str| (code, name.to_owned());
    let refused = refusal(shop.pay(None, "x").await);
    assert_eq!(refused, problem(Code::InvalidArgument, "key-missing"));
    let refused = refusal(shop.pay(Some("a b"), "x").await);
    assert_eq!(refused, problem(Code::InvalidArgument, "key-invalid"));
    let refused = refusal(shop.pay(Some("k"), &"x".repeat(2 << 20)).await);
    assert_eq!(refused, problem(Code::ResourceExhausted, "body-too-large"));
    shop.pay(Some("k"), "x").await.unwrap();
    let refused = refusal(shop.pay(Some("k"), "y").await);
    assert_eq!(refused, problem(Code::FailedPrecondition, "key-reused"));
    store.down.store(true, Ordering::SeqCst);
    let refused = refusal(shop.pay(Some("k"), "x").await);
    assert_eq!(refused, problem(Code::Unavailable, "store-unavailable"));
    store.down.store(false, Ordering::SeqCst);
    assert_eq!(shop.runs(), 1);
    let refused = refusal(shop.pay(Some("p"), "panic").await);
    assert_eq!(refused, problem(Code::Internal, "handler-panicked"));
}

#[tokio::test]
async fn a_duplicate_in_flight_is_aborted_and_a_cancelled_call_completes() {
    let gate = Gate::new();
    let bank = Bank { gate: Some(gate.clone()), ..Bank::default() };
    let shop = Arc::new(shop_on(Arc::new(MemoryKeys::new()), policy(), bank).await);
    let call = tokio::spawn({
        let shop = Arc::clone(&shop);
        async move { shop.pay(Some("k"), "rent").await }
    });
    gate.reached().await;
    let refused = refusal(shop.pay(Some("k"), "rent").await);
    assert_eq!(refused, (Code::Aborted, "in-progress".to_owned()));
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    gate.open();
    timeout(Duration::from_secs(30), shop.layer.drained()).await.unwrap();
    let retry = shop.pay(Some("k"), "rent").await.unwrap();
    assert!(is_replay(retry.metadata()));
    assert_eq!((retry.get_ref().as_ref(), shop.runs()), (&b"paid 1, attempt 1"[..], 1));
}

#[tokio::test]
async fn streams_with_a_key_are_refused() {
    let shop = shop().await;
    let mut client = shop.client().await;
    let path = PathAndQuery::from_static("/shop.Bank/Pay");
    let two = stream::iter(["a", "b"].map(Bytes::from));
    let answer = client.client_streaming(request(Some("k"), two), path.clone(), Plain).await;
    assert_eq!(refusal(answer), (Code::Unimplemented, "not-unary".to_owned()));
    let none = stream::iter([]);
    client.ready().await.unwrap();
    let answer = client.client_streaming(request(Some("k"), none), path, Plain).await;
    assert_eq!(refusal(answer), (Code::InvalidArgument, "body-cut-off".to_owned()));
    assert_eq!(shop.runs(), 0);

    let declared = policy().streaming_methods(["/shop.Bank/Watch"]);
    let strict = shop_on(Arc::new(MemoryKeys::new()), declared, Bank::default()).await;
    assert_eq!(strict.watch("k", 3).await.unwrap_err().code(), Code::Unimplemented);
    assert_eq!(strict.runs(), 0);
}

#[tokio::test]
async fn a_stream_that_was_not_declared_is_kept_if_it_is_short_and_never_run_again() {
    let shop = shop().await;
    for _ in 0..2 {
        assert_eq!(shop.watch("short", 3).await.unwrap(), 3);
    }
    assert_eq!(shop.watch("long", 9).await.unwrap(), 9);
    let retry = shop.watch("long", 9).await.unwrap_err();
    assert_eq!(retry.code(), Code::FailedPrecondition);
    assert_eq!(retry.metadata().get("idempotency-problem").unwrap(), "not-retained");
    assert_eq!(shop.runs(), 2);
}
