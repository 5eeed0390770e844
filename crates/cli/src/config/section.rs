//! One table of the configuration, read key by key. Whatever is wrong is noted; a reader gets
//! `None` then, and may go on with a default, since nothing starts while there are mistakes.

use std::fmt::Display;
use std::fs;
use std::ops::RangeInclusive;
use std::time::Duration;

use semel_core::Secret;

use super::document::Notes;
use super::tree::{Node, Origin, Table, Value};
use super::values;
use super::variables::expand;

/// A table such as `[sink.out]`, while it is read.
pub(crate) struct Section<'a> {
    path: String,
    name: &'a str,
    table: &'a Table,
    origin: &'a Origin,
    notes: &'a Notes<'a>,
    known: Vec<String>,
    takes_anything: bool,
}

impl<'a> Section<'a> {
    pub(super) fn new(
        path: String,
        name: &'a str,
        table: &'a Table,
        origin: &'a Origin,
        notes: &'a Notes<'a>,
    ) -> Self {
        Self { path, name, table, origin, notes, known: Vec::new(), takes_anything: false }
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
        self.optional(key)
    }

    /// A string, with its variables put in.
    pub(crate) fn optional(&mut self, key: &str) -> Option<String> {
        let node = self.take(key)?;
        self.text(key, node)
    }

    /// `true` or `false`.
    pub(crate) fn boolean(&mut self, key: &str) -> Option<bool> {
        let node = self.take(key)?;
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
        let node = self.take(key)?;
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
        let text = self.optional(key)?;
        let value = values::duration(&text).and_then(|value| values::within(value, &bounds));
        value.map_err(|why| self.wrong(key, &why)).ok()
    }

    /// A number of bytes such as `"1MiB"`, within bounds.
    pub(crate) fn size(&mut self, key: &str, bounds: RangeInclusive<usize>) -> Option<usize> {
        let text = self.optional(key)?;
        let value = values::size(&text).and_then(|value| values::size_within(value, &bounds));
        value.map_err(|why| self.wrong(key, &why)).ok()
    }

    /// Strings; in the environment with commas between them.
    pub(crate) fn list(&mut self, key: &str) -> Option<Vec<String>> {
        let node = self.take(key)?;
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
        let text = self.optional(key)?;
        let found = words.iter().find(|(word, _)| *word == text);
        if found.is_none() {
            let names: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            self.wrong(key, &format!("{text:?} is not known{}", super::hint(&text, &names)));
        }
        found.map(|(_, value)| *value)
    }

    /// A secret: the string itself, or the content of the file that `KEY_file` names.
    pub(crate) fn secret(&mut self, key: &str) -> Option<Secret> {
        let file = format!("{key}_file");
        if let (Some(node), Some(_)) = (self.table.get(&file), self.table.get(key)) {
            self.known.extend([key.to_owned(), file.clone()]);
            self.note(&node.origin, &format!("{file}: give it or {key:?}, not both"));
            return None;
        }
        let itself = self.optional(key);
        let path = self.optional(&file);
        let text = match path {
            None => itself?,
            Some(path) => values::secret_of(fs::read_to_string(&path))
                .map_err(|why| self.wrong(&file, &format!("{path}: {why}")))
                .ok()?,
        };
        Some(Secret::new(text))
    }

    /// A secret that must be there.
    pub(crate) fn required_secret(&mut self, key: &str) -> Option<Secret> {
        let file = format!("{key}_file");
        if !self.table.contains_key(key) && !self.table.contains_key(&file) {
            self.note(self.origin, &format!("needs the key {key:?}, or {file:?}"));
        }
        self.secret(key)
    }

    /// Whether a key is there.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Whether a key holds a table, where a string would do as well.
    pub(crate) fn holds_table(&self, key: &str) -> bool {
        matches!(self.table.get(key), Some(Node { value: Value::Table(_), .. }))
    }

    /// Whether a key holds a list, where a string would do as well.
    pub(crate) fn holds_list(&self, key: &str) -> bool {
        let value = self.table.get(key).map(|node| &node.value);
        matches!(value, Some(Value::List(_)))
            || matches!(value, Some(Value::Override(text)) if text.contains(','))
    }

    /// A table inside this one.
    pub(crate) fn table<T>(
        &mut self,
        key: &str,
        read: impl FnOnce(&mut Section<'_>) -> Option<T>,
    ) -> Option<T> {
        let node = self.take(key)?;
        let Value::Table(table) = &node.value else {
            return self.expect(key, node, "a table", None);
        };
        let path = format!("{}.{key}", self.path);
        let name = self.table.get_key_value(key).map_or(self.name, |(name, _)| name.as_str());
        Section::new(path, name, table, &node.origin, self.notes).read(read)
    }

    /// Tables inside a table of this one, `[PATH.KEY.NAME]`, whose names are the user's own.
    pub(crate) fn tables<T>(
        &mut self,
        key: &str,
        mut read: impl FnMut(&mut Section<'_>) -> Option<T>,
    ) -> Vec<T> {
        let all = self.table(key, |all| {
            let names: Vec<_> = all.table.keys().cloned().collect();
            Some(names.iter().filter_map(|name| all.table(name, &mut read)).collect())
        });
        all.unwrap_or_default()
    }

    /// All keys with their strings, where the keys are the user's own.
    pub(crate) fn entries(&mut self) -> Vec<(String, String)> {
        self.skip_the_rest();
        let text = |(key, node): (&String, &Node)| Some((key.clone(), self.text(key, node)?));
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

    fn take(&mut self, key: &str) -> Option<&'a Node> {
        self.known.push(key.to_owned());
        self.table.get(key)
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
            self.note(&node.origin, &format!("{key}: must be {what}, not {}", node.kind()));
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
