//! The page beside the relays of a process: what they do, for people and for probes.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use metrics_exporter_prometheus::PrometheusHandle;
use semel_backends::mapped::Mapping;
use semel_core::Failure;
use semel_dashboard::{Dashboard, Pipeline as Shown, router};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::config::{Http, Pipeline};
use crate::counting;
use crate::wiring::{Database, Mode, shown};

/// Collects what is shown, until it is served.
pub(super) struct Page {
    listener: TcpListener,
    http: Http,
    metrics: PrometheusHandle,
    shown: Vec<Shown>,
    databases: Vec<Arc<dyn Database>>,
}

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
        Ok(Self { listener, http, metrics, shown: Vec::new(), databases: Vec::new() })
    }

    /// Shows a pipeline.
    pub(super) fn show(&mut self, about: About, database: &Arc<dyn Database>) {
        let About { name, from, mapping, mode, sinks } = about;
        let admin = database.admin(&name, mapping.as_ref()).into();
        let pipeline = Shown::new(&name, admin)
            .with_insight(database.insight())
            .with_keys(database.keys())
            .from(from)
            .mode(mode);
        let to = |all: Shown, (name, kind): (String, &str)| all.to(name, kind);
        self.shown.push(sinks.into_iter().fold(pipeline, to));
        self.databases.push(Arc::clone(database));
    }

    /// Answers until the tasks are dropped.
    pub(super) fn serve(self, beside: &mut JoinSet<()>) {
        let Self { listener, http, metrics, shown, databases } = self;
        let databases: Arc<[_]> = databases.into();
        let render = metrics.clone();
        let dashboard = Dashboard::new(move || are_reached(Arc::clone(&databases)))
            .with_access(http.access)
            .with_metrics(move || render.render());
        let dashboard = shown.into_iter().fold(dashboard, Dashboard::with);
        let address = listener.local_addr().unwrap_or(http.listen);
        tracing::info!("page, API, health and metrics on http://{address}/");
        let watched = dashboard.clone();
        beside.spawn(async move { watched.watch().await });
        beside.spawn(tidy(metrics));
        beside.spawn(answer(listener, router(dashboard)));
    }
}

/// What is shown of a pipeline before it is connected.
pub(super) struct About {
    name: String,
    from: String,
    mapping: Option<Mapping>,
    mode: &'static str,
    sinks: Vec<(String, &'static str)>,
}

impl About {
    pub(super) fn of(pipeline: &Pipeline) -> Self {
        let mode = pipeline.source.mode;
        let mode = Mode::ALL.iter().find(|(_, known)| *known == mode).map_or("", |(name, _)| *name);
        let sinks = pipeline.sinks.iter().map(|sink| (sink.name.clone(), sink.technology()));
        Self {
            name: pipeline.name.clone(),
            from: shown(pipeline.source.url.reveal()),
            mapping: pipeline.source.mapping.clone(),
            mode,
            sinks: sinks.collect(),
        }
    }
}

async fn answer(listener: TcpListener, app: Router) {
    if let Err(error) = axum::serve(listener, app).await {
        tracing::error!(%error, "the page has ended");
    }
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
