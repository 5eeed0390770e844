//! The tables and their versions.

use semel_core::Failure;
use sqlx::{SqliteConnection, SqlitePool};

use super::error::{failure, schema_missing};

/// Every version of the tables, in order.
const MIGRATIONS: &[Migration] =
    &[Migration { name: "0001_tables", sql: include_str!("migrations/0001_tables.sql") }];

const VERSION_TABLE: &str = "CREATE TABLE IF NOT EXISTS semel_migrations (
    version    INTEGER PRIMARY KEY,
    name       TEXT NOT NULL,
    applied_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
) STRICT";

struct Migration {
    name: &'static str,
    sql: &'static str,
}

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
/// assert_eq!(migrate(&pool).await?, ["0001_tables"]);
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub async fn migrate(pool: &SqlitePool) -> Result<Vec<&'static str>, Failure> {
    let failed = || failure("migrate the tables");
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.map_err(failed())?;
    let present = version(&mut tx).await?;
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

/// Which version of the tables is there, and which one this program needs.
///
/// ```
/// # use semel_backends::sqlite::SchemaStatus;
/// let status = SchemaStatus { present: 0, latest: 1, missing: vec!["0001_tables"] };
/// assert!(!status.is_current());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaStatus {
    /// The version that is there; 0 when there are no tables.
    pub present: usize,
    /// The version of this program.
    pub latest: usize,
    /// The migrations that are missing.
    pub missing: Vec<&'static str>,
}

impl SchemaStatus {
    /// Whether this program can work with the tables.
    #[must_use]
    pub const fn is_current(&self) -> bool {
        self.present == self.latest
    }
}

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
/// assert_eq!(status(&pool).await?.missing, ["0001_tables"]);
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
pub async fn status(pool: &SqlitePool) -> Result<SchemaStatus, Failure> {
    let mut connection = pool.acquire().await.map_err(failure("read the schema version"))?;
    let present = version(&mut connection).await?;
    let missing = MIGRATIONS.iter().skip(present).map(|migration| migration.name).collect();
    Ok(SchemaStatus { present, latest: MIGRATIONS.len(), missing })
}

/// The whole schema as SQL, for a migration tool of your own.
///
/// ```
/// # use semel_backends::sqlite::schema_sql;
/// assert!(schema_sql().contains("CREATE TABLE semel_outbox"));
/// ```
#[must_use]
pub fn schema_sql() -> String {
    let mut sql = format!("{VERSION_TABLE};\n\n");
    for (number, Migration { name, sql: migration }) in (1..).zip(MIGRATIONS) {
        sql += migration;
        sql += &format!(
            "\nINSERT INTO semel_migrations (version, name) VALUES ({number}, '{name}');\n"
        );
    }
    sql
}

/// Refuses tables that this version cannot work with.
pub(super) async fn check(pool: &SqlitePool) -> Result<(), Failure> {
    let mut connection = pool.acquire().await.map_err(failure("read the schema version"))?;
    let present = version(&mut connection).await?;
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

/// The version that is there; 0 when there are no tables.
async fn version(connection: &mut SqliteConnection) -> Result<usize, Failure> {
    let failed = || failure("read the schema version");
    let migrated: bool = sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'semel_migrations')",
    )
    .fetch_one(&mut *connection)
    .await
    .map_err(failed())?;
    if !migrated {
        return Ok(0);
    }
    let version: i64 = sqlx::query_scalar("SELECT coalesce(max(version), 0) FROM semel_migrations")
        .fetch_one(connection)
        .await
        .map_err(failed())?;
    Ok(usize::try_from(version).unwrap_or(0))
}

fn refuse_newer(present: usize) -> Result<(), Failure> {
    if present <= MIGRATIONS.len() {
        return Ok(());
    }
    Err(Failure::misconfigured(
        "E-SCHEMA-NEWER",
        format!(
            "SQLite: the tables have version {present}, this semel knows up to {}",
            MIGRATIONS.len()
        ),
    )
    .with_fix("use the semel that migrated this file, or a later one"))
}

fn stored(version: usize) -> i64 {
    i64::try_from(version).unwrap_or(i64::MAX)
}
