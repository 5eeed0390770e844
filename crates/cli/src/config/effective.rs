//! What holds, and where it was said: the list of `semel config show`.

use std::path::Path;

use serde::Serialize;

use super::defaults;
use super::files::File;
use super::manual;
use super::record::{Asked, Kind, Record};
use super::{Config, Document, SECTIONS};
use crate::exit::Problem;

/// Everything a configuration says, for relays and for the proxy.
pub(crate) struct Whole {
    pub(crate) config: Config,
    record: Record,
    files: Vec<File>,
}

/// A key and what holds for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Effective {
    /// The section, such as `sink.out`.
    pub(crate) section: String,
    pub(crate) key: String,
    /// What it is; secrets are hidden.
    pub(crate) value: String,
    /// Whether that can stand in a file: some defaults can only be told in words.
    pub(crate) literal: bool,
    /// Who says so.
    pub(crate) origin: String,
    /// Whether it is hidden.
    pub(crate) secret: bool,
}

const EFFECT: &str = "nothing was started or changed";

impl Whole {
    /// Reads and checks everything.
    pub(crate) fn load(path: &Path) -> Result<Self, Problem> {
        let (config, record, files) = super::load(path, EFFECT, read_everything)?;
        Ok(Self { config, record, files })
    }

    /// How many sections there are of each kind, in words.
    pub(crate) fn summary(&self) -> String {
        let count = |kind: &str| {
            let mut names: Vec<_> = self.record.0.iter().map(|asked| &asked.path).collect();
            names.retain(|path| path.starts_with(kind) && path.matches('.').count() == 1);
            names.sort();
            names.dedup();
            let plural = if names.len() == 1 { "" } else { "s" };
            format!("{} {}{plural}", names.len(), kind.trim_end_matches('.'))
        };
        let parts = ["source.", "sink.", "pipeline."].map(count);
        let tests = self.config.trials.len();
        let tests = format!("{tests} test{}", if tests == 1 { "" } else { "s" });
        format!("{}, {tests}", parts.join(", "))
    }

    /// Every key that has a value or a default.
    pub(crate) fn effective(&self) -> Vec<Effective> {
        let mut all: Vec<Effective> = Vec::new();
        let mut asked: Vec<_> =
            self.record.0.iter().filter(|asked| !asked.path.starts_with("test")).collect();
        let rank = |path: &str| {
            let kind = path.split('.').next().unwrap_or_default();
            SECTIONS.iter().position(|known| *known == kind)
        };
        asked.sort_by_key(|asked| (rank(&asked.path), asked.path.clone()));
        for asked in asked {
            let one = self.one(asked);
            let same =
                |known: &Effective| (&known.section, &known.key) == (&asked.path, &asked.key);
            all.extend(one.filter(|_| !all.iter().any(same)));
        }
        all
    }

    fn one(&self, asked: &Asked) -> Option<Effective> {
        if matches!(asked.kind, Kind::Table | Kind::Tables) {
            return None;
        }
        let secret = asked.kind == Kind::Secret;
        let mut literal = true;
        let (value, origin) = match &asked.found {
            None => {
                let default = manual::look_up(asked)?.default;
                if ["", "none", "off"].contains(&default.as_str()) || default.starts_with("needed")
                {
                    return None;
                }
                let value = defaults::as_value(&asked.kind, &default);
                literal = value.is_some();
                (value.unwrap_or_else(|| default.replace('`', "")), "default".to_owned())
            }
            Some(found) => {
                let mut origin = found.origin.among(&self.files);
                for name in &found.variables {
                    origin += &format!(", ${{{name}}}");
                }
                if let Some(file) = &found.file {
                    origin += &format!(", file {file}");
                }
                (shown(&asked.kind, &found.value), origin)
            }
        };
        let (section, key) = (asked.path.clone(), asked.key.clone());
        Some(Effective { section, key, value, literal, origin, secret })
    }
}

fn shown(kind: &Kind, value: &str) -> String {
    match kind {
        Kind::Secret => "***".into(),
        Kind::Boolean | Kind::Integer(..) => value.to_owned(),
        Kind::List => format!("[{value}]"),
        _ => format!("{value:?}"),
    }
}

/// A file may be for the proxy alone.
fn read_everything(document: &Document<'_>) -> Config {
    #[cfg(feature = "proxy")]
    super::ProxyFile::read(document, super::Replaced::default());
    let is_for_relays = !document.has("proxy")
        || ["source", "sink", "pipeline"].iter().any(|kind| document.has(kind));
    if is_for_relays {
        return Config::read(document);
    }
    Config::default()
}
