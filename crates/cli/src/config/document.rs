//! A configuration that knows its lines and collects what is wrong with it, instead of stopping at
//! the first mistake.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::section::Section;
use super::tree::{self, Node, Origin, Table, Value};

/// What was read, and the mistakes found so far.
pub(super) struct Document<'a> {
    tree: Table,
    notes: Notes<'a>,
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
pub(crate) struct Mistakes(Vec<(Origin, String)>);

/// Where readers write what is wrong.
pub(super) struct Notes<'a> {
    pub(super) variable: &'a dyn Fn(&str) -> Option<String>,
    mistakes: RefCell<Vec<(Origin, String)>>,
}

impl<'a> Document<'a> {
    pub(super) fn parse(text: &str, environment: &Environment<'a>) -> Self {
        let (mut tree, mut mistakes) = tree::parse(text);
        mistakes.extend(tree::apply_overrides(&mut tree, &environment.all));
        let notes = Notes { variable: environment.variable, mistakes: RefCell::new(mistakes) };
        Self { tree, notes }
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

    /// Reads all sections of a kind, `[kind.NAME]`. What cannot be used is there without a value,
    /// so that who refers to it is not blamed as well.
    pub(super) fn sections<T>(
        &self,
        kind: &str,
        mut read: impl FnMut(&mut Section<'_>) -> Option<T>,
    ) -> BTreeMap<String, Option<T>> {
        let mut values = BTreeMap::new();
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
        let (table, node) = (self.table(kind)?, self.tree.get(kind)?);
        Section::new(kind.to_owned(), kind, table, &node.origin, &self.notes).read(read)
    }

    fn table(&self, kind: &str) -> Option<&Table> {
        match self.tree.get(kind)? {
            Node { value: Value::Table(table), .. } => Some(table),
            Node { origin, .. } => {
                self.notes.add(origin, format!("{kind}: must be a section"));
                None
            }
        }
    }

    /// Says what is wrong with the document as a whole, unless something else is wrong already.
    pub(super) fn note_if_clean(&self, what: &str) {
        if self.notes.mistakes.borrow().is_empty() {
            self.notes.add(&Origin::Line(1), what.to_owned());
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
        let line = |(origin, what): &(Origin, String)| format!("{}  {what}", origin.in_file(file));
        self.0.iter().map(line).collect()
    }
}

impl Notes<'_> {
    pub(super) fn add(&self, origin: &Origin, what: String) {
        self.mistakes.borrow_mut().push((origin.clone(), what));
    }
}
