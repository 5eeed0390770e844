//! [`InboxStore`]: the messages each consumer has taken effect for.

use std::collections::HashSet;
use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use semel_core::inbox::{InboxStore, Seen, Tally};
use semel_core::{EventId, Failure};
use sqlx::{Sqlite, Transaction};

use super::error::{failure, is_of_an_ended_transaction};
use super::store::SqliteStore;
use crate::letters::{stored, undone};

/// The table `semel_inbox`. Made by [`SqliteStore::inbox`].
///
/// Two transactions that record the same id never run at the same time, because no two write
/// transactions do: the second waits in [`begin`](InboxStore::begin).
///
/// ```
/// use semel_backends::sqlite::SqliteConfig;
/// use semel_core::inbox::{InboxStore, Seen};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// # let folder = tempfile::tempdir().unwrap();
/// # let url = format!("sqlite://{}/shop.db", folder.path().display());
/// let store = SqliteConfig::new(&url)?.connect().await?;
/// store.migrate().await?;
/// let (inbox, id) = (store.inbox(), semel_core::EventId::now());
///
/// let mut tx = inbox.begin().await?;
/// assert_eq!(inbox.record(&mut tx, "payments", id).await?, Seen::First);
/// inbox.commit(tx).await?;
///
/// let mut tx = inbox.begin().await?;
/// assert_eq!(inbox.record(&mut tx, "payments", id).await?, Seen::Duplicate { result: None });
/// # Ok::<(), semel_core::Failure>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct SqliteInbox {
    store: SqliteStore,
}

impl SqliteInbox {
    pub(super) fn new(store: SqliteStore) -> Self {
        Self { store }
    }
}

const COUNT: &str = "INSERT INTO semel_marks AS m (consumer, scope, position) \
    VALUES (?2, ?1, ?3), (?4, ?1, ?5) \
    ON CONFLICT (consumer, scope) DO UPDATE SET position = m.position + excluded.position";

impl InboxStore for SqliteInbox {
    type Tx<'c> = Transaction<'c, Sqlite>;

    async fn begin(&self) -> Result<Transaction<'static, Sqlite>, Failure> {
        self.store.begin().await
    }

    async fn record(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        id: EventId,
    ) -> Result<Seen, Failure> {
        let recorded = sqlx::query(
            "INSERT INTO semel_inbox (consumer, message_id, processed_at) VALUES (?1, ?2, ?3) \
             ON CONFLICT DO NOTHING",
        )
        .bind(consumer)
        .bind(id.to_string())
        .bind(self.store.now())
        .execute(&mut **tx)
        .await
        .map_err(failure("record a message"))?;
        if recorded.rows_affected() == 1 {
            return Ok(Seen::First);
        }
        let result: Option<Vec<u8>> = sqlx::query_scalar(
            "SELECT result FROM semel_inbox WHERE consumer = ?1 AND message_id = ?2",
        )
        .bind(consumer)
        .bind(id.to_string())
        .fetch_one(&mut **tx)
        .await
        .map_err(failure("read a stored result"))?;
        Ok(Seen::Duplicate { result: result.map(Bytes::from) })
    }

    async fn record_all(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        ids: &[EventId],
    ) -> Result<Vec<bool>, Failure> {
        let listed = ids.iter().map(|id| format!("\"{id}\"")).collect::<Vec<_>>().join(",");
        let new: Vec<String> = sqlx::query_scalar(
            "INSERT INTO semel_inbox (consumer, message_id, processed_at) \
             SELECT ?1, value, ?3 FROM json_each(?2) WHERE true \
             ON CONFLICT DO NOTHING RETURNING message_id",
        )
        .bind(consumer)
        .bind(format!("[{listed}]"))
        .bind(self.store.now())
        .fetch_all(&mut **tx)
        .await
        .map_err(failure("record messages"))?;
        let mut new: HashSet<_> = new.into_iter().collect();
        Ok(ids.iter().map(|id| new.remove(&id.to_string())).collect())
    }

    async fn store_result(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &str,
        id: EventId,
        result: Bytes,
    ) -> Result<(), Failure> {
        sqlx::query("UPDATE semel_inbox SET result = ?3 WHERE consumer = ?1 AND message_id = ?2")
            .bind(consumer)
            .bind(id.to_string())
            .bind(result.as_ref())
            .execute(&mut **tx)
            .await
            .map_err(failure("store a result"))
            .map(drop)
    }

    async fn commit(&self, tx: Self::Tx<'static>) -> Result<(), Failure> {
        match tx.commit().await {
            Err(error) if is_of_an_ended_transaction(&error) => Err(undone(&error)),
            ended => ended.map_err(failure("commit")),
        }
    }

    async fn rollback(&self, tx: Self::Tx<'static>) {
        // A connection that cannot roll back is closed by the pool, which has the same effect.
        tx.rollback().await.ok();
    }

    async fn forget(&self, age: Duration, limit: usize) -> Result<usize, Failure> {
        let forgotten = sqlx::query(
            "DELETE FROM semel_inbox WHERE (consumer, message_id) IN (\
                 SELECT consumer, message_id FROM semel_inbox WHERE processed_at < ?1 LIMIT ?2)",
        )
        .bind(self.store.before(age))
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .execute(&self.store.writer)
        .await
        .map_err(failure("forget old messages"))?;
        Ok(usize::try_from(forgotten.rows_affected()).unwrap_or(usize::MAX))
    }

    async fn count(&self, consumer: &str, tally: Tally) -> Result<(), Failure> {
        let mut query = sqlx::query(COUNT).bind(consumer);
        for (name, number) in tally.named() {
            query = query.bind(name).bind(stored(number));
        }
        query.execute(&self.store.writer).await.map_err(failure("count messages")).map(drop)
    }

    fn classify(&self, error: Box<dyn Error + Send + Sync>) -> Failure {
        crate::letters::of_effect(error, |_| false, failure("take effect"))
    }
}
