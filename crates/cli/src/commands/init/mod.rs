//! `semel init`: a commented configuration for what is there.

mod debezium;
mod found;
mod properties;

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use semel_core::Failure;

use self::debezium::Converted;
use self::found::Surroundings;
use crate::args::InitOptions;
use crate::exit::{Exit, Problem};
use crate::output::print;

const EFFECT: &str = "nothing was written";

pub(crate) async fn run(options: &InitOptions) -> Result<Exit, Problem> {
    let (text, url, talk) = match &options.from {
        Some(path) => converted(path)?,
        None => {
            let found = Surroundings::look().await;
            (found.configuration(), found.url(), found.in_words())
        }
    };
    if options.dry_run {
        print(&text);
        return Ok(Exit::Done);
    }
    write_new(&options.path, &text)?;
    let path = options.path.display();
    print(&format!(
        "{talk}\nwrote {path}; next:\n  semel config check --config {path}\n  \
         semel migrate up --database \"{url}\"\n  semel relay --config {path}\n"
    ));
    Ok(Exit::Done)
}

/// The configuration, the URL of its database, and what there is to say.
fn converted(path: &Path) -> Result<(String, String, String), Problem> {
    let name = path.display().to_string();
    let problem = |failure| Problem::new(failure, &name, EFFECT);
    let text = fs::read_to_string(path).map_err(|error| {
        let failure = Failure::misconfigured("E-INIT-READ", format!("cannot read {name}"))
            .with_source(error)
            .with_fix("give --from the application.properties of Debezium Server");
        problem(failure)
    })?;
    let Converted { configuration, url, left, withheld } =
        debezium::convert(&text).map_err(problem)?;
    let mut talk = format!("converted {name}");
    if !left.is_empty() {
        talk += "\nwithout a counterpart, see the end of the file:";
        left.iter().for_each(|name| talk += &format!("\n  {name}"));
    }
    if !withheld.is_empty() {
        talk += "\nnot copied, since it may be a secret; set before you start it:";
        withheld.iter().for_each(|(variable, key)| {
            talk += &format!("\n  {variable} = the value of {key}");
        });
    }
    Ok((configuration, url, talk))
}

/// A file that is there is somebody's work.
fn write_new(path: &Path, text: &str) -> Result<(), Problem> {
    let name = path.display().to_string();
    let opened = OpenOptions::new().write(true).create_new(true).open(path);
    opened.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| {
        let failure = if error.kind() == io::ErrorKind::AlreadyExists {
            Failure::misconfigured("E-INIT-EXISTS", format!("{name} exists already"))
                .with_fix("give another name with --config, or look at it with --dry-run")
        } else {
            Failure::misconfigured("E-INIT-WRITE", format!("cannot write {name}"))
                .with_source(error)
                .with_fix("give --config a path in a folder that this user may write to")
        };
        Problem::new(failure, &name, EFFECT)
    })
}
