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

mod document;
mod variables;

use std::collections::BTreeMap;
use std::path::Path;

use semel_core::{Failure, Secret, TopicTemplate};

pub(crate) use self::document::Section;
use self::document::{Document, Mistakes, nearest};
use crate::exit::Problem;
use crate::wiring::{ConnectSink, DatabaseKind, SINKS, SinkKind, shown};

/// What `semel.toml` says, checked.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) pipelines: Vec<Pipeline>,
}

/// A way from a source to a sink.
#[derive(Debug)]
pub(crate) struct Pipeline {
    pub(crate) name: String,
    pub(crate) source: Source,
    pub(crate) sink: Sink,
    pub(crate) topic: TopicTemplate,
}

impl Pipeline {
    /// Where to look when something is wrong with it.
    pub(crate) fn place(&self) -> String {
        let (name, url) = (&self.name, shown(self.source.url.reveal()));
        format!("pipeline.{name} (from {url} to sink.{})", self.sink.name)
    }
}

/// A database with an outbox.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) kind: &'static DatabaseKind,
    pub(crate) url: Secret,
}

/// Where events go.
#[derive(Clone)]
pub(crate) struct Sink {
    pub(crate) name: String,
    pub(crate) connect: ConnectSink,
}

impl std::fmt::Debug for Sink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sink").field("name", &self.name).finish_non_exhaustive()
    }
}

const EFFECT: &str = "nothing was started or changed; events wait in their outbox";

impl Config {
    /// Reads and checks a file.
    pub(crate) fn load(path: &Path) -> Result<Self, Problem> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| {
            let failure = Failure::misconfigured("E-CONFIG-READ", format!("cannot read {file}"))
                .with_source(error)
                .with_fix("write the file, or name another one with --config FILE");
            Problem::new(failure, &file, EFFECT)
        })?;
        Self::parse(&text, &|name| std::env::var(name).ok()).map_err(|mistakes| {
            let count = mistakes.len();
            let plural = if count == 1 { "mistake" } else { "mistakes" };
            let what = format!("{count} {plural} in {file}");
            let failure = Failure::misconfigured("E-CONFIG", what)
                .with_fix("correct the lines above and start again");
            Problem::at(failure, mistakes.at_lines_of(&file), EFFECT)
        })
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

    fn parse(text: &str, variables: &dyn Fn(&str) -> Option<String>) -> Result<Self, Mistakes> {
        let document = Document::parse(text, variables);
        document.allow_only(&["source", "sink", "pipeline"]);
        let sources = document.sections("source", read_source);
        let sinks = document.sections("sink", read_sink);
        let pipelines = document
            .sections("pipeline", |section| read_pipeline(section, &sources, &sinks))
            .into_values()
            .flatten()
            .collect::<Vec<_>>();
        if pipelines.is_empty() {
            document.note_if_clean("there is no [pipeline.NAME]: nothing would be relayed");
        }
        document.into_mistakes().map_or(Ok(Self { pipelines }), Err)
    }
}

fn read_source(section: &mut Section<'_>) -> Option<Source> {
    let url = section.required("url")?;
    match DatabaseKind::of_url(&url) {
        Ok(kind) => Some(Source { kind, url: Secret::new(url) }),
        Err(why) => {
            section.wrong("url", &why);
            None
        }
    }
}

fn read_sink(section: &mut Section<'_>) -> Option<Sink> {
    let name = section.required("type");
    let kind = name.as_ref().and_then(|name| SINKS.iter().find(|kind| kind.name == name));
    let Some(SinkKind { parse, .. }) = kind else {
        if let Some(name) = name {
            let names: Vec<_> = SINKS.iter().map(|kind| kind.name).collect();
            let hint = hint(&name, &names);
            section.wrong("type", &format!("there is no sink of type {name:?}{hint}"));
        }
        section.skip_the_rest();
        return None;
    };
    Some(Sink { name: section.name().to_owned(), connect: parse(section)? })
}

fn read_pipeline(
    section: &mut Section<'_>,
    sources: &BTreeMap<String, Option<Source>>,
    sinks: &BTreeMap<String, Option<Sink>>,
) -> Option<Pipeline> {
    let source = find(section, "from", "source", sources);
    let sink = find(section, "to", "sink", sinks);
    let topic = match section.optional("topic").map(|topic| topic.parse::<TopicTemplate>()) {
        None => Some(TopicTemplate::default()),
        Some(Ok(topic)) => Some(topic),
        Some(Err(failure)) => {
            let fix = failure.fix().unwrap_or_default();
            section.wrong("topic", &format!("{failure}; {fix}"));
            None
        }
    };
    Some(Pipeline { name: section.name().to_owned(), source: source?, sink: sink?, topic: topic? })
}

/// What a key of a pipeline refers to.
fn find<T: Clone>(
    section: &mut Section<'_>,
    key: &'static str,
    what: &str,
    all: &BTreeMap<String, Option<T>>,
) -> Option<T> {
    let name = section.required(key)?;
    if let Some(found) = all.get(&name) {
        return found.clone();
    }
    let names: Vec<_> = all.keys().map(String::as_str).collect();
    section.wrong(key, &format!("there is no [{what}.{name}]{}", hint(&name, &names)));
    None
}

/// What was probably meant, or what there is.
fn hint(word: &str, words: &[&str]) -> String {
    match nearest(word, words) {
        Some(word) => format!("; did you mean {word:?}?"),
        None if words.is_empty() => String::new(),
        None => format!("; there is {}", words.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALLEST: &str = "[source.orders]
url = \"sqlite://${FILE}\"
[sink.out]
type = \"file\"
path = \"events.ndjson\"
[pipeline.orders]
from = \"orders\"
to = \"out\"
";

    fn parse(text: &str) -> Result<Config, Mistakes> {
        Config::parse(text, &|name| (name == "FILE").then(|| "shop.db".into()))
    }

    fn mistakes(text: &str) -> Vec<String> {
        parse(text).unwrap_err().at_lines_of("f")
    }

    #[test]
    fn the_smallest_file_is_enough() {
        let config = parse(SMALLEST).unwrap();
        let [pipeline] = &config.pipelines[..] else { panic!("one pipeline") };
        assert_eq!((&*pipeline.name, &*pipeline.sink.name), ("orders", "out"));
        assert_eq!(pipeline.source.url.reveal(), "sqlite://shop.db");
        assert!(config.pipeline(None).is_ok() && config.pipeline(Some("orders")).is_ok());
        assert!(config.pipeline(Some("order")).is_err());
    }

    #[test]
    fn all_mistakes_are_named_at_once_with_their_lines() {
        let text = "[source.orders]
ulr = \"sqlite://shop.db\"
[sink.out]
type = \"fiel\"
path = 7
[pipeline.orders]
from = \"order\"
to = \"out\"
topic = \"{aggregate}\"
[pipelin.other]
";
        let expected = [
            "f:1  [source.orders] needs the key \"url\"",
            "f:2  [source.orders] has no key \"ulr\"; did you mean \"url\"?",
            "f:4  [sink.out] type: there is no sink of type \"fiel\"; did you mean \"file\"?",
            "f:7  [pipeline.orders] from: there is no [source.order]; did you mean \"orders\"?",
            "f:9  [pipeline.orders] topic: topic template \"{aggregate}\": unknown field \
             \"aggregate\"; write text with",
            "f:10  there is no section \"pipelin\"; did you mean \"pipeline\"?",
        ];
        let found = mistakes(text);
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found}\nis not\n{expected}");
        }
    }

    #[test]
    fn single_mistakes_say_what_to_write() {
        let cases = [
            (
                SMALLEST.replace("${FILE}", "${FIEL}"),
                "f:2  [source.orders] url: the environment variable FIEL is not set",
            ),
            (SMALLEST.replace("${FILE}", "${FILE"), "f:2  [source.orders] url: a ${ without its }"),
            (
                SMALLEST.replace("sqlite://", "oracle://"),
                "f:2  [source.orders] url: the URL must begin with sqlite://",
            ),
            (
                SMALLEST.replace("\"events.ndjson\"", "7"),
                "f:5  [sink.out] path: must be a string, not an integer",
            ),
            (
                SMALLEST.replace("[sink.out]", "[sink]"),
                "f:4  sink.type: must be a table, such as [sink.NAME]",
            ),
            (SMALLEST.replace("to = \"out\"", "to = \"out"), "f:8  "),
            (String::new(), "f:1  there is no [pipeline.NAME]"),
        ];
        for (text, expected) in cases {
            let found = mistakes(&text);
            assert!(
                found.iter().any(|found| found.starts_with(expected)),
                "{expected}: {found:#?}"
            );
        }
    }

    #[test]
    fn a_password_is_in_no_message() {
        let found = mistakes(&SMALLEST.replace("sqlite://${FILE}", "oracle://me:hunter2@db/shop"));
        assert!(!found.concat().contains("hunter2"), "{found:?}");
    }
}
