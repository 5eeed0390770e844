//! The documentation says what the code says.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use semel::telemetry;

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
