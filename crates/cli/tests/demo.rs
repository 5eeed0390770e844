//! `semel demo` as its users run it.

use std::process::{Command, Output};

fn semel(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_semel")).args(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The numbers of a line of the table, by the words it begins with.
fn numbers(table: &str, name: &str) -> Vec<u64> {
    let line = table.lines().find(|line| line.trim_start().starts_with(name));
    let line = line.unwrap_or_else(|| panic!("no line {name:?} in\n{table}"));
    let words = line.trim_start()[name.len()..].split_whitespace();
    words.filter_map(|word| word.replace(',', "").parse().ok()).collect()
}

#[test]
fn nothing_is_lost_and_nothing_happens_twice_whoever_is_killed() {
    for seed in ["1", "2", "3", "4"] {
        let output = semel(&["demo", "--orders", "300", "--faults", "many", "--seed", seed]);
        let text = stdout(&output);
        assert_eq!(output.status.code(), Some(0), "seed {seed}:\n{text}");
        assert!(text.contains("ok: lost 0, doubled 0, phantom 0, reordered 0"), "{text}");

        let events = numbers(&text, "events committed")[0];
        assert_eq!(numbers(&text, "orders committed")[0], 300);
        assert!(events > 300, "{text}");
        assert_eq!(numbers(&text, "events published")[0], events);
        assert_eq!(numbers(&text, "effects"), [events; 3]);
        assert_eq!(numbers(&text, "lost"), [0; 3]);
        assert_eq!(numbers(&text, "doubled"), [0; 3]);

        let (delivered, dropped) =
            (numbers(&text, "delivered"), numbers(&text, "duplicates dropped"));
        assert!(dropped.iter().all(|dropped| *dropped > 0), "{text}");
        for (delivered, dropped) in delivered.iter().zip(dropped) {
            assert_eq!(*delivered, events + dropped);
        }
        assert!(numbers(&text, "processes killed")[0] > 0, "{text}");
        assert!(numbers(&text, "first event delivered")[0] < 2000, "{text}");
    }
}

#[test]
fn without_faults_nothing_is_repeated() {
    let output = semel(&["demo", "--orders", "50", "--faults", "none"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert_eq!(numbers(&text, "duplicates dropped"), [0; 3]);
    assert_eq!(numbers(&text, "processes killed")[0], 0);
    assert_eq!(numbers(&text, "delivered"), numbers(&text, "effects"));
}

#[test]
fn what_is_not_a_terminal_gets_plain_text() {
    let text = stdout(&semel(&["demo", "--orders", "20"]));
    assert!(!text.contains('\x1b'), "{text}");
    assert!(text.contains("What you saw") && text.contains("Try next"), "{text}");
}

#[cfg(unix)]
#[test]
fn keep_goes_on_until_it_is_told_to_stop_and_leaves_the_files() {
    use std::io::{BufRead, BufReader, Read};
    use std::process::Stdio;

    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_semel"))
        .args(["demo", "--orders", "20", "--keep"])
        .env("TMPDIR", folder.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    let placed = |line: &str| {
        let (_, rest) = line.split_once(" s  orders ")?;
        rest.split(' ').next()?.parse::<u64>().ok()
    };
    while placed(&line).is_none_or(|orders| orders <= 20) {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "it ended by itself");
    }
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{rest}");
    assert!(rest.contains("ok: lost 0, doubled 0"), "{rest}");
    let kept = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    assert!(rest.contains(kept.to_str().unwrap()), "{rest}");
    assert!(kept.join("orders.db").exists());
}

#[test]
fn the_help_fits_a_screen_and_names_the_demo() {
    let output = semel(&["--help"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0));
    assert!(text.contains("demo"), "{text}");
    assert!(text.lines().count() <= 60, "{text}");
}

#[test]
fn a_wrong_command_line_ends_with_64_and_a_hint() {
    let cases: [(&[&str], &str); 5] = [
        (&["demo", "--order", "3"], "--orders"),
        (&["demo", "--orders", "0"], "0 is not in 1.."),
        (&["demo", "--faults", "more"], "many"),
        (&["dmeo"], "demo"),
        (&[], "Usage"),
    ];
    for (arguments, hint) in cases {
        let output = semel(arguments);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{arguments:?}: {message}");
        assert!(message.contains(hint), "{arguments:?}: {message}");
    }
}
