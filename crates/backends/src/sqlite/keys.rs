//! [`IdempotencyStore`]: who runs an operation, and what it returned.

use std::time::Duration;

use async_trait::async_trait;
use semel_core::idempotency::{
    Claim, Fingerprint, IdempotencyStore, Record, ScopedKey, Token, TransactionalKeys,
};
use semel_core::{Failure, Holding};
use sqlx::{Sqlite, SqliteConnection, Transaction};

use super::error::failure;
use super::row::{position, stored};
use super::store::{SqliteStore, micros};

/// The table `semel_keys`. Made by [`SqliteStore::keys`].
///
/// ```
/// use semel_backends::sqlite::SqliteConfig;
/// use semel_core::idempotency::{
///     Claim, Fingerprint, IdempotencyStore, Record, ScopedKey, TransactionalKeys,
/// };
/// use std::time::Duration;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// # let folder = tempfile::tempdir()?;
/// # let url = format!("sqlite://{}/shop.db", folder.path().display());
/// let store = SqliteConfig::new(&url)?.connect().await?;
/// store.migrate().await?;
/// let (keys, day) = (store.keys(), Duration::from_secs(86_400));
/// let (key, print) = (ScopedKey::new(&["acme", "transfer", "k1"]), Fingerprint::new(&[b"99"]));
/// let Claim::Fresh { token, .. } = keys.claim(&key, &print, Duration::from_secs(30)).await? else {
///     unreachable!()
/// };
///
/// // Money and key in one transaction: neither moves without the other.
/// let mut tx = store.begin().await?;
/// sqlx::query("CREATE TABLE transfers (amount INTEGER)").execute(&mut *tx).await?;
/// let record = Record { version: 1, body: "moved".into() };
/// assert!(keys.complete_in(&mut tx, &key, token, &record, day).await?.is_held());
/// tx.commit().await?;
/// assert_eq!(keys.claim(&key, &print, day).await?, Claim::Done(record));
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct SqliteKeys {
    pub(super) store: SqliteStore,
}

/// How long it is remembered that an operation was tried and abandoned.
const ABANDONED_FOR: Duration = Duration::from_secs(24 * 60 * 60);

impl SqliteKeys {
    pub(super) fn new(store: SqliteStore) -> Self {
        Self { store }
    }

    async fn complete_on(
        &self,
        connection: &mut SqliteConnection,
        key: &ScopedKey,
        token: Token,
        record: &Record,
        keep: Duration,
    ) -> Result<Holding, Failure> {
        let now = self.store.now();
        let query = sqlx::query(
            "UPDATE semel_keys SET version = ?4, body = ?5, until = ?6 \
             WHERE key = ?1 AND token = ?2 AND version IS NULL AND until > ?3",
        )
        .bind(key.as_bytes().as_slice())
        .bind(stored(token.0))
        .bind(now)
        .bind(record.version)
        .bind(record.body.as_ref())
        .bind(now.saturating_add(micros(keep)));
        changed(query.execute(connection).await, "store a result")
    }
}

#[async_trait]
impl TransactionalKeys for SqliteKeys {
    type Tx<'c> = Transaction<'c, Sqlite>;

    async fn complete_in(
        &self,
        tx: &mut Self::Tx<'_>,
        key: &ScopedKey,
        token: Token,
        record: &Record,
        keep: Duration,
    ) -> Result<Holding, Failure> {
        self.complete_on(tx, key, token, record, keep).await
    }
}

#[async_trait]
impl IdempotencyStore for SqliteKeys {
    /// A key that cannot be claimed is answered without waiting for other writers.
    async fn claim(
        &self,
        key: &ScopedKey,
        fingerprint: &Fingerprint,
        lease: Duration,
    ) -> Result<Claim, Failure> {
        let now = self.store.now();
        let mut reader = self.store.readers.acquire().await.map_err(failure("claim a key"))?;
        if let Standing::Taken(claim) = standing(&mut reader, key, fingerprint, now).await? {
            return Ok(claim);
        }
        drop(reader);
        let mut tx = self.store.begin().await?;
        let now = self.store.now();
        let attempt = match standing(&mut tx, key, fingerprint, now).await? {
            Standing::Taken(claim) => return Ok(claim),
            Standing::Free { attempt } => attempt,
        };
        // Replacing the row gives it a new token, greater than all before.
        let token: i64 = sqlx::query_scalar(
            "INSERT OR REPLACE INTO semel_keys (key, fingerprint, attempt, until) \
             VALUES (?1, ?2, ?3, ?4) RETURNING token",
        )
        .bind(key.as_bytes().as_slice())
        .bind(fingerprint.as_bytes().as_slice())
        .bind(attempt)
        .bind(now.saturating_add(micros(lease)))
        .fetch_one(&mut *tx)
        .await
        .map_err(failure("claim a key"))?;
        tx.commit().await.map_err(failure("claim a key"))?;
        Ok(Claim::Fresh { token: Token(position(token)), attempt })
    }

    async fn complete(
        &self,
        key: &ScopedKey,
        token: Token,
        record: Record,
        keep: Duration,
    ) -> Result<Holding, Failure> {
        let mut writer = self.store.writer.acquire().await.map_err(failure("store a result"))?;
        self.complete_on(&mut writer, key, token, &record, keep).await
    }

    async fn renew(
        &self,
        key: &ScopedKey,
        token: Token,
        lease: Duration,
    ) -> Result<Holding, Failure> {
        let now = self.store.now();
        let query = sqlx::query(
            "UPDATE semel_keys SET until = ?4 \
             WHERE key = ?1 AND token = ?2 AND version IS NULL AND until > ?3",
        )
        .bind(key.as_bytes().as_slice())
        .bind(stored(token.0))
        .bind(now)
        .bind(now.saturating_add(micros(lease)));
        changed(query.execute(&self.store.writer).await, "renew a lease")
    }

    async fn release(&self, key: &ScopedKey, token: Token) -> Result<Holding, Failure> {
        let query = sqlx::query(
            "DELETE FROM semel_keys WHERE key = ?1 AND token = ?2 AND version IS NULL AND until > ?3",
        )
        .bind(key.as_bytes().as_slice())
        .bind(stored(token.0))
        .bind(self.store.now());
        changed(query.execute(&self.store.writer).await, "release a key")
    }

    async fn forget_expired(&self, limit: usize) -> Result<usize, Failure> {
        let forgotten = sqlx::query(
            "DELETE FROM semel_keys WHERE token IN (\
                 SELECT token FROM semel_keys \
                 WHERE until <= ?1 AND (version IS NOT NULL OR until <= ?2) LIMIT ?3)",
        )
        .bind(self.store.now())
        .bind(self.store.before(ABANDONED_FOR))
        .bind(stored(limit as u64))
        .execute(&self.store.writer)
        .await
        .map_err(failure("forget expired keys"))?;
        Ok(usize::try_from(forgotten.rows_affected()).unwrap_or(usize::MAX))
    }
}

/// Whether a key can be claimed, and as which attempt.
enum Standing {
    Free { attempt: u32 },
    Taken(Claim),
}

type KeyRow = (Vec<u8>, u32, Option<u8>, Option<Vec<u8>>, i64);

async fn standing(
    connection: &mut SqliteConnection,
    key: &ScopedKey,
    wanted: &Fingerprint,
    now: i64,
) -> Result<Standing, Failure> {
    let row: Option<KeyRow> = sqlx::query_as(
        "SELECT fingerprint, attempt, version, body, until FROM semel_keys WHERE key = ?1",
    )
    .bind(key.as_bytes().as_slice())
    .fetch_optional(connection)
    .await
    .map_err(failure("claim a key"))?;
    let Some((fingerprint, attempt, version, body, until)) = row else {
        return Ok(Standing::Free { attempt: 1 });
    };
    let expired = until <= now;
    Ok(match version {
        Some(_) if expired => Standing::Free { attempt: 1 },
        _ if fingerprint != wanted.as_bytes() => Standing::Taken(Claim::Mismatch),
        Some(version) => {
            let body = body.unwrap_or_default().into();
            Standing::Taken(Claim::Done(Record { version, body }))
        }
        // Whoever takes an abandoned claim over must know that it was tried.
        None if expired => Standing::Free { attempt: attempt.saturating_add(1) },
        None => {
            let remaining = Duration::from_micros((until - now).unsigned_abs());
            Standing::Taken(Claim::InFlight { remaining })
        }
    })
}

/// Whether the owner of a live claim made the change.
fn changed(
    result: Result<sqlx::sqlite::SqliteQueryResult, sqlx::Error>,
    what: &str,
) -> Result<Holding, Failure> {
    let changed = result.map_err(failure(what))?.rows_affected() == 1;
    Ok(if changed { Holding::Held } else { Holding::Lost })
}
