//! `semel config`: what the configuration says, whether it is right, and whether it does what its
//! author expects. Nothing is connected to.

use serde_json::json;

use crate::args::{ConfigCommand, ConfigOption, ConfigShowOptions};
use crate::config::{Effective, Whole, json_schema};
use crate::exit::{Exit, Problem};
use crate::output::{Format, print, print_json};

pub(crate) fn run(command: &ConfigCommand) -> Result<Exit, Problem> {
    match command {
        ConfigCommand::Check(options) => check(options),
        ConfigCommand::Show(options) => show(options),
        ConfigCommand::Test(options) => test(options),
        ConfigCommand::Schema => {
            print_json(&json_schema());
            Ok(Exit::Done)
        }
    }
}

fn check(options: &ConfigOption) -> Result<Exit, Problem> {
    let whole = Whole::load(&options.path)?;
    print(&format!("{}: {}: all right\n", options.path.display(), whole.summary()));
    Ok(Exit::Done)
}

fn show(options: &ConfigShowOptions) -> Result<Exit, Problem> {
    let all = Whole::load(&options.config.path)?.effective();
    match options.output.format {
        Format::Text => print(&text(&all)),
        Format::Json => print_json(&all),
    }
    Ok(Exit::Done)
}

/// Section by section, as in the file, with where each value was said.
fn text(all: &[Effective]) -> String {
    let width = |of: fn(&Effective) -> &String| {
        const WIDEST: usize = 40;
        all.iter().map(|one| of(one).chars().count()).max().unwrap_or(0).min(WIDEST)
    };
    let (keys, values) = (width(|one| &one.key), width(|one| &one.value));
    let mut text = String::new();
    let mut section = "";
    for one in all {
        if one.section != section {
            section = &one.section;
            text += &format!("{}[{section}]\n", if text.is_empty() { "" } else { "\n" });
        }
        let Effective { key, value, origin, .. } = one;
        text += &match one.literal {
            true => format!("{key:<keys$} = {value:<values$}  # {origin}\n"),
            false => {
                let (words, width) = (format!("# {key}: {value}"), keys + " = ".len() + values);
                format!("{words:<width$}  # {origin}\n")
            }
        };
    }
    text
}

fn test(options: &ConfigShowOptions) -> Result<Exit, Problem> {
    let config = Whole::load(&options.config.path)?.config;
    let results: Vec<_> =
        config.trials.iter().map(|trial| (&trial.name, trial.run(&config.pipelines))).collect();
    let failed = results.iter().filter(|(_, wrong)| !wrong.is_empty()).count();
    match options.output.format {
        Format::Json => {
            let one = |(name, wrong): &(&String, Vec<String>)| json!({ "name": name, "passed": wrong.is_empty(), "wrong": wrong });
            print_json(&results.iter().map(one).collect::<Vec<_>>());
        }
        Format::Text => {
            for (name, wrong) in &results {
                print(&format!("{}  {name}\n", if wrong.is_empty() { "ok    " } else { "failed" }));
                wrong.iter().for_each(|line| print(&format!("          {line}\n")));
            }
            print(&format!("{} passed, {failed} failed\n", results.len() - failed));
        }
    }
    Ok(if failed == 0 { Exit::Done } else { Exit::Problems })
}
