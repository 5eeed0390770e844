//! Endpoints to send to: one that answers as a test says and remembers, and one that says any bytes.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method};
use axum::response::Response;
use semel_backends::webhook::WebhookConfig;
use semel_core::wire::{Binding, decode};
use semel_core::{Event, Failure, Message, Published, Verdict};
use semel_testkit::workload;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A request that came, and the status it was answered with.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) status: u16,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn event(&self) -> Event {
        let pairs = self
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), std::str::from_utf8(value.as_bytes()).unwrap()));
        decode(Binding::Http, Some(self.header("content-type")), pairs, self.body.clone()).unwrap()
    }
}

/// What to answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) header: Option<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) after: Duration,
}

pub(crate) fn status(status: u16) -> Reply {
    Reply { status, ..Reply::default() }
}

pub(crate) fn with(status: u16, name: &'static str, value: impl Into<String>) -> Reply {
    Reply { status, header: Some((name, value.into())), ..Reply::default() }
}

/// An HTTP server that answers as it is told.
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

struct Shared {
    script: Box<dyn Fn(&Seen) -> Reply + Send + Sync>,
    seen: Mutex<Vec<Seen>>,
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Endpoint {
    /// Answers each POST by the script, and everything else with 405.
    pub(crate) async fn start(script: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            script: Box::new(script),
            seen: Mutex::default(),
            now: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
        });
        let router = Router::new().fallback(answer).with_state(Arc::clone(&shared));
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, shared, task }
    }

    pub(crate) fn config(&self) -> WebhookConfig {
        plain(&format!("http://{}/hooks", self.address))
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// The numbers of the events that were taken, in order.
    pub(crate) fn taken(&self) -> Vec<(String, u64)> {
        let taken = self.seen().into_iter().filter(|seen| seen.status < 300);
        taken
            .map(|seen| {
                let event = seen.event();
                (event.aggregate_id.clone(), workload::number(&event))
            })
            .collect()
    }

    /// How many requests were under way at once.
    pub(crate) fn most_at_once(&self) -> usize {
        self.shared.most.load(Ordering::SeqCst)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    if request.method() != Method::POST {
        return Response::builder().status(405).body(Body::empty()).unwrap();
    }
    let now = shared.now.fetch_add(1, Ordering::SeqCst) + 1;
    shared.most.fetch_max(now, Ordering::SeqCst);
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let mut seen = Seen { headers: parts.headers, body, status: 0 };
    let reply = (shared.script)(&seen);
    seen.status = reply.status;
    shared.seen.lock().unwrap().push(seen);
    tokio::time::sleep(reply.after).await;
    shared.now.fetch_sub(1, Ordering::SeqCst);
    let mut response = Response::builder().status(reply.status);
    if let Some((name, value)) = reply.header {
        response = response.header(name, value);
    }
    response.body(Body::from(reply.body)).unwrap()
}

/// A server that reads a request, says these bytes, and closes the connection after a while.
pub(crate) async fn raw(says: Vec<u8>, then: Duration) -> SocketAddr {
    serve(move |stream| {
        let says = says.clone();
        async move { say(stream, &says, then).await }
    })
    .await
}

/// Gives each connection to `handle`.
pub(crate) async fn serve<F, A>(handle: F) -> SocketAddr
where
    F: Fn(TcpStream) -> A + Send + 'static,
    A: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(handle(stream));
        }
    });
    address
}

/// Reads one request to its end and answers it.
pub(crate) async fn say(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    says: &[u8],
    then: Duration,
) {
    if !read_request(&mut stream).await {
        return;
    }
    // The other side may have gone.
    stream.write_all(says).await.ok();
    stream.flush().await.ok();
    tokio::time::sleep(then).await;
    stream.shutdown().await.ok();
}

/// Reads a request to its end; false if there is none.
pub(crate) async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> bool {
    let mut request = Vec::new();
    while !is_complete(&request) {
        let mut part = [0; 4096];
        match stream.read(&mut part).await {
            Ok(count) if count > 0 => request.extend_from_slice(&part[..count]),
            _ => return false,
        }
    }
    true
}

fn is_complete(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    body.len() >= length.map_or(0, |length| length.parse().unwrap())
}

/// An endpoint of this machine, without TLS.
pub(crate) fn plain(url: &str) -> WebhookConfig {
    let config = WebhookConfig::new(url).unwrap().plain_http(true).allow("127.0.0.1").unwrap();
    config.timeout(Duration::from_secs(5))
}

pub(crate) fn message(lane: &str, number: u64) -> Message {
    Message::first("order.events", workload::event(lane, number))
}

/// One verdict per message.
pub(crate) fn verdicts(published: Published, count: usize) -> Vec<Verdict> {
    match published {
        Published::All => vec![Verdict::Confirmed; count],
        Published::Each(verdicts) => verdicts,
        Published::None(failure) => panic!("the whole call failed: {failure:?}"),
    }
}

/// The failure of a verdict.
pub(crate) fn failure(verdict: &Verdict) -> &Failure {
    match verdict {
        Verdict::Failed(failure) => failure,
        verdict => panic!("it did not fail: {verdict:?}"),
    }
}
