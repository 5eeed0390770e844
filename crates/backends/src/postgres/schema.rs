//! The tables and their versions.

use semel_core::Failure;
use sqlx::postgres::PgDatabaseError;
use sqlx::{AssertSqlSafe, PgConnection, PgPool, Postgres, Transaction};

use super::error::{failure, schema_missing};
use super::messages;
use super::store::PostgresStore;
use super::tail::publish_sql;
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
        name: "0003_claimants",
        sql: include_str!("migrations/0003_claimants.sql"),
        down: include_str!("migrations/0003_claimants.down.sql"),
    },
    Migration {
        name: "0004_polling_beside_0003",
        sql: include_str!("migrations/0004_polling_beside_0003.sql"),
        down: include_str!("migrations/0004_polling_beside_0003.down.sql"),
    },
    Migration {
        name: "0005_long_names_beside_0003",
        sql: include_str!("migrations/0005_long_names_beside_0003.sql"),
        down: include_str!("migrations/0005_long_names_beside_0003.down.sql"),
    },
    Migration {
        name: "0006_outages_beside_0003",
        sql: include_str!("migrations/0006_outages_beside_0003.sql"),
        down: include_str!("migrations/0006_outages_beside_0003.down.sql"),
    },
];

/// The version from which on consumers leave letters.
const WITH_LETTERS: usize = 2;

const VERSION_TABLE: &str = "create schema if not exists semel;

create table if not exists semel.migrations (
    version    integer primary key,
    name       text not null,
    applied_at timestamptz not null default now()
);";

/// "semel" in ASCII.
const LOCK: i64 = 0x73_65_6d_65_6c;

/// Notes a migration, before its values.
const NOTE: &str = "insert into semel.migrations (version, name) values";

/// Creates the tables, or brings them up to date; says which migrations were applied.
///
/// Safe on a live database and safe to repeat: all missing migrations are one transaction, under an
/// advisory lock.
///
/// # Errors
/// `Misconfigured` when the tables were made by a newer semel, or the user may not create them;
/// `Transient` when somebody else is migrating for longer than a minute.
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
    migrate_in(pool.begin().await.map_err(failure("migrate the tables"))?).await
}

/// Migrates in a transaction of its own.
pub(super) async fn migrate_in(
    mut tx: Transaction<'_, Postgres>,
) -> Result<Vec<&'static str>, Failure> {
    let failed = || failure("migrate the tables");
    sqlx::raw_sql("set local lock_timeout = '60s'").execute(&mut *tx).await.map_err(failed())?;
    lock(&mut tx).await?;
    let present = versions(&mut tx).await?.usable;
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
    // Also when the tables are up to date: somebody may have dropped it.
    sqlx::raw_sql(AssertSqlSafe(publish_sql())).execute(&mut *tx).await.map_err(failed())?;
    tx.commit().await.map_err(failed())?;
    Ok(missing.iter().map(|migration| migration.name).collect())
}

define_schema_status!("postgres");

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
    status_of(&mut connection).await
}

pub(super) async fn status_of(connection: &mut PgConnection) -> Result<SchemaStatus, Failure> {
    Ok(SchemaStatus::of(versions(connection).await?.usable))
}

/// The whole schema as SQL, for a migration tool of your own.
///
/// ```
/// # use semel_backends::postgres::schema_sql;
/// assert!(schema_sql().contains("create table semel.outbox"));
/// ```
#[must_use]
pub fn schema_sql() -> String {
    format!("{VERSION_TABLE}\n\n") + &up_sql(MIGRATIONS, NOTE) + "\n" + &publish_sql()
}

/// What takes the whole schema away again, as SQL.
///
/// ```
/// # use semel_backends::postgres::drop_sql;
/// assert!(drop_sql().ends_with("drop schema semel;\n"));
/// ```
#[must_use]
pub fn drop_sql() -> String {
    drop_sql_of(MIGRATIONS)
}

fn drop_sql_of(applied: &[Migration]) -> String {
    down_sql(applied, "drop table semel.migrations;\ndrop schema semel;\n")
}

impl PostgresStore {
    /// The pipelines that have ever read this outbox.
    ///
    /// # Errors
    /// `Misconfigured` when there are no tables.
    pub async fn pipelines(&self) -> Result<Vec<String>, Failure> {
        sqlx::query_scalar("select distinct pipeline from semel.cursor order by pipeline")
            .fetch_all(self.once())
            .await
            .map_err(failure("read the pipelines"))
    }

    /// How many events there are, in whatever state.
    ///
    /// # Errors
    /// `Misconfigured` when there are no tables.
    pub async fn count_events(&self) -> Result<u64, Failure> {
        let mut step = self.step().await?;
        count_events(&mut step).await
    }

    /// How many letters consumers have left: messages that are nowhere else, dead ones and those that
    /// wait behind them.
    ///
    /// # Errors
    /// `Misconfigured` when the user may not read them.
    pub async fn count_letters(&self) -> Result<u64, Failure> {
        let mut step = self.step().await?;
        count_letters(&mut step).await
    }

    /// Drops the tables **and all events in them**, unless there are more than `at_most` by now, or
    /// consumers have left letters, or messages wait in the log: whoever looked before learns that
    /// something was written since. One transaction; does nothing when there are no tables.
    ///
    /// # Errors
    /// `Refused` when there is more to be lost, `Transient` when the tables stay in use for ten
    /// seconds, `Misconfigured` when something of yours depends on them or they are of a newer
    /// semel.
    pub async fn drop_tables(&self, at_most: Option<u64>) -> Result<(), Failure> {
        let failed = || failure("drop the tables");
        let mut tx = self.begin().await?;
        sqlx::raw_sql("set local lock_timeout = '10s'").execute(&mut *tx).await.map_err(failed())?;
        lock(&mut tx).await?;
        // What later ones have made, only they can take away.
        let present = versions(&mut tx).await?.newest;
        refuse_newer(present)?;
        if present == 0 {
            return Ok(());
        }
        lock_events(&mut tx, present).await.map_err(failed())?;
        if let Some(most) = at_most
            && has_more(&mut tx, most).await?
        {
            return Err(versions::written_meanwhile("PostgreSQL"));
        }
        let sql = drop_sql_of(&MIGRATIONS[..present]);
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *tx).await.map_err(not_dropped)?;
        tx.commit().await.map_err(failed())
    }
}

/// From now on nobody writes events, or letters where there are any. What is written into the log
/// cannot be locked.
async fn lock_events(connection: &mut PgConnection, present: usize) -> Result<(), sqlx::Error> {
    let lock = if present < WITH_LETTERS {
        "lock table semel.outbox in access exclusive mode"
    } else {
        "lock table semel.outbox, semel.letters in access exclusive mode"
    };
    sqlx::raw_sql(lock).execute(connection).await.map(drop)
}

/// Whether there is more to be lost than so many events.
async fn has_more(connection: &mut PgConnection, most: u64) -> Result<bool, Failure> {
    Ok(count_events(connection).await? > most
        || count_letters(connection).await? > 0
        || messages::count(connection).await? > 0)
}

async fn count_letters(connection: &mut PgConnection) -> Result<u64, Failure> {
    if versions(connection).await?.newest < WITH_LETTERS {
        return Ok(0);
    }
    let count: i64 = sqlx::query_scalar("select count(*) from semel.letters")
        .fetch_one(connection)
        .await
        .map_err(failure("count letters"))?;
    Ok(count.unsigned_abs())
}

async fn count_events(connection: &mut PgConnection) -> Result<u64, Failure> {
    let count: i64 = sqlx::query_scalar("select count(*) from semel.outbox")
        .fetch_one(connection)
        .await
        .map_err(failure("count events"))?;
    Ok(count.unsigned_abs())
}

fn not_dropped(error: sqlx::Error) -> Failure {
    let database = error.as_database_error().and_then(|error| error.try_downcast_ref());
    let Some(what) = database
        .filter(|error: &&PgDatabaseError| error.code() == "2BP01")
        .map(|error| error.detail().unwrap_or_default().replace('\n', "; "))
    else {
        return failure("drop the tables")(error);
    };
    let what = format!("PostgreSQL: something of yours needs the tables: {what}");
    Failure::misconfigured("E-SCHEMA-IN-USE", what)
        .with_fix("drop or move what you put into the schema semel or built on its tables")
}

/// Two programs that change the tables do it one after the other.
pub(super) async fn lock(connection: &mut PgConnection) -> Result<(), Failure> {
    let locked = sqlx::query("select pg_advisory_xact_lock($1)").bind(LOCK).execute(connection);
    locked.await.map(drop).map_err(failure("migrate the tables"))
}

/// Refuses tables that this version cannot work with.
pub(super) async fn check(connection: &mut PgConnection) -> Result<(), Failure> {
    let present = versions(connection).await?.usable;
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

async fn versions(connection: &mut PgConnection) -> Result<Versions, Failure> {
    // Not `to_regclass`: it may remember what was so before another session's commit.
    const EXISTS: &str = "select exists (select from pg_class c
        join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = 'semel' and c.relname = 'migrations')";
    let failed = || failure("read the schema version");
    let exists: bool =
        sqlx::query_scalar(EXISTS).fetch_one(&mut *connection).await.map_err(failed())?;
    if !exists {
        return Ok(Versions::NONE);
    }
    let applied: Vec<(i32, String)> = sqlx::query_as("select version, name from semel.migrations")
        .fetch_all(connection)
        .await
        .map_err(failed())?;
    let numbered = |(version, name)| (usize::try_from(version).unwrap_or(0), name);
    Ok(Versions::of(applied.into_iter().map(numbered), MIGRATIONS.len()))
}

fn refuse_newer(present: usize) -> Result<(), Failure> {
    versions::refuse_newer("PostgreSQL", "database", present, MIGRATIONS)
}

fn stored(version: usize) -> i32 {
    i32::try_from(version).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables, views, functions and sequences, by their names.
    fn objects(sql: &str) -> Vec<&str> {
        let created = sql.lines().filter_map(|line| line.strip_prefix("create "));
        let named = created
            .filter_map(|rest| rest.split([' ', '(', ';']).find(|w| w.starts_with("semel.")));
        let mut names: Vec<_> = named.collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    #[test]
    fn all_that_is_created_is_dropped() {
        let (up, down) = (schema_sql(), drop_sql());
        let objects = objects(&up);
        assert!(objects.len() > 10, "{objects:?}");
        let word = |name: &str| {
            down.split(|c: char| c != '.' && c != '_' && !c.is_alphanumeric())
                .any(|word| word == name)
        };
        let left: Vec<_> = objects.into_iter().filter(|name| !word(name)).collect();
        assert!(left.is_empty(), "not in the down scripts: {left:?}");
    }
}
