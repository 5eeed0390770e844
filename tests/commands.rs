//! What the documentation tells its readers to have cargo and `./dev` do: the packages, features,
//! targets, tests and variables that are named exist. That `semel` and the others are run is seen to by
//! `crates/cli/tests/servers/documented/`.

#![allow(clippy::panic, clippy::unwrap_used, reason = "test code: a panic is how it reports")]

#[path = "../crates/cli/tests/shell/mod.rs"]
mod shell;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use cargo_metadata::{Metadata, MetadataCommand, Package, Target, TargetKind};

#[test]
fn what_cargo_and_dev_are_told_to_do_exists() {
    let metadata = MetadataCommand::new().no_deps().exec().unwrap();
    let clone = Clone { metadata, dev: read("dev"), sources: sources() };
    let (mut count, mut wrong) = (0, Vec::new());
    for (page, text) in shell::pages() {
        let in_blocks = shell::commands_of(&text).into_iter();
        let in_sentences = shell::commands_in_sentences(&text).into_iter().map(str::to_owned);
        for typed in in_blocks.chain(in_sentences) {
            let words = shell::words(&typed);
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            let checked = match words[..] {
                ["cargo", _, ..] => clone.check_cargo(&words[1..]),
                ["./dev", _, ..] => clone.check_dev(&words[1..]),
                [script, ..] if script.starts_with("examples/") && !script.ends_with('/') => {
                    is_there(Path::new(script).exists(), script)
                }
                _ => continue,
            };
            let checked = checked.and_then(|()| clone.check_variables(&typed));
            wrong.extend(checked.err().map(|what| format!("{page}: {typed}\n  no {what}")));
            count += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 40, "only {count} commands were found");
}

/// What there is; the error of its checks is what there is not.
struct Clone {
    metadata: Metadata,
    dev: String,
    /// All of Rust, for names of tests and variables.
    sources: String,
}

impl Clone {
    fn check_cargo(&self, words: &[&str]) -> Result<(), String> {
        let end = words.iter().position(|word| *word == "--").unwrap_or(words.len());
        let (command, words) = (words[0], &words[1..end]);
        let value = |names: &[&str]| {
            let place = words.iter().position(|word| names.contains(word))?;
            words.get(place + 1).copied()
        };
        // The program is the only one of the packages that are built without naming one.
        let usual = if words.contains(&"--example") { "semel" } else { "semel-cli" };
        let name = value(&["-p", "--package"]).unwrap_or(usual);
        let package = self.package(name, value(&["--path"]))?;
        let mut features: Vec<_> =
            value(&["--features"]).into_iter().flat_map(|names| names.split(',')).collect();
        for feature in &features {
            is_there(package.features.contains_key(*feature), feature)?;
        }
        if words.contains(&"--all-features") {
            features = package.features.keys().map(String::as_str).collect();
        }
        let kinds = [
            ("--test", TargetKind::Test),
            ("--bench", TargetKind::Bench),
            ("--example", TargetKind::Example),
        ];
        let mut filters = words.iter().copied().filter(|word| !word.starts_with('-'));
        for (option, kind) in kinds {
            let Some(name) = value(&[option]) else { continue };
            let target = find(package, &kind, name).ok_or(format!("{option} {name}"))?;
            let enabled = closure(package, &features);
            for required in &target.required_features {
                is_there(enabled.contains(required.as_str()), &format!("feature {required}"))?;
            }
            let own = source_of(target);
            filters.try_for_each(|word| {
                let is_value = words.iter().zip(&words[1..]).any(|(option, after)| {
                    option.starts_with('-') && !FLAGS.contains(option) && *after == word
                });
                is_there(is_value || names_a_test(&own, word), &format!("test {word} in {name}"))
            })?;
            return Ok(());
        }
        match command {
            "deb" => is_there(package.metadata.get("deb").is_some(), "recipe of the package"),
            "run" | "build" | "install" => {
                is_there(package.targets.iter().any(Target::is_bin), "program in the package")
            }
            _ => Err(format!("check for cargo {command}")),
        }
    }

    fn package(&self, name: &str, path: Option<&str>) -> Result<&Package, String> {
        let mut packages = self.metadata.packages.iter();
        match path {
            Some(path) => {
                let manifest = shell::root().join(path).join("Cargo.toml");
                packages.find(|package| package.manifest_path.as_std_path() == manifest)
            }
            None => packages.find(|package| package.name == name),
        }
        .ok_or(format!("package {name} {path:?}"))
    }

    fn check_dev(&self, words: &[&str]) -> Result<(), String> {
        let end = words.iter().position(|word| *word == "--").unwrap_or(words.len());
        is_there(self.dev.contains(&format!("\nrun_{}() {{", words[0])), words[0])?;
        match words[..end] {
            ["bench", name, ref choices @ ..] => self.check_bench(name, choices),
            ["test", ref filters @ ..] => filters
                .iter()
                .try_for_each(|filter| is_there(names_a_test(&self.sources, filter), filter)),
            [_, ref options @ ..] => options.iter().try_for_each(|option| {
                is_there(self.dev.contains(&format!("    {option})")), option)
            }),
            [] => Ok(()),
        }
    }

    fn check_bench(&self, name: &str, choices: &[&str]) -> Result<(), String> {
        let begin = format!("  [{name}]=\"");
        let (_, rest) = self.dev.split_once(&begin).ok_or(format!("bench {name}"))?;
        let command = shell::words(rest.split('"').next().unwrap_or_default());
        let command: Vec<_> = command.iter().map(String::as_str).collect();
        let source = match command[..] {
            ["cargo", ..] => {
                self.check_cargo(&command[1..])?;
                let place = command.iter().position(|word| *word == "--bench").unwrap();
                let targets = self.metadata.packages.iter().flat_map(|package| &package.targets);
                let mut benches = targets.filter(|target| target.is_bench());
                source_of(benches.find(|target| target.name == command[place + 1]).unwrap())
            }
            [script, ..] => read(script),
            [] => return Err(format!("bench {name}")),
        };
        let choices = choices.iter().flat_map(|word| word.trim_matches(['[', ']']).split('|'));
        choices.filter(|word| !word.starts_with('-')).try_for_each(|word| {
            let known = [format!("\"{word}\""), format!(" {word} "), format!("{word})")];
            is_there(known.iter().any(|known| source.contains(known)), &format!("{name} {word}"))
        })
    }

    /// Those of ours that are set for the command.
    fn check_variables(&self, typed: &str) -> Result<(), String> {
        let set = typed.split_whitespace().map_while(|word| word.split_once('='));
        set.filter(|(name, _)| name.starts_with("SEMEL_"))
            .try_for_each(|(name, _)| is_there(self.sources.contains(&format!("\"{name}\"")), name))
    }
}

/// Options of cargo without a value.
const FLAGS: &[&str] = &["--all-features", "--release", "--workspace"];

fn find<'a>(package: &'a Package, kind: &TargetKind, name: &str) -> Option<&'a Target> {
    package.targets.iter().find(|target| target.kind.contains(kind) && target.name == name)
}

/// The features that are on when these are: theirs, and the default ones.
fn closure<'a>(package: &'a Package, features: &[&'a str]) -> BTreeSet<&'a str> {
    let (mut enabled, mut next) = (BTreeSet::new(), [&["default"], features].concat());
    while let Some(feature) = next.pop() {
        if enabled.insert(feature) {
            next.extend(package.features.get(feature).into_iter().flatten().map(String::as_str));
        }
    }
    enabled
}

fn is_there(is: bool, what: &str) -> Result<(), String> {
    is.then_some(()).ok_or(what.to_owned())
}

/// Whether a test, or a module of tests, has this in its name.
fn names_a_test(source: &str, filter: &str) -> bool {
    source.lines().any(|line| {
        let line = line.trim_start().trim_start_matches("async ");
        let name = line.strip_prefix("fn ").or_else(|| line.strip_prefix("mod "));
        name.is_some_and(|name| name.split(['(', ';', ' ']).next().unwrap().contains(filter))
    })
}

/// A target that is a folder is all its files.
fn source_of(target: &Target) -> String {
    let path = target.src_path.as_std_path();
    match path.file_name().is_some_and(|name| name == "main.rs") {
        true => rust_below(path.parent().unwrap()),
        false => fs::read_to_string(path).unwrap(),
    }
}

fn sources() -> String {
    ["crates", "scripts"].map(|folder| rust_below(&shell::root().join(folder))).concat()
}

fn rust_below(folder: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            text += &rust_below(&path);
        } else if path.extension().is_some_and(|end| end == "rs") {
            text += &fs::read_to_string(path).unwrap();
        }
    }
    text
}

fn read(path: &str) -> String {
    fs::read_to_string(shell::root().join(path)).unwrap()
}
