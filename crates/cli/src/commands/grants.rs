//! `semel grants`: roles with least privileges, as SQL.

use super::{connect, database_kind, database_problem};
use crate::args::{DatabaseOption, GrantsOptions};
use crate::exit::{Exit, Problem};
use crate::output::print;
use crate::wiring::Missing;

const EFFECT: &str = "nothing was granted, nothing was changed";

pub(crate) async fn run(options: &GrantsOptions) -> Result<Exit, Problem> {
    let kind = match (&options.kind, &options.url) {
        (Some(kind), _) => *kind,
        (None, url) => {
            let database = DatabaseOption { url: url.clone().unwrap_or_default() };
            let kind = database_kind(&database, EFFECT)?;
            check_tables(&database).await?;
            kind
        }
    };
    let sql = (kind.grants)(&options.prefix)
        .map_err(|failure| Problem::new(failure, "--role", EFFECT).of_usage())?;
    print(&sql);
    Ok(Exit::Done)
}

/// Privileges are granted on tables that exist.
async fn check_tables(options: &DatabaseOption) -> Result<(), Problem> {
    let problem = |failure| database_problem(options, failure, EFFECT);
    let database = connect(options, Missing::Refuse, EFFECT).await?;
    database.tables().await.and_then(|tables| tables.check()).map_err(problem)
}
