//! What the page shows of the pipelines, those included whose database has not answered so far.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use semel_backends::mapped::Mapping;
use semel_core::admin::{Cursor, EventView, Filter, Page, Selection, Stats};
use semel_core::{AdminStore, EventId, Failure, Fault, telemetry};
use semel_dashboard::Pipeline as Shown;
use tokio::time::timeout;

use super::status::never_tails_because;
use crate::config::Pipeline;
use crate::wiring::{Database, Mode, shown};

/// What is shown of all pipelines of the configuration.
#[derive(Default)]
pub(super) struct Views {
    all: BTreeMap<String, View>,
    /// Those whose source is told to be down: while they do not run, nobody else tells of it.
    down: BTreeSet<String>,
    has_changed: bool,
}

impl Views {
    /// All of them, if the page does not show them so already.
    pub(super) fn news(&mut self) -> Option<impl Iterator<Item = &View>> {
        std::mem::take(&mut self.has_changed).then(|| self.all.values())
    }

    /// All of them; the page shows them so from now on.
    pub(super) fn all(&mut self) -> impl Iterator<Item = &View> {
        self.has_changed = false;
        self.all.values()
    }

    /// Shows a pipeline that is yet to be connected.
    pub(super) fn expect(&mut self, pipeline: &Pipeline) {
        self.insert(View::of(pipeline));
    }

    /// Shows a pipeline that was yet to be connected, and is.
    pub(super) fn connected(&mut self, view: View) {
        if self.down.remove(&view.name) {
            tell_source(&view.name, UNKNOWN);
        }
        // One that ran before is seen through the connection it had: the page goes on where it was.
        if self.all.get(&view.name).is_none_or(|known| known.database.is_err()) {
            self.insert(view);
        }
    }

    /// Says why a pipeline could not be connected; one that was before is seen as before.
    pub(super) fn failed(&mut self, name: &str, failure: &Failure) {
        if failure.fault() == Fault::Unavailable {
            self.down.insert(name.to_owned());
            tell_source(name, DOWN);
        }
        if let Some(View { database: Err(known), .. }) = self.all.get_mut(name) {
            self.has_changed |= known.code() != failure.code();
            *known = failure.clone();
        }
    }

    /// Goes over to another configuration: these, and of those before what was kept.
    pub(super) fn replace(&mut self, kept: &[String], new: Vec<View>) {
        let is_gone = |name: &String| !kept.contains(name);
        self.down.iter().filter(|name| is_gone(name)).for_each(|name| tell_source(name, UNKNOWN));
        self.down.retain(|name| !is_gone(name));
        self.all.retain(|name, _| kept.contains(name));
        new.into_iter().for_each(|view| self.insert(view));
        self.has_changed = true;
    }

    fn insert(&mut self, view: View) {
        self.all.insert(view.name.clone(), view);
        self.has_changed = true;
    }
}

const DOWN: f64 = 0.0;
/// The relay of the pipeline says it, once there is one.
const UNKNOWN: f64 = f64::NAN;

/// For those who watch by metrics.
fn tell_source(pipeline: &str, is_up: f64) {
    let (name, pipeline) = (telemetry::SOURCE_UP.name, pipeline.to_owned());
    metrics::gauge!(name, "pipeline" => pipeline).set(is_up);
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
    /// Or why it is not connected.
    database: Result<Arc<dyn Database>, Failure>,
}

impl View {
    /// Of one that is not connected yet.
    pub(super) fn of(pipeline: &Pipeline) -> Self {
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
            database: Err(not_yet()),
        }
    }

    pub(super) fn connected(self, database: &Arc<dyn Database>) -> Self {
        Self { database: Ok(Arc::clone(database)), ..self }
    }

    pub(super) fn shown(&self) -> Shown {
        let pipeline = match &self.database {
            Ok(database) => {
                let admin = database.admin(&self.name, self.mapping.as_ref());
                Shown::new(&self.name, admin.into())
                    .with_insight(database.insight())
                    .with_keys(database.keys())
            }
            Err(why) => Shown::new(&self.name, Arc::new(Away(why.clone()))),
        };
        let pipeline = pipeline.from(self.from.clone()).mode(self.mode);
        let pipeline = match &self.polling {
            Some(why) => pipeline.polling(why.clone()),
            None if self.of_messages => pipeline.of_messages(),
            None => pipeline,
        };
        let to = |all: Shown, (name, kind): &(String, &'static str)| all.to(name.clone(), *kind);
        self.sinks.iter().fold(pipeline, to)
    }

    /// Whether the database answers; brokers are not asked, since an outage of theirs is waited for.
    pub(super) async fn is_reached(&self) -> Result<(), Failure> {
        const PATIENCE: Duration = Duration::from_secs(2);
        let database = self.database.as_ref().map_err(Clone::clone)?;
        let tables = timeout(PATIENCE, database.tables()).await.unwrap_or_else(|_| {
            Err(Failure::unavailable("E-HTTP-SLOW", "the database did not answer within 2 seconds"))
        });
        tables?.check()
    }
}

/// Why nothing is known of a pipeline while it is being connected.
pub(super) fn not_yet() -> Failure {
    Failure::unavailable(
        "E-HTTP-SLOW",
        "the relay starts, and the database has not answered so far",
    )
    .with_fix("ask again in a moment")
}

/// The outbox of a database that cannot be had: whatever is asked is answered with why.
struct Away(Failure);

#[async_trait]
impl AdminStore for Away {
    async fn stats(&self) -> Result<Stats, Failure> {
        Err(self.0.clone())
    }

    async fn list(&self, _: &Filter, _: Option<Cursor>, _: usize) -> Result<Page, Failure> {
        Err(self.0.clone())
    }

    async fn get(&self, _: EventId) -> Result<Option<EventView>, Failure> {
        Err(self.0.clone())
    }

    async fn retry(&self, _: &Selection) -> Result<usize, Failure> {
        Err(self.0.clone())
    }

    async fn discard(&self, _: &Selection) -> Result<usize, Failure> {
        Err(self.0.clone())
    }

    async fn replay(&self, _: &Selection) -> Result<usize, Failure> {
        Err(self.0.clone())
    }

    async fn clean(&self, _: Duration, _: usize) -> Result<usize, Failure> {
        Err(self.0.clone())
    }
}
