//! Help, completions, manual page; colours.

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
    let output = shop.command(&["relay", "--drain"]).env("NO_COLOR", "1").output().unwrap();
    assert!(output.status.success());
    let text = [output.stdout, output.stderr].concat();
    assert!(!text.contains(&0x1b), "{}", String::from_utf8_lossy(&text));
}
