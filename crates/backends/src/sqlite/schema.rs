//! The tables and their versions.

use semel_core::Failure;
use sqlx::{AssertSqlSafe, SqliteConnection, SqlitePool};

use super::error::{failure, schema_missing};
use super::store::SqliteStore;
use crate::versions::{self, Migration, Versions, define_schema_status, down_sql, up_sql};

/// Every version of the tables, in order.
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
        name: "0003_outages_beside_0002",
        sql: include_str!("migrations/0003_outages_beside_0002.sql"),
        down: include_str!("migrations/0003_outages_beside_0002.down.sql"),
    },
];

/// The version from which on consumers leave letters.
const WITH_LETTERS: usize = 2;

const VERSION_TABLE: &str = "CREATE TABLE IF NOT EXISTS semel_migrations (
    version    INTEGER PRIMARY KEY,
    name       TEXT NOT NULL,
    applied_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
) STRICT";

/// Notes a migration, before its values.
const NOTE: &str = "INSERT INTO semel_migrations (version, name) VALUES";

/// Creates the tables, or brings them up to date; says which migrations were applied.
///
/// Safe on a live file and safe to repeat: all missing migrations are one transaction.
///
/// # Errors
/// `Misconfigured` when the tables were made by a newer semel.
///
/// ```
/// use semel_backends::sqlite::{SqlitePool, migrate};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// # let folder = tempfile::tempdir()?;
/// # let url = format!("sqlite://{}/shop.db?mode=rwc", folder.path().display());
/// let pool = SqlitePool::connect(&url).await?;
/// assert_eq!(migrate(&pool).await?.first(), Some(&"0001_tables"));
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub async fn migrate(pool: &SqlitePool) -> Result<Vec<&'static str>, Failure> {
    let failed = || failure("migrate the tables");
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.map_err(failed())?;
    let present = versions(&mut tx).await?.usable;
    refuse_newer(present)?;
    let missing = &MIGRATIONS[present..];
    if !missing.is_empty() {
        sqlx::raw_sql(VERSION_TABLE).execute(&mut *tx).await.map_err(failed())?;
    }
    for (number, migration) in (present + 1..).zip(missing) {
        sqlx::raw_sql(migration.sql).execute(&mut *tx).await.map_err(failed())?;
        sqlx::query("INSERT INTO semel_migrations (version, name) VALUES (?1, ?2)")
            .bind(stored(number))
            .bind(migration.name)
            .execute(&mut *tx)
            .await
            .map_err(failed())?;
    }
    tx.commit().await.map_err(failed())?;
    Ok(missing.iter().map(|migration| migration.name).collect())
}

define_schema_status!("sqlite");

/// Looks which version of the tables is there. Changes nothing.
///
/// # Errors
/// `Unavailable` when the file is locked.
///
/// ```
/// use semel_backends::sqlite::{SqlitePool, status};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// # let folder = tempfile::tempdir()?;
/// # let url = format!("sqlite://{}/shop.db?mode=rwc", folder.path().display());
/// let pool = SqlitePool::connect(&url).await?;
/// assert_eq!(status(&pool).await?.missing.first(), Some(&"0001_tables"));
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub async fn status(pool: &SqlitePool) -> Result<SchemaStatus, Failure> {
    let mut connection = pool.acquire().await.map_err(failure("read the schema version"))?;
    Ok(SchemaStatus::of(versions(&mut connection).await?.usable))
}

/// The whole schema as SQL, for a migration tool of your own.
///
/// ```
/// # use semel_backends::sqlite::schema_sql;
/// assert!(schema_sql().contains("CREATE TABLE semel_outbox"));
/// ```
#[must_use]
pub fn schema_sql() -> String {
    format!("{VERSION_TABLE};\n\n") + &up_sql(MIGRATIONS, NOTE)
}

/// What takes the whole schema away again, as SQL.
///
/// ```
/// # use semel_backends::sqlite::drop_sql;
/// assert!(drop_sql().ends_with("DROP TABLE semel_migrations;\n"));
/// ```
#[must_use]
pub fn drop_sql() -> String {
    drop_sql_of(MIGRATIONS)
}

fn drop_sql_of(applied: &[Migration]) -> String {
    down_sql(applied, "DROP TABLE semel_migrations;\n")
}

impl SqliteStore {
    /// The pipelines that have ever read this outbox.
    ///
    /// # Errors
    /// `Misconfigured` when there are no tables.
    pub async fn pipelines(&self) -> Result<Vec<String>, Failure> {
        sqlx::query_scalar("SELECT pipeline FROM semel_cursor ORDER BY pipeline")
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
        count_events(&mut connection).await
    }

    /// How many letters consumers have left: messages that are nowhere else, dead ones and those that
    /// wait behind them.
    ///
    /// # Errors
    /// `Unavailable` when the file is locked.
    pub async fn count_letters(&self) -> Result<u64, Failure> {
        let mut connection = self.pool().acquire().await.map_err(failure("count letters"))?;
        count_letters(&mut connection).await
    }

    /// Drops the tables **and all events in them**, unless there are more than `at_most` by now, or
    /// consumers have left letters: whoever looked before learns that something was written since. One
    /// transaction; does nothing when there are no tables.
    ///
    /// # Errors
    /// `Refused` when there is more to be lost, `Unavailable` when the file stays locked,
    /// `Misconfigured` when the tables are of a newer semel.
    pub async fn drop_tables(&self, at_most: Option<u64>) -> Result<(), Failure> {
        let failed = || failure("drop the tables");
        let mut tx = self.begin().await?;
        // What later ones have made, only they can take away.
        let present = versions(&mut tx).await?.newest;
        refuse_newer(present)?;
        if present == 0 {
            return Ok(());
        }
        if let Some(most) = at_most
            && (count_events(&mut tx).await? > most || count_letters(&mut tx).await? > 0)
        {
            return Err(versions::written_meanwhile("SQLite"));
        }
        let sql = drop_sql_of(&MIGRATIONS[..present]);
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *tx).await.map_err(failed())?;
        tx.commit().await.map_err(failed())
    }
}

async fn count_letters(connection: &mut SqliteConnection) -> Result<u64, Failure> {
    if versions(connection).await?.newest < WITH_LETTERS {
        return Ok(0);
    }
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM semel_letters")
        .fetch_one(connection)
        .await
        .map_err(failure("count letters"))?;
    Ok(count.unsigned_abs())
}

async fn count_events(connection: &mut SqliteConnection) -> Result<u64, Failure> {
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM semel_outbox")
        .fetch_one(connection)
        .await
        .map_err(failure("count events"))?;
    Ok(count.unsigned_abs())
}

/// Refuses tables that this version cannot work with.
pub(super) async fn check(pool: &SqlitePool) -> Result<(), Failure> {
    let mut connection = pool.acquire().await.map_err(failure("read the schema version"))?;
    let present = versions(&mut connection).await?.usable;
    refuse_newer(present)?;
    if present < MIGRATIONS.len() {
        let latest = MIGRATIONS.len();
        return Err(schema_missing(match present {
            0 => "SQLite: the file has no tables of semel".into(),
            _ => format!("SQLite: the tables have version {present}, this semel needs {latest}"),
        }));
    }
    Ok(())
}

async fn versions(connection: &mut SqliteConnection) -> Result<Versions, Failure> {
    let failed = || failure("read the schema version");
    let migrated: bool = sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'semel_migrations')",
    )
    .fetch_one(&mut *connection)
    .await
    .map_err(failed())?;
    if !migrated {
        return Ok(Versions::NONE);
    }
    let applied: Vec<(i64, String)> = sqlx::query_as("SELECT version, name FROM semel_migrations")
        .fetch_all(connection)
        .await
        .map_err(failed())?;
    let numbered = |(version, name)| (usize::try_from(version).unwrap_or(0), name);
    Ok(Versions::of(applied.into_iter().map(numbered), MIGRATIONS.len()))
}

fn refuse_newer(present: usize) -> Result<(), Failure> {
    versions::refuse_newer("SQLite", "file", present, MIGRATIONS)
}

fn stored(version: usize) -> i64 {
    i64::try_from(version).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_created_is_dropped() {
        versions::assert_all_tables_are_dropped(&schema_sql(), &drop_sql());
    }
}
