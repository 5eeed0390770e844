//! The tables and their versions.

use semel_core::Failure;
use sqlx::{PgConnection, PgPool};

use super::error::{failure, schema_missing};

/// Every version of the tables, in order.
const MIGRATIONS: &[Migration] =
    &[Migration { name: "0001_tables", sql: include_str!("migrations/0001_tables.sql") }];

const VERSION_TABLE: &str = "create schema if not exists semel;

create table if not exists semel.migrations (
    version    integer primary key,
    name       text not null,
    applied_at timestamptz not null default now()
);";

/// "semel" in ASCII: two programs that migrate the same database do it one after the other.
const LOCK: i64 = 0x73_65_6d_65_6c;

struct Migration {
    name: &'static str,
    sql: &'static str,
}

/// Creates the tables, or brings them up to date; says which migrations were applied.
///
/// Safe on a live database and safe to repeat: all missing migrations are one transaction, under an
/// advisory lock.
///
/// # Errors
/// `Misconfigured` when the tables were made by a newer semel, or the user may not create them.
///
/// ```no_run
/// use semel_backends::postgres::{PgPool, migrate};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = PgPool::connect("postgres://localhost/shop").await?;
/// for name in migrate(&pool).await? {
///     println!("applied {name}");
/// }
/// # Ok(()) }
/// ```
pub async fn migrate(pool: &PgPool) -> Result<Vec<&'static str>, Failure> {
    let failed = || failure("migrate the tables");
    let mut tx = pool.begin().await.map_err(failed())?;
    sqlx::query("select pg_advisory_xact_lock($1)")
        .bind(LOCK)
        .execute(&mut *tx)
        .await
        .map_err(failed())?;
    let present = version(&mut tx).await?;
    refuse_newer(present)?;
    let missing = &MIGRATIONS[present..];
    if !missing.is_empty() {
        sqlx::raw_sql(VERSION_TABLE).execute(&mut *tx).await.map_err(failed())?;
    }
    for (number, migration) in (present + 1..).zip(missing) {
        sqlx::raw_sql(migration.sql).execute(&mut *tx).await.map_err(failed())?;
        sqlx::query("insert into semel.migrations (version, name) values ($1, $2)")
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
/// # use semel_backends::postgres::SchemaStatus;
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
/// `Unavailable` when the server cannot be reached.
///
/// ```no_run
/// # use semel_backends::postgres::{PgPool, status};
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = PgPool::connect("postgres://localhost/shop").await?;
/// println!("{} migrations to apply", status(&pool).await?.missing.len());
/// # Ok(()) }
/// ```
pub async fn status(pool: &PgPool) -> Result<SchemaStatus, Failure> {
    let mut connection = pool.acquire().await.map_err(failure("read the schema version"))?;
    let present = version(&mut connection).await?;
    let missing = MIGRATIONS.iter().skip(present).map(|migration| migration.name).collect();
    Ok(SchemaStatus { present, latest: MIGRATIONS.len(), missing })
}

/// The whole schema as SQL, for a migration tool of your own.
///
/// ```
/// # use semel_backends::postgres::schema_sql;
/// assert!(schema_sql().contains("create table semel.outbox"));
/// ```
#[must_use]
pub fn schema_sql() -> String {
    let mut sql = format!("{VERSION_TABLE}\n\n");
    for (number, Migration { name, sql: migration }) in (1..).zip(MIGRATIONS) {
        sql += migration;
        sql += &format!(
            "\ninsert into semel.migrations (version, name) values ({number}, '{name}');\n"
        );
    }
    sql
}

/// Refuses tables that this version cannot work with.
pub(super) async fn check(connection: &mut PgConnection) -> Result<(), Failure> {
    let present = version(connection).await?;
    refuse_newer(present)?;
    if present < MIGRATIONS.len() {
        return Err(schema_missing(format!(
            "PostgreSQL: the tables have version {present}, this semel needs {}",
            MIGRATIONS.len()
        )));
    }
    Ok(())
}

/// Refuses a sequence that hands out numbers in advance: sessions would write out of order.
pub(super) async fn check_order(connection: &mut PgConnection) -> Result<(), Failure> {
    let cache: i64 = sqlx::query_scalar(
        "select seqcache from pg_sequence
        where seqrelid = pg_get_serial_sequence('semel.outbox', 'seq')::regclass",
    )
    .fetch_one(connection)
    .await
    .map_err(failure("look at the sequence of semel.outbox"))?;
    if cache == 1 {
        return Ok(());
    }
    Err(Failure::misconfigured(
        "E-POSTGRES-SEQUENCE",
        format!("PostgreSQL: the sequence of semel.outbox caches {cache} numbers in each session, so events of one aggregate can be published out of order"),
    )
    .with_fix("run `alter table semel.outbox alter column seq set cache 1`"))
}

/// The version that is there; 0 when there are no tables.
async fn version(connection: &mut PgConnection) -> Result<usize, Failure> {
    let failed = || failure("read the schema version");
    let exists: bool = sqlx::query_scalar("select to_regclass('semel.migrations') is not null")
        .fetch_one(&mut *connection)
        .await
        .map_err(failed())?;
    if !exists {
        return Ok(0);
    }
    let version: i32 = sqlx::query_scalar("select coalesce(max(version), 0) from semel.migrations")
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
            "PostgreSQL: the tables have version {present}, this semel knows up to {}",
            MIGRATIONS.len()
        ),
    )
    .with_fix("use the semel that migrated this database, or a later one"))
}

fn stored(version: usize) -> i32 {
    i32::try_from(version).unwrap_or(i32::MAX)
}
