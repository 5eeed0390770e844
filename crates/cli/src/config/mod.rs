//! `semel.toml`: from text to what can be connected, with every mistake named at once.
//!
//! ```toml
//! [source.orders]
//! url = "${DATABASE_URL}"
//! [sink.out]
//! type = "file"
//! path = "events.ndjson"
//! [pipeline.orders]
//! from = "orders"
//! to = "out"
//! topic = "{aggregate_type}.events"
//! ```
//!
//! | file | what it does |
//! |---|---|
//! | `tree.rs` | the file and the environment as one tree |
//! | `document.rs`, `section.rs` | tables read key by key, mistakes collected |
//! | `values.rs`, `variables.rs`, `words.rs` | what strings mean |
//! | `pipeline.rs`, `mapping.rs`, `routing.rs`, `retry.rs`, `team.rs`, `upkeep.rs`, `proxy.rs`, `http.rs` | what the keys are |

mod document;
#[cfg(feature = "page")]
mod http;
mod mapping;
mod pipeline;
#[cfg(feature = "proxy")]
mod proxy;
mod retry;
mod routing;
mod section;
mod team;
#[cfg(test)]
mod tests;
mod tree;
mod upkeep;
mod values;
mod variables;
mod words;

use std::path::Path;

use semel_core::Failure;

use self::document::{Document, Environment, Mistakes};
#[cfg(feature = "page")]
pub(crate) use self::http::Http;
pub(crate) use self::pipeline::Pipeline;
use self::pipeline::{read_pipeline, read_sink, read_source};
#[cfg(feature = "proxy")]
pub(crate) use self::proxy::{ProxyFile, Route, parse_scope};
pub(crate) use self::section::Section;
pub(crate) use self::team::Team;
pub(crate) use self::upkeep::{Deletion, Retention};
use self::upkeep::{Limits, read_limits, read_retention};
use self::words::hint;
pub(crate) use self::words::nearest;
use crate::exit::Problem;

/// What `semel.toml` and the environment say, checked.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) pipelines: Vec<Pipeline>,
    /// When published events are deleted; never, if it is not said.
    pub(crate) retention: Option<Retention>,
    /// Where the page is; nowhere, if it is not said.
    #[cfg(feature = "page")]
    pub(crate) http: Option<Http>,
}

const EFFECT: &str = "nothing was started or changed; events wait in their outbox";

const SECTIONS: &[&str] = &["source", "sink", "pipeline", "limits", "retention", "http", "proxy"];

impl Config {
    /// Reads and checks a file.
    pub(crate) fn load(path: &Path) -> Result<Self, Problem> {
        load(path, EFFECT, Self::parse)
    }

    /// The pipeline of this name, or the only one.
    pub(crate) fn pipeline(&self, name: Option<&str>) -> Result<&Pipeline, Problem> {
        let found = match (name, &self.pipelines[..]) {
            (None, [only]) => Some(only),
            (None, _) => None,
            (Some(name), all) => all.iter().find(|pipeline| pipeline.name == name),
        };
        found.ok_or_else(|| {
            let names: Vec<_> = self.pipelines.iter().map(|each| each.name.as_str()).collect();
            let names = names.join(", ");
            let what = match name {
                Some(name) => format!("there is no pipeline {name:?}"),
                None => "there are several pipelines".into(),
            };
            let failure = Failure::misconfigured("E-PIPELINE", what)
                .with_fix(format!("say which one with --pipeline: {names}"));
            Problem::new(failure, "the configuration", "nothing was changed")
        })
    }

    fn parse(text: &str, environment: &Environment<'_>) -> Result<Self, Mistakes> {
        let document = Document::parse(text, environment);
        document.allow_only(SECTIONS);
        let limits = document.section("limits", read_limits).unwrap_or_default();
        let retention = document.section("retention", read_retention);
        #[cfg(feature = "page")]
        let http = document.section("http", http::read_http);
        #[cfg(not(feature = "page"))]
        document.section("http", refuse_http);
        let sources = document.sections("source", read_source);
        let sinks = document.sections("sink", read_sink);
        let pipelines = document
            .sections("pipeline", |section| read_pipeline(section, &sources, &sinks, &limits))
            .into_values()
            .flatten()
            .collect::<Vec<_>>();
        if pipelines.is_empty() {
            document.note_if_clean("there is no [pipeline.NAME]: nothing would be relayed");
        }
        let config = Self {
            pipelines,
            retention,
            #[cfg(feature = "page")]
            http,
        };
        document.into_mistakes().map_or(Ok(config), Err)
    }
}

#[cfg(not(feature = "page"))]
fn refuse_http(section: &mut Section<'_>) -> Option<()> {
    section.wrong("listen", "this program was built without the feature \"page\"");
    section.skip_the_rest();
    None
}

/// Reads and checks what a command needs of a file.
fn load<T>(
    path: &Path,
    effect: &'static str,
    parse: impl FnOnce(&str, &Environment<'_>) -> Result<T, Mistakes>,
) -> Result<T, Problem> {
    let file = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| {
        let failure = Failure::misconfigured("E-CONFIG-READ", format!("cannot read {file}"))
            .with_source(error)
            .with_fix("write the file, or name another one with --config FILE");
        Problem::new(failure, &file, effect)
    })?;
    let all = std::env::vars_os()
        .filter_map(|(name, value)| name.into_string().ok().zip(value.into_string().ok()))
        .collect();
    let environment = Environment { variable: &|name| std::env::var(name).ok(), all };
    parse(&text, &environment).map_err(|mistakes| {
        let count = mistakes.len();
        let plural = if count == 1 { "mistake" } else { "mistakes" };
        let what = format!("{count} {plural} in {file}");
        let failure = Failure::misconfigured("E-CONFIG", what)
            .with_fix("correct the lines above and start again");
        Problem::at(failure, mistakes.at_lines_of(&file), effect)
    })
}
