//! `semel migrate`: the tables and their versions.

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
    let TablesOptions { database: place, partitioned, .. } = options;
    let (partitions, messages) = (partitions(options)?, messages(options)?);
    let database = connect(place, Missing::Create, EFFECT).await?;
    let applied = database.migrate().await.map_err(|failure| problem(place, failure))?;
    for name in &applied {
        print(&format!("applied {name}\n"));
    }
    if let (Some(partitions), Some(span)) = (partitions, *partitioned) {
        let divided = (partitions.apply)(place.url.clone(), span).await;
        let divided = divided.map_err(|failure| problem(place, failure))?;
        print(if divided { "divided the outbox\n" } else { "the outbox is divided already\n" });
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
    if let (Some(partitions), Some(span)) = (partitions(options)?, options.partitioned) {
        sql = sql + "\n" + &(partitions.sql)(span);
    }
    if let Some(messages) = messages(options)? {
        sql = sql + "\n" + &(messages.sql)();
    }
    print(&sql);
    Ok(Exit::Done)
}

/// What divides the outbox, if that is asked for.
fn partitions(options: &TablesOptions) -> Result<Option<&'static Partitions>, Problem> {
    let kind = database_kind(&options.database, EFFECT)?;
    if options.partitioned.is_some() && kind.partitions.is_none() {
        let what = "only the outbox of PostgreSQL can be partitioned";
        let failure = Failure::misconfigured("E-NO-PARTITIONS", what)
            .with_fix("leave out --partitioned; [retention] deletes old events everywhere");
        return Err(problem(&options.database, failure).of_usage());
    }
    Ok(kind.partitions.as_ref())
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
