//! The configuration as a JSON Schema, for editors and for whoever writes configurations by program.
//!
//! It is made by asking the readers themselves what they would take, so it cannot differ from them.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::document::{Document, Exploring};
use super::manual::{self, Entry};
use super::record::{Asked, Kind, NAME};
use super::{Config, values};

/// The schema, in the dialect of 2020-12.
pub(crate) fn json_schema() -> Value {
    let mut schema = Explored::new().object("", None);
    let about = [
        ("$schema", "https://json-schema.org/draft/2020-12/schema"),
        ("title", "semel.toml"),
        (
            "description",
            "The configuration of semel. Any string may hold ${NAME}, an environment variable.",
        ),
    ];
    for (key, value) in about {
        schema[key] = value.into();
    }
    schema
}

/// Everything that readers would take.
pub(super) struct Explored(Vec<Asked>);

impl Explored {
    /// Asks all readers. Where a key takes one thing or another, each of them is pretended once.
    pub(super) fn new() -> Self {
        let mut all: Vec<Asked> = Vec::new();
        for (tables, lists) in [(false, false), (false, true), (true, false), (true, true)] {
            let document = Document::exploring(Exploring { tables, lists });
            Config::read(&document);
            #[cfg(feature = "proxy")]
            super::ProxyFile::read(&document, super::Replaced::default());
            for asked in document.into_record().0 {
                let same = |known: &Asked| {
                    (&known.path, known.variant, &known.key, &known.kind)
                        == (&asked.path, asked.variant, &asked.key, &asked.kind)
                };
                if !all.iter().any(same) {
                    all.push(asked);
                }
            }
        }
        Self(all)
    }

    /// The keys, each once.
    #[cfg(test)]
    pub(super) fn keys(&self) -> impl Iterator<Item = &Asked> {
        self.0.iter().filter(|asked| !asked.path.is_empty() && asked.key != NAME)
    }

    fn object(&self, path: &str, variant: Option<&'static str>) -> Value {
        let own = |asked: &&Asked| asked.path == path && asked.variant == variant;
        let mut kinds: BTreeMap<&str, Vec<&Asked>> = BTreeMap::new();
        for asked in self.0.iter().filter(own) {
            kinds.entry(&asked.key).or_default().push(asked);
        }
        let mut properties = Map::new();
        let (mut required, mut rules) = (Vec::new(), Vec::new());
        let mut others = json!(false);
        if let Some(variant) = variant.filter(|_| path.matches('.').count() == 1) {
            properties.insert("type".into(), json!({ "const": variant }));
            required.push("type".to_owned());
        }
        for (key, all) in kinds {
            let value = self.described(path, key, &all);
            let is_needed = all.iter().all(|asked| asked.required);
            if key == NAME {
                others = value;
                continue;
            }
            if all[0].kind == Kind::Secret {
                let file = format!("{key}_file");
                let description = format!("A file that holds {key}.");
                let text = json!({ "type": "string", "description": description });
                properties.insert(file.clone(), text);
                rules.push(match is_needed {
                    true => json!({ "oneOf": [{ "required": [key] }, { "required": [file] }] }),
                    false => json!({ "not": { "required": [key, file] } }),
                });
            } else if is_needed {
                required.push(key.to_owned());
            }
            properties.insert(key.to_owned(), value);
        }
        let mut object = json!({
            "type": "object", "properties": properties, "additionalProperties": others
        });
        if !required.is_empty() {
            object["required"] = required.into();
        }
        if !rules.is_empty() {
            object["allOf"] = rules.into();
        }
        object
    }

    /// What a key takes, and what it is for.
    fn described(&self, path: &str, key: &str, all: &[&Asked]) -> Value {
        let mut kinds: Vec<_> = all.iter().map(|asked| self.kind(path, key, asked)).collect();
        let mut value = match kinds.len() {
            1 => kinds.remove(0),
            _ => json!({ "anyOf": kinds }),
        };
        if let Some(Entry { default, meaning }) = manual::look_up(all[0]) {
            let bounds = bounds(&all[0].kind);
            let default =
                if default.is_empty() { default } else { format!(" Default: {default}.") };
            value["description"] = format!("{meaning}{bounds}.{default}").into();
        }
        value
    }

    fn kind(&self, path: &str, key: &str, asked: &Asked) -> Value {
        const SPAN: &str = r"^\s*(\d+\s*(ns|nsec|us|usec|ms|msec|s|sec|secs|second|seconds|m|min|mins|minute|minutes|h|hr|hrs|hour|hours|d|day|days|w|week|weeks|M|month|months|y|yr|year|years)\s*)+$|\$\{";
        const SIZE: &str = r"^\d+\s*(GiB|MiB|KiB|GB|MB|KB|kB|B)$|\$\{";
        let inner = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
        match &asked.kind {
            Kind::Text | Kind::Secret => json!({ "type": "string" }),
            Kind::Boolean => json!({ "type": "boolean" }),
            Kind::Integer(least, most) => {
                json!({ "type": "integer", "minimum": least, "maximum": most })
            }
            Kind::Duration(..) => json!({ "type": "string", "pattern": SPAN }),
            Kind::Size(..) => json!({ "type": "string", "pattern": SIZE }),
            Kind::List => json!({ "type": "array", "items": { "type": "string" } }),
            Kind::Choice(words) => {
                json!({ "anyOf": [{ "enum": words }, { "type": "string", "pattern": r"\$\{" }] })
            }
            Kind::Tables => json!({ "type": "array", "items": self.object(&inner, None) }),
            Kind::Table => self.table(&inner, asked.variant),
        }
    }

    /// A table; one of several, where it has a type.
    fn table(&self, path: &str, variant: Option<&'static str>) -> Value {
        let mut variants: Vec<_> = self.0.iter().filter(|asked| asked.path == path).collect();
        variants.retain(|asked| asked.variant.is_some());
        let mut types: Vec<_> = super::SINKS.iter().map(|kind| kind.name).collect();
        if variant.is_some() || variants.is_empty() {
            return self.object(path, variant);
        }
        let all: Vec<_> = types.drain(..).map(|kind| self.object(path, Some(kind))).collect();
        json!({ "oneOf": all })
    }
}

/// Bounds that a schema cannot say of strings.
fn bounds(kind: &Kind) -> String {
    match kind {
        Kind::Duration(least, most) => {
            let [least, most] = [least, most].map(|each| humantime::format_duration(*each));
            format!("; from {least} to {most}")
        }
        Kind::Size(least, most) => {
            format!("; from {} to {}", values::shown_size(*least), values::shown_size(*most))
        }
        _ => String::new(),
    }
}
