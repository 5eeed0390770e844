//! What readers asked the configuration for, and what they found: the one list behind `semel config
//! show`, the JSON Schema, and the question what a reload changes.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use super::tree::Origin;

/// Everything that was asked for.
#[derive(Default)]
pub(crate) struct Record(pub(super) Vec<Asked>);

/// A key that a reader asked for.
#[derive(Clone)]
pub(super) struct Asked {
    /// The section, such as `sink.out`; empty for the sections themselves.
    pub(super) path: String,
    /// The type of sink whose key it is.
    pub(super) variant: Option<&'static str>,
    pub(super) key: String,
    pub(super) kind: Kind,
    pub(super) required: bool,
    pub(super) found: Option<Found>,
}

/// What stands there. No `Debug`: it may be a secret.
#[derive(Clone)]
pub(super) struct Found {
    pub(super) origin: Origin,
    /// Variables it was made of.
    pub(super) variables: Vec<String>,
    /// The file that a secret came from.
    pub(super) file: Option<String>,
    pub(super) value: String,
}

impl Found {
    /// A section, whatever is in it.
    pub(super) const fn section(origin: Origin) -> Self {
        Self { origin, variables: Vec::new(), file: None, value: String::new() }
    }
}

/// What a key takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Boolean,
    Integer(i64, i64),
    Duration(Duration, Duration),
    Size(usize, usize),
    List,
    Choice(Vec<String>),
    Secret,
    Table,
    /// `[[KEY]]`, again and again.
    Tables,
}

/// What stands for names that are the user's own.
pub(super) const NAME: &str = "NAME";

impl Record {
    /// Whatever a pipeline depends on, as one number: another number is another configuration.
    pub(super) fn fingerprint(&self, pipeline: &str) -> u64 {
        let own = format!("pipeline.{pipeline}");
        let mut sections = BTreeSet::from(["limits".to_owned(), "retention".to_owned()]);
        for asked in self.0.iter().filter(|asked| asked.path == own) {
            let kind = if asked.key == "from" { "source" } else { "sink" };
            if let ("from" | "to" | "alert", Some(found)) = (asked.key.as_str(), &asked.found) {
                let names = found.value.split(',').map(str::trim);
                sections.extend(names.map(|name| format!("{kind}.{name}")));
            }
        }
        sections.insert(own);
        self.hashed(&sections)
    }

    /// All that a section says, as one number.
    pub(super) fn fingerprint_of(&self, section: &str) -> u64 {
        self.hashed(&BTreeSet::from([section.to_owned()]))
    }

    fn hashed(&self, sections: &BTreeSet<String>) -> u64 {
        let mut hasher = DefaultHasher::new();
        for asked in &self.0 {
            let is_below = |section: &String| {
                // A section itself is a key of the whole.
                let place = if asked.path.is_empty() { &asked.key } else { &asked.path };
                let rest = place.strip_prefix(section.as_str());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            if let (Some(found), true) = (&asked.found, sections.iter().any(is_below)) {
                (&asked.path, &asked.key, &found.value).hash(&mut hasher);
            }
        }
        hasher.finish()
    }
}
