//! An outbox that is divided by time, so that old events go with their partition.

use std::time::Duration;

use semel_core::Failure;
use sqlx::{AssertSqlSafe, PgExecutor};

use super::error::failure;
use super::schema;
use super::store::{PostgresStore, micros};
use super::tail::publish_sql;

const DIVIDE: &str = include_str!("migrations/partitioned.sql");

/// The SQL that divides the outbox into partitions of this much time, in whole seconds, for a
/// migration tool of your own. It comes after [`schema_sql`](super::schema_sql).
///
/// ```
/// # use semel_backends::postgres::partition_sql;
/// let sql = partition_sql(std::time::Duration::from_secs(3600));
/// assert!(sql.contains("select 3600::bigint"));
/// ```
#[must_use]
pub fn partition_sql(span: Duration) -> String {
    // The publication went with the table that has another name now.
    DIVIDE.replace("{seconds}", &span.as_secs().max(1).to_string()) + "\n" + &publish_sql()
}

impl PostgresStore {
    /// Divides the outbox into partitions of this much time, in whole seconds; says whether it was
    /// not divided before, in which case the span stays what it is. Events that are there stay
    /// where they are. Roles need what [`grants_sql`](super::grants_sql) prints once more.
    ///
    /// # Errors
    /// `Misconfigured` when there are no tables or they are of another version, `Transient` when
    /// the outbox stays in use for ten seconds.
    ///
    /// ```no_run
    /// use semel_backends::postgres::PostgresConfig;
    /// use std::time::Duration;
    ///
    /// # async fn run() -> Result<(), semel_core::Failure> {
    /// let store = PostgresConfig::new("postgres://localhost/shop")?.connect().await?;
    /// store.migrate().await?;
    /// store.partition(Duration::from_secs(86_400)).await?;
    /// # Ok(()) }
    /// ```
    pub async fn partition(&self, span: Duration) -> Result<bool, Failure> {
        let failed = || failure("divide the outbox");
        let mut tx = self.begin_as("begin; set local lock_timeout = '10s'").await?;
        schema::lock(&mut tx).await?;
        schema::check(&mut tx).await?;
        if is_partitioned(&mut *tx).await? {
            return Ok(false);
        }
        let sql = AssertSqlSafe(partition_sql(span));
        sqlx::raw_sql(sql).execute(&mut *tx).await.map_err(failed())?;
        tx.commit().await.map_err(failed())?;
        Ok(true)
    }

    /// Makes the partitions that will be needed and drops those that are not; says how many it
    /// dropped.
    pub(super) async fn keep_partitions(&self, age: Duration) -> Result<usize, Failure> {
        if !is_partitioned(self.once()).await? {
            return Ok(0);
        }
        let made = sqlx::query("select semel.add_partitions()").execute(self.once()).await;
        let mut dropped = 0;
        while self.drop_partition(age).await? {
            dropped += 1;
        }
        made.map_err(failure("make partitions"))?;
        Ok(dropped)
    }

    async fn drop_partition(&self, age: Duration) -> Result<bool, Failure> {
        let dropped: i32 =
            sqlx::query_scalar("select semel.drop_partition($1 * interval '1 microsecond')")
                .bind(micros(age))
                .fetch_one(self.once())
                .await
                .map_err(failure("drop an old partition"))?;
        Ok(dropped > 0)
    }
}

async fn is_partitioned(executor: impl PgExecutor<'_>) -> Result<bool, Failure> {
    sqlx::query_scalar("select to_regprocedure('semel.add_partitions()') is not null")
        .fetch_one(executor)
        .await
        .map_err(failure("look for partitions"))
}
