//! The documentation says what the code says.

#![allow(clippy::panic, clippy::unwrap_used, reason = "test code: a panic is how it reports")]

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use cargo_metadata::MetadataCommand;
use semel::telemetry;

/// So that `semel explain` knows every code that a user can meet.
#[test]
fn the_page_of_errors_lists_exactly_the_codes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut used = BTreeSet::new();
    for package in ["core", "relay", "http", "dashboard", "backends", "cli"] {
        codes_below(&root.join("crates").join(package).join("src"), &mut used);
    }
    codes_below(&root.join("crates/dashboard/assets"), &mut used);
    let page = fs::read_to_string(root.join("docs/errors.md")).unwrap();
    let listed = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let listed: BTreeSet<_> = listed.map(str::to_owned).collect();
    let differing: Vec<_> = used.symmetric_difference(&listed).collect();
    assert!(differing.is_empty(), "in the code or in docs/errors.md, not in both: {differing:?}");
}

/// The codes in what is compiled into a program: not those of comments and tests.
fn codes_below(folder: &Path, codes: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            codes_below(&path, codes);
        } else if path.file_name().is_some_and(|name| name != "tests.rs") {
            let text = fs::read_to_string(&path).unwrap();
            let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            let lines = product.lines().filter(|line| !line.trim_start().starts_with("//"));
            let strings = lines.flat_map(|line| line.split('"').skip(1).step_by(2));
            let is_code = |text: &&str| {
                text.starts_with("E-")
                    && text.len() > 2
                    && text
                        .chars()
                        .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '-')
            };
            codes.extend(strings.filter(is_code).map(str::to_owned));
        }
    }
}

/// A row of a table without its test would be no more than a promise.
#[test]
fn every_test_that_a_table_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut functions = BTreeSet::new();
    for folder in ["crates", "tests"] {
        functions_below(&root.join(folder), &mut functions);
    }
    let backends = fs::read_dir(root.join("docs/backends")).unwrap();
    let backends = backends.map(|entry| entry.unwrap().path());
    let (mut missing, mut count) = (Vec::new(), 0);
    for page in backends.chain([root.join("docs/configuration.md")]) {
        for name in shown_by(&fs::read_to_string(&page).unwrap()) {
            count += 1;
            let is_there = match name.strip_suffix('…') {
                Some(start) => functions.iter().any(|function| function.starts_with(start)),
                None => functions.contains(&name),
            };
            if !is_there {
                missing.push(format!("{}: {name}", page.display()));
            }
        }
    }
    assert!(missing.is_empty(), "no such test:\n{}", missing.join("\n"));
    assert!(count > 200, "{count} names are all that was found");
}

fn functions_below(folder: &Path, functions: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            functions_below(&path, functions);
        } else if path.extension().is_some_and(|it| it == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let named = text.split("fn ").skip(1).filter_map(|rest| rest.split(['(', '<']).next());
            functions.extend(named.map(str::to_owned));
        }
    }
}

/// What the last column of the tables of a page names, where that is for tests.
fn shown_by(page: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut in_table = false;
    for line in page.lines() {
        let begins = ["| test |", "| shown by |"].iter().any(|column| line.ends_with(column));
        in_table = line.starts_with('|') && (in_table || begins);
        let last = line.trim_end_matches('|').rsplit('|').next().filter(|_| in_table);
        let quoted = last.unwrap_or_default().split('`').skip(1).step_by(2);
        let is_name =
            |text: &&str| text.chars().all(|c| c.is_ascii_alphanumeric() || "_…".contains(c));
        names.extend(quoted.filter(is_name).map(str::to_owned));
    }
    names
}

/// A reader can type it as it stands.
#[test]
fn the_commands_of_the_examples_are_told_as_they_are() {
    let metadata = MetadataCommand::new().no_deps().exec().unwrap();
    let targets = metadata.packages.iter().flat_map(|package| &package.targets);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut count = 0;
    for example in targets.filter(|target| target.is_example()) {
        let (name, features) = (&example.name, example.required_features.join(","));
        let (page, arguments) = match name.as_str() {
            "orders" => ("docs/consumers.md", " -- redis"),
            "payments" => ("docs/idempotency.md", ""),
            name => panic!("no page tells of the example {name}"),
        };
        let command = format!("cargo run --example {name} --features {features}{arguments}");
        for file in ["README.md", page, &format!("examples/{name}/main.rs")] {
            let text = fs::read_to_string(root.join(file)).unwrap();
            assert!(text.contains(&command), "{file}: {command}");
        }
        count += 1;
    }
    assert_eq!(count, 2);
}

/// `UPDATE_DOCS=1 cargo test -p semel --test docs` writes the page anew.
#[test]
fn the_metrics_page_lists_exactly_the_metrics() {
    let mut page = String::from(
        "# Metrics\n\nMade from `crates/core/src/telemetry.rs`. All names are in base units; no \
         label carries an event id or an aggregate id.\nA gauge is NaN once the process does not know \
         it any more: of a pipeline that left with a reload, or that another relay has taken \
         over.\n\n| metric | kind | labels | meaning \
         |\n|---|---|---|---|\n",
    );
    for metric in telemetry::ALL {
        let labels = metric.labels.join(", ");
        let kind = format!("{:?}", metric.kind).to_lowercase();
        writeln!(page, "| `{}` | {kind} | {labels} | {} |", metric.name, metric.help).unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page, "docs/metrics.md is stale: run UPDATE_DOCS=1 cargo test --test docs");
}
