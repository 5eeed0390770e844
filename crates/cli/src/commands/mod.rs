//! One file or folder per command.

pub(crate) mod dead;
pub(crate) mod demo;
pub(crate) mod events;
pub(crate) mod migrate;
pub(crate) mod relay;
pub(crate) mod status;

use semel_core::{AdminStore, Failure};

use crate::args::PipelineOption;
use crate::config::{Config, Pipeline};
use crate::exit::Problem;
use crate::wiring::Missing;

/// The outbox of a pipeline, and how failures of it are told.
struct Desk {
    store: Box<dyn AdminStore>,
    place: String,
}

impl Desk {
    async fn open(options: &PipelineOption) -> Result<Self, Problem> {
        let config = Config::load(&options.config.path)?;
        Self::of(config.pipeline(options.name.as_deref())?).await
    }

    async fn of(pipeline: &Pipeline) -> Result<Self, Problem> {
        let place = pipeline.place();
        let (kind, url) = (pipeline.source.kind, pipeline.source.url.reveal().to_owned());
        match (kind.connect)(url, Missing::Refuse).await {
            Ok(database) => Ok(Self { store: database.admin(&pipeline.name), place }),
            Err(failure) => Err(Problem::new(failure, place, EFFECT)),
        }
    }

    fn problem(&self, failure: Failure) -> Problem {
        Problem::new(failure, &self.place, EFFECT)
    }
}

const EFFECT: &str = "nothing was changed; no event is lost";
