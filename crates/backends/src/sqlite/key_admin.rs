//! [`KeyAdmin`]: what operators see of keys, and may do to them.

use async_trait::async_trait;
use semel_core::Failure;
use semel_core::idempotency::{KeyAdmin, KeyPage, KeyView, ScopedKey};

use super::error::failure;
use super::keys::SqliteKeys;
use super::row::stored;
use crate::key_page::{KeyRow, after, page};

macro_rules! select {
    ($which:literal) => {
        concat!(
            "SELECT key, attempt, version, substr(body, -1), length(body), until - ?1 \
             FROM semel_keys WHERE (version IS NULL OR until > ?1) AND ",
            $which
        )
    };
}

const LIST: &str = select!("key > ?2 ORDER BY key LIMIT ?3");
const LOOK: &str = select!("key = ?2");
const FREE: &str = "DELETE FROM semel_keys WHERE key = ?2 AND (version IS NULL OR until > ?1)";

type Row = (Vec<u8>, u32, Option<u8>, Option<Vec<u8>>, Option<i64>, i64);

#[async_trait]
impl KeyAdmin for SqliteKeys {
    async fn list(&self, place: Option<&str>, limit: usize) -> Result<KeyPage, Failure> {
        let rows: Vec<Row> = sqlx::query_as(LIST)
            .bind(self.store.now())
            .bind(after(place)?)
            .bind(stored(limit as u64))
            .fetch_all(&self.store.readers)
            .await
            .map_err(failure("list keys"))?;
        Ok(page(rows.into_iter().filter_map(view).collect(), limit))
    }

    async fn look(&self, key: &ScopedKey) -> Result<Option<KeyView>, Failure> {
        let row: Option<Row> = sqlx::query_as(LOOK)
            .bind(self.store.now())
            .bind(key.as_bytes().as_slice())
            .fetch_optional(&self.store.readers)
            .await
            .map_err(failure("look at a key"))?;
        Ok(row.and_then(view))
    }

    async fn free(&self, key: &ScopedKey) -> Result<bool, Failure> {
        let freed = sqlx::query(FREE)
            .bind(self.store.now())
            .bind(key.as_bytes().as_slice())
            .execute(&self.store.writer)
            .await
            .map_err(failure("free a key"))?;
        Ok(freed.rows_affected() == 1)
    }
}

fn view((key, attempt, version, last, bytes, remaining): Row) -> Option<KeyView> {
    KeyRow { key, attempt, version, last, bytes, remaining }.view()
}
