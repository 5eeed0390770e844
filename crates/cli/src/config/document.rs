//! A TOML document that knows its lines and collects what is wrong with it, instead of stopping at
//! the first mistake.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::variables::expand;

/// A parsed document and the mistakes found so far.
pub(super) struct Document<'a> {
    table: DeTable<'a>,
    notes: Notes<'a>,
}

/// Everything that is wrong, in the order of the lines.
#[derive(Debug)]
pub(crate) struct Mistakes(Vec<(usize, String)>);

struct Notes<'a> {
    text: &'a str,
    variables: &'a dyn Fn(&str) -> Option<String>,
    mistakes: RefCell<Vec<(usize, String)>>,
}

/// A table such as `[sink.out]`, while it is read.
pub(crate) struct Section<'a> {
    kind: &'a str,
    name: &'a str,
    place: Range<usize>,
    table: &'a DeTable<'a>,
    notes: &'a Notes<'a>,
    known: Vec<&'static str>,
    takes_anything: bool,
}

impl<'a> Document<'a> {
    pub(super) fn parse(text: &'a str, variables: &'a dyn Fn(&str) -> Option<String>) -> Self {
        let (table, errors) = DeTable::parse_recoverable(text);
        let document = Self {
            table: table.into_inner(),
            notes: Notes { text, variables, mistakes: RefCell::default() },
        };
        for error in errors {
            document.notes.add(error.span().unwrap_or_default(), error.message().to_owned());
        }
        document
    }

    /// Refuses sections of any other kind.
    pub(super) fn allow_only(&self, kinds: &[&str]) {
        for key in self.table.keys() {
            let kind: &str = key.get_ref();
            if !kinds.contains(&kind) {
                let hint = super::hint(kind, kinds);
                self.notes.add(key.span(), format!("there is no section {kind:?}{hint}"));
            }
        }
    }

    /// Reads all sections of a kind, `[kind.NAME]`. What cannot be used is there without a value,
    /// so that who refers to it is not blamed as well.
    pub(super) fn sections<T>(
        &self,
        kind: &str,
        mut read: impl FnMut(&mut Section<'_>) -> Option<T>,
    ) -> BTreeMap<String, Option<T>> {
        let mut values = BTreeMap::new();
        let Some(all) = self.table.get(kind).and_then(|all| all.get_ref().as_table()) else {
            return values;
        };
        for (key, value) in all {
            let name: &str = key.get_ref();
            let Some(table) = value.get_ref().as_table() else {
                let hint = format!("{kind}.{name}: must be a table, such as [{kind}.NAME]");
                self.notes.add(key.span(), hint);
                continue;
            };
            let mut section = Section {
                kind,
                name,
                place: key.span(),
                table,
                notes: &self.notes,
                known: Vec::new(),
                takes_anything: false,
            };
            values.insert(name.to_owned(), read(&mut section));
            section.refuse_unknown_keys();
        }
        values
    }

    /// Says what is wrong with the document as a whole, unless something else is wrong already.
    pub(super) fn note_if_clean(&self, what: &str) {
        if self.notes.mistakes.borrow().is_empty() {
            self.notes.add(0..0, what.to_owned());
        }
    }

    pub(super) fn into_mistakes(self) -> Option<Mistakes> {
        let mut mistakes = self.notes.mistakes.into_inner();
        mistakes.sort();
        (!mistakes.is_empty()).then_some(Mistakes(mistakes))
    }
}

impl Mistakes {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Each with its place, for people and editors.
    pub(super) fn at_lines_of(&self, file: &str) -> Vec<String> {
        self.0.iter().map(|(line, what)| format!("{file}:{line}  {what}")).collect()
    }
}

impl Notes<'_> {
    fn add(&self, place: Range<usize>, what: String) {
        let line = self.text[..place.start.min(self.text.len())].matches('\n').count() + 1;
        self.mistakes.borrow_mut().push((line, what));
    }
}

impl Section<'_> {
    /// The name in `[kind.NAME]`.
    pub(crate) fn name(&self) -> &str {
        self.name
    }

    /// A string that must be there.
    pub(crate) fn required(&mut self, key: &'static str) -> Option<String> {
        if !self.table.contains_key(key) {
            self.note(self.place.clone(), &format!("needs the key {key:?}"));
        }
        self.optional(key)
    }

    /// A string, with its variables put in.
    pub(crate) fn optional(&mut self, key: &'static str) -> Option<String> {
        self.known.push(key);
        let value = self.table.get(key)?;
        let Some(text) = value.get_ref().as_str() else {
            let found = article(value.get_ref());
            self.wrong(key, &format!("must be a string, not {found}"));
            return None;
        };
        expand(text, self.notes.variables).map_err(|why| self.wrong(key, &why)).ok()
    }

    /// Says what is wrong with the value of a key.
    pub(crate) fn wrong(&self, key: &str, why: &str) {
        let place = self.table.get(key).map_or(self.place.clone(), Spanned::span);
        self.note(place, &format!("{key}: {why}"));
    }

    /// It is not known which keys belong here: blame none.
    pub(super) fn skip_the_rest(&mut self) {
        self.takes_anything = true;
    }

    fn refuse_unknown_keys(&self) {
        for key in self.table.keys() {
            let name: &str = key.get_ref();
            if !self.takes_anything && !self.known.contains(&name) {
                let hint = super::hint(name, &self.known);
                self.note(key.span(), &format!("has no key {name:?}{hint}"));
            }
        }
    }

    fn note(&self, place: Range<usize>, what: &str) {
        self.notes.add(place, format!("[{}.{}] {what}", self.kind, self.name));
    }
}

fn article(value: &DeValue<'_>) -> String {
    let name = value.type_str();
    let article = if name.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
    format!("{article} {name}")
}

/// The word that was probably meant: one slip away, or a few in a long word.
pub(super) fn nearest<'w>(word: &str, words: &[&'w str]) -> Option<&'w str> {
    let slips = |known: &&'w str| (strsim::damerau_levenshtein(word, known), *known);
    let (slips, best) = words.iter().map(slips).min()?;
    (slips <= 1 + best.len() / 4).then_some(best)
}
