//! The tables and their versions.

use semel_core::Failure;
use sqlx::{MySqlConnection, MySqlPool};

use super::error::{failure, schema_missing};

/// Every version of the tables, in order. MySQL commits after each statement that changes a table,
/// so every statement here can be repeated after a crash in the middle.
const MIGRATIONS: &[Migration] =
    &[Migration { name: "0001_tables", sql: include_str!("migrations/0001_tables.sql") }];

const VERSION_TABLE: &str = "CREATE TABLE IF NOT EXISTS semel_migrations (
    version    INT UNSIGNED NOT NULL PRIMARY KEY,
    name       VARCHAR(100) NOT NULL,
    applied_at DATETIME(6) NOT NULL DEFAULT (utc_timestamp(6))
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4";

struct Migration {
    name: &'static str,
    sql: &'static str,
}

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
/// assert_eq!(migrate(&pool).await?, ["0001_tables"]);
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
    let present = version(connection).await?;
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

/// The whole schema as SQL, for a migration tool of your own.
///
/// ```
/// # use semel_backends::mysql::schema_sql;
/// assert!(schema_sql().contains("CREATE TABLE IF NOT EXISTS semel_outbox"));
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
pub(super) async fn check(connection: &mut MySqlConnection) -> Result<(), Failure> {
    let present = version(connection).await?;
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
    let locked: Option<i64> =
        sqlx::query_scalar("SELECT get_lock(concat('semel_', sha1(database())), 60)")
            .fetch_one(connection)
            .await
            .map_err(failure("migrate the tables"))?;
    if locked == Some(1) {
        return Ok(());
    }
    Err(Failure::unavailable("E-MYSQL-BUSY", "MySQL: somebody else is migrating the tables")
        .with_fix("look for another `semel migrate` in SHOW PROCESSLIST, and try again"))
}

async fn version(connection: &mut MySqlConnection) -> Result<usize, Failure> {
    let version: u32 = sqlx::query_scalar(
        "SELECT cast(coalesce(max(version), 0) AS UNSIGNED) FROM semel_migrations",
    )
    .fetch_one(connection)
    .await
    .map_err(failure("read the schema version"))?;
    Ok(usize::try_from(version).unwrap_or(usize::MAX))
}

fn refuse_newer(present: usize) -> Result<(), Failure> {
    if present <= MIGRATIONS.len() {
        return Ok(());
    }
    Err(Failure::misconfigured(
        "E-SCHEMA-NEWER",
        format!(
            "MySQL: the tables have version {present}, this semel knows up to {}",
            MIGRATIONS.len()
        ),
    )
    .with_fix("use the semel that migrated this database, or a later one"))
}

fn stored(version: usize) -> u32 {
    u32::try_from(version).unwrap_or(u32::MAX)
}
