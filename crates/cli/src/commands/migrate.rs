//! `semel migrate`: the tables and their versions.

use semel_core::Failure;

use super::{connect, database_kind, database_problem, migrate_down};
use crate::args::{DatabaseOption, MigrateCommand};
use crate::exit::{Exit, Problem};
use crate::output::print;
use crate::wiring::{Missing, shown};

const EFFECT: &str = "the tables and their events are as they were";

pub(crate) async fn run(command: &MigrateCommand) -> Result<Exit, Problem> {
    match command {
        MigrateCommand::Up(database) => up(database).await,
        MigrateCommand::Status(database) => status(database).await,
        MigrateCommand::Sql(database) => {
            print(&(database_kind(database, EFFECT)?.schema)());
            Ok(Exit::Done)
        }
        MigrateCommand::Down(options) => migrate_down::run(options).await,
    }
}

async fn up(options: &DatabaseOption) -> Result<Exit, Problem> {
    let database = connect(options, Missing::Create, EFFECT).await?;
    let applied = database.migrate().await.map_err(|failure| problem(options, failure))?;
    for name in &applied {
        print(&format!("applied {name}\n"));
    }
    print("the tables are up to date\n");
    Ok(Exit::Done)
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
