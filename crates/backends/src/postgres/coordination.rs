//! [`Coordinator`]: leases on the shares of a pipeline.

use std::time::Duration;

use async_trait::async_trait;
use semel_core::Failure;
use semel_core::coordination::{Coordinator, Standing};
use sqlx::Row;

use super::error::failure;
use super::store::{PostgresStore, micros};
use crate::coordination::Membership;

/// A member of the group of relays that work on a pipeline. Made by [`PostgresStore::member`].
///
/// ```no_run
/// use semel_backends::postgres::PostgresConfig;
/// use semel_core::coordination::Coordinator;
/// use std::time::Duration;
///
/// # async fn run() -> Result<(), semel_core::Failure> {
/// let store = PostgresConfig::new("postgres://localhost/shop")?.connect().await?;
/// let mut member = store.member("orders", 4, Duration::from_secs(10))?;
/// assert_eq!(member.claim(&[0, 1]).await?, [0, 1]);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct PostgresMember {
    store: PostgresStore,
    membership: Membership,
}

const LOOK: &str = "\
select null::integer as share, member, shares from semel.member
    where pipeline = $1 and member <> $2 and until > now()
union all
select share, owner, null from semel.share
    where pipeline = $1 and (until > now() or owner = $2)";

/// Whoever divides the pipeline differently does not become a member.
const RENEW: &str = "\
with known as (
    insert into semel.member (pipeline, member, shares, until)
    select $1, $2, $3, now() + $4 * interval '1 microsecond'
    where not exists (
        select from semel.member
        where pipeline = $1 and member <> $2 and until > now() and shares <> $3)
    on conflict (pipeline, member) do update set until = excluded.until
), forgotten as (
    delete from semel.member where pipeline = $1 and until < now() - interval '1 hour'
)
update semel.share set until = now() + $4 * interval '1 microsecond'
where pipeline = $1 and owner = $2";

const CLAIM: &str = "\
insert into semel.share as held (pipeline, share, owner, until)
select $1, share, $2, now() + $4 * interval '1 microsecond'
from unnest($3::integer[]) as share order by share
on conflict (pipeline, share) do update set owner = excluded.owner, until = excluded.until
where held.until <= now() or held.owner = excluded.owner
returning share";

impl PostgresMember {
    pub(super) fn new(
        store: PostgresStore,
        pipeline: &str,
        shares: u32,
        lease: Duration,
    ) -> Result<Self, Failure> {
        Ok(Self { store, membership: Membership::new(pipeline, shares, lease)? })
    }

    fn lease_micros(&self) -> i64 {
        micros(self.membership.lease)
    }
}

#[async_trait]
impl Coordinator for PostgresMember {
    fn lease(&self) -> Duration {
        self.membership.lease
    }

    fn name(&self) -> &str {
        &self.membership.member
    }

    async fn beat(&mut self, renews: bool) -> Result<Standing, Failure> {
        let failed = || failure("look who works on the pipeline");
        let Membership { pipeline, member, shares, .. } = &self.membership;
        if renews {
            sqlx::query(RENEW)
                .bind(pipeline)
                .bind(member)
                .bind(integer(*shares))
                .bind(self.lease_micros())
                .execute(self.store.once())
                .await
                .map_err(failed())?;
        }
        let rows = sqlx::query(LOOK).bind(pipeline).bind(member).fetch_all(self.store.once());
        let (mut others, mut held) = (Vec::new(), Vec::new());
        for row in rows.await.map_err(failed())? {
            let who: String = row.try_get(1).map_err(failed())?;
            match row.try_get::<Option<i32>, _>(0).map_err(failed())? {
                Some(share) => held.push((share.unsigned_abs(), who)),
                None => {
                    let shares: i32 = row.try_get(2).map_err(failed())?;
                    others.push((who, shares.unsigned_abs()));
                }
            }
        }
        self.membership.standing(&others, &held)
    }

    async fn claim(&mut self, shares: &[u32]) -> Result<Vec<u32>, Failure> {
        let Membership { pipeline, member, .. } = &self.membership;
        let claimed: Vec<i32> = sqlx::query_scalar(CLAIM)
            .bind(pipeline)
            .bind(member)
            .bind(shares.iter().copied().map(integer).collect::<Vec<_>>())
            .bind(self.lease_micros())
            .fetch_all(self.store.once())
            .await
            .map_err(failure("claim a share"))?;
        Ok(claimed.into_iter().map(i32::unsigned_abs).collect())
    }

    async fn release(&mut self, shares: &[u32]) -> Result<(), Failure> {
        let Membership { pipeline, member, .. } = &self.membership;
        sqlx::query(
            "delete from semel.share where pipeline = $1 and owner = $2 and share = any($3)",
        )
        .bind(pipeline)
        .bind(member)
        .bind(shares.iter().copied().map(integer).collect::<Vec<_>>())
        .execute(self.store.once())
        .await
        .map_err(failure("give a share back"))?;
        Ok(())
    }

    async fn leave(&mut self) -> Result<(), Failure> {
        let Membership { pipeline, member, .. } = &self.membership;
        sqlx::query(
            "with gone as (delete from semel.member where pipeline = $1 and member = $2)
            delete from semel.share where pipeline = $1 and owner = $2",
        )
        .bind(pipeline)
        .bind(member)
        .execute(self.store.once())
        .await
        .map_err(failure("leave the group"))?;
        Ok(())
    }
}

fn integer(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
