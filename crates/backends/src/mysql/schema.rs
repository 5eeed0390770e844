//! The tables and their versions.

use semel_core::Failure;
use sqlx::{AssertSqlSafe, MySqlConnection, MySqlPool};

use super::error::{failure, schema_missing};
use super::store::MysqlStore;
use crate::versions::{self, Migration, Versions, define_schema_status, down_sql, up_sql};

/// Every version of the tables, in order. MySQL commits after each statement that changes a table,
/// so every statement here can be repeated after a crash in the middle.
const MIGRATIONS: &[Migration] = &[
    Migration {
        name: "0001_tables",
        sql: include_str!("migrations/0001_tables.sql"),
        down: include_str!("migrations/0001_tables.down.sql"),
    },
    Migration {
        name: "0002_consumers",
        sql: include_str!("migrations/0002_consumers.sql"),
        down: include_str!("migrations/0002_consumers.down.sql"),
    },
    Migration {
        name: "0003_polling_beside_0002",
        sql: include_str!("migrations/0003_polling_beside_0002.sql"),
        down: include_str!("migrations/0003_polling_beside_0002.down.sql"),
    },
    Migration {
        name: "0004_outages_beside_0002",
        sql: include_str!("migrations/0004_outages_beside_0002.sql"),
        down: include_str!("migrations/0004_outages_beside_0002.down.sql"),
    },
];

const OUTBOX: &str = "semel_outbox";
const LETTERS: &str = "semel_letters";

const VERSION_TABLE: &str = "CREATE TABLE IF NOT EXISTS semel_migrations (
    version    INT UNSIGNED NOT NULL PRIMARY KEY,
    name       VARCHAR(100) NOT NULL,
    applied_at DATETIME(6) NOT NULL DEFAULT (utc_timestamp(6))
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4";

/// Notes a migration, before its values.
const NOTE: &str = "INSERT INTO semel_migrations (version, name) VALUES";

/// Creates the tables, or brings them up to date; says which migrations were applied.
///
/// Safe on live tables and safe to repeat; of two that migrate at once the second waits.
///
/// # Errors
/// `Misconfigured` when the tables were made by a newer semel, `Unavailable` when somebody else is
/// migrating for longer than a minute.
///
/// ```no_run
/// use semel_backends::mysql::{MySqlPool, migrate};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = MySqlPool::connect("mysql://shop:secret@localhost/shop").await?;
/// assert_eq!(migrate(&pool).await?.last(), Some(&"0004_outages_beside_0002"));
/// # Ok(()) }
/// ```
pub async fn migrate(pool: &MySqlPool) -> Result<Vec<&'static str>, Failure> {
    // Its own connection, closed in the end: the lock belongs to it, whatever happens here.
    let mut connection = pool.acquire().await.map_err(failure("migrate the tables"))?.detach();
    lock(&mut connection).await?;
    migrate_on(&mut connection).await
}

async fn migrate_on(connection: &mut MySqlConnection) -> Result<Vec<&'static str>, Failure> {
    let failed = || failure("migrate the tables");
    sqlx::raw_sql(VERSION_TABLE).execute(&mut *connection).await.map_err(failed())?;
    let present = versions(connection).await?.usable;
    refuse_newer(present)?;
    let missing = &MIGRATIONS[present..];
    for (number, migration) in (present + 1..).zip(missing) {
        sqlx::raw_sql(migration.sql).execute(&mut *connection).await.map_err(failed())?;
        sqlx::query("INSERT INTO semel_migrations (version, name) VALUES (?, ?)")
            .bind(stored(number))
            .bind(migration.name)
            .execute(&mut *connection)
            .await
            .map_err(failed())?;
    }
    Ok(missing.iter().map(|migration| migration.name).collect())
}

define_schema_status!("mysql");

/// Looks which version of the tables is there. Changes nothing.
///
/// # Errors
/// `Unavailable` when the server cannot be reached.
///
/// ```no_run
/// # use semel_backends::mysql::{MySqlPool, status};
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = MySqlPool::connect("mysql://shop:secret@localhost/shop").await?;
/// println!("{} migrations to apply", status(&pool).await?.missing.len());
/// # Ok(()) }
/// ```
pub async fn status(pool: &MySqlPool) -> Result<SchemaStatus, Failure> {
    let mut connection = pool.acquire().await.map_err(failure("read the schema version"))?;
    // Not by a look at the list of tables: it leaves out what the user has no privileges for.
    let versions = match versions(&mut connection).await {
        Err(failure) if failure.code() == "E-SCHEMA-MISSING" => Versions::NONE,
        versions => versions?,
    };
    Ok(SchemaStatus::of(versions.usable))
}

/// The whole schema as SQL, for a migration tool of your own.
///
/// ```
/// # use semel_backends::mysql::schema_sql;
/// assert!(schema_sql().contains("CREATE TABLE IF NOT EXISTS semel_outbox"));
/// ```
#[must_use]
pub fn schema_sql() -> String {
    format!("{VERSION_TABLE};\n\n") + &up_sql(MIGRATIONS, NOTE)
}

/// What takes the whole schema away again, as SQL.
///
/// ```
/// # use semel_backends::mysql::drop_sql;
/// assert!(drop_sql().ends_with("DROP TABLE IF EXISTS semel_migrations;\n"));
/// ```
#[must_use]
pub fn drop_sql() -> String {
    down_sql(MIGRATIONS, "DROP TABLE IF EXISTS semel_migrations;\n")
}

impl MysqlStore {
    /// Which version of the tables is there, and which one this program needs.
    ///
    /// # Errors
    /// See [`status`](super::status).
    pub async fn status(&self) -> Result<SchemaStatus, Failure> {
        status(self.pool()).await
    }

    /// The pipelines that have ever read this outbox.
    ///
    /// # Errors
    /// `Misconfigured` when there are no tables.
    pub async fn pipelines(&self) -> Result<Vec<String>, Failure> {
        sqlx::query_scalar("SELECT DISTINCT pipeline FROM semel_cursor ORDER BY pipeline")
            .fetch_all(self.pool())
            .await
            .map_err(failure("read the pipelines"))
    }

    /// How many events there are, in whatever state.
    ///
    /// # Errors
    /// `Misconfigured` when there are no tables.
    pub async fn count_events(&self) -> Result<u64, Failure> {
        let mut connection = self.pool().acquire().await.map_err(failure("count events"))?;
        count_rows(&mut connection, OUTBOX).await
    }

    /// How many letters consumers have left: messages that are nowhere else, dead ones and those that
    /// wait behind them.
    ///
    /// # Errors
    /// `Misconfigured` when the user may not read them.
    pub async fn count_letters(&self) -> Result<u64, Failure> {
        let mut connection = self.pool().acquire().await.map_err(failure("count letters"))?;
        // Tables of before have none.
        let are_there = exists(&mut connection, LETTERS).await?;
        if are_there { count_rows(&mut connection, LETTERS).await } else { Ok(0) }
    }

    /// Drops the tables **and all events in them**, unless there are more than `at_most` by now, or
    /// consumers have left letters: whoever looked before learns that something was written since.
    /// Events and letters go first, under a lock; after a crash in the middle it can be repeated. Does
    /// nothing when there are no tables.
    ///
    /// # Errors
    /// `Refused` when there is more to be lost, `Transient` when the tables stay in use for ten
    /// seconds, `Misconfigured` when they are of a newer semel.
    pub async fn drop_tables(&self, at_most: Option<u64>) -> Result<(), Failure> {
        let failed = || failure("drop the tables");
        // Its own connection, closed in the end with all locks.
        let mut connection = self.pool().acquire().await.map_err(failed())?.detach();
        lock(&mut connection).await?;
        if !exists(&mut connection, "semel_migrations").await? {
            return Ok(());
        }
        // What later ones have made, only they can take away.
        refuse_newer(versions(&mut connection).await?.newest)?;
        let wait = "SET SESSION lock_wait_timeout = 10";
        sqlx::raw_sql(wait).execute(&mut connection).await.map_err(failed())?;
        drop_events(&mut connection, at_most).await?;
        let rest = sqlx::raw_sql(AssertSqlSafe(drop_sql())).execute(&mut connection).await;
        rest.map(drop).map_err(failed())
    }
}

/// What is in them may be nowhere else.
async fn drop_events(
    connection: &mut MySqlConnection,
    at_most: Option<u64>,
) -> Result<(), Failure> {
    let failed = || failure("drop the tables");
    let mut present = Vec::new();
    for (table, most) in [(OUTBOX, at_most), (LETTERS, at_most.map(|_| 0))] {
        if exists(connection, table).await? {
            present.push((table, most));
        }
    }
    if present.is_empty() {
        return Ok(());
    }
    let list = |end: &str| -> String {
        let each: Vec<_> = present.iter().map(|(table, _)| format!("{table}{end}")).collect();
        each.join(", ")
    };
    let lock = AssertSqlSafe(format!("LOCK TABLES {}", list(" WRITE")));
    sqlx::raw_sql(lock).execute(&mut *connection).await.map_err(failed())?;
    for (table, most) in &present {
        if let Some(most) = most
            && count_rows(connection, table).await? > *most
        {
            return Err(versions::written_meanwhile("MySQL"));
        }
    }
    let drop_and_unlock = AssertSqlSafe(format!("DROP TABLE {}; UNLOCK TABLES", list("")));
    sqlx::raw_sql(drop_and_unlock).execute(connection).await.map(drop).map_err(failed())
}

async fn count_rows(connection: &mut MySqlConnection, table: &str) -> Result<u64, Failure> {
    let count = AssertSqlSafe(format!("SELECT count(*) FROM {table}"));
    let count: i64 = sqlx::query_scalar(count)
        .fetch_one(connection)
        .await
        .map_err(failure("count what is in the tables"))?;
    Ok(count.unsigned_abs())
}

async fn exists(connection: &mut MySqlConnection, table: &str) -> Result<bool, Failure> {
    let count: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM information_schema.tables \
         WHERE table_schema = database() AND table_name = ?",
    )
    .bind(table)
    .fetch_one(connection)
    .await
    .map_err(failure("look for the tables"))?;
    Ok(count > 0)
}

/// Refuses tables that this version cannot work with.
pub(super) async fn check(connection: &mut MySqlConnection) -> Result<(), Failure> {
    let present = versions(connection).await?.usable;
    refuse_newer(present)?;
    if present < MIGRATIONS.len() {
        return Err(schema_missing(format!(
            "MySQL: the tables have version {present}, this semel needs {}",
            MIGRATIONS.len()
        )));
    }
    Ok(())
}

/// One migration at a time in this database.
async fn lock(connection: &mut MySqlConnection) -> Result<(), Failure> {
    let locked: Option<i64> = sqlx::query_scalar(
        "SELECT get_lock(concat('semel_', left(sha2(database(), 256), 40)), 60)",
    )
    .fetch_one(connection)
    .await
    .map_err(failure("migrate the tables"))?;
    if locked == Some(1) {
        return Ok(());
    }
    Err(Failure::unavailable("E-MYSQL-BUSY", "MySQL: somebody else is migrating the tables")
        .with_fix("look for another `semel migrate` in SHOW PROCESSLIST, and try again"))
}

async fn versions(connection: &mut MySqlConnection) -> Result<Versions, Failure> {
    let applied: Vec<(u32, String)> = sqlx::query_as("SELECT version, name FROM semel_migrations")
        .fetch_all(connection)
        .await
        .map_err(failure("read the schema version"))?;
    let numbered = |(version, name)| (usize::try_from(version).unwrap_or(usize::MAX), name);
    Ok(Versions::of(applied.into_iter().map(numbered), MIGRATIONS.len()))
}

fn refuse_newer(present: usize) -> Result<(), Failure> {
    versions::refuse_newer("MySQL", "database", present, MIGRATIONS)
}

fn stored(version: usize) -> u32 {
    u32::try_from(version).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_created_is_dropped() {
        versions::assert_all_tables_are_dropped(&schema_sql(), &drop_sql());
    }
}
