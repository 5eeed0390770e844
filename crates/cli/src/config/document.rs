//! A configuration that knows its lines and collects what is wrong with it, instead of stopping at
//! the first mistake.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::excerpt::excerpt;
use super::files::File;
use super::record::{Asked, Found, Kind, NAME, Record};
use super::section::Section;
use super::tree::{self, Mistake, Node, Origin, Table, Value};

/// What was read, and the mistakes found so far.
pub(super) struct Document<'a> {
    tree: Table,
    notes: Notes<'a>,
    files: Vec<File>,
}

/// What the environment has to say.
pub(super) struct Environment<'a> {
    /// The value of a variable, for `${NAME}`.
    pub(super) variable: &'a dyn Fn(&str) -> Option<String>,
    /// Everything that is set, for `SEMEL_A__B`.
    pub(super) all: Vec<(String, String)>,
}

/// Everything that is wrong, in the order of the lines.
#[derive(Debug)]
pub(crate) struct Mistakes {
    list: Vec<Mistake>,
    files: Vec<File>,
}

/// Where readers write what they asked for, and what is wrong.
pub(super) struct Notes<'a> {
    pub(super) variable: &'a dyn Fn(&str) -> Option<String>,
    /// Nothing is there, and all readers are asked what they would take.
    pub(super) exploring: Option<Exploring>,
    mistakes: RefCell<Vec<Mistake>>,
    asked: RefCell<Vec<Asked>>,
}

/// What is pretended where a key takes one thing or another.
#[derive(Clone, Copy)]
pub(super) struct Exploring {
    pub(super) tables: bool,
    pub(super) lists: bool,
}

impl<'a> Document<'a> {
    pub(super) fn parse(files: Vec<File>, environment: &Environment<'a>) -> Self {
        let (mut tree, mut mistakes) = tree::parse(&files);
        mistakes.extend(tree::apply_overrides(&mut tree, &environment.all));
        let notes = Notes {
            variable: environment.variable,
            exploring: None,
            mistakes: RefCell::new(mistakes),
            asked: RefCell::default(),
        };
        Self { tree, notes, files }
    }

    /// One with nothing in it, that tells what its readers would take.
    pub(super) fn exploring(pretended: Exploring) -> Document<'static> {
        let notes = Notes {
            variable: &|_| None,
            exploring: Some(pretended),
            mistakes: RefCell::default(),
            asked: RefCell::default(),
        };
        Document { tree: Table::new(), notes, files: Vec::new() }
    }

    /// Refuses sections of any other kind.
    pub(super) fn allow_only(&self, kinds: &[&str]) {
        for (kind, node) in &self.tree {
            if !kinds.contains(&kind.as_str()) {
                let hint = super::hint(kind, kinds);
                self.notes.add(&node.origin, format!("there is no section {kind:?}{hint}"));
            }
        }
    }

    /// Whether there is a section of this kind.
    pub(super) fn has(&self, kind: &str) -> bool {
        self.tree.contains_key(kind)
    }

    /// Reads all sections of a kind, `[kind.NAME]`. What cannot be used is there without a value,
    /// so that who refers to it is not blamed as well.
    pub(super) fn sections<T>(
        &self,
        kind: &str,
        mut read: impl FnMut(&mut Section<'_>) -> Option<T>,
    ) -> BTreeMap<String, Option<T>> {
        let mut values = BTreeMap::new();
        if self.notes.exploring.is_some() {
            self.explore("", kind, Kind::Table);
            self.explore(kind, NAME, Kind::Table);
            self.empty_section(&format!("{kind}.{NAME}"), NAME).read(read);
            return values;
        }
        let Some(all) = self.table(kind) else { return values };
        for (name, node) in all {
            if let Value::Table(table) = &node.value {
                let path = format!("{kind}.{name}");
                let section = Section::new(path, name, table, &node.origin, &self.notes);
                values.insert(name.clone(), section.read(&mut read));
            } else {
                let hint = format!("{kind}.{name}: must be a table, such as [{kind}.NAME]");
                self.notes.add(&node.origin, hint);
            }
        }
        values
    }

    /// Reads the one section `[kind]`, if it is there.
    pub(super) fn section<T>(
        &self,
        kind: &str,
        read: impl FnOnce(&mut Section<'_>) -> Option<T>,
    ) -> Option<T> {
        if self.notes.exploring.is_some() {
            self.explore("", kind, Kind::Table);
            return self.empty_section(kind, kind).read(read);
        }
        let (table, node) = (self.table(kind)?, self.tree.get(kind)?);
        // That it is there says something, even with nothing in it.
        self.ask("", kind, Kind::Table, Some(Found::section(node.origin.clone())));
        Section::new(kind.to_owned(), kind, table, &node.origin, &self.notes).read(read)
    }

    /// Reads all tables `[[kind]]`, in their order.
    pub(super) fn array<T>(
        &self,
        kind: &str,
        mut read: impl FnMut(&mut Section<'_>) -> Option<T>,
    ) -> Vec<T> {
        if self.notes.exploring.is_some() {
            self.explore("", kind, Kind::Tables);
            return self.empty_section(kind, kind).read(read).into_iter().collect();
        }
        let Some(node) = self.tree.get(kind) else { return Vec::new() };
        let Value::List(items) = &node.value else {
            self.notes.add(&node.origin, format!("{kind}: write [[{kind}]], for each one again"));
            return Vec::new();
        };
        let mut values = Vec::new();
        for item in items {
            if let Value::Table(table) = &item.value {
                let section = Section::new(kind.to_owned(), kind, table, &item.origin, &self.notes);
                values.extend(section.read(&mut read));
            } else {
                self.notes.add(&item.origin, format!("{kind}: must be tables, such as [[{kind}]]"));
            }
        }
        values
    }

    fn table(&self, kind: &str) -> Option<&Table> {
        match self.tree.get(kind)? {
            Node { value: Value::Table(table), .. } => Some(table),
            Node { origin, .. } => {
                self.notes.add(origin, format!("{kind}: must be a section, such as [{kind}]"));
                None
            }
        }
    }

    fn explore(&self, path: &str, key: &str, kind: Kind) {
        self.ask(path, key, kind, None);
    }

    fn ask(&self, path: &str, key: &str, kind: Kind, found: Option<Found>) {
        let (path, key) = (path.to_owned(), key.to_owned());
        self.notes.ask(Asked { path, key, kind, variant: None, required: false, found });
    }

    fn empty_section<'s>(&'s self, path: &str, name: &'s str) -> Section<'s> {
        static NOWHERE: Origin = Origin::Variable(String::new());
        // An exploring document has no entries, so its tree is an empty table.
        Section::new(path.to_owned(), name, &self.tree, &NOWHERE, &self.notes)
    }

    /// Says what is wrong with the document as a whole, unless something else is wrong already.
    pub(super) fn note_if_clean(&self, what: &str) {
        if self.notes.mistakes.borrow().is_empty() {
            self.notes.add(&Origin::beginning(), what.to_owned());
        }
    }

    /// What was asked for, if nothing is wrong.
    pub(super) fn finish(self) -> Result<(Record, Vec<File>), Mistakes> {
        let mut list = self.notes.mistakes.into_inner();
        list.sort();
        list.dedup();
        if list.is_empty() {
            return Ok((Record(self.notes.asked.into_inner()), self.files));
        }
        Err(Mistakes { list, files: self.files })
    }

    /// What was asked for, whatever is wrong.
    pub(super) fn into_record(self) -> Record {
        Record(self.notes.asked.into_inner())
    }
}

impl Mistakes {
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Each with its place, for people and editors.
    #[cfg(test)]
    pub(super) fn lines(&self) -> Vec<String> {
        self.list.iter().map(|mistake| self.line(mistake)).collect()
    }

    /// Each with its place and the line it is in.
    pub(super) fn with_excerpts(&self) -> Vec<String> {
        let shown = |mistake: &Mistake| {
            let mut text = self.line(mistake);
            for line in excerpt(&mistake.0, &self.files).iter().flat_map(|text| text.lines()) {
                text += &format!("\n            {line}");
            }
            text
        };
        self.list.iter().map(shown).collect()
    }

    fn line(&self, (origin, what): &Mistake) -> String {
        format!("{}  {what}", origin.among(&self.files))
    }
}

impl Notes<'_> {
    pub(super) fn add(&self, origin: &Origin, what: String) {
        self.mistakes.borrow_mut().push((origin.clone(), what));
    }

    pub(super) fn ask(&self, asked: Asked) {
        self.asked.borrow_mut().push(asked);
    }
}
