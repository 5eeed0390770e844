//! The publication: which table the log tells about.
//!
//! All pipelines of a database share it. It names inserts and one column only, because nobody reads
//! the rows from the log.

use semel_core::Failure;
use sqlx::error::DatabaseError;
use sqlx::{Connection, PgConnection, PgPool};

use super::super::error::failure;
use super::refusal;

/// The name of the publication of `semel.outbox`.
pub(super) const PUBLICATION: &str = "semel_outbox";

/// What makes the publication that a tailing source needs, for PostgreSQL 15 or later. It comes with
/// the tables; a source that misses it runs it itself if its user may.
///
/// ```
/// # use semel_backends::postgres::publication_sql;
/// assert!(publication_sql().starts_with("create publication semel_outbox"));
/// ```
#[must_use]
pub fn publication_sql() -> &'static str {
    ONE_COLUMN
}

/// The same for a server of some version, as in `server_version_num`.
pub(in super::super) const fn publication_sql_for(version: i32) -> &'static str {
    if version < 150_000 { ALL_COLUMNS } else { ONE_COLUMN }
}

/// Makes the publication if it is missing, or has lost its table, on any version; leaves one alone
/// that is of other tables. Whoever may not make publications has none, and can poll.
pub(in super::super) fn publish_sql() -> String {
    let quoted = |sql: &str| sql.replace('\'', "''");
    let (old, new) = (quoted(ALL_COLUMNS), quoted(ONE_COLUMN));
    format!(
        "-- The log tells of new events where wal_level is logical, and of nothing but inserts.
do $$
begin
    -- Not that wal_level is too low: it may be raised later.
    perform set_config('client_min_messages', 'error', true);
    if not exists (select from pg_publication_tables where pubname = 'semel_outbox'
        and (schemaname <> 'semel' or tablename = 'outbox'))
    then
        drop publication if exists semel_outbox;
        execute case when current_setting('server_version_num')::integer < 150000
            then '{old}'
            else '{new}' end;
    end if;
exception when insufficient_privilege then
    null;
end $$;
"
    )
}

macro_rules! create {
    ($columns:literal) => {
        concat!(
            "create publication semel_outbox for table semel.outbox",
            $columns,
            " with (publish = 'insert', publish_via_partition_root = true)"
        )
    };
}

const ONE_COLUMN: &str = create!(" (seq)");
/// PostgreSQL 14 knows no columns of publications.
const ALL_COLUMNS: &str = create!("");

/// The version, the level of the log, whether there is a publication, whether it is of no table any
/// more, and whether it tells of inserts into the outbox.
const LOOK: &str = "\
select current_setting('server_version_num')::integer, current_setting('wal_level'),
    exists (select from pg_publication where pubname = $1),
    exists (select from pg_publication p where pubname = $1 and not puballtables
        and not exists (select from pg_publication_tables t where t.pubname = p.pubname)),
    exists (
        select from pg_publication p join pg_publication_tables t using (pubname)
        where p.pubname = $1 and p.pubinsert and t.schemaname = 'semel' and t.tablename = 'outbox')";

/// Whoever holds the table for long is not waited for.
const BEGIN: &str = "begin; set local lock_timeout = '2s'";

/// Makes sure that the log tells of the outbox.
pub(super) async fn ensure(pool: &PgPool) -> Result<(), Failure> {
    let failed = || failure("look at the publication");
    let mut connection = pool.acquire().await.map_err(failed())?;
    let look: (i32, String, bool, bool, bool) = sqlx::query_as(LOOK)
        .bind(PUBLICATION)
        .fetch_one(&mut *connection)
        .await
        .map_err(failed())?;
    let (version, level, exists, empty, tells) = look;
    if version < 140_000 {
        return Err(refusal::too_old());
    }
    if level != "logical" {
        return Err(refusal::wal_level(&level));
    }
    if exists && !empty && !tells {
        return Err(refusal::wrong_publication());
    }
    match tells {
        true => Ok(()),
        false => create(&mut connection, version).await,
    }
}

/// Makes it, in place of one that has lost its table.
async fn create(connection: &mut PgConnection, version: i32) -> Result<(), Failure> {
    const DROP: &str = "drop publication if exists semel_outbox";
    let create = publication_sql_for(version);
    let made = async {
        let mut tx = connection.begin_with(BEGIN).await?;
        sqlx::raw_sql(DROP).execute(&mut *tx).await?;
        sqlx::raw_sql(create).execute(&mut *tx).await?;
        tx.commit().await
    };
    let Err(error) = made.await else { return Ok(()) };
    let code = error.as_database_error().and_then(DatabaseError::code).unwrap_or_default();
    match &*code {
        // Another pipeline was faster.
        "42710" | "23505" => Ok(()),
        "42501" => Err(refusal::no_publication()),
        _ => Err(failure("create the publication")(error)),
    }
}
