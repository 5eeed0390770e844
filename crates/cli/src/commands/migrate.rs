//! `semel migrate`: the tables and their versions.

use std::time::Duration;

use semel_core::Failure;

use super::{connect, database_kind, database_problem, migrate_down};
use crate::args::{DatabaseOption, MigrateCommand, TablesOptions};
use crate::exit::{Exit, Problem};
use crate::output::print;
use crate::wiring::{Messages, Missing, Partitions, shown};

const EFFECT: &str = "the tables and their events are as they were";

pub(crate) async fn run(command: &MigrateCommand) -> Result<Exit, Problem> {
    match command {
        MigrateCommand::Up(options) => up(options).await,
        MigrateCommand::Status(database) => status(database).await,
        MigrateCommand::Sql(options) => sql(options),
        MigrateCommand::Down(options) => migrate_down::run(options).await,
    }
}

async fn up(options: &TablesOptions) -> Result<Exit, Problem> {
    let place = &options.database;
    let (divisions, messages) = (divisions(options)?, messages(options)?);
    let database = connect(place, Missing::Create, EFFECT).await?;
    let applied = database.migrate().await.map_err(|failure| problem(place, failure))?;
    for name in &applied {
        print(&format!("applied {name}\n"));
    }
    for Division { name, partitions, span } in divisions {
        let divided = (partitions.apply)(place.url.clone(), span).await;
        let divided = divided.map_err(|failure| problem(place, failure))?;
        print(&if divided {
            format!("divided the {name}\n")
        } else {
            format!("the {name} is divided already\n")
        });
    }
    if let Some(messages) = messages {
        (messages.prepare)(place.url.clone()).await.map_err(|failure| problem(place, failure))?;
        print("a replication slot keeps messages\n");
    }
    print("the tables are up to date\n");
    Ok(Exit::Done)
}

fn sql(options: &TablesOptions) -> Result<Exit, Problem> {
    let mut sql = (database_kind(&options.database, EFFECT)?.schema)();
    for Division { partitions, span, .. } in divisions(options)? {
        sql = sql + "\n" + &(partitions.sql)(span);
    }
    if let Some(messages) = messages(options)? {
        sql = sql + "\n" + &(messages.sql)();
    }
    print(&sql);
    Ok(Exit::Done)
}

/// A table that is to be divided.
struct Division {
    name: &'static str,
    partitions: &'static Partitions,
    span: Duration,
}

fn divisions(options: &TablesOptions) -> Result<Vec<Division>, Problem> {
    let kind = database_kind(&options.database, EFFECT)?;
    let asked = [
        ("outbox", options.partitioned, &kind.partitions),
        ("inbox", options.partitioned_inbox, &kind.inbox_partitions),
    ];
    let asked = asked.into_iter().filter_map(|(name, span, how)| Some((name, span?, how)));
    let divisions = asked.map(|(name, span, how)| match how {
        Some(partitions) => Ok(Division { name, partitions, span }),
        None => {
            let what = format!("only the {name} of PostgreSQL can be partitioned");
            let failure = Failure::misconfigured("E-NO-PARTITIONS", what)
                .with_fix("leave the option out; what is old is deleted everywhere");
            Err(problem(&options.database, failure).of_usage())
        }
    });
    divisions.collect()
}

/// What keeps messages, if that is asked for.
fn messages(options: &TablesOptions) -> Result<Option<&'static Messages>, Problem> {
    let kind = database_kind(&options.database, EFFECT)?;
    if options.messages && kind.messages.is_none() {
        let what = "only PostgreSQL keeps messages in its log";
        let failure = Failure::misconfigured("E-NO-MESSAGES", what)
            .with_fix("leave out --messages; events are written into the table everywhere");
        return Err(problem(&options.database, failure).of_usage());
    }
    Ok(kind.messages.as_ref().filter(|_| options.messages))
}

async fn status(options: &DatabaseOption) -> Result<Exit, Problem> {
    let database = connect(options, Missing::Refuse, EFFECT).await?;
    let tables = database.tables().await.map_err(|failure| problem(options, failure))?;
    if tables.present > tables.latest {
        tables.check().map_err(|failure| problem(options, failure))?;
    }
    let missing = tables.missing;
    for name in &missing {
        print(&format!("missing {name}\n"));
    }
    if missing.is_empty() {
        print("the tables are up to date\n");
        return Ok(Exit::Done);
    }
    print(&format!("run: semel migrate up --database {}\n", shown(&options.url)));
    Ok(Exit::Problems)
}

fn problem(options: &DatabaseOption, failure: Failure) -> Problem {
    database_problem(options, failure, EFFECT)
}
