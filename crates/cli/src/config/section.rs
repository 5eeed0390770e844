//! One table of the configuration, read key by key. Whatever is wrong is noted; a reader gets
//! `None` then, and may go on with a default, since nothing starts while there are mistakes.

use std::fmt::Display;
use std::fs;
use std::ops::RangeInclusive;
use std::time::Duration;

use semel_core::Secret;

use super::document::Notes;
use super::record::{Asked, Found, Kind, NAME};
use super::tree::{Node, Origin, Table, Value};
use super::values;
use super::variables::{expand, names};

/// A table such as `[sink.out]`, while it is read.
pub(crate) struct Section<'a> {
    path: String,
    name: &'a str,
    table: &'a Table,
    origin: &'a Origin,
    notes: &'a Notes<'a>,
    known: Vec<String>,
    takes_anything: bool,
    variant: Option<&'static str>,
}

impl<'a> Section<'a> {
    pub(super) fn new(
        path: String,
        name: &'a str,
        table: &'a Table,
        origin: &'a Origin,
        notes: &'a Notes<'a>,
    ) -> Self {
        Self {
            path,
            name,
            table,
            origin,
            notes,
            known: Vec::new(),
            takes_anything: false,
            variant: None,
        }
    }

    /// Lets `read` take what it knows, and refuses the rest.
    pub(super) fn read<T>(mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let value = read(&mut self);
        self.refuse_unknown_keys(value.is_some());
        value
    }

    /// The name in `[kind.NAME]`.
    pub(crate) fn name(&self) -> &str {
        self.name
    }

    /// A string that must be there.
    pub(crate) fn required(&mut self, key: &str) -> Option<String> {
        if !self.table.contains_key(key) {
            self.note(self.origin, &format!("needs the key {key:?}"));
        }
        let node = self.take(key, Kind::Text, true)?;
        self.text(key, node)
    }

    /// A string, with its variables put in.
    pub(crate) fn optional(&mut self, key: &str) -> Option<String> {
        self.string(key, Kind::Text)
    }

    /// `true` or `false`.
    pub(crate) fn boolean(&mut self, key: &str) -> Option<bool> {
        let node = self.take(key, Kind::Boolean, false)?;
        let value = match &node.value {
            Value::Boolean(value) => Some(*value),
            Value::Override(text) => text.parse().ok(),
            _ => None,
        };
        self.expect(key, node, "true or false", value)
    }

    /// A whole number within bounds.
    pub(crate) fn integer<T>(&mut self, key: &str, bounds: RangeInclusive<T>) -> Option<T>
    where
        T: TryFrom<i64> + PartialOrd + Display,
    {
        let bound = |bound: &T| bound.to_string().parse().unwrap_or(i64::MAX);
        let kind = Kind::Integer(bound(bounds.start()), bound(bounds.end()));
        let node = self.take(key, kind, false)?;
        let number = match &node.value {
            Value::Integer(number) => Some(*number),
            Value::Override(text) => text.parse().ok(),
            _ => None,
        };
        let number = self.expect(key, node, "a whole number", number)?;
        let value = T::try_from(number).ok().filter(|value| bounds.contains(value));
        if value.is_none() {
            let (least, most) = (bounds.start(), bounds.end());
            self.wrong(key, &format!("must be from {least} to {most}, not {number}"));
        }
        value
    }

    /// A span of time such as `"100ms"`, within bounds.
    pub(crate) fn duration(
        &mut self,
        key: &str,
        bounds: RangeInclusive<Duration>,
    ) -> Option<Duration> {
        let text = self.string(key, Kind::Duration(*bounds.start(), *bounds.end()))?;
        let value = values::duration(&text).and_then(|value| values::within(value, &bounds));
        value.map_err(|why| self.wrong(key, &why)).ok()
    }

    /// A number of bytes such as `"1MiB"`, within bounds.
    pub(crate) fn size(&mut self, key: &str, bounds: RangeInclusive<usize>) -> Option<usize> {
        let text = self.string(key, Kind::Size(*bounds.start(), *bounds.end()))?;
        let value = values::size(&text).and_then(|value| values::size_within(value, &bounds));
        value.map_err(|why| self.wrong(key, &why)).ok()
    }

    /// Strings; in the environment with commas between them.
    pub(crate) fn list(&mut self, key: &str) -> Option<Vec<String>> {
        let node = self.take(key, Kind::List, false)?;
        match &node.value {
            Value::List(nodes) => nodes.iter().map(|node| self.text(key, node)).collect(),
            Value::Override(text) => {
                Some(text.split(',').map(|item| item.trim().to_owned()).collect())
            }
            _ => self.expect(key, node, "a list of strings", None),
        }
    }

    /// One of a few words.
    pub(crate) fn choice<T: Copy>(&mut self, key: &str, words: &[(&str, T)]) -> Option<T> {
        let names = words.iter().map(|(word, _)| (*word).to_owned()).collect();
        let text = self.string(key, Kind::Choice(names))?;
        let found = words.iter().find(|(word, _)| *word == text);
        if found.is_none() {
            let names: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            self.wrong(key, &format!("{text:?} is not known{}", super::hint(&text, &names)));
        }
        found.map(|(_, value)| *value)
    }

    /// A secret: the string itself, or the content of the file that `KEY_file` names.
    pub(crate) fn secret(&mut self, key: &str) -> Option<Secret> {
        self.read_secret(key, false)
    }

    /// A secret that must be there.
    pub(crate) fn required_secret(&mut self, key: &str) -> Option<Secret> {
        let file = format!("{key}_file");
        if !self.table.contains_key(key) && !self.table.contains_key(&file) {
            self.note(self.origin, &format!("needs the key {key:?}, or {file:?}"));
        }
        self.read_secret(key, true)
    }

    fn read_secret(&mut self, key: &str, required: bool) -> Option<Secret> {
        let file = format!("{key}_file");
        self.known.extend([key.to_owned(), file.clone()]);
        let (itself, path) = (self.table.get(key), self.table.get(&file));
        if let (Some(node), Some(_)) = (path, itself) {
            self.note(&node.origin, &format!("{file}: give it or {key:?}, not both"));
            return None;
        }
        let Some(node) = itself.or(path) else {
            self.record(key, Kind::Secret, required, None);
            return None;
        };
        let mut text = self.text(if path.is_some() { &file } else { key }, node)?;
        let named = path.map(|_| text.clone());
        if let Some(path) = &named {
            text = values::secret_of(fs::read_to_string(path))
                .map_err(|why| self.wrong(&file, &format!("{path}: {why}")))
                .ok()?;
        }
        let found = Found { file: named, value: text.clone(), ..self.found(node) };
        self.record(key, Kind::Secret, required, Some(found));
        Some(Secret::new(text))
    }

    /// Whether a key is there.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Whether a key holds a table, where a string would do as well.
    pub(crate) fn holds_table(&self, key: &str) -> bool {
        matches!(self.table.get(key), Some(Node { value: Value::Table(_), .. }))
            || self.notes.exploring.is_some_and(|pretended| pretended.tables)
    }

    /// Whether a key holds a list, where a string would do as well.
    pub(crate) fn holds_list(&self, key: &str) -> bool {
        let value = self.table.get(key).map(|node| &node.value);
        matches!(value, Some(Value::List(_)))
            || matches!(value, Some(Value::Override(text)) if text.contains(','))
            || self.notes.exploring.is_some_and(|pretended| pretended.lists)
    }

    /// Whether nothing is there, and it is only asked what would be taken.
    pub(super) fn explores(&self) -> bool {
        self.notes.exploring.is_some()
    }

    /// Says of which kind this section is.
    pub(super) fn is_variant(&mut self, variant: &'static str) {
        self.variant = Some(variant);
    }

    /// The keys of one kind of this section, for who explores it.
    pub(super) fn variant<T>(
        &self,
        variant: &'static str,
        read: impl FnOnce(&mut Section<'_>) -> Option<T>,
    ) {
        let mut section =
            Section::new(self.path.clone(), self.name, self.table, self.origin, self.notes);
        section.variant = Some(variant);
        section.read(read);
    }

    /// A table inside this one.
    pub(crate) fn table<T>(
        &mut self,
        key: &str,
        read: impl FnOnce(&mut Section<'_>) -> Option<T>,
    ) -> Option<T> {
        let node = self.take(key, Kind::Table, false);
        let path = format!("{}.{key}", self.path);
        // Of the table's own key: of a table inside tables of the user's names, that is the name.
        let name = self.table.get_key_value(key).map_or(self.name, |(name, _)| name.as_str());
        let (table, origin) = match node {
            Some(Node { value: Value::Table(table), origin }) => (table, origin),
            Some(node) => return self.expect(key, node, "a table", None),
            // There, the table is empty, and so is the one inside it.
            None if self.explores() => (self.table, self.origin),
            None => return None,
        };
        let mut section = Section::new(path, name, table, origin, self.notes);
        section.variant = self.variant;
        section.read(read)
    }

    /// Tables inside a table of this one, `[PATH.KEY.NAME]`, whose names are the user's own.
    pub(crate) fn tables<T>(
        &mut self,
        key: &str,
        mut read: impl FnMut(&mut Section<'_>) -> Option<T>,
    ) -> Vec<T> {
        let all = self.table(key, |all| {
            let names: Vec<_> = match all.explores() {
                true => vec![NAME.to_owned()],
                false => all.table.keys().cloned().collect(),
            };
            Some(names.iter().filter_map(|name| all.table(name, &mut read)).collect())
        });
        all.unwrap_or_default()
    }

    /// All keys with their strings, where the keys are the user's own.
    pub(crate) fn entries(&mut self) -> Vec<(String, String)> {
        self.skip_the_rest();
        if self.explores() {
            self.record(NAME, Kind::Text, false, None);
        }
        let text = |(key, node): (&String, &Node)| {
            self.record(key, Kind::Text, false, Some(self.found(node)));
            Some((key.clone(), self.text(key, node)?))
        };
        self.table.iter().filter_map(text).collect()
    }

    /// Says what is wrong with the value of a key.
    pub(crate) fn wrong(&self, key: &str, why: &str) {
        let origin = self.table.get(key).map_or(self.origin, |node| &node.origin);
        self.note(origin, &format!("{key}: {why}"));
    }

    /// It is not known which keys belong here: blame none.
    pub(super) fn skip_the_rest(&mut self) {
        self.takes_anything = true;
    }

    fn string(&mut self, key: &str, kind: Kind) -> Option<String> {
        let such_as = match kind {
            Kind::Duration(..) => "; write \"100ms\", \"5s\" or \"3d\"",
            Kind::Size(..) => "; write \"512KiB\", \"1MiB\" or \"1GB\"",
            _ => "",
        };
        let node = self.take(key, kind, false)?;
        if !such_as.is_empty() && !matches!(node.value, Value::Text(_) | Value::Override(_)) {
            self.note(
                &node.origin,
                &format!("{key}: must be a string, not {}{such_as}", node.kind()),
            );
            return None;
        }
        self.text(key, node)
    }

    fn take(&mut self, key: &str, kind: Kind, required: bool) -> Option<&'a Node> {
        self.known.push(key.to_owned());
        let node = self.table.get(key);
        self.record(key, kind, required, node.map(|node| self.found(node)));
        node
    }

    fn record(&self, key: &str, kind: Kind, required: bool, found: Option<Found>) {
        let (path, variant, key) = (self.path.clone(), self.variant, key.to_owned());
        self.notes.ask(Asked { path, variant, key, kind, required, found });
    }

    fn found(&self, node: &Node) -> Found {
        let mut found = Found {
            origin: node.origin.clone(),
            variables: Vec::new(),
            file: None,
            value: String::new(),
        };
        found.value = match &node.value {
            Value::Text(text) => {
                found.variables = names(text);
                // What is wrong with it is told by who reads it.
                expand(text, self.notes.variable).unwrap_or_default()
            }
            Value::Override(text) => text.clone(),
            Value::Integer(number) => number.to_string(),
            Value::Boolean(flag) => flag.to_string(),
            Value::List(items) => {
                let items: Vec<_> = items.iter().map(|item| self.found(item)).collect();
                found.variables = items.iter().flat_map(|item| item.variables.clone()).collect();
                items.into_iter().map(|item| item.value).collect::<Vec<_>>().join(", ")
            }
            Value::Table(_) | Value::Other(_) => String::new(),
        };
        found
    }

    fn text(&self, key: &str, node: &Node) -> Option<String> {
        match &node.value {
            Value::Text(text) => expand(text, self.notes.variable)
                .map_err(|why| self.note(&node.origin, &format!("{key}: {why}")))
                .ok(),
            Value::Override(text) => Some(text.clone()),
            _ => self.expect(key, node, "a string", None),
        }
    }

    /// Passes a value on, or says what it should have been.
    fn expect<T>(&self, key: &str, node: &Node, what: &str, value: Option<T>) -> Option<T> {
        if value.is_none() {
            // Never the value itself: it may be a secret.
            let kind = node.kind();
            self.note(
                &node.origin,
                &format!("{key}: must be {what}, not {kind}{}", mend(what, kind)),
            );
        }
        value
    }

    /// A reader that gave up half-way did not say all keys it knows: only slips are blamed then.
    fn refuse_unknown_keys(&self, all_known: bool) {
        let known: Vec<&str> = self.known.iter().map(String::as_str).collect();
        for (key, node) in &self.table.iter().collect::<Vec<_>>()[..] {
            let is_blamed = all_known || super::nearest(key, &known).is_some();
            if !self.takes_anything && !known.contains(&key.as_str()) && is_blamed {
                let hint = super::hint(key, &known);
                self.note(&node.origin, &format!("has no key {key:?}{hint}"));
            }
        }
    }

    fn note(&self, origin: &Origin, what: &str) {
        self.notes.add(origin, format!("[{}] {what}", self.path));
    }
}

/// How a value of one kind becomes one of another.
fn mend(wanted: &str, kind: &str) -> &'static str {
    match (wanted, kind) {
        ("a string", "a table" | "a list") => "; write one string in quotes",
        ("a string", _) => "; put it in quotes",
        ("a whole number", _) => "; write digits, without quotes",
        ("true or false", _) => "; write it without quotes",
        ("a list of strings", _) => "; write [\"…\"]",
        _ => "; write { KEY = VALUE }",
    }
}
