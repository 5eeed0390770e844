//! What the file and the environment say, as one tree that knows where each value comes from.

use std::collections::BTreeMap;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

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

/// Where a value comes from. Lines of the file go before variables of the environment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Origin {
    Line(usize),
    Variable(String),
}

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
    /// The place, for people and editors.
    pub(super) fn in_file(&self, file: &str) -> String {
        match self {
            Self::Line(line) => format!("{file}:{line}"),
            Self::Variable(name) => name.clone(),
        }
    }
}

/// The tree of a TOML document, and what is wrong with its grammar.
pub(super) fn parse(text: &str) -> (Table, Vec<(Origin, String)>) {
    let (table, errors) = DeTable::parse_recoverable(text);
    let line = |at: usize| text[..at.min(text.len())].matches('\n').count() + 1;
    let mistakes = errors.into_iter().map(|error| {
        let at = error.span().unwrap_or_default().start;
        (Origin::Line(line(at)), error.message().to_owned())
    });
    (table_of(table.get_ref(), &line), mistakes.collect())
}

fn table_of(table: &DeTable<'_>, line: &dyn Fn(usize) -> usize) -> Table {
    let node = |key: &Spanned<_>, value| Node {
        value: value_of(value, line),
        origin: Origin::Line(line(key.span().start)),
    };
    let entries = table
        .iter()
        .map(|(key, value)| (key.get_ref().clone().into_owned(), node(key, value.get_ref())));
    entries.collect()
}

fn value_of(value: &DeValue<'_>, line: &dyn Fn(usize) -> usize) -> Value {
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
                    value: value_of(value.get_ref(), line),
                    origin: Origin::Line(line(value.span().start)),
                })
                .collect(),
        ),
        DeValue::Table(table) => Value::Table(table_of(table, line)),
        DeValue::Float(_) => Value::Other("a float"),
        DeValue::Datetime(_) => Value::Other("a date"),
    }
}

/// Puts `SEMEL_A__B__C=value` into the tree as the key `c` of `[a.b]`; gives what is malformed.
///
/// Names are found whatever their case, and `_` finds `-` too.
pub(super) fn apply_overrides(
    tree: &mut Table,
    environment: &[(String, String)],
) -> Vec<(Origin, String)> {
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
