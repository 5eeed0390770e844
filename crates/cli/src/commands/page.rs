//! The page beside the relays of a process: what they do, for people and for probes.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::Response;
use metrics_exporter_prometheus::PrometheusHandle;
use semel_backends::mapped::Mapping;
use semel_core::Failure;
use semel_dashboard::{Dashboard, Pipeline as Shown, router};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tower_service::Service;

use super::status::never_tails_because;
use crate::config::{Http, Pipeline};
use crate::counting;
use crate::wiring::{Database, Mode, shown};

/// Takes the address for as long as it lives, and shows what it was told last.
pub(super) struct Page {
    http: Http,
    /// The one that was taken; `listen` may leave the port open.
    address: SocketAddr,
    metrics: PrometheusHandle,
    /// Until it is known what to show.
    listener: Option<TcpListener>,
    current: Current,
    watching: JoinSet<()>,
    serving: JoinSet<()>,
}

/// What is answered now. Connections that are open go over to it with their next request: who may
/// not come in any more is not let in for having come before.
type Current = Arc<RwLock<Router>>;

impl Page {
    /// Takes the address, and counts from now on.
    pub(super) async fn bind(http: Http) -> Result<Self, Failure> {
        let listener = TcpListener::bind(http.listen).await.map_err(|error| {
            let what = format!("cannot listen on {}", http.listen);
            Failure::misconfigured("E-HTTP-LISTEN", what)
                .with_source(error)
                .with_fix("choose another address for listen in [http]")
        })?;
        let metrics = counting::install()?;
        let address = listener.local_addr().unwrap_or(http.listen);
        tracing::info!("page, API, health and metrics on http://{address}/");
        let mut serving = JoinSet::new();
        serving.spawn(tidy(metrics.clone()));
        let (listener, current, watching) = (Some(listener), Current::default(), JoinSet::new());
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
            *page = Some(Self::bind(http).await?);
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
                let current = Arc::clone(&known.current);
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
        self.serving.spawn(tidy(self.metrics.clone()));
        self.serving.spawn(serve(listener, Arc::clone(&self.current)));
        Ok(())
    }

    /// Shows these pipelines from now on.
    pub(super) fn show<'a>(&mut self, views: impl Iterator<Item = &'a View>) {
        let views: Vec<_> = views.collect();
        let databases: Arc<[_]> = views.iter().map(|view| Arc::clone(&view.database)).collect();
        let render = self.metrics.clone();
        let dashboard = Dashboard::new(move || are_reached(Arc::clone(&databases)))
            .with_access(self.http.access.clone())
            .with_metrics(move || render.render());
        let dashboard = views.into_iter().map(View::shown).fold(dashboard, Dashboard::with);
        let mut watching = JoinSet::new();
        watching.spawn(dashboard.watch());
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = router(dashboard);
        // The streams of open pages end with whoever watched before: they ask again, and see the new.
        self.watching = watching;
        if let Some(listener) = self.listener.take() {
            self.serving.spawn(serve(listener, Arc::clone(&self.current)));
        }
    }
}

/// What is shown of a pipeline.
#[derive(Clone)]
pub(super) struct View {
    name: String,
    from: String,
    mapping: Option<Mapping>,
    mode: &'static str,
    polling: Option<String>,
    of_messages: bool,
    sinks: Vec<(String, &'static str)>,
    database: Arc<dyn Database>,
}

impl View {
    pub(super) fn of(pipeline: &Pipeline, database: &Arc<dyn Database>) -> Self {
        let mode = pipeline.source.following.mode;
        let mode = Mode::ALL.iter().find(|(_, known)| *known == mode).map_or("", |(name, _)| *name);
        let sinks = pipeline.sinks.iter().map(|sink| (sink.name.clone(), sink.technology()));
        Self {
            name: pipeline.name.clone(),
            from: shown(pipeline.source.url.reveal()),
            mapping: pipeline.source.mapping.clone(),
            mode,
            polling: never_tails_because(pipeline),
            of_messages: pipeline.source.messages.is_some(),
            sinks: sinks.collect(),
            database: Arc::clone(database),
        }
    }

    fn shown(&self) -> Shown {
        let admin = self.database.admin(&self.name, self.mapping.as_ref()).into();
        let pipeline = Shown::new(&self.name, admin)
            .with_insight(self.database.insight())
            .with_keys(self.database.keys())
            .from(self.from.clone())
            .mode(self.mode);
        let pipeline = match &self.polling {
            Some(why) => pipeline.polling(why.clone()),
            None if self.of_messages => pipeline.of_messages(),
            None => pipeline,
        };
        let to = |all: Shown, (name, kind): &(String, &'static str)| all.to(name.clone(), *kind);
        self.sinks.iter().fold(pipeline, to)
    }
}

async fn serve(listener: TcpListener, current: Current) {
    let app = Router::new().fallback(answer).with_state(current);
    if let Err(error) = axum::serve(listener, app).await {
        tracing::error!(%error, "the page has ended");
    }
}

async fn answer(State(current): State<Current>, request: Request) -> Response {
    let mut now = current.read().unwrap_or_else(PoisonError::into_inner).clone();
    let Ok(answer) = now.call(request).await;
    answer
}

/// What was measured long ago must not fill the memory.
async fn tidy(metrics: PrometheusHandle) {
    loop {
        sleep(Duration::from_secs(5)).await;
        metrics.run_upkeep();
    }
}

/// Whether every database answers; brokers are not asked, since an outage of theirs is waited for.
async fn are_reached(databases: Arc<[Arc<dyn Database>]>) -> Result<(), Failure> {
    const PATIENCE: Duration = Duration::from_secs(2);
    for database in databases.iter() {
        let tables = timeout(PATIENCE, database.tables()).await.unwrap_or_else(|_| {
            Err(Failure::unavailable("E-HTTP-SLOW", "the database did not answer within 2 seconds"))
        });
        tables?.check()?;
    }
    Ok(())
}
