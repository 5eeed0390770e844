//! Rules of the code that a machine can hold: who may depend on whom, how long things may be, and
//! where certain words may stand.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test code: a panic is how it reports")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, MetadataCommand};
use syn::spanned::Spanned;
use syn::visit::Visit;

const MOST_LINES_OF_A_FILE: usize = 600;
const MOST_LINES_OF_A_FUNCTION: usize = 60;

/// Core in the middle, technologies and surfaces around it, facade and binary outside.
#[test]
fn the_packages_form_a_star() {
    let middle = ["semel-backends", "semel-relay", "semel-http", "semel-dashboard"];
    let mut allowed: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    allowed.insert("semel-core", BTreeSet::new());
    for package in middle.into_iter().chain(["semel-testkit"]) {
        allowed.insert(package, BTreeSet::from(["semel-core"]));
    }
    for package in ["semel", "semel-cli"] {
        allowed.insert(package, middle.into_iter().chain(["semel-core"]).collect());
    }
    let metadata = MetadataCommand::new().no_deps().exec().unwrap();
    let mut wrong = Vec::new();
    for package in &metadata.packages {
        let name = package.name.as_str();
        let allowed =
            allowed.get(name).unwrap_or_else(|| panic!("{name} has no place in the star"));
        for dependency in &package.dependencies {
            let ours = dependency.name.starts_with("semel");
            let in_tests = dependency.kind == DependencyKind::Development;
            if ours && !in_tests && !allowed.contains(dependency.name.as_str()) {
                wrong.push(format!("{name} -> {}", dependency.name));
            }
        }
    }
    assert!(wrong.is_empty(), "arrows that the architecture does not have: {wrong:?}");
    assert_eq!(metadata.packages.len(), allowed.len(), "a package is missing");
}

#[test]
fn files_and_functions_stay_short() {
    let mut long = Vec::new();
    for (path, text) in sources() {
        let lines = text.lines().count();
        if lines > MOST_LINES_OF_A_FILE {
            long.push(format!("{}: {lines} lines", path.display()));
        }
        let mut functions = Functions { path: &path, long: &mut long };
        functions.visit_file(&syn::parse_file(&text).unwrap());
    }
    assert!(long.is_empty(), "too long:\n{}", long.join("\n"));
}

struct Functions<'a> {
    path: &'a Path,
    long: &'a mut Vec<String>,
}

impl Functions<'_> {
    fn measure(&mut self, name: &syn::Ident, block: &syn::Block) {
        let lines = block.span().end().line - block.span().start().line;
        if lines > MOST_LINES_OF_A_FUNCTION {
            self.long.push(format!("{}: fn {name} has {lines} lines", self.path.display()));
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.measure(&function.sig.ident, &function.block);
        syn::visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.measure(&function.sig.ident, &function.block);
        syn::visit::visit_impl_item_fn(self, function);
    }
}

#[test]
fn every_module_says_what_it_is_for() {
    let silent: Vec<_> = sources()
        .into_iter()
        .filter(|(_, text)| {
            !text.starts_with("//!") && !text.starts_with("#![cfg_attr(feature = \"sqlite\", doc")
        })
        .map(|(path, _)| path.display().to_string())
        .collect();
    assert!(silent.is_empty(), "these files do not open with //!: {silent:#?}");
}

#[test]
fn only_backends_speak_sql() {
    // The demo is a service of its own, with tables of its own.
    let allowed = ["crates/backends/", "crates/cli/src/commands/demo/"];
    let verbs = ["select ", "insert into ", "update ", "delete from ", "create table "];
    let found = find(&allowed, |literal| {
        let literal = literal.to_lowercase();
        verbs.iter().any(|verb| literal.trim_start().starts_with(verb))
    });
    assert!(found.is_empty(), "SQL outside the backends: {found:#?}");
}

#[test]
fn metric_names_are_written_once() {
    let endings = ["_total", "_seconds", "_bytes", "_events", "_up"];
    let found = find(&["crates/core/src/telemetry.rs"], |literal| {
        literal.starts_with("semel_") && endings.iter().any(|ending| literal.ends_with(ending))
    });
    assert!(found.is_empty(), "metric names outside telemetry.rs: {found:#?}");
}

#[test]
fn only_the_clock_asks_for_the_time() {
    let calls =
        ["Timestamp::now()", "SystemTime::now()", "OffsetDateTime::now_utc()", "Utc::now()"];
    let found: Vec<_> = product_sources()
        .into_iter()
        .filter(|(path, _)| !path.ends_with("crates/core/src/clock.rs"))
        .filter(|(_, text)| calls.iter().any(|call| text.contains(call)))
        .map(|(path, _)| path.display().to_string())
        .collect();
    assert!(found.is_empty(), "the time is asked for in {found:#?}");
}

/// Every backend that is listed has its documentation page.
#[test]
fn every_backend_has_its_page() {
    let root = root();
    let missing: Vec<_> = fs::read_dir(root.join("crates/backends/src"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_type().unwrap().is_dir())
        .map(|entry| format!("docs/backends/{}.md", entry.file_name().display()))
        .filter(|page| !root.join(page).exists())
        .collect();
    assert!(missing.is_empty(), "not documented: {missing:?}");
}

/// Places of string literals that match, outside the allowed files.
fn find(allowed: &[&str], matches: impl Fn(&str) -> bool) -> Vec<String> {
    struct Literals<'a>(&'a mut Vec<String>);
    impl<'ast> Visit<'ast> for Literals<'_> {
        fn visit_lit_str(&mut self, literal: &'ast syn::LitStr) {
            self.0.push(literal.value());
        }
    }
    let mut found = Vec::new();
    for (path, text) in product_sources() {
        let shown = path.strip_prefix(root()).unwrap().display().to_string();
        if allowed.iter().any(|allowed| shown.starts_with(allowed)) {
            continue;
        }
        let mut literals = Vec::new();
        Literals(&mut literals).visit_file(&syn::parse_file(&text).unwrap());
        literals.retain(|literal| matches(literal));
        found.extend(literals.into_iter().map(|literal| format!("{shown}: {literal}")));
    }
    found
}

/// What is shipped: no tests, no benches, no testkit.
fn product_sources() -> Vec<(PathBuf, String)> {
    let testkit = root().join("crates/testkit");
    let shipped = |path: &Path| path.components().any(|part| part.as_os_str() == "src");
    let mut sources = sources();
    sources.retain(|(path, _)| shipped(path) && !path.starts_with(&testkit));
    sources
}

fn sources() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for folder in ["src", "tests", "crates", "examples"] {
        collect(&root().join(folder), &mut found);
    }
    assert!(found.len() > 50, "the sources are not where they were");
    found
}

fn collect(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            found.push((path, text));
        }
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}
