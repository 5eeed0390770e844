//! One file or folder per command.

#[cfg(feature = "page")]
mod api;
mod audit;
mod buried;
pub(crate) mod change;
pub(crate) mod check;
pub(crate) mod clean;
pub(crate) mod config;
mod confirm;
#[cfg(feature = "proxy")]
mod conform;
pub(crate) mod dead;
pub(crate) mod demo;
pub(crate) mod events;
pub(crate) mod explain;
mod fleet;
pub(crate) mod grants;
pub(crate) mod init;
pub(crate) mod keys;
mod life;
pub(crate) mod migrate;
mod migrate_down;
mod outages;
#[cfg(feature = "page")]
mod page;
pub(crate) mod pages;
mod passing;
#[cfg(feature = "proxy")]
pub(crate) mod proxy;
mod ready;
pub(crate) mod relay;
mod retention;
mod screen;
pub(crate) mod send;
pub(crate) mod status;
pub(crate) mod tap;
pub(crate) mod top;
mod touched;
pub(crate) mod verify;
#[cfg(feature = "page")]
mod views;

use semel_core::admin::{EventView, Filter};
use semel_core::{AdminStore, Failure};

use crate::args::{DatabaseOption, OwnerOption, PipelineOption};
use crate::config::{Config, Pipeline};
use crate::exit::Problem;
use crate::wiring::{Database, DatabaseKind, Missing, shown};

/// The outbox of a pipeline, and how failures of it are told.
struct Desk {
    store: Box<dyn AdminStore>,
    database: Box<dyn Database>,
    place: String,
    /// Whose events they are, as the log of changes has it.
    owner: String,
}

impl Desk {
    async fn open(options: &PipelineOption) -> Result<Self, Problem> {
        let config = Config::load(&options.config.path)?;
        Self::of(config.pipeline(options.name.as_deref())?).await
    }

    async fn of_owner(options: &OwnerOption) -> Result<Self, Problem> {
        let (Some(consumer), Some(url)) = (&options.consumer, &options.database) else {
            return Self::open(&options.pipeline).await;
        };
        let (database, _) = open_inbox(url).await?;
        let (store, owner) = (database.letters(consumer), format!("consumer {consumer}"));
        Ok(Self { store, database, place: owner.clone(), owner })
    }

    async fn of(pipeline: &Pipeline) -> Result<Self, Problem> {
        let place = pipeline.place();
        let (kind, url) = (pipeline.source.kind, pipeline.source.url.reveal().to_owned());
        let opened = async {
            let database = (kind.connect)(url, Missing::Refuse).await?;
            database.tables().await?.check()?;
            Ok((database.admin(&pipeline.name, pipeline.source.mapping.as_ref()), database))
        };
        match opened.await {
            Ok((store, database)) => {
                Ok(Self { store, database, place, owner: pipeline.name.clone() })
            }
            Err(failure) => Err(Problem::new(failure, place, EFFECT)),
        }
    }

    fn problem(&self, failure: Failure) -> Problem {
        Problem::new(failure, &self.place, EFFECT)
    }
}

const EFFECT: &str = "nothing was changed; no event is lost";

/// The inbox of a consumer, which may be in a database of its own.
async fn open_inbox(url: &str) -> Result<(Box<dyn Database>, DatabaseOption), Problem> {
    let options = DatabaseOption { url: url.to_owned() };
    let database = connect(&options, Missing::Refuse, EFFECT).await?;
    let tables = database.tables().await.and_then(|tables| tables.check());
    tables.map_err(|failure| database_problem(&options, failure, EFFECT))?;
    Ok((database, options))
}

/// How many events match and pass a test of their own.
async fn count_matching(
    store: &dyn AdminStore,
    filter: &Filter,
    counts: impl Fn(&EventView) -> bool,
) -> Result<usize, Failure> {
    const PAGE: usize = 1000;
    let (mut count, mut after) = (0, None);
    loop {
        let page = store.list(filter, after, PAGE).await?;
        count += page.events.iter().filter(|view| counts(view)).count();
        after = page.next;
        if after.is_none() {
            return Ok(count);
        }
    }
}

/// Opens the database of a command that needs no configuration.
async fn connect(
    options: &DatabaseOption,
    missing: Missing,
    effect: &'static str,
) -> Result<Box<dyn Database>, Problem> {
    let connected = (database_kind(options, effect)?.connect)(options.url.clone(), missing).await;
    connected.map_err(|failure| database_problem(options, failure, effect))
}

fn database_kind(
    options: &DatabaseOption,
    effect: &'static str,
) -> Result<&'static DatabaseKind, Problem> {
    DatabaseKind::of_url(&options.url).map_err(|why| {
        let fix = "give --database a URL such as sqlite://shop.db";
        let failure = Failure::misconfigured("E-DATABASE-URL", why).with_fix(fix);
        database_problem(options, failure, effect)
    })
}

fn database_problem(options: &DatabaseOption, failure: Failure, effect: &'static str) -> Problem {
    Problem::new(failure, shown(&options.url), effect)
}
