//! An inbox that is divided by time, so that old ids go with their partition.

use std::time::Duration;

use semel_core::Failure;
use sqlx::{AssertSqlSafe, PgExecutor};

use super::error::failure;
use super::schema;
use super::store::{PostgresStore, micros};

const DIVIDE: &str = include_str!("migrations/partitioned_inbox.sql");

/// The SQL that divides the inbox into partitions of this much time, in whole seconds, for a
/// migration tool of your own. It comes after [`schema_sql`](super::schema_sql).
///
/// ```
/// # use semel_backends::postgres::inbox_partition_sql;
/// let sql = inbox_partition_sql(std::time::Duration::from_secs(3600));
/// assert!(sql.contains("select 3600::bigint"));
/// ```
#[must_use]
pub fn inbox_partition_sql(span: Duration) -> String {
    DIVIDE.replace("{seconds}", &span.as_secs().max(1).to_string())
}

impl PostgresStore {
    /// Divides the inbox into partitions of this much time, in whole seconds; says whether it was
    /// not divided before, in which case the span stays what it is. Ids that are there stay where
    /// they are. Afterwards [`forget`](semel_core::InboxStore::forget) drops old partitions, each
    /// when all of it is old, and makes those of the next times.
    ///
    /// # Errors
    /// `Misconfigured` when there are no tables or they are of another version, `Transient` when
    /// the inbox stays in use for ten seconds.
    ///
    /// ```no_run
    /// use semel_backends::postgres::PostgresConfig;
    /// use std::time::Duration;
    ///
    /// # async fn run() -> Result<(), semel_core::Failure> {
    /// let store = PostgresConfig::new("postgres://localhost/payments")?.connect().await?;
    /// store.migrate().await?;
    /// store.partition_inbox(Duration::from_secs(86_400)).await?;
    /// # Ok(()) }
    /// ```
    pub async fn partition_inbox(&self, span: Duration) -> Result<bool, Failure> {
        let failed = || failure("divide the inbox");
        let mut tx = self.begin_as("begin; set local lock_timeout = '10s'").await?;
        schema::lock(&mut tx).await?;
        schema::check(&mut tx).await?;
        if is_divided(&mut *tx).await? {
            return Ok(false);
        }
        let sql = AssertSqlSafe(inbox_partition_sql(span));
        sqlx::raw_sql(sql).execute(&mut *tx).await.map_err(failed())?;
        tx.commit().await.map_err(failed())?;
        Ok(true)
    }

    pub(super) async fn inbox_is_divided(&self) -> Result<bool, Failure> {
        is_divided(self.once()).await
    }

    /// Makes the partitions of the inbox that will be needed, and drops those that are old.
    pub(super) async fn keep_inbox_partitions(&self, age: Duration) -> Result<(), Failure> {
        let made = sqlx::query("select semel.add_inbox_partitions()").execute(self.once()).await;
        while self.drop_inbox_partition(age).await? {}
        made.map_err(failure("make partitions of the inbox"))?;
        Ok(())
    }

    async fn drop_inbox_partition(&self, age: Duration) -> Result<bool, Failure> {
        let sql = "select semel.drop_inbox_partition($1 * interval '1 microsecond')";
        let dropped: i32 = sqlx::query_scalar(sql)
            .bind(micros(age))
            .fetch_one(self.once())
            .await
            .map_err(failure("drop an old partition of the inbox"))?;
        Ok(dropped > 0)
    }
}

async fn is_divided(executor: impl PgExecutor<'_>) -> Result<bool, Failure> {
    sqlx::query_scalar("select to_regprocedure('semel.add_inbox_partitions()') is not null")
        .fetch_one(executor)
        .await
        .map_err(failure("look for partitions of the inbox"))
}
