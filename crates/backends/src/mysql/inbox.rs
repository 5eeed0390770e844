//! [`InboxStore`]: the messages each consumer has taken effect for.

use std::collections::{BTreeSet, HashSet};
use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use semel_core::inbox::{InboxStore, Seen, Tally};
use semel_core::{EventId, Failure};
use sqlx::{AssertSqlSafe, MySql, Transaction};
use uuid::Uuid;

use super::error::{check_consumer, failure, is_of_statement, is_unmarked};
use super::store::{COMMIT_MARKED, MysqlStore, changed, count, micros};
use crate::letters::{of_its_end, stored, undone};

/// The table `semel_inbox`. Made by [`MysqlStore::inbox`].
///
/// The insert is the lock: of two transactions that record the same id the second waits in
/// [`record`](InboxStore::record) until the first ends, or for `innodb_lock_wait_timeout`. When
/// several wait and the first rolls back, InnoDB may end some of them as deadlocked: they fail as
/// transient, and their messages come again.
///
/// ```no_run
/// use semel_backends::mysql::MysqlConfig;
/// use semel_core::inbox::{InboxStore, Seen};
///
/// # async fn run() -> Result<(), semel_core::Failure> {
/// let store = MysqlConfig::new("mysql://shop:secret@localhost/shop")?.connect().await?;
/// let (inbox, id) = (store.inbox(), semel_core::EventId::now());
/// let mut tx = inbox.begin().await?;
/// assert_eq!(inbox.record(&mut tx, "payments", id).await?, Seen::First);
/// inbox.commit(tx).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct MysqlInbox {
    store: MysqlStore,
}

impl MysqlInbox {
    pub(super) fn new(store: MysqlStore) -> Self {
        Self { store }
    }
}

const RECORD: &str = "INSERT INTO semel_inbox (consumer, message_id, processed_at) \
    VALUES (?, ?, utc_timestamp(6))";

/// What is committed now, also if the transaction's snapshot is older. The refused insert has this
/// lock already.
const RESULT: &str = "SELECT result FROM semel_inbox WHERE consumer = ? AND message_id = ? \
    LOCK IN SHARE MODE";

const STORE: &str = "UPDATE semel_inbox SET result = ? WHERE consumer = ? AND message_id = ?";

const FORGET: &str = "DELETE FROM semel_inbox \
    WHERE processed_at < utc_timestamp(6) - INTERVAL ? MICROSECOND ORDER BY processed_at LIMIT ?";

const COUNT: &str = "INSERT INTO semel_marks (consumer, scope, position) \
    VALUES (?, ?, ?), (?, ?, ?) ON DUPLICATE KEY UPDATE position = position + VALUES(position)";

/// How many ids one statement records.
const MOST: usize = 512;

/// Inserts all of these, or none; says which.
async fn insert(
    tx: &mut Transaction<'_, MySql>,
    consumer: &str,
    ids: &[Uuid],
) -> Result<bool, Failure> {
    let more = ", (?, ?, utc_timestamp(6))".repeat(ids.len() - 1);
    let mut query = sqlx::query(AssertSqlSafe(format!("{RECORD}{more}")));
    for id in ids {
        query = query.bind(consumer).bind(id.as_bytes().as_slice());
    }
    match query.execute(&mut **tx).await {
        Ok(_) => Ok(true),
        Err(sqlx::Error::Database(error)) if error.is_unique_violation() => Ok(false),
        Err(error) => Err(failure("record messages")(error)),
    }
}

impl InboxStore for MysqlInbox {
    type Tx<'c> = Transaction<'c, MySql>;

    async fn begin(&self) -> Result<Transaction<'static, MySql>, Failure> {
        self.store.begin_marked().await
    }

    async fn record(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        id: EventId,
    ) -> Result<Seen, Failure> {
        check_consumer(consumer)?;
        let id = id.as_uuid().as_bytes().as_slice();
        let recorded = sqlx::query(RECORD).bind(consumer).bind(id).execute(&mut **tx).await;
        match recorded {
            Ok(_) => return Ok(Seen::First),
            Err(sqlx::Error::Database(error)) if error.is_unique_violation() => {}
            Err(error) => return Err(failure("record a message")(error)),
        }
        let result: Option<Vec<u8>> = sqlx::query_scalar(RESULT)
            .bind(consumer)
            .bind(id)
            .fetch_one(&mut **tx)
            .await
            .map_err(failure("read a stored result"))?;
        Ok(Seen::Duplicate { result: result.map(Bytes::from) })
    }

    /// Takes the ids for new, as nearly all are, and inserts many with one statement. When one is
    /// known nothing of its statement is done, and they are recorded one by one.
    async fn record_all(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        ids: &[EventId],
    ) -> Result<Vec<bool>, Failure> {
        check_consumer(consumer)?;
        // In one order, so that two who record the same ones do not wait in a circle.
        let distinct: BTreeSet<_> = ids.iter().map(|id| *id.as_uuid()).collect();
        let distinct: Vec<_> = distinct.into_iter().collect();
        let (mut rest, mut new) = (distinct.as_slice(), HashSet::with_capacity(ids.len()));
        while !rest.is_empty() {
            // Few lengths, so that few statements are prepared.
            let (chunk, others) = rest.split_at((1 << rest.len().ilog2()).min(MOST));
            rest = others;
            if insert(tx, consumer, chunk).await? {
                new.extend(chunk.iter().copied());
                continue;
            }
            for id in chunk {
                if self.record(tx, consumer, EventId::from_uuid(*id)).await? == Seen::First {
                    new.insert(*id);
                }
            }
        }
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
            .bind(result.as_ref())
            .bind(consumer)
            .bind(id.as_uuid().as_bytes().as_slice())
            .execute(&mut **tx)
            .await
            .map_err(|error| of_its_end(error, is_of_statement, failure("store a result")))
            .map(drop)
    }

    async fn commit(&self, mut tx: Self::Tx<'static>) -> Result<(), Failure> {
        match sqlx::raw_sql(COMMIT_MARKED).execute(&mut *tx).await {
            Ok(_) => Ok(()),
            Err(error) if is_unmarked(&error) => Err(undone(&error)),
            Err(error) => Err(of_its_end(error, is_of_statement, failure("commit"))),
        }
    }

    async fn rollback(&self, tx: Self::Tx<'static>) {
        // A connection that cannot roll back is closed by the pool, which has the same effect.
        tx.rollback().await.ok();
    }

    async fn forget(&self, age: Duration, limit: usize) -> Result<usize, Failure> {
        let mut tx = self.store.begin().await?;
        let forgotten = sqlx::query(FORGET)
            .bind(micros(age))
            .bind(count(limit))
            .execute(&mut *tx)
            .await
            .map_err(failure("forget old messages"))?;
        tx.commit().await.map_err(failure("forget old messages"))?;
        Ok(changed(forgotten.rows_affected()))
    }

    async fn count(&self, consumer: &str, tally: Tally) -> Result<(), Failure> {
        check_consumer(consumer)?;
        let mut query = sqlx::query(COUNT);
        for (name, number) in tally.named() {
            query = query.bind(name).bind(consumer).bind(stored(number));
        }
        query.execute(self.store.pool()).await.map_err(failure("count messages")).map(drop)
    }

    fn classify(&self, error: Box<dyn Error + Send + Sync>) -> Failure {
        crate::letters::of_effect(error, is_of_statement, failure("take effect"))
    }
}
