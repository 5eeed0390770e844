//! What the files and the environment say, as one tree that knows where each value comes from.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::files::File;

/// A table by its keys.
pub(super) type Table = BTreeMap<String, Node>;

/// A value and where it comes from.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) value: Value,
    pub(super) origin: Origin,
}

#[derive(Debug)]
pub(super) enum Value {
    Table(Table),
    List(Vec<Node>),
    Text(String),
    Integer(i64),
    Boolean(bool),
    /// A kind of value that no key takes.
    Other(&'static str),
    /// From the environment: what type it has is for the key to say.
    Override(String),
}

/// Where a value comes from. Lines of files go before variables of the environment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Origin {
    File(Place),
    Variable(String),
}

/// A place in one of the files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// Which file.
    pub(super) file: usize,
    /// From 1 on.
    pub(super) line: usize,
    /// How many bytes of the line come before it.
    pub(super) column: usize,
    /// How many bytes the key has; none where it is no key, and the text may be a secret.
    pub(super) width: usize,
}

/// What is wrong, and where.
pub(super) type Mistake = (Origin, String);

impl Node {
    /// The type as people call it, with its article.
    pub(super) fn kind(&self) -> &'static str {
        match &self.value {
            Value::Table(_) => "a table",
            Value::List(_) => "a list",
            Value::Text(_) | Value::Override(_) => "a string",
            Value::Integer(_) => "an integer",
            Value::Boolean(_) => "a boolean",
            Value::Other(kind) => kind,
        }
    }
}

impl Origin {
    /// The beginning of the first file, for what is missing altogether.
    pub(super) fn beginning() -> Self {
        Self::File(Place { line: 1, ..Place::default() })
    }

    /// The place, for people and editors.
    pub(super) fn among(&self, files: &[File]) -> String {
        match self {
            Self::File(place) => {
                let name = files.get(place.file).map_or("", |file| file.name.as_str());
                format!("{name}:{}", place.line)
            }
            Self::Variable(name) => name.clone(),
        }
    }
}

/// All files as one tree, and what is wrong with their grammar. What is said twice is refused:
/// nobody could tell which of the two holds.
pub(super) fn parse(files: &[File]) -> (Table, Vec<Mistake>) {
    let (mut all, mut mistakes) = (Table::new(), Vec::new());
    for (number, file) in files.iter().enumerate() {
        let (table, errors) = DeTable::parse_recoverable(&file.text);
        let places = Places { file: number, text: &file.text };
        mistakes.extend(errors.into_iter().map(|error| {
            let at = error.span().unwrap_or_default().start;
            (places.of_value(at), with_fix(error.message()))
        }));
        merge(&mut all, places.table_of(table.get_ref()), "", files, &mut mistakes);
    }
    (all, mistakes)
}

/// What the parser says about the grammar, and what to write.
fn with_fix(what: &str) -> String {
    match what.starts_with("duplicate key") {
        true => format!("{what}; keep one of the two"),
        false => format!("{what}; a line is [SECTION] or KEY = VALUE, with strings in quotes"),
    }
}

/// Sections of the same kind may be in several files, and so may tests.
fn merge(all: &mut Table, more: Table, kind: &str, files: &[File], mistakes: &mut Vec<Mistake>) {
    for (key, node) in more {
        match all.entry(key) {
            Entry::Vacant(free) => {
                free.insert(node);
            }
            Entry::Occupied(mut taken) => match (&mut taken.get_mut().value, node.value) {
                (Value::Table(old), Value::Table(new)) if kind.is_empty() => {
                    let kind = taken.key().clone();
                    if let Value::Table(old) = &mut taken.get_mut().value {
                        merge(old, new, &kind, files, mistakes);
                    }
                }
                (Value::List(old), Value::List(new)) if kind.is_empty() => old.extend(new),
                _ => {
                    let first = taken.get().origin.among(files);
                    let what = format!("{kind}.{} is in {first} already; keep one", taken.key());
                    mistakes.push((node.origin, what));
                }
            },
        }
    }
}

/// Finds lines and columns of one file.
struct Places<'t> {
    file: usize,
    text: &'t str,
}

impl Places<'_> {
    fn of_key(&self, span: Range<usize>) -> Origin {
        Origin::File(self.place(span.start, span.len()))
    }

    fn of_value(&self, at: usize) -> Origin {
        Origin::File(self.place(at, 0))
    }

    fn place(&self, at: usize, width: usize) -> Place {
        let before = self.text.get(..at).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.len() - before.rfind('\n').map_or(0, |end| end + 1);
        Place { file: self.file, line, column, width }
    }

    fn table_of(&self, table: &DeTable<'_>) -> Table {
        let node = |key: &Spanned<_>, value| Node {
            value: self.value_of(value),
            origin: self.of_key(key.span()),
        };
        let entries = table
            .iter()
            .map(|(key, value)| (key.get_ref().clone().into_owned(), node(key, value.get_ref())));
        entries.collect()
    }

    fn value_of(&self, value: &DeValue<'_>) -> Value {
        match value {
            DeValue::String(text) => Value::Text(text.clone().into_owned()),
            DeValue::Integer(number) => {
                let parsed = i64::from_str_radix(number.as_str(), number.radix());
                parsed.map_or(Value::Other("an integer that is far too large"), Value::Integer)
            }
            DeValue::Boolean(flag) => Value::Boolean(*flag),
            DeValue::Array(values) => Value::List(
                values
                    .iter()
                    .map(|value| Node {
                        value: self.value_of(value.get_ref()),
                        origin: self.of_value(value.span().start),
                    })
                    .collect(),
            ),
            DeValue::Table(table) => Value::Table(self.table_of(table)),
            DeValue::Float(_) => Value::Other("a float"),
            DeValue::Datetime(_) => Value::Other("a date"),
        }
    }
}

/// Puts `SEMEL_A__B__C=value` into the tree as the key `c` of `[a.b]`; gives what is malformed.
///
/// Names are found whatever their case, and `_` finds `-` too.
pub(super) fn apply_overrides(tree: &mut Table, environment: &[(String, String)]) -> Vec<Mistake> {
    let mut mistakes = Vec::new();
    for (name, value) in environment {
        let Some(path) = name.strip_prefix("SEMEL_").filter(|path| path.contains("__")) else {
            continue;
        };
        let path: Vec<&str> = path.split("__").collect();
        let origin = Origin::Variable(name.clone());
        if path.iter().any(|part| part.is_empty()) {
            let what = "must be named SEMEL_SECTION__NAME__KEY, such as SEMEL_SINK__OUT__PATH";
            mistakes.push((origin, what.into()));
        } else {
            put(tree, &path, value, &origin);
        }
    }
    mistakes
}

fn put(table: &mut Table, path: &[&str], value: &str, origin: &Origin) {
    let [part, rest @ ..] = path else { return };
    let same = |key: &&String| key.replace('-', "_").eq_ignore_ascii_case(part);
    let key = table.keys().find(same).cloned().unwrap_or_else(|| part.to_ascii_lowercase());
    if rest.is_empty() {
        let value = Value::Override(value.to_owned());
        table.insert(key, Node { value, origin: origin.clone() });
        return;
    }
    let new = || Node { value: Value::Table(Table::new()), origin: origin.clone() };
    let node = table.entry(key).or_insert_with(new);
    if !matches!(node.value, Value::Table(_)) {
        *node = new();
    }
    if let Value::Table(inner) = &mut node.value {
        put(inner, rest, value, origin);
    }
}
