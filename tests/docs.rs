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

/// A reader can type it as it stands.
#[test]
fn the_command_of_the_order_service_is_told_as_it_is() {
    let metadata = MetadataCommand::new().no_deps().exec().unwrap();
    let mut targets = metadata.packages.iter().flat_map(|package| &package.targets);
    let example = targets.find(|target| target.is_example() && target.name == "orders").unwrap();
    let features = example.required_features.join(",");
    let command = format!("cargo run --example orders --features {features} -- redis");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for file in ["README.md", "docs/consumers.md", "examples/orders/main.rs"] {
        assert!(
            fs::read_to_string(root.join(file)).unwrap().contains(&command),
            "{file}: {command}"
        );
    }
}

/// `UPDATE_DOCS=1 cargo test -p semel --test docs` writes the page anew.
#[test]
fn the_metrics_page_lists_exactly_the_metrics() {
    let mut page = String::from(
        "# Metrics\n\nMade from `crates/core/src/telemetry.rs`. All names are in base units; no \
         label carries an event id or an aggregate id.\n\n| metric | kind | labels | meaning \
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

/// A panel or an alert on a metric that does not exist stays silent for ever.
#[test]
fn dashboards_and_alerts_name_only_metrics_that_exist() {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging");
    for file in ["grafana/semel.json", "prometheus/alerts.yaml"] {
        let text = fs::read_to_string(packaging.join(file)).unwrap();
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let named: BTreeSet<_> = words.filter(|word| word.starts_with("semel_")).collect();
        assert!(named.len() > 5, "{file} names {named:?}");
        for name in named {
            let base = name.strip_suffix("_bucket").unwrap_or(name);
            let known = telemetry::ALL.iter().any(|metric| metric.name == base);
            assert!(known, "{file} names {name}, which is not in crates/core/src/telemetry.rs");
        }
    }
    let dashboard = fs::read_to_string(packaging.join("grafana/semel.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().len() >= 8);
}
