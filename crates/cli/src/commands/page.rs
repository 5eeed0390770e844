//! The page beside the relays of a process: what they do, for people and for probes.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use metrics_exporter_prometheus::PrometheusHandle;
use semel_core::Failure;
use semel_dashboard::{Dashboard, router};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower_service::Service;

use super::views::{View, not_yet};
use crate::config::Http;
use crate::counting;

/// Takes the address for as long as it lives, and shows what it was told last.
pub(super) struct Page {
    http: Http,
    /// The one that was taken; `listen` may leave the port open.
    address: SocketAddr,
    metrics: PrometheusHandle,
    /// Until it is served.
    listener: Option<TcpListener>,
    current: watch::Sender<Answers>,
    watching: JoinSet<()>,
    serving: JoinSet<()>,
}

/// What is answered now. Connections that are open go over to it with their next request: who may
/// not come in any more is not let in for having come before.
#[derive(Clone, Default)]
struct Answers {
    router: Router,
    /// Whether it is known which pipelines there are.
    knows_pipelines: bool,
}

impl Page {
    /// Takes the address. That this process lives, and is not ready, is
    /// answered before it is known what there is to show.
    pub(super) async fn open(http: Http) -> Result<Self, Failure> {
        let mut page = Self::bind(http).await?;
        let router = router(page.dashboard(|| async { Err(not_yet()) }));
        page.answer(Answers { router, knows_pipelines: false });
        Ok(page)
    }

    async fn bind(http: Http) -> Result<Self, Failure> {
        let bound = TcpListener::bind(http.listen).await;
        let listener = bound.map_err(|error| no_address(http.listen, error))?;
        let metrics = counting::install()?;
        let address = listener.local_addr().unwrap_or(http.listen);
        tracing::info!("page, API, health and metrics on http://{address}/");
        let (listener, current) = (Some(listener), watch::Sender::default());
        let (watching, serving) = (JoinSet::new(), JoinSet::new());
        Ok(Self { http, address, metrics, listener, current, watching, serving })
    }

    /// Goes over to another configuration of itself; when it cannot, it stays as it is.
    pub(super) async fn renew(page: &mut Option<Self>, http: Option<Http>) -> Result<(), Failure> {
        let Some(http) = http else {
            if page.take().is_some() {
                tracing::info!("there is no page any more");
            }
            return Ok(());
        };
        let Some(known) = page else {
            *page = Some(Self::open(http).await?);
            return Ok(());
        };
        if known.http.listen == http.listen {
            known.http = http;
            return Ok(());
        }
        // An address may contain the other, as 0.0.0.0 does: then both cannot be had at once.
        let is_in_the_way = known.address.port() == http.listen.port();
        if is_in_the_way {
            known.close().await;
        }
        match Self::bind(http).await {
            Ok(new) => {
                let current = known.current.clone();
                *known = Self { current, ..new };
                Ok(())
            }
            Err(failure) => {
                let opened = if is_in_the_way { known.open_again().await } else { Ok(()) };
                if let Err(error) = opened {
                    tracing::error!(%error, "there is no page any more: somebody took its address");
                    *page = None;
                }
                Err(failure)
            }
        }
    }

    /// Gives the address up.
    async fn close(&mut self) {
        self.listener = None;
        self.serving.shutdown().await;
    }

    /// Takes back the address that it gave up, and shows there what it showed before.
    async fn open_again(&mut self) -> io::Result<()> {
        let listener = TcpListener::bind(self.address).await?;
        self.serving.spawn(serve(listener, self.current.subscribe()));
        Ok(())
    }

    /// Shows these pipelines from now on.
    pub(super) fn show<'a>(&mut self, views: impl Iterator<Item = &'a View>) {
        let views: Arc<[View]> = views.cloned().collect();
        let asked = Arc::clone(&views);
        let dashboard = self.dashboard(move || are_reached(Arc::clone(&asked)));
        let dashboard = views.iter().map(View::shown).fold(dashboard, Dashboard::with);
        let mut watching = JoinSet::new();
        watching.spawn(dashboard.watch());
        self.answer(Answers { router: router(dashboard), knows_pipelines: true });
        // The streams of open pages end with whoever watched before: they ask again, and see the new.
        self.watching = watching;
    }

    fn dashboard<F>(&self, is_ready: impl Fn() -> F + Send + Sync + 'static) -> Dashboard
    where
        F: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        let render = self.metrics.clone();
        Dashboard::new(is_ready)
            .with_access(self.http.access.clone())
            .with_metrics(move || render.render())
    }

    fn answer(&mut self, answers: Answers) {
        self.current.send_replace(answers);
        if let Some(listener) = self.listener.take() {
            self.serving.spawn(serve(listener, self.current.subscribe()));
        }
    }
}

/// An address may be free, or there, with the next start. Any other reason would be the same again.
fn no_address(address: SocketAddr, error: io::Error) -> Failure {
    const CODE: &str = "E-HTTP-LISTEN";
    let failure = match error.kind() {
        ErrorKind::AddrInUse => {
            Failure::unavailable(CODE, format!("somebody else listens on {address}"))
                .with_fix("end who listens there, or choose another address for listen in [http]")
        }
        ErrorKind::AddrNotAvailable => {
            Failure::unavailable(CODE, format!("this machine has no such address as {address} now"))
                .with_fix("bring its network up, or choose another address for listen in [http]")
        }
        _ => Failure::misconfigured(CODE, format!("cannot listen on {address}"))
            .with_fix("choose another address for listen in [http]"),
    };
    failure.with_source(error)
}

async fn serve(listener: TcpListener, current: watch::Receiver<Answers>) {
    let app = Router::new().fallback(answer).with_state(current);
    if let Err(error) = axum::serve(listener, app).await {
        tracing::error!(%error, "the page has ended");
    }
}

async fn answer(State(mut current): State<watch::Receiver<Answers>>, request: Request) -> Response {
    // Whoever asks for pipelines while they start is not told that there are none.
    if request.uri().path().starts_with("/api/")
        && current.wait_for(|answers| answers.knows_pipelines).await.is_err()
    {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let mut now = current.borrow().router.clone();
    let Ok(answer) = now.call(request).await;
    answer
}

async fn are_reached(views: Arc<[View]>) -> Result<(), Failure> {
    for view in views.iter() {
        view.is_reached().await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use semel_dashboard::Access;

    use super::*;
    use crate::counting::is_tidied;

    /// The relays go on measuring, whether or not somebody can look at it.
    #[tokio::test]
    async fn what_is_measured_is_kept_small_without_a_page() {
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let http = Http { listen, access: Access::open() };
        let mut page = Some(Page::open(http).await.unwrap());
        assert!(is_tidied());
        Page::renew(&mut page, None).await.unwrap();
        tokio::task::yield_now().await;
        assert!(page.is_none() && is_tidied());
    }
}
