//! [`IdempotencyStore`]: who runs an operation, and what it returned.

use std::time::Duration;

use async_trait::async_trait;
use semel_core::idempotency::{
    Claim, Fingerprint, IdempotencyStore, Record, ScopedKey, Token, TransactionalKeys,
};
use semel_core::{Failure, Holding};
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Executor, MySql, Transaction};
use uuid::Uuid;

use super::error::failure;
use super::row::column;
use super::store::{MysqlStore, changed, count, micros};

/// The table `semel_keys`. Made by [`MysqlStore::keys`].
///
/// Each call is one round trip: a claim is one INSERT that turns into a conditional UPDATE, and in
/// the same packet the SELECT that says how it ended. Leases and expiry are measured by the
/// server's clock.
///
/// ```no_run
/// use semel_backends::mysql::MysqlConfig;
/// use semel_core::idempotency::{Claim, Fingerprint, IdempotencyStore, ScopedKey};
/// use std::time::Duration;
///
/// # async fn run() -> Result<(), semel_core::Failure> {
/// let store = MysqlConfig::new("mysql://shop:secret@localhost/shop")?.connect().await?;
/// let (key, print) = (ScopedKey::new(&["acme", "charge", "k1"]), Fingerprint::new(&[b"99"]));
/// let claim = store.keys().claim(&key, &print, Duration::from_secs(30)).await?;
/// assert!(matches!(claim, Claim::Fresh { attempt: 1, .. }));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct MysqlKeys {
    pub(super) store: MysqlStore,
}

/// How long it is remembered that an operation was tried and abandoned.
const ABANDONED_FOR: Duration = Duration::from_secs(24 * 60 * 60);

/// A change by the owner of a live claim. The values to set come first, then key and token.
macro_rules! if_held {
    ($set:literal) => {
        concat!(
            "UPDATE semel_keys SET ",
            $set,
            " WHERE scoped_key = ? AND token = ? AND version IS NULL AND NOT released \
                 AND expires_at > utc_timestamp(6)"
        )
    };
}

const COMPLETE: &str =
    if_held!("version = ?, body = ?, expires_at = utc_timestamp(6) + INTERVAL ? MICROSECOND");
const RENEW: &str = if_held!("expires_at = utc_timestamp(6) + INTERVAL ? MICROSECOND");
const RELEASE: &str = if_held!("released = TRUE, expires_at = utc_timestamp(6)");

const FORGET: &str = "DELETE FROM semel_keys WHERE expires_at <= utc_timestamp(6) \
    AND (version IS NOT NULL OR released \
        OR expires_at <= utc_timestamp(6) - INTERVAL ? MICROSECOND) \
    ORDER BY expires_at LIMIT ?";

impl MysqlKeys {
    pub(super) fn new(store: MysqlStore) -> Self {
        Self { store }
    }
}

#[async_trait]
impl TransactionalKeys for MysqlKeys {
    type Tx<'c> = Transaction<'c, MySql>;

    async fn complete_in(
        &self,
        tx: &mut Self::Tx<'_>,
        key: &ScopedKey,
        token: Token,
        record: &Record,
        keep: Duration,
    ) -> Result<Holding, Failure> {
        complete(&mut **tx, key, token, record, keep).await
    }
}

#[async_trait]
impl IdempotencyStore for MysqlKeys {
    async fn claim(
        &self,
        key: &ScopedKey,
        fingerprint: &Fingerprint,
        lease: Duration,
    ) -> Result<Claim, Failure> {
        let claimant = Uuid::now_v7();
        let answer = answer_sql(key, fingerprint, claimant);
        let claim = format!("{}; {answer}", claim_sql(key, fingerprint, claimant, lease));
        let ask =
            |sql: &str| sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).fetch_all(self.store.pool());
        let rows = match ask(&claim).await {
            // The claim may be made, only its answer lost. Not all who look have made it.
            Err(sqlx::Error::Io(_)) => match ask(&answer).await {
                Ok(rows) if rows.first().is_some_and(is_ours) => Ok(rows),
                Ok(_) => ask(&claim).await,
                failed => failed,
            },
            rows => rows,
        };
        match rows.map_err(failure("claim a key"))?.first() {
            Some(row) => read_claim(row),
            // It was purged in between.
            None => Ok(ASK_AGAIN),
        }
    }

    async fn complete(
        &self,
        key: &ScopedKey,
        token: Token,
        record: Record,
        keep: Duration,
    ) -> Result<Holding, Failure> {
        complete(self.store.pool(), key, token, &record, keep).await
    }

    async fn renew(
        &self,
        key: &ScopedKey,
        token: Token,
        lease: Duration,
    ) -> Result<Holding, Failure> {
        let renewed = sqlx::query(RENEW)
            .bind(micros(lease))
            .bind(key.as_bytes().as_slice())
            .bind(token.0)
            .execute(self.store.pool())
            .await
            .map_err(failure("renew a lease"))?;
        Ok(holding(renewed.rows_affected()))
    }

    async fn release(&self, key: &ScopedKey, token: Token) -> Result<Holding, Failure> {
        let released = sqlx::query(RELEASE)
            .bind(key.as_bytes().as_slice())
            .bind(token.0)
            .execute(self.store.pool())
            .await
            .map_err(failure("release a key"))?;
        Ok(holding(released.rows_affected()))
    }

    async fn forget_expired(&self, limit: usize) -> Result<usize, Failure> {
        let failed = || failure("forget expired keys");
        let mut tx = self.store.begin().await?;
        let forgotten = sqlx::query(FORGET)
            .bind(micros(ABANDONED_FOR))
            .bind(count(limit))
            .execute(&mut *tx)
            .await
            .map_err(failed())?;
        tx.commit().await.map_err(failed())?;
        Ok(changed(forgotten.rows_affected()))
    }
}

/// Takes a key that is free, done with, or abandoned by the same request.
///
/// The server makes the changes from left to right, so `claimant` decides for all that follow. It
/// is another number in each call, so that whoever reads it knows whether the claim was theirs.
/// Nothing but numbers goes into the text.
fn claim_sql(
    key: &ScopedKey,
    fingerprint: &Fingerprint,
    claimant: Uuid,
    lease: Duration,
) -> String {
    let (claimant, lease) = (claimant.simple(), micros(lease));
    let print = Fingerprinted(fingerprint);
    format!(
        "INSERT INTO semel_keys (scoped_key, fingerprint, claimant, token, attempt, expires_at) \
         VALUES (x'{key}', x'{print}', x'{claimant}', \
             timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(6)), 1, \
             utc_timestamp(6) + INTERVAL {lease} MICROSECOND) \
         ON DUPLICATE KEY UPDATE \
             claimant = if(expires_at <= utc_timestamp(6) AND (version IS NOT NULL OR released \
                 OR fingerprint = VALUES(fingerprint)), VALUES(claimant), claimant), \
             attempt = if(claimant = VALUES(claimant), \
                 if(version IS NULL AND NOT released, attempt + 1, 1), attempt), \
             token = if(claimant = VALUES(claimant), \
                 greatest(token + 1, VALUES(token)), token), \
             fingerprint = if(claimant = VALUES(claimant), VALUES(fingerprint), fingerprint), \
             version = if(claimant = VALUES(claimant), NULL, version), \
             body = if(claimant = VALUES(claimant), NULL, body), \
             released = if(claimant = VALUES(claimant), FALSE, released), \
             expires_at = if(claimant = VALUES(claimant), VALUES(expires_at), expires_at)"
    )
}

/// Who has a key.
fn answer_sql(key: &ScopedKey, fingerprint: &Fingerprint, claimant: Uuid) -> String {
    let (claimant, print) = (claimant.simple(), Fingerprinted(fingerprint));
    format!(
        "SELECT claimant = x'{claimant}', token, attempt, fingerprint = x'{print}', released, \
             timestampdiff(MICROSECOND, utc_timestamp(6), expires_at), version, body \
         FROM semel_keys WHERE scoped_key = x'{key}'"
    )
}

fn is_ours(row: &MySqlRow) -> bool {
    column(row, 0).unwrap_or(false)
}

/// What an answer is when the key became free just after it was not to be had.
const ASK_AGAIN: Claim = Claim::InFlight { remaining: Duration::ZERO };

fn read_claim(row: &MySqlRow) -> Result<Claim, Failure> {
    if column(row, 0)? {
        return Ok(Claim::Fresh { token: Token(column(row, 1)?), attempt: column(row, 2)? });
    }
    let (same_request, released): (bool, bool) = (column(row, 3)?, column(row, 4)?);
    let remaining: i64 = column(row, 5)?;
    let version: Option<u8> = column(row, 6)?;
    if released || (version.is_some() && remaining <= 0) {
        return Ok(ASK_AGAIN);
    }
    if !same_request {
        return Ok(Claim::Mismatch);
    }
    Ok(match version {
        Some(version) => {
            let body: Option<Vec<u8>> = column(row, 7)?;
            Claim::Done(Record { version, body: body.unwrap_or_default().into() })
        }
        None => {
            let remaining = u64::try_from(remaining).unwrap_or(0);
            Claim::InFlight { remaining: Duration::from_micros(remaining) }
        }
    })
}

async fn complete(
    executor: impl Executor<'_, Database = MySql>,
    key: &ScopedKey,
    token: Token,
    record: &Record,
    keep: Duration,
) -> Result<Holding, Failure> {
    let completed = sqlx::query(COMPLETE)
        .bind(record.version)
        .bind(record.body.as_ref())
        .bind(micros(keep))
        .bind(key.as_bytes().as_slice())
        .bind(token.0)
        .execute(executor)
        .await
        .map_err(failure("store a result"))?;
    Ok(holding(completed.rows_affected()))
}

fn holding(changed: u64) -> Holding {
    if changed == 1 { Holding::Held } else { Holding::Lost }
}

/// A fingerprint in hexadecimal digits.
struct Fingerprinted<'a>(&'a Fingerprint);

impl std::fmt::Display for Fingerprinted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
