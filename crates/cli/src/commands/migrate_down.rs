//! `semel migrate down`: the tables go, if nothing is lost by it or the user insists.

use std::io::{self, BufRead, IsTerminal, Write};

use semel_core::Failure;
use semel_core::admin::{State, Stats};

use super::audit::operator;
use super::{connect, database_kind, database_problem};
use crate::args::DownOptions;
use crate::exit::{Exit, Problem};
use crate::logging::Logging;
use crate::output::print;
use crate::wiring::{Database, DatabaseKind, Missing, shown};

const EFFECT: &str = "the tables and their events are as they were";

pub(super) async fn run(options: &DownOptions) -> Result<Exit, Problem> {
    let kind = database_kind(&options.database, EFFECT)?;
    if options.dry_run {
        print(&(kind.drop)());
        return Ok(Exit::Done);
    }
    let problem = |failure| database_problem(&options.database, failure, EFFECT);
    let database = connect(&options.database, Missing::Refuse, EFFECT).await?;
    if database.tables().await.map_err(problem)?.present == 0 {
        print("there are no tables\n");
        return Ok(Exit::Done);
    }
    let events = database.count_events().await.map_err(problem)?;
    let left = events_left(options, kind, database.as_ref()).await.map_err(problem)?;
    if !options.force && !left.is_empty() {
        return Err(problem(would_be_lost(&left)));
    }
    if !options.yes {
        confirm(options, events, &left)?;
    }
    let at_most = (!options.force).then_some(events);
    // The table that would tell of it goes as well.
    let _logging = Logging::start()?;
    let (who, place) = (operator(), shown(&options.database.url));
    tracing::warn!("{who} drops the tables of {place}, with {events} events");
    database.drop_tables(at_most).await.map_err(problem)?;
    tracing::warn!("the tables of {place} are gone, by {who}");
    print(&format!("the tables are gone, with {events} events\n"));
    Ok(Exit::Done)
}

/// What is nowhere else: events that are not published, pipeline by pipeline, those that wait in the log,
/// and those that consumers have put aside.
async fn events_left(
    options: &DownOptions,
    kind: &DatabaseKind,
    database: &dyn Database,
) -> Result<Vec<String>, Failure> {
    // Nobody would hear of it, and a log that cannot be read must not keep them from what they insist on.
    if options.force && options.yes {
        return Ok(Vec::new());
    }
    let mut left = events_of_pipelines(database).await?;
    let letters = database.count_letters().await?;
    left.extend(
        (letters > 0).then(|| format!("{letters} letters of consumers, dead or behind one")),
    );
    if let Some(messages) = &kind.messages {
        match (messages.count)(options.database.url.clone()).await {
            Ok(0) => {}
            Ok(waiting) => left.push(format!("{waiting} messages that no relay has carried")),
            Err(failure) if options.force => left.push(format!("messages in the log: {failure}")),
            Err(failure) => return Err(failure),
        }
    }
    Ok(left)
}

async fn events_of_pipelines(database: &dyn Database) -> Result<Vec<String>, Failure> {
    let pipelines = database.pipelines().await?;
    let mut left = Vec::new();
    for pipeline in &pipelines {
        let words = in_words(&database.admin(pipeline, None).stats().await?);
        left.extend(words.map(|words| format!("pipeline {pipeline}: {words}")));
    }
    if pipelines.is_empty() {
        let events = database.count_events().await?;
        left.extend((events > 0).then(|| format!("{events} that no pipeline has read")));
    }
    Ok(left)
}

fn in_words(stats: &Stats) -> Option<String> {
    let waiting = stats.count(State::Pending) + stats.count(State::Publishing);
    let parked = stats.count(State::Failed) + stats.count(State::Dead);
    (waiting + parked > 0).then(|| format!("{waiting} not published, {parked} failed or dead"))
}

fn would_be_lost(left: &[String]) -> Failure {
    let what = format!("events would be lost ({})", left.join("; "));
    Failure::refused("E-EVENTS-LEFT", what).with_fix(
        "publish them with `semel relay --drain`, retry or discard dead ones with `semel dead`, \
         or lose them with --force",
    )
}

/// Asks for the name of the database.
fn confirm(options: &DownOptions, events: u64, left: &[String]) -> Result<(), Problem> {
    let place = shown(&options.database.url);
    let name = place.rsplit('/').next().unwrap_or_default();
    let mut question = format!("This drops the tables of {place} and {events} events in them.\n");
    for line in left {
        question += &format!("LOST FOR GOOD: {line}\n");
    }
    question += &format!("Type {name} to do it: ");
    // Of some URLs not even the name of the database can be shown.
    let is_named = name.chars().any(char::is_alphanumeric);
    let confirmed = is_named && io::stdin().is_terminal() && {
        // Whoever cannot read the question will not answer it.
        io::stderr().write_all(question.as_bytes()).ok();
        is_confirmed(&mut io::stdin().lock(), name)
    };
    if confirmed {
        return Ok(());
    }
    let fix = match is_named {
        true => format!("add --yes, or type {name} when asked at a terminal"),
        false => "add --yes".to_owned(),
    };
    let failure = Failure::refused("E-NOT-CONFIRMED", "nobody confirmed that the tables may go")
        .with_fix(fix);
    Err(Problem::new(failure, place, EFFECT).of_usage())
}

fn is_confirmed(answers: &mut impl BufRead, name: &str) -> bool {
    let mut answer = String::new();
    answers.read_line(&mut answer).is_ok() && !name.is_empty() && answer.trim() == name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_name_confirms() {
        for (answer, confirms) in [("shop\n", true), (" shop ", true), ("y\n", false), ("", false)]
        {
            assert_eq!(is_confirmed(&mut answer.as_bytes(), "shop"), confirms, "{answer:?}");
        }
        assert!(!is_confirmed(&mut &b"\n"[..], ""));
    }
}
