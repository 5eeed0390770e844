//! A thread per core, each with a runtime of its own.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use futures_util::future::join_all;
use hyper_util::rt::TokioExecutor;
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpStream;
use tokio::runtime::{self, Handle};
use tokio::sync::oneshot;

use super::serve::Client;
use super::{Proxy, Share};

/// Threads that attend to clients; they end with this value, and so does what they do.
pub(super) struct Workers {
    all: Vec<Worker>,
    next: AtomicUsize,
}

struct Worker {
    share: Arc<Share>,
    runtime: Handle,
    /// The connections it attends to.
    clients: GracefulShutdown,
    /// The thread ends when this is gone; none for the runtime of whoever serves.
    _thread: Option<oneshot::Sender<()>>,
}

impl Workers {
    pub(super) fn start(proxy: &Proxy) -> Self {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let mut all: Vec<_> = (0..cores).filter_map(|_| Worker::start(proxy)).collect();
        if all.is_empty() {
            all.push(Worker::new(proxy, Handle::current(), None));
        }
        Self { all, next: AtomicUsize::new(0) }
    }

    /// Lets the next in turn attend to a client.
    pub(super) fn attend(&self, client: Client, builder: &Builder<TokioExecutor>) {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.all.len();
        let Worker { share, runtime, clients, .. } = &self.all[turn];
        let (share, watcher, builder) = (Arc::clone(share), clients.watcher(), builder.clone());
        let Client { stream, peer, stopped } = client;
        // Events of a connection reach the thread that registered it.
        let Ok(stream) = stream.into_std() else { return };
        runtime.spawn(async move {
            let Ok(stream) = TcpStream::from_std(stream) else { return };
            Client { stream, peer, stopped }.attend(share, builder, watcher).await;
        });
    }

    /// Takes no more requests, and resolves when every client has its answers.
    pub(super) async fn finish(&mut self) {
        let clients = self.all.iter_mut().map(|worker| std::mem::take(&mut worker.clients));
        join_all(clients.map(GracefulShutdown::shutdown)).await;
    }
}

impl Worker {
    /// None, if the system gives no thread.
    fn start(proxy: &Proxy) -> Option<Self> {
        let ((thread, ended), (tell, told)) = (oneshot::channel(), mpsc::channel());
        let run = move || match runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => {
                tell.send(runtime.handle().clone()).ok();
                runtime.block_on(ended).ok();
                // A name that is looked up, say, must not keep anybody waiting.
                runtime.shutdown_background();
            }
            Err(error) => tracing::warn!(%error, "a core cannot be used"),
        };
        let started = thread::Builder::new().name("semel-proxy".into()).spawn(run);
        started.map_err(|error| tracing::warn!(%error, "a core cannot be used")).ok()?;
        let runtime = told.recv().ok()?;
        Some(Self::new(proxy, runtime, Some(thread)))
    }

    fn new(proxy: &Proxy, runtime: Handle, thread: Option<oneshot::Sender<()>>) -> Self {
        let (share, clients) = (Arc::new(Share::of(proxy)), GracefulShutdown::new());
        Self { share, runtime, clients, _thread: thread }
    }
}
