//! [`InboxStore`]: the messages each consumer has taken effect for.

use std::collections::HashSet;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use semel_core::inbox::{InboxStore, Opening, Seen, Tally};
use semel_core::{EventId, Failure};
use sqlx::{Postgres, Transaction};

use super::error::{failure, is_of_an_ended_transaction, is_of_statement};
use super::recording::{Doubt, NOT_PREPARED, PREPARE, opening};
use super::store::{PostgresStore, changed, count, micros};
use crate::letters::{of_its_end, stored, undone};

/// The table `semel.inbox`. Made by [`PostgresStore::inbox`].
///
/// The insert is the lock: of two transactions that record the same id the second waits in
/// [`record`](InboxStore::record) until the first ends.
///
/// [`begin_with`](InboxStore::begin_with) takes ids for new, as nearly all are, marks for being where
/// they were left, and letters for absent, in the round trip that opens the transaction. What is not
/// so is an error to the server then, which it writes into its log; after one, the next thousand
/// transactions ask first.
///
/// Of an inbox that [is divided](PostgresStore::partition_inbox), [`forget`](InboxStore::forget) also
/// drops partitions whole; it counts only the ids that it deletes one by one.
///
/// ```no_run
/// use semel_backends::postgres::PostgresConfig;
/// use semel_core::inbox::{InboxStore, Seen};
///
/// # async fn run() -> Result<(), semel_core::Failure> {
/// let store = PostgresConfig::new("postgres://localhost/shop")?.connect().await?;
/// let (inbox, id) = (store.inbox(), semel_core::EventId::now());
/// let mut tx = inbox.begin().await?;
/// assert_eq!(inbox.record(&mut tx, "payments", id).await?, Seen::First);
/// inbox.commit(tx).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct PostgresInbox {
    store: PostgresStore,
    /// Whether all is as expected.
    doubt: Arc<Doubt>,
    /// Whether connections are prepared.
    unprepared: Arc<Doubt>,
}

impl PostgresInbox {
    pub(super) fn new(store: PostgresStore) -> Self {
        Self { store, doubt: Arc::default(), unprepared: Arc::default() }
    }

    /// Opens a transaction. A connection that comes from before the tables is prepared on the way, and
    /// so are those that follow: there may be more of them.
    async fn opened(&self, sql: String) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
        if !self.unprepared.is_left() {
            match self.store.opened(sql.as_str()).await {
                Err(sqlx::Error::Database(error))
                    if error.code().as_deref() == Some(NOT_PREPARED) =>
                {
                    self.unprepared.raise(Doubt::BRIEF);
                }
                done => return done,
            }
        }
        self.store.opened(format!("{}; {sql}", *PREPARE)).await
    }
}

/// Whether it is new; if not, whether the one before can be seen, and its result.
const RECORD: &str = "\
with new as (
    insert into semel.inbox (consumer, message_id) values ($1, $2)
    on conflict do nothing returning 1
)
select exists (select from new), i.message_id is not null, i.result
from (values (1)) as one left join semel.inbox i on i.consumer = $1 and i.message_id = $2";

/// Those that are new.
const RECORD_ALL: &str = "\
insert into semel.inbox (consumer, message_id) select $1, id from unnest($2::uuid[]) as id
on conflict do nothing returning message_id";

const RESULT: &str = "select result from semel.inbox where consumer = $1 and message_id = $2";

const STORE: &str = "update semel.inbox set result = $3 where consumer = $1 and message_id = $2";

macro_rules! forget {
    ($table:literal) => {
        concat!(
            "delete from ",
            $table,
            " where (consumer, message_id) in (
                select consumer, message_id from ",
            $table,
            " where processed_at < clock_timestamp() - $1 * interval '1 microsecond'
                order by processed_at limit $2 for update skip locked)"
        )
    };
}

const FORGET: &str = forget!("semel.inbox");

/// Of an inbox that is divided: where ids do not go with their partition.
const FORGET_REST: &str = forget!("semel.inbox_rest");

const COUNT: &str = "\
insert into semel.marks as m (consumer, scope, position) values ($2, $1, $3), ($4, $1, $5)
on conflict (consumer, scope) do update set position = m.position + excluded.position";

impl InboxStore for PostgresInbox {
    type Tx<'c> = Transaction<'c, Postgres>;

    async fn begin(&self) -> Result<Transaction<'static, Postgres>, Failure> {
        self.store.begin().await
    }

    async fn begin_with(
        &self,
        consumer: &str,
        begins: Opening<'_>,
    ) -> Result<(Transaction<'static, Postgres>, bool), Failure> {
        let sql = opening(consumer, begins, self.store.has_statements());
        let Some(sql) = sql.filter(|_| !self.doubt.is_left()) else {
            return Ok((self.begin().await?, false));
        };
        match self.opened(sql).await {
            Ok(tx) => Ok((tx, true)),
            Err(sqlx::Error::Database(_)) => {
                self.doubt.raise(Doubt::LONG);
                Ok((self.begin().await?, false))
            }
            Err(error) => Err(failure("begin a transaction")(error)),
        }
    }

    async fn record(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        id: EventId,
    ) -> Result<Seen, Failure> {
        let failed = || failure("record a message");
        let (new, visible, result): (bool, bool, Option<Vec<u8>>) = sqlx::query_as(RECORD)
            .bind(consumer)
            .bind(id.as_uuid())
            .fetch_one(&mut **tx)
            .await
            .map_err(failed())?;
        if new {
            return Ok(Seen::First);
        }
        if visible {
            return Ok(Seen::Duplicate { result: result.map(Bytes::from) });
        }
        // The statement waited for another transaction, whose row is newer than its snapshot.
        let result: Option<Option<Vec<u8>>> = sqlx::query_scalar(RESULT)
            .bind(consumer)
            .bind(id.as_uuid())
            .fetch_optional(&mut **tx)
            .await
            .map_err(failed())?;
        Ok(Seen::Duplicate { result: result.flatten().map(Bytes::from) })
    }

    async fn record_all(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        ids: &[EventId],
    ) -> Result<Vec<bool>, Failure> {
        let uuids: Vec<_> = ids.iter().map(|id| *id.as_uuid()).collect();
        let new: Vec<sqlx::types::Uuid> = sqlx::query_scalar(RECORD_ALL)
            .bind(consumer)
            .bind(uuids)
            .fetch_all(&mut **tx)
            .await
            .map_err(failure("record messages"))?;
        let mut new: HashSet<_> = new.into_iter().collect();
        Ok(ids.iter().map(|id| new.remove(id.as_uuid())).collect())
    }

    async fn store_result(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        id: EventId,
        result: Bytes,
    ) -> Result<(), Failure> {
        sqlx::query(STORE)
            .bind(consumer)
            .bind(id.as_uuid())
            .bind(result.as_ref())
            .execute(&mut **tx)
            .await
            .map_err(|error| of_its_end(error, is_of_statement, failure("store a result")))
            .map(drop)
    }

    async fn commit(&self, mut tx: Self::Tx<'static>) -> Result<(), Failure> {
        // PostgreSQL answers the COMMIT of a transaction that has failed by rolling back, which sqlx takes for
        // done. So something comes first that fails there, and then the next transaction, which the pool ends.
        const COMMIT: &str = "select; commit and chain";
        match sqlx::raw_sql(COMMIT).execute(&mut *tx).await {
            Ok(_) => Ok(()),
            Err(error) if is_of_an_ended_transaction(&error) => Err(undone(&error)),
            Err(error) => Err(of_its_end(error, is_of_statement, failure("commit"))),
        }
    }

    async fn rollback(&self, tx: Self::Tx<'static>) {
        // A connection that cannot roll back is closed by the pool, which has the same effect.
        tx.rollback().await.ok();
    }

    async fn forget(&self, age: Duration, limit: usize) -> Result<usize, Failure> {
        let is_divided = self.store.inbox_is_divided().await?;
        let forgotten = sqlx::query(if is_divided { FORGET_REST } else { FORGET })
            .bind(micros(age))
            .bind(count(limit))
            .execute(self.store.once())
            .await
            .map_err(failure("forget old messages"))?;
        if is_divided {
            self.store.keep_inbox_partitions(age).await?;
        }
        Ok(changed(forgotten.rows_affected()))
    }

    async fn count(&self, consumer: &str, tally: Tally) -> Result<(), Failure> {
        let mut query = sqlx::query(COUNT).bind(consumer);
        for (name, number) in tally.named() {
            query = query.bind(name).bind(stored(number));
        }
        query.execute(self.store.once()).await.map_err(failure("count messages")).map(drop)
    }

    fn classify(&self, error: Box<dyn Error + Send + Sync>) -> Failure {
        crate::letters::of_effect(error, is_of_statement, failure("take effect"))
    }
}
