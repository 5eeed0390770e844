//! What a row of a table of keys says to operators.

use std::time::Duration;

use semel_core::idempotency::{KeyPage, KeyView, ScopedKey};

/// A key as it is in a table.
pub(crate) struct KeyRow {
    pub(crate) key: Vec<u8>,
    pub(crate) attempt: u32,
    /// Of a result only.
    pub(crate) version: Option<u8>,
    /// The last byte of the result.
    pub(crate) last: Option<Vec<u8>>,
    pub(crate) bytes: Option<i64>,
    /// How long it lasts, in microseconds.
    pub(crate) remaining: i64,
}

impl KeyRow {
    pub(crate) fn view(self) -> Option<KeyView> {
        let key = ScopedKey::from_bytes(self.key.try_into().ok()?);
        let remaining = Duration::from_micros(u64::try_from(self.remaining).unwrap_or(0));
        Some(match self.version {
            None => KeyView::claimed(key, self.attempt, remaining),
            Some(version) => {
                let last = self.last.and_then(|last| last.last().copied());
                let bytes = self.bytes.and_then(|bytes| bytes.try_into().ok()).unwrap_or(0);
                KeyView::done(key, version, last, bytes, remaining)
            }
        })
    }
}

/// A page in the order of the keys. If it is full there may be more.
pub(crate) fn page(keys: Vec<KeyView>, limit: usize) -> KeyPage {
    let next = keys.last().filter(|_| keys.len() == limit).map(|view| view.key.to_string());
    KeyPage { keys, next }
}

/// The bytes of the key after which a page begins; nothing sorts before all.
pub(crate) fn after(place: Option<&str>) -> Result<Vec<u8>, semel_core::Failure> {
    let key: Option<ScopedKey> = place.map(str::parse).transpose()?;
    Ok(key.map_or(Vec::new(), |key| key.as_bytes().to_vec()))
}

/// Implements [`KeyAdmin`](semel_core::idempotency::KeyAdmin) for a type with a `store`, whose
/// function of this name executes statements. Beside it there are the statements `LIST`, `LOOK` and
/// `FREE`, their `Row`, and the function `view`.
#[cfg(any(feature = "mysql", feature = "postgres"))]
macro_rules! implement_key_admin {
    ($keys:ty, $executor:ident) => {
        #[async_trait]
        impl KeyAdmin for $keys {
            async fn list(&self, place: Option<&str>, limit: usize) -> Result<KeyPage, Failure> {
                let rows: Vec<Row> = sqlx::query_as(LIST)
                    .bind(after(place)?)
                    .bind(count(limit))
                    .fetch_all(self.store.$executor())
                    .await
                    .map_err(failure("list keys"))?;
                Ok(page(rows.into_iter().filter_map(view).collect(), limit))
            }

            async fn look(&self, key: &ScopedKey) -> Result<Option<KeyView>, Failure> {
                let row: Option<Row> = sqlx::query_as(LOOK)
                    .bind(key.as_bytes().as_slice())
                    .fetch_optional(self.store.$executor())
                    .await
                    .map_err(failure("look at a key"))?;
                Ok(row.and_then(view))
            }

            async fn free(&self, key: &ScopedKey) -> Result<bool, Failure> {
                let freed = sqlx::query(FREE)
                    .bind(key.as_bytes().as_slice())
                    .execute(self.store.$executor())
                    .await
                    .map_err(failure("free a key"))?;
                Ok(freed.rows_affected() == 1)
            }
        }
    };
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) use implement_key_admin;
