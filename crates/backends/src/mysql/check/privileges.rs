//! What the user may do: enough for a relay, and not more.

use semel_core::Failure;
use semel_core::diagnosis::Finding;
use sqlx::error::DatabaseError;
use sqlx::{AssertSqlSafe, MySqlPool, Row};

use super::super::error::failure;

/// What was granted to the user, and to the roles it has now.
pub(super) struct Grants {
    /// As it is written in SQL.
    pub(super) user: String,
    lines: Vec<String>,
}

impl Grants {
    pub(super) fn may_replicate(&self) -> bool {
        self.is_global("ALL PRIVILEGES") || self.is_global("REPLICATION SLAVE")
    }

    fn is_global(&self, privilege: &str) -> bool {
        self.lines.iter().any(|line| {
            line.split_once(" ON *.* ").is_some_and(|(granted, _)| granted.contains(privilege))
        })
    }
}

pub(super) async fn grants(pool: &MySqlPool) -> Result<Grants, Failure> {
    let failed = || failure("look at the grants");
    let user: String =
        sqlx::query_scalar("SELECT CURRENT_USER()").fetch_one(pool).await.map_err(failed())?;
    let (name, host) = user.rsplit_once('@').unwrap_or((&user, "%"));
    let quoted = |text: &str| format!("'{}'", text.replace('\\', "\\\\").replace('\'', "''"));
    let user = format!("{}@{}", quoted(name), quoted(host));
    let rows = sqlx::raw_sql("SHOW GRANTS").fetch_all(pool).await.map_err(failed())?;
    let lines = rows.iter().filter_map(|row| row.try_get_unchecked(0).ok()).collect();
    Ok(Grants { user, lines })
}

/// What the role `poller` of `semel grants` may do, and a column to ask about.
const NEEDED: &[(&str, &str, &[&str])] = &[
    ("semel_migrations", "version", &["SELECT"]),
    ("semel_outbox", "position", &["SELECT", "UPDATE", "DELETE"]),
    ("semel_counter", "last", &["SELECT", "UPDATE"]),
    ("semel_cursor", "pipeline", ALL),
    ("semel_progress", "pipeline", ALL),
    ("semel_parked", "pipeline", ALL),
    ("semel_member", "pipeline", ALL),
    ("semel_share", "pipeline", ALL),
    ("semel_mapped", "pipeline", ALL),
    ("semel_mapped_parked", "pipeline", ALL),
    ("semel_audit", "pipeline", &["SELECT", "INSERT"]),
];
const ALL: &[&str] = &["SELECT", "INSERT", "UPDATE", "DELETE"];

/// Asks how statements would be executed, which needs the same privileges and does nothing.
pub(super) async fn missing(pool: &MySqlPool) -> Result<Finding, Failure> {
    const CODE: &str = "privileges";
    let user = grants(pool).await?.user;
    let mut sql = Vec::new();
    for (table, column, privileges) in NEEDED {
        let mut lacks = Vec::new();
        for privilege in *privileges {
            if !may(pool, table, column, privilege).await? {
                lacks.push(match (*table, *privilege) {
                    ("semel_outbox", "UPDATE") => "UPDATE (position)",
                    _ => privilege,
                });
            }
        }
        if !lacks.is_empty() {
            sql.push(format!("GRANT {} ON {table} TO {user};", lacks.join(", ")));
        }
    }
    if sql.is_empty() {
        return Ok(Finding::good(CODE, format!("{user} may do all that a relay does")));
    }
    Ok(Finding::problem(
        CODE,
        format!("{user} lacks privileges of a relay on {} tables", sql.len()),
    )
    .means("the relay stops where it needs them; events wait in the outbox")
    .fixed_by("or grant the role poller of `semel grants`, which has them all")
    .with_sql(sql.join("\n")))
}

async fn may(
    pool: &MySqlPool,
    table: &str,
    column: &str,
    privilege: &str,
) -> Result<bool, Failure> {
    const DENIED: [&str; 1] = ["42000"];
    let sql = match privilege {
        "SELECT" => format!("EXPLAIN SELECT * FROM {table}"),
        "INSERT" => format!("EXPLAIN INSERT INTO {table} ({column}) VALUES ('')"),
        "UPDATE" => format!("EXPLAIN UPDATE {table} SET {column} = 0 WHERE FALSE"),
        _ => format!("EXPLAIN DELETE FROM {table} WHERE FALSE"),
    };
    let Err(error) = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(pool).await else {
        return Ok(true);
    };
    let code = error.as_database_error().and_then(DatabaseError::code).unwrap_or_default();
    if DENIED.contains(&&*code) { Ok(false) } else { Err(failure("look at the privileges")(error)) }
}

pub(super) fn excess(grants: &Grants) -> Finding {
    const CODE: &str = "excess";
    let user = &grants.user;
    if !grants.is_global("ALL PRIVILEGES") && !grants.is_global("SUPER") {
        return Finding::good(CODE, format!("{user} is no administrator"));
    }
    Finding::advice(CODE, format!("{user} may do everything on the whole server"))
        .means("whoever takes over the relay can change or remove what was to be published")
        .fixed_by("connect as a user with a role of `semel grants`")
}
