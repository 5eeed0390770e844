//! Every command of the documentation is one that can be typed.

#[path = "../../tests/shell/mod.rs"]
#[allow(clippy::unwrap_used, reason = "helpers of tests may panic")]
mod shell;

use clap::error::ErrorKind;

use super::command;

/// What a reader puts in the place of these words.
const MEANT: &[(&str, &str)] = &[
    ("ID", "0198b7a2-0000-7000-8000-000000000000"),
    ("HASH", "00000000000000000000000000000000000000000000000000000000000000aa"),
    ("SHELL", "bash"),
    ("COMMAND", "status"),
    ("…", ""),
];

#[test]
fn every_command_of_the_documentation_can_be_parsed() {
    let (mut count, mut wrong) = (0, Vec::new());
    for (page, text) in shell::pages() {
        for typed in shell::commands_of(&text) {
            let words = shell::words(&typed);
            let program = words.first().map(String::as_str).unwrap_or_default();
            let arguments = match (program, words.iter().position(|word| word == "--")) {
                ("semel", _) => &words[1..],
                ("cargo", Some(place)) if words[1] == "run" && !is_example(&words) => {
                    &words[place + 1..]
                }
                // Run by servers::documented, which knows all of them.
                _ => continue,
            };
            count += 1;
            wrong.extend(parse(arguments).err().map(|error| format!("{page}: {typed}\n{error}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 25, "only {count} commands were found");
}

/// Another program, which has tests of its own.
fn is_example(words: &[String]) -> bool {
    words.iter().any(|word| word == "--example")
}

/// A command in a sentence may stand for itself, without all it needs; what is there must be right.
#[test]
fn every_command_in_a_sentence_exists() {
    const UNFINISHED: [ErrorKind; 5] = [
        ErrorKind::MissingRequiredArgument,
        ErrorKind::MissingSubcommand,
        ErrorKind::DisplayHelp,
        ErrorKind::DisplayVersion,
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand,
    ];
    let (mut count, mut wrong) = (0, Vec::new());
    for (page, text) in shell::pages() {
        let typed = shell::commands_in_sentences(&text).into_iter();
        for typed in typed.filter(|typed| typed.starts_with("semel ")) {
            let error = parse(&shell::words(typed)[1..]).err();
            let error = error.filter(|error| !UNFINISHED.contains(&error.kind()));
            wrong.extend(error.map(|error| format!("{page}: {typed}\n{error}")));
            count += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 100, "only {count} commands were found");
}

fn parse(arguments: &[String]) -> Result<(), clap::Error> {
    let meant = |word: &String| {
        let replaced = MEANT.iter().find(|(placeholder, _)| placeholder == word);
        replaced.map_or_else(|| word.clone(), |(_, value)| (*value).to_owned())
    };
    let words = arguments.iter().map(meant).filter(|word| !word.is_empty());
    command().try_get_matches_from(std::iter::once("semel".to_owned()).chain(words)).map(drop)
}

#[test]
fn words_are_split_as_a_shell_does() {
    let typed =
        "A=b OTEL_X=y semel send --payload '{\"a\": 1}' --type \"a b\" \\\n --key x\\ y # why";
    let words = shell::words(typed);
    assert_eq!(
        words,
        ["semel", "send", "--payload", "{\"a\": 1}", "--type", "a b", "--key", "x y"]
    );
    assert_eq!(shell::words("semel config schema > file"), ["semel", "config", "schema"]);
    assert_eq!(shell::commands("a \"b\nc\"\nd \\\n e\n"), ["a \"b\nc\"", "d \\\n e"]);
    assert_eq!(shell::commands("$ a\nwhat it says\n"), ["a"]);
}
