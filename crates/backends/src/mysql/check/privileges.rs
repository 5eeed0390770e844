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
    /// What is missing to be sent the log, and to ask where it ends.
    pub(super) fn lacks_for_log(&self) -> Vec<&'static str> {
        // MariaDB calls the second one by another name.
        let needed: [(&str, &[&str]); 2] = [
            ("REPLICATION SLAVE", &["REPLICATION SLAVE"]),
            ("REPLICATION CLIENT", &["REPLICATION CLIENT", "BINLOG MONITOR", "SUPER"]),
        ];
        let lacks = needed.iter().filter(|(_, names)| !self.has_any(names));
        lacks.map(|(name, _)| *name).collect()
    }

    fn has_any(&self, names: &[&str]) -> bool {
        self.is_global("ALL PRIVILEGES") || names.iter().any(|name| self.is_global(name))
    }

    fn is_global(&self, privilege: &str) -> bool {
        self.lines.iter().any(|line| {
            let line = line.strip_prefix("GRANT ").unwrap_or(line);
            line.split_once(" ON *.* ")
                .is_some_and(|(granted, _)| granted.split(',').any(|one| one.trim() == privilege))
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
    ("semel_outages", "pipeline", ALL),
    ("semel_mapped", "pipeline", ALL),
    ("semel_mapped_parked", "pipeline", ALL),
    ("semel_audit", "pipeline", ALL_BUT_DELETE),
];
const ALL: &[&str] = &["SELECT", "INSERT", "UPDATE", "DELETE"];
const ALL_BUT_DELETE: &[&str] = &["SELECT", "INSERT", "UPDATE"];

/// The only column of a table that it may change, if it may not change all.
fn only_column(table: &str, privilege: &str) -> Option<&'static str> {
    match (table, privilege) {
        ("semel_outbox", "UPDATE") => Some("position"),
        ("semel_audit", "UPDATE") => Some("events"),
        _ => None,
    }
}

/// Asks how statements would be executed, which needs the same privileges and does nothing.
pub(super) async fn missing(pool: &MySqlPool) -> Result<Finding, Failure> {
    const CODE: &str = "privileges";
    let user = grants(pool).await?.user;
    let mut sql = Vec::new();
    for (table, column, privileges) in NEEDED {
        let mut lacks = Vec::new();
        for privilege in *privileges {
            let only = only_column(table, privilege);
            if !may(pool, table, only.unwrap_or(column), privilege).await? {
                lacks.push(match only {
                    Some(column) => format!("{privilege} ({column})"),
                    None => (*privilege).to_owned(),
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
    const DENIED: &str = "42000";
    /// Of newer tables than there are yet: `schema` tells of that.
    const MISSING: &str = "42S02";
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
    match &*code {
        DENIED => Ok(false),
        MISSING => Ok(true),
        _ => Err(failure("look at the privileges")(error)),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn grants(lines: &[&str]) -> Grants {
        let lines = lines.iter().map(|line| (*line).to_owned()).collect();
        Grants { user: "'relay'@'%'".into(), lines }
    }

    #[test]
    fn the_log_needs_two_privileges_by_whatever_name() {
        const SLAVE: &str = "REPLICATION SLAVE";
        const CLIENT: &str = "REPLICATION CLIENT";
        let cases: &[(&[&str], &[&str])] = &[
            (&["GRANT USAGE ON *.* TO `relay`@`%`"], &[SLAVE, CLIENT]),
            (&["GRANT REPLICATION SLAVE ON *.* TO `relay`@`%`"], &[CLIENT]),
            (&["GRANT REPLICATION CLIENT ON *.* TO `relay`@`%`"], &[SLAVE]),
            (&["GRANT BINLOG MONITOR ON *.* TO `relay`@`%`"], &[SLAVE]),
            (&["GRANT SUPER ON *.* TO `relay`@`%`"], &[SLAVE]),
            (&["GRANT REPLICATION SLAVE ADMIN ON *.* TO `relay`@`%`"], &[SLAVE, CLIENT]),
            (&["GRANT BINLOG MONITOR, REPLICATION SLAVE ADMIN ON *.* TO `r`@`%`"], &[SLAVE]),
            (&["GRANT REPLICATION_SLAVE_ADMIN,BINLOG_ADMIN ON *.* TO `r`@`%`"], &[SLAVE, CLIENT]),
            (&["GRANT ALL PRIVILEGES ON `shop`.* TO `relay`@`%`"], &[SLAVE, CLIENT]),
            (&["GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO `relay`@`%`"], &[]),
            (&["GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO `relay`@`%`"], &[]),
            (&["GRANT SUPER, REPLICATION SLAVE ON *.* TO `relay`@`%`"], &[]),
            (&["GRANT ALL PRIVILEGES ON *.* TO `root`@`localhost` WITH GRANT OPTION"], &[]),
            (
                &[
                    "GRANT `semel_tailer` TO `relay`@`%`",
                    "GRANT REPLICATION SLAVE ON *.* TO `relay`@`%`",
                    "GRANT BINLOG MONITOR ON *.* TO `semel_tailer`",
                ],
                &[],
            ),
        ];
        for (lines, lacks) in cases {
            assert_eq!(grants(lines).lacks_for_log(), *lacks, "{lines:?}");
        }
    }

    /// What `semel check` asks for on single columns is what `semel grants` gives.
    #[test]
    fn columns_are_granted_as_they_are_asked_for() {
        let granted = crate::mysql::grants_sql("semel").unwrap();
        for (table, _, privileges) in NEEDED {
            for column in privileges.iter().filter_map(|one| only_column(table, one)) {
                let on = |line: &&str| line.contains(&format!("ON {table} TO `semel_poller`"));
                let line = granted.lines().find(on).unwrap();
                assert!(line.contains(&format!("UPDATE ({column})")), "{line}");
            }
        }
    }
}
