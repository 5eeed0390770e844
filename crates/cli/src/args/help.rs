//! The first page of help: commands in groups, in the order in which people need them.

use clap::{Command, CommandFactory};

use super::Arguments;

const GROUPS: &[(&str, &[&str])] = &[
    ("Try it", &["demo", "init"]),
    ("Set it up", &["migrate", "check", "grants", "config"]),
    ("Run it", &["relay", "proxy", "clean"]),
    ("See it", &["status", "top", "tap", "events", "keys"]),
    ("Mend it", &["dead", "replay"]),
    ("Prove it", &["verify", "send", "explain"]),
];

/// The whole command line, with its help in groups.
pub(crate) fn command() -> Command {
    let command = Arguments::command();
    let template = template(&command);
    command.help_template(template)
}

fn template(command: &Command) -> String {
    let mut text = String::from("{about-with-newline}\n{usage-heading} {usage}\n");
    let mut rest: Vec<&Command> = command.get_subcommands().collect();
    for (group, names) in GROUPS {
        text += &format!("\n{group}\n");
        for name in *names {
            if let Some(place) = rest.iter().position(|known| known.get_name() == *name) {
                text += &line(rest.remove(place));
            }
        }
    }
    text += "\nAlso\n";
    rest.into_iter().for_each(|other| text += &line(other));
    text + "\nOptions:\n{options}{after-help}"
}

fn line(command: &Command) -> String {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    format!("  {:<12}{about}\n", command.get_name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_page_names_every_command_and_fits_a_screen() {
        let help = command().render_help().to_string();
        assert!(help.lines().count() <= 60, "{help}");
        for known in command().get_subcommands() {
            let begins = format!("\n  {} ", known.get_name());
            assert_eq!(help.matches(&begins).count(), 1, "{begins}{help}");
        }
    }
}
