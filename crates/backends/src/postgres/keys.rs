//! [`IdempotencyStore`]: who runs an operation, and what it returned.

use std::time::Duration;

use async_trait::async_trait;
use semel_core::idempotency::{
    Claim, Fingerprint, IdempotencyStore, Record, ScopedKey, Token, TransactionalKeys,
};
use semel_core::{Failure, Holding};
use sqlx::postgres::PgRow;
use sqlx::{Executor, Postgres, Row, Transaction};
use uuid::Uuid;

use super::error::failure;
use super::store::{PostgresStore, changed, count, micros};

/// The table `semel.keys`. Made by [`PostgresStore::keys`].
///
/// Each call is one statement. Leases and expiry are measured by the server's clock.
///
/// ```no_run
/// use semel_backends::postgres::PostgresConfig;
/// use semel_core::idempotency::{Claim, Fingerprint, IdempotencyStore, ScopedKey};
/// use std::time::Duration;
///
/// # async fn run() -> Result<(), semel_core::Failure> {
/// let keys = PostgresConfig::new("postgres://localhost/shop")?.connect().await?.keys();
/// let (key, print) = (ScopedKey::new(&["acme", "charge", "k1"]), Fingerprint::new(&[b"99"]));
/// let claim = keys.claim(&key, &print, Duration::from_secs(30)).await?;
/// assert!(matches!(claim, Claim::Fresh { attempt: 1, .. }));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct PostgresKeys {
    pub(super) store: PostgresStore,
}

/// A key that is free, done with, or abandoned by the same request is taken; of any other it says
/// what stands in the way. That is read first: who only asks neither locks the row nor waits for a
/// disk, however many ask at once.
const CLAIM: &str = "\
with held as materialized (
    select fingerprint = $2 as same, body is null and not released as running,
        claimant is not distinct from $4 as is_ours, token, attempt,
        (extract(epoch from until - clock_timestamp()) * 1000000)::bigint as remaining,
        version, case when fingerprint = $2 then body end as body
    from semel.keys
    where key = $1 and (until > clock_timestamp()
        or (body is null and not released and fingerprint <> $2))
), mine as (
    insert into semel.keys as k (key, fingerprint, token, attempt, until, claimant)
    select $1, $2, nextval('semel.key_tokens'), 1,
        clock_timestamp() + $3 * interval '1 microsecond', $4
    where not exists (select from held)
    on conflict (key) do update set
        fingerprint = excluded.fingerprint, token = greatest(excluded.token, k.token + 1),
        attempt = case when k.body is null and not k.released then k.attempt + 1 else 1 end,
        version = null, body = null, released = false, until = excluded.until,
        claimant = excluded.claimant
    where k.until <= clock_timestamp()
        and (k.body is not null or k.released or k.fingerprint = excluded.fingerprint)
    returning token, attempt
)
select token, attempt, null::boolean, null::boolean, null::bigint, null::smallint, null::bytea
from mine
union all
select case when is_ours and running then token end,
    case when is_ours and running then attempt end, same, running, remaining, version, body
from held";

macro_rules! if_held {
    ($set:literal) => {
        concat!(
            "update semel.keys set ",
            $set,
            " where key = $1 and token = $2 and body is null and not released
                and until > clock_timestamp()"
        )
    };
}

const COMPLETE: &str =
    if_held!("version = $4, body = $5, until = clock_timestamp() + $3 * interval '1 microsecond'");
const RENEW: &str = if_held!("until = clock_timestamp() + $3 * interval '1 microsecond'");
const RELEASE: &str = if_held!("released = true, until = clock_timestamp()");

const FORGET: &str = "\
delete from semel.keys where key in (
    select key from semel.keys
    where (body is not null or released) and until <= clock_timestamp()
    order by until limit $1 for update skip locked)";

impl PostgresKeys {
    pub(super) fn new(store: PostgresStore) -> Self {
        Self { store }
    }
}

#[async_trait]
impl TransactionalKeys for PostgresKeys {
    type Tx<'c> = Transaction<'c, Postgres>;

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
impl IdempotencyStore for PostgresKeys {
    async fn claim(
        &self,
        key: &ScopedKey,
        fingerprint: &Fingerprint,
        lease: Duration,
    ) -> Result<Claim, Failure> {
        let failed = || failure("claim a key");
        let (claimant, mut may_repeat) = (Uuid::now_v7(), true);
        // Without an answer, somebody else was quicker: ask again.
        loop {
            let asked = sqlx::query(CLAIM)
                .bind(key.as_bytes().as_slice())
                .bind(fingerprint.as_bytes().as_slice())
                .bind(micros(lease))
                .bind(claimant)
                .fetch_optional(self.store.once());
            let row = match asked.await {
                // The claim may be made, only its answer lost: asked again by the same claimant,
                // the server gives it once more.
                Err(sqlx::Error::Io(_)) if may_repeat => {
                    may_repeat = false;
                    continue;
                }
                row => row.map_err(failed())?,
            };
            let claim = row.map(|row| read_claim(&row)).transpose().map_err(failed())?;
            if let Some(claim) = claim.flatten() {
                return Ok(claim);
            }
        }
    }

    async fn complete(
        &self,
        key: &ScopedKey,
        token: Token,
        record: Record,
        keep: Duration,
    ) -> Result<Holding, Failure> {
        complete(self.store.once(), key, token, &record, keep).await
    }

    async fn renew(
        &self,
        key: &ScopedKey,
        token: Token,
        lease: Duration,
    ) -> Result<Holding, Failure> {
        let query = sqlx::query(RENEW)
            .bind(key.as_bytes().as_slice())
            .bind(stored(token))
            .bind(micros(lease));
        let renewed = query.execute(self.store.once()).await.map_err(failure("renew a lease"))?;
        Ok(holding(renewed.rows_affected()))
    }

    async fn release(&self, key: &ScopedKey, token: Token) -> Result<Holding, Failure> {
        let query = sqlx::query(RELEASE).bind(key.as_bytes().as_slice()).bind(stored(token));
        let released = query.execute(self.store.once()).await.map_err(failure("give a key up"))?;
        Ok(holding(released.rows_affected()))
    }

    async fn forget_expired(&self, limit: usize) -> Result<usize, Failure> {
        let query = sqlx::query(FORGET).bind(count(limit));
        let forgotten =
            query.execute(self.store.once()).await.map_err(failure("forget expired keys"))?;
        Ok(changed(forgotten.rows_affected()))
    }
}

async fn complete<'e>(
    executor: impl Executor<'e, Database = Postgres>,
    key: &ScopedKey,
    token: Token,
    record: &Record,
    keep: Duration,
) -> Result<Holding, Failure> {
    let completed = sqlx::query(COMPLETE)
        .bind(key.as_bytes().as_slice())
        .bind(stored(token))
        .bind(micros(keep))
        .bind(i16::from(record.version))
        .bind(record.body.as_ref())
        .execute(executor)
        .await
        .map_err(failure("store a result"))?;
    Ok(holding(completed.rows_affected()))
}

/// The answer in a row; none when it contradicts itself, because it was overtaken.
fn read_claim(row: &PgRow) -> Result<Option<Claim>, sqlx::Error> {
    if let Some(token) = row.try_get::<Option<i64>, _>(0)? {
        let attempt: i32 = row.try_get(1)?;
        let (token, attempt) = (token.unsigned_abs(), attempt.unsigned_abs());
        return Ok(Some(Claim::Fresh { token: Token(token), attempt }));
    }
    let (same, running): (bool, bool) = (row.try_get(2)?, row.try_get(3)?);
    let remaining: i64 = row.try_get(4)?;
    let live = remaining > 0;
    if !same && (running || live) {
        return Ok(Some(Claim::Mismatch));
    }
    if !live {
        return Ok(None);
    }
    if running {
        let remaining = Duration::from_micros(remaining.unsigned_abs());
        return Ok(Some(Claim::InFlight { remaining }));
    }
    let (version, body): (Option<i16>, Option<Vec<u8>>) = (row.try_get(5)?, row.try_get(6)?);
    let version = version.and_then(|version| u8::try_from(version).ok());
    Ok(version.zip(body).map(|(version, body)| Claim::Done(Record { version, body: body.into() })))
}

fn stored(Token(token): Token) -> i64 {
    // A token that was never given out matches no row.
    i64::try_from(token).unwrap_or(-1)
}

fn holding(rows: u64) -> Holding {
    if rows == 1 { Holding::Held } else { Holding::Lost }
}
