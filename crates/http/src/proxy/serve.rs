//! Takes connections until it is told to stop, and then finishes what it has.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderValue, InvalidHeaderValue};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::Watcher;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_rustls::TlsAcceptor;

use super::workers::Workers;
use super::{Peer, Proxy, Share};

/// How long a client may take to say what it wants.
const FIRST_WORDS: Duration = Duration::from_secs(30);

/// How a proxy ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Everything was answered, and every result is stored.
    Finished,
    /// Time was up. What was still running keeps its key until the lease ends.
    CutOff,
}

impl Proxy {
    /// Answers clients until `stop` resolves; then takes no more of them, and finishes what is
    /// running for at most `grace`.
    ///
    /// Each core has a thread of its own with a share of the clients and connections to the
    /// upstream, so that a request is passed on without being handed from one thread to another.
    /// What still runs when this returns ends with it. Answers are counted by the recorder of
    /// metrics that is installed when this begins.
    pub async fn serve(
        self,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send,
        grace: Duration,
    ) -> Ended {
        let (mut workers, builder) = (Workers::start(&self), builder());
        let (stopping, stopped) = watch::channel(());
        let mut stop = std::pin::pin!(stop);
        loop {
            let accepted = tokio::select! {
                () = &mut stop => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let stopped = stopped.clone();
                    workers.attend(Client { stream, peer, stopped }, &builder);
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot take a connection");
                    sleep(Duration::from_millis(50)).await;
                }
            }
        }
        drop((listener, stopping));
        let deadline = Instant::now() + grace;
        let answered = timeout_at(deadline, workers.finish()).await;
        // Also if connections are left: a handler needs no client to finish.
        let stored = timeout_at(deadline, self.otherwise.drained()).await;
        if answered.is_ok() && stored.is_ok() { Ended::Finished } else { Ended::CutOff }
    }
}

fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(FIRST_WORDS);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(FIRST_WORDS)
        .max_header_list_size(64 * 1024);
    builder
}

/// One connection.
pub(super) struct Client {
    pub(super) stream: TcpStream,
    pub(super) peer: SocketAddr,
    /// Ends when no more requests are taken.
    pub(super) stopped: watch::Receiver<()>,
}

impl Client {
    pub(super) async fn attend(
        self,
        share: Arc<Share>,
        builder: Builder<TokioExecutor>,
        watcher: Watcher,
    ) {
        let Self { stream, peer, mut stopped } = self;
        let mut first = [0];
        let spoke = tokio::select! {
            spoke = timeout(FIRST_WORDS, stream.peek(&mut first)) => matches!(spoke, Ok(Ok(1))),
            _ = stopped.changed() => false,
        };
        if !spoke || stream.set_nodelay(true).is_err() {
            return;
        }
        let Ok(peer) = Peer::at(peer) else { return };
        let Some(identity) = &share.proxy.identity else {
            return converse(stream, peer, share, builder, watcher).await;
        };
        let shaking_hands = TlsAcceptor::from(Arc::clone(&identity.0)).accept(stream);
        match timeout(FIRST_WORDS, shaking_hands).await {
            Ok(Ok(stream)) => converse(stream, peer, share, builder, watcher).await,
            Ok(Err(error)) => tracing::debug!(%error, "a client could not agree on TLS"),
            Err(_) => {}
        }
    }
}

impl Peer {
    fn at(address: SocketAddr) -> Result<Self, InvalidHeaderValue> {
        HeaderValue::from_maybe_shared(Bytes::from(address.ip().to_string())).map(Self)
    }
}

/// Answers a client until its connection ends.
async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Peer,
    share: Arc<Share>,
    builder: Builder<TokioExecutor>,
    watcher: Watcher,
) {
    let asked = Arc::new((share, peer));
    let service = service_fn(move |request| {
        let asked = Arc::clone(&asked);
        async move {
            let (share, peer) = &*asked;
            Ok::<_, Infallible>(share.answer(peer, request).await)
        }
    });
    let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%error, "a connection ended early");
    }
}
