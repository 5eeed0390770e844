//! `docs/conformance.md` says of every behaviour where it is shown, and says the truth.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// How many behaviours there are.
const BEHAVIOURS: usize = 116;

#[test]
fn every_behaviour_is_listed_with_something_that_shows_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/conformance.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
    let rows: Vec<(usize, &str)> =
        rows.filter_map(|(number, rest)| Some((number.trim().parse().ok()?, rest))).collect();
    let numbers: Vec<usize> = rows.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (1..=BEHAVIOURS).collect::<Vec<_>>());

    let kit = kit_numbers(&root.join("crates/cli/src/commands/conform"));
    let tests = functions_below(&root.join("crates"));
    for (number, rest) in rows {
        assert_eq!(kit.contains(&number), rest.contains("`kit`"), "{number}: {rest}");
        let named: Vec<_> = rest.split('`').skip(1).step_by(2).collect();
        let named: Vec<_> = named.into_iter().filter(|name| name.contains("::")).collect();
        let is_shown = rest.contains("`kit`") || !named.is_empty();
        assert!(is_shown || rest.contains("left out: "), "{number}: {rest}");
        for name in named {
            assert!(tests.contains(name), "{number}: there is no {name}");
        }
    }
}

fn kit_numbers(folder: &Path) -> BTreeSet<usize> {
    let texts = files_below(folder).into_iter().map(|path| fs::read_to_string(path).unwrap());
    let texts: Vec<String> = texts.collect();
    let lines = texts.iter().flat_map(|text| text.lines());
    let lines = lines.filter(|line| line.ends_with("\";") && line.contains("[\""));
    lines.filter_map(|line| line.trim().split(' ').next()?.parse().ok()).collect()
}

/// `file::function` for every function there is.
fn functions_below(folder: &Path) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for path in files_below(folder) {
        let text = fs::read_to_string(&path).unwrap();
        let file = path.file_stem().unwrap().to_string_lossy().into_owned();
        let named = text.split("fn ").skip(1);
        let named = named.filter_map(|rest| rest.split(['(', '<']).next());
        all.extend(named.map(|name| format!("{file}::{name}")));
    }
    all
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(files_below(&path));
        } else if path.extension().is_some_and(|it| it == "rs") {
            all.push(path);
        }
    }
    all
}
