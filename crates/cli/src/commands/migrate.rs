//! `semel migrate`: the tables and their versions.

use semel_core::Failure;

use crate::args::{DatabaseOption, MigrateCommand};
use crate::exit::{Exit, Problem};
use crate::output::print;
use crate::wiring::{Database, DatabaseKind, Missing, shown};

pub(crate) async fn run(command: &MigrateCommand) -> Result<Exit, Problem> {
    match command {
        MigrateCommand::Up(database) => up(database).await,
        MigrateCommand::Status(database) => status(database).await,
        MigrateCommand::Sql(database) => {
            print(&(kind(database)?.schema)());
            Ok(Exit::Done)
        }
    }
}

async fn up(options: &DatabaseOption) -> Result<Exit, Problem> {
    let database = connect(options, Missing::Create).await?;
    let applied = database.migrate().await.map_err(|failure| problem(options, failure))?;
    for name in &applied {
        print(&format!("applied {name}\n"));
    }
    print("the tables are up to date\n");
    Ok(Exit::Done)
}

async fn status(options: &DatabaseOption) -> Result<Exit, Problem> {
    let database = connect(options, Missing::Refuse).await?;
    let missing =
        database.missing_migrations().await.map_err(|failure| problem(options, failure))?;
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

async fn connect(options: &DatabaseOption, missing: Missing) -> Result<Box<dyn Database>, Problem> {
    let connected = (kind(options)?.connect)(options.url.clone(), missing).await;
    connected.map_err(|failure| problem(options, failure))
}

fn kind(options: &DatabaseOption) -> Result<&'static DatabaseKind, Problem> {
    DatabaseKind::of_url(&options.url).map_err(|why| {
        let fix = "give --database a URL such as sqlite://shop.db";
        problem(options, Failure::misconfigured("E-DATABASE-URL", why).with_fix(fix))
    })
}

fn problem(options: &DatabaseOption, failure: Failure) -> Problem {
    let effect = "the tables and their events are as they were";
    Problem::new(failure, shown(&options.url), effect)
}
