//! Takes connections until it is told to stop, and then finishes what it has.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::Proxy;

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
    pub async fn serve(
        self,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send,
        grace: Duration,
    ) -> Ended {
        let proxy = Arc::new(self);
        let (builder, graceful) = (builder(), GracefulShutdown::new());
        let (stopping, stopped) = watch::channel(());
        let mut stop = std::pin::pin!(stop);
        loop {
            let accepted = tokio::select! {
                () = &mut stop => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let (watcher, stopped) = (graceful.watcher(), stopped.clone());
                    let client = Client { stream, peer, watcher, stopped };
                    tokio::spawn(client.attend(Arc::clone(&proxy), builder.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot take a connection");
                    sleep(Duration::from_millis(50)).await;
                }
            }
        }
        drop((listener, stopping));
        let deadline = Instant::now() + grace;
        let answered = timeout_at(deadline, graceful.shutdown()).await;
        // Also if connections are left: a handler needs no client to finish.
        let stored = timeout_at(deadline, proxy.otherwise.drained()).await;
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
struct Client {
    stream: TcpStream,
    peer: SocketAddr,
    watcher: Watcher,
    /// Ends when no more requests are taken.
    stopped: watch::Receiver<()>,
}

impl Client {
    async fn attend(self, proxy: Arc<Proxy>, builder: Builder<TokioExecutor>) {
        let Self { stream, peer, watcher, mut stopped } = self;
        let mut first = [0];
        let spoke = tokio::select! {
            spoke = timeout(FIRST_WORDS, stream.peek(&mut first)) => matches!(spoke, Ok(Ok(1))),
            _ = stopped.changed() => false,
        };
        if !spoke || stream.set_nodelay(true).is_err() {
            return;
        }
        let service = service_fn(move |request| {
            let proxy = Arc::clone(&proxy);
            async move { Ok::<_, Infallible>(proxy.answer(peer.ip(), request).await) }
        });
        let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
        if let Err(error) = watcher.watch(connection).await {
            tracing::debug!(%error, "a connection ended early");
        }
    }
}
