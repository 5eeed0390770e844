//! Help, completions, manual page; colours.

use std::process::{Command, Stdio};

use semel_testkit::services::python;

use crate::shop::Shop;

#[test]
fn the_first_page_of_help_is_grouped_and_short() {
    let help = Shop::new().expect(0, &["--help"]);
    assert!(help.lines().count() <= 60, "{help}");
    for group in ["Try it", "Set it up", "Run it", "See it", "Mend it", "Prove it"] {
        assert!(help.contains(&format!("\n{group}\n")), "{help}");
    }
}

#[test]
fn completions_and_manual_page_name_the_commands() {
    let shop = Shop::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = shop.expect(0, &["completions", shell]);
        assert!(script.contains("semel") && script.contains("replay"), "{shell}");
    }
    let page = shop.expect(0, &["man"]);
    assert_eq!(page.matches(".TH ").count(), 1, "{page}");
    assert!(page.contains(".TH semel 1") && page.contains(".SH \"semel replay\"\n"), "{page}");
    // Of commands, and of commands inside commands, also what they take.
    let (_, dead) = page.split_once(".SH \"semel dead retry\"\n").expect("the command");
    let (retry, _) = dead.split_once(".SH ").expect("the next one");
    for option in [r"\fB\-\-dry\-run\fR", r"\fB\-\-aggregate\-type\fR", "Only say how many"] {
        assert!(retry.contains(option), "{option}: {retry}");
    }
}

#[test]
fn nothing_that_is_piped_has_colours() {
    let shop = Shop::new();
    shop.insert_of_type("1", "A");
    let output = shop.command(&["relay", "--drain"]).output().unwrap();
    assert!(output.status.success());
    let text = [output.stdout, output.stderr].concat();
    assert!(!text.contains(&ESCAPE), "{}", String::from_utf8_lossy(&text));
}

/// By its convention a `NO_COLOR` that is empty says nothing.
#[test]
fn a_terminal_has_colours_unless_it_is_told_not_to() {
    let Some(python) = python() else { return };
    let shop = Shop::new();
    for (no_color, has_colours) in [(None, true), (Some(""), true), (Some("1"), false)] {
        shop.insert_of_type("1", "A");
        let mut command = Command::new(&python);
        command.args(["-c", IN_A_TERMINAL, env!("CARGO_BIN_EXE_semel"), "relay", "--drain"]);
        command.current_dir(shop.folder.path()).stdin(Stdio::null()).env_remove("NO_COLOR");
        let output = command.envs(no_color.map(|value| ("NO_COLOR", value))).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("drained") || text.contains("relay"), "{text}");
        assert_eq!(output.stdout.contains(&ESCAPE), has_colours, "{no_color:?}: {text}");
    }
}

const ESCAPE: u8 = 0x1b;

/// Gives a program a terminal, and what it says there.
const IN_A_TERMINAL: &str =
    "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";
