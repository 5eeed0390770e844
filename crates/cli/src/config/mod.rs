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
//! | `files.rs`, `tree.rs` | files and environment as one tree |
//! | `document.rs`, `section.rs`, `excerpt.rs` | tables read key by key, mistakes collected and shown |
//! | `values.rs`, `variables.rs`, `words.rs` | what strings mean |
//! | `pipeline.rs`, `mapping.rs`, `routing.rs`, `retry.rs`, `team.rs`, `upkeep.rs`, `http.rs`, `proxy.rs`, `trial.rs` | what the keys are |
//! | `record.rs` | what was asked for: the list behind the next two |
//! | `effective.rs`, `schema.rs` | what holds and where it was said; JSON Schema |
//! | `manual.rs`, `defaults.rs` | defaults and meanings, from the documentation; defaults as values |

mod defaults;
mod document;
mod effective;
mod excerpt;
mod files;
#[cfg(feature = "page")]
mod http;
mod manual;
mod mapping;
mod pipeline;
#[cfg(feature = "proxy")]
mod proxy;
mod record;
mod retry;
mod routing;
mod schema;
mod section;
mod team;
#[cfg(test)]
mod tests;
mod tree;
mod trial;
mod upkeep;
mod values;
mod variables;
mod words;

use std::path::Path;

use semel_core::Failure;

#[cfg(all(test, feature = "full"))]
pub(crate) use self::defaults::documented;
use self::document::{Document, Environment, Mistakes};
pub(crate) use self::effective::{Effective, Whole};
use self::files::File;
#[cfg(feature = "page")]
pub(crate) use self::http::Http;
pub(crate) use self::pipeline::{Pipeline, Sink};
use self::pipeline::{read_pipeline, read_sink, read_source};
#[cfg(feature = "proxy")]
pub(crate) use self::proxy::{ProxyFile, Replaced, Route, parse_scope};
use self::record::Record;
pub(crate) use self::schema::json_schema;
pub(crate) use self::section::Section;
pub(crate) use self::team::Team;
pub(crate) use self::trial::Trial;
use self::trial::read_trial;
pub(crate) use self::upkeep::{Deletion, Retention};
use self::upkeep::{Limits, read_limits, read_retention};
use self::words::hint;
pub(crate) use self::words::nearest;
use crate::exit::Problem;
use crate::wiring::{Identity, SINKS};

/// What `semel.toml` and the environment say, checked.
#[derive(Debug, Default)]
pub(crate) struct Config {
    pub(crate) pipelines: Vec<Pipeline>,
    /// All of them, whoever uses them.
    pub(crate) sinks: Vec<Sink>,
    /// When published events are deleted; never, if it is not said.
    pub(crate) retention: Option<Retention>,
    /// Where the page is; nowhere, if it is not said.
    #[cfg(feature = "page")]
    pub(crate) http: Option<Http>,
    /// What the user expects of the routing.
    pub(crate) trials: Vec<Trial>,
}

const EFFECT: &str = "nothing was started or changed; events wait in their outbox";

const SECTIONS: &[&str] =
    &["source", "sink", "pipeline", "limits", "retention", "http", "proxy", "test"];

impl Config {
    /// Reads and checks a file, or all files of a folder.
    pub(crate) fn load(path: &Path) -> Result<Self, Problem> {
        let (config, record, _) = load(path, EFFECT, Self::read)?;
        Ok(config.with_fingerprints(&record))
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

    fn read(document: &Document<'_>) -> Self {
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
            .sections("pipeline", |section| read_pipeline(section, &sources, &sinks, &limits));
        let names: Vec<_> = pipelines.keys().cloned().collect();
        let pipelines = pipelines.into_values().flatten().collect::<Vec<_>>();
        if pipelines.is_empty() {
            document.note_if_clean(
                "there is no [pipeline.NAME]: nothing would be relayed; write one with from = \"…\" \
                 and to = \"…\", or let `semel init` write the file",
            );
        }
        let trials = document.array("test", |section| read_trial(section, &names));
        Self {
            pipelines,
            sinks: sinks.into_values().flatten().collect(),
            retention,
            #[cfg(feature = "page")]
            http,
            trials,
        }
    }

    fn with_fingerprints(mut self, record: &Record) -> Self {
        for pipeline in &mut self.pipelines {
            pipeline.fingerprint = record.fingerprint(&pipeline.name);
        }
        let of_pipelines = self.pipelines.iter_mut();
        let of_pipelines =
            of_pipelines.flat_map(|each| each.sinks.iter_mut().chain(&mut each.alert));
        for sink in of_pipelines.chain(&mut self.sinks) {
            let fingerprint = record.fingerprint_of(&format!("sink.{}", sink.name));
            sink.connect.identity = Some(Identity { name: sink.name.clone(), fingerprint });
        }
        self
    }
}

#[cfg(not(feature = "page"))]
fn refuse_http(section: &mut Section<'_>) -> Option<()> {
    section.wrong("listen", "this program was built without the feature \"page\"");
    section.skip_the_rest();
    None
}

/// Reads and checks what a command needs of a file, or of all files of a folder.
fn load<T>(
    path: &Path,
    effect: &'static str,
    read: impl FnOnce(&Document<'_>) -> T,
) -> Result<(T, Record, Vec<File>), Problem> {
    let name = path.display().to_string();
    let files = files::read(path).map_err(|error| {
        let failure = Failure::misconfigured("E-CONFIG-READ", format!("cannot read {name}"))
            .with_source(error)
            .with_fix(
                "write the file, or name another one with --config FILE; semel init writes one",
            );
        Problem::new(failure, &name, effect)
    })?;
    let all = std::env::vars_os()
        .filter_map(|(name, value)| name.into_string().ok().zip(value.into_string().ok()))
        .collect();
    let environment = Environment { variable: &|name| std::env::var(name).ok(), all };
    parse(files, &environment, read).map_err(|mistakes| {
        let count = mistakes.len();
        let plural = if count == 1 { "mistake" } else { "mistakes" };
        let failure = Failure::misconfigured("E-CONFIG", format!("{count} {plural} in {name}"))
            .with_fix("correct the lines above and start again");
        Problem::at(failure, mistakes.with_excerpts(), effect)
    })
}

fn parse<T>(
    files: Vec<File>,
    environment: &Environment<'_>,
    read: impl FnOnce(&Document<'_>) -> T,
) -> Result<(T, Record, Vec<File>), Mistakes> {
    let document = Document::parse(files, environment);
    let value = read(&document);
    document.finish().map(|(record, files)| (value, record, files))
}
