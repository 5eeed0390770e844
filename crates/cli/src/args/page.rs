//! The page `docs/cli.md`, made from the definition of the command line.
//!
//! `UPDATE_DOCS=1 cargo test -p semel-cli --all-features the_page` writes it anew.

use std::fs;
use std::path::Path;

use clap::{Arg, Command};

use super::command;

const BEGINNING: &str = "# Command line

Made from the definition of the commands by a test. `semel --help` and `semel COMMAND --help` say the same;
`semel completions SHELL` and `semel man` print completions and the manual page.

- Results are printed on standard output, for people or, with `--output json`, for programs. Everything else goes to
  standard error. Colours are for terminals only, and not where `NO_COLOR` is set.
- What changes events has `--dry-run`. With `--all` it says how many events it is about and asks; a script says `--yes`.
- Exit codes: [configuration](configuration.md#exit-codes). Every error has a code that `semel explain` explains.

";

#[test]
fn the_page_says_what_the_definition_says() {
    let mut page = String::from(BEGINNING);
    let mut all = command();
    all.build();
    describe(&all, "semel", &mut page);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "docs/cli.md is stale: UPDATE_DOCS=1 cargo test -p semel-cli --all-features the_page"
    );
}

fn describe(command: &Command, path: &str, page: &mut String) {
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
        let path = format!("{path} {}", inner.get_name());
        if inner.has_subcommands() {
            *page += &format!("## `{path}`\n\n{}.\n\n", about(inner));
            describe(inner, &path, page);
            continue;
        }
        let depth = if path.matches(' ').count() > 1 { "###" } else { "##" };
        *page += &format!("{depth} `{path}`\n\n{}.\n\n", about(inner));
        let shown: Vec<_> = inner.get_arguments().filter(|arg| arg.get_id() != "help").collect();
        if !shown.is_empty() {
            page.push_str("| option | default | meaning |\n|---|---|---|\n");
        }
        for arg in &shown {
            *page += &format!("| {} | {} | {} |\n", name(arg), default(arg), meaning(arg));
        }
        if !shown.is_empty() {
            page.push('\n');
        }
    }
}

fn about(command: &Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default()
}

fn name(arg: &Arg) -> String {
    let takes = arg.get_action().takes_values();
    let values: Vec<_> =
        arg.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect();
    let value =
        if values.is_empty() { arg.get_id().as_str().to_uppercase() } else { values.join(" ") };
    match arg.get_long() {
        Some(long) if takes => format!("`--{long} {value}`"),
        Some(long) => format!("`--{long}`"),
        None => format!("`{value}`"),
    }
}

fn default(arg: &Arg) -> String {
    let values: Vec<_> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    match &values[..] {
        _ if !arg.get_action().takes_values() => String::new(),
        [] if arg.is_required_set() => "needed".into(),
        [] => String::new(),
        values => format!("`{}`", values.join(" ")),
    }
}

fn meaning(arg: &Arg) -> String {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default().replace('|', "\\|");
    let words: Vec<_> =
        arg.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect();
    if words.is_empty() || !arg.get_action().takes_values() {
        help
    } else {
        format!("{help}: {}", words.join(", "))
    }
}
