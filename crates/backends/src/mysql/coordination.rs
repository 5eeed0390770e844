//! [`Coordinator`]: leases on the shares of a pipeline.

use std::time::Duration;

use async_trait::async_trait;
use semel_core::Failure;
use semel_core::coordination::{Coordinator, Standing};

use super::error::failure;
use super::store::{MysqlStore, micros};
use crate::coordination::Membership;

/// A member of the group of relays that work on a pipeline. Made by [`MysqlStore::member`].
///
/// ```no_run
/// use semel_backends::mysql::MysqlConfig;
/// use semel_core::coordination::Coordinator;
/// use std::time::Duration;
///
/// # async fn run() -> Result<(), semel_core::Failure> {
/// let store = MysqlConfig::new("mysql://localhost/shop")?.connect().await?;
/// let mut member = store.member("orders", 1, Duration::from_secs(10))?;
/// assert_eq!(member.claim(&[0]).await?, [0]);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct MysqlMember {
    store: MysqlStore,
    membership: Membership,
}

const OTHERS: &str = "\
SELECT member, shares FROM semel_member \
WHERE pipeline = ? AND member <> ? AND expires_at > utc_timestamp(6)";

const HELD: &str = "\
SELECT share, owner FROM semel_share \
WHERE pipeline = ? AND (expires_at > utc_timestamp(6) OR owner = ?)";

const RENEW_MEMBER: &str = "\
INSERT INTO semel_member (pipeline, member, shares, expires_at) \
VALUES (?, ?, ?, utc_timestamp(6) + INTERVAL ? MICROSECOND) \
ON DUPLICATE KEY UPDATE expires_at = VALUES(expires_at)";

/// Those who could not say that they are gone.
const FORGET: &str = "\
DELETE FROM semel_member \
WHERE pipeline = ? AND member = ? AND expires_at < utc_timestamp(6) - INTERVAL 1 HOUR";

const SILENT: &str = "\
SELECT member FROM semel_member \
WHERE pipeline = ? AND expires_at < utc_timestamp(6) - INTERVAL 1 HOUR";

const RENEW_SHARES: &str = "\
UPDATE semel_share SET expires_at = utc_timestamp(6) + INTERVAL ? MICROSECOND \
WHERE pipeline = ? AND owner = ?";

/// Assignments are made from left to right: the second sees what the first did.
const CLAIM: &str = "\
INSERT INTO semel_share (pipeline, share, owner, expires_at) \
VALUES (?, ?, ?, utc_timestamp(6) + INTERVAL ? MICROSECOND) \
ON DUPLICATE KEY UPDATE \
    owner = IF(expires_at <= utc_timestamp(6), VALUES(owner), owner), \
    expires_at = IF(owner = VALUES(owner), VALUES(expires_at), expires_at)";

impl MysqlMember {
    pub(super) fn new(
        store: MysqlStore,
        pipeline: &str,
        shares: u32,
        lease: Duration,
    ) -> Result<Self, Failure> {
        Ok(Self { store, membership: Membership::new(pipeline, shares, lease)? })
    }

    async fn renew(&self) -> Result<(), Failure> {
        let failed = || failure("renew the leases");
        let Membership { pipeline, member, shares, lease } = &self.membership;
        sqlx::query(RENEW_MEMBER)
            .bind(pipeline)
            .bind(member)
            .bind(shares)
            .bind(micros(*lease))
            .execute(self.store.pool())
            .await
            .map_err(failed())?;
        sqlx::query(RENEW_SHARES)
            .bind(micros(*lease))
            .bind(pipeline)
            .bind(member)
            .execute(self.store.pool())
            .await
            .map_err(failed())?;
        Ok(())
    }

    /// One by one: a search that deletes would lock the rows of all others.
    async fn forget_silent(&self) -> Result<(), Failure> {
        let failed = || failure("forget relays that are gone");
        let pipeline = &self.membership.pipeline;
        let silent: Vec<String> = sqlx::query_scalar(SILENT)
            .bind(pipeline)
            .fetch_all(self.store.pool())
            .await
            .map_err(failed())?;
        for member in silent {
            let forget = sqlx::query(FORGET).bind(pipeline).bind(member);
            forget.execute(self.store.pool()).await.map_err(failed())?;
        }
        Ok(())
    }

    async fn look(&self) -> Result<Standing, Failure> {
        let failed = || failure("look who works on the pipeline");
        let Membership { pipeline, member, .. } = &self.membership;
        let others: Vec<(String, u32)> = sqlx::query_as(OTHERS)
            .bind(pipeline)
            .bind(member)
            .fetch_all(self.store.pool())
            .await
            .map_err(failed())?;
        let held: Vec<(u32, String)> = sqlx::query_as(HELD)
            .bind(pipeline)
            .bind(member)
            .fetch_all(self.store.pool())
            .await
            .map_err(failed())?;
        self.membership.standing(&others, &held)
    }

    async fn delete_own(&self, sql: &'static str) -> Result<(), Failure> {
        sqlx::query(sql)
            .bind(&self.membership.pipeline)
            .bind(&self.membership.member)
            .execute(self.store.pool())
            .await
            .map_err(failure("leave the group"))?;
        Ok(())
    }
}

#[async_trait]
impl Coordinator for MysqlMember {
    fn lease(&self) -> Duration {
        self.membership.lease
    }

    fn name(&self) -> &str {
        &self.membership.member
    }

    /// Whoever divides the pipeline differently does not become a member.
    async fn beat(&mut self, renews: bool) -> Result<Standing, Failure> {
        if renews {
            self.look().await?;
            self.renew().await?;
            self.forget_silent().await?;
        }
        self.look().await
    }

    async fn claim(&mut self, shares: &[u32]) -> Result<Vec<u32>, Failure> {
        let failed = || failure("claim a share");
        let Membership { pipeline, member, lease, .. } = &self.membership;
        let mut claimed = Vec::new();
        for share in shares {
            sqlx::query(CLAIM)
                .bind(pipeline)
                .bind(share)
                .bind(member)
                .bind(micros(*lease))
                .execute(self.store.pool())
                .await
                .map_err(failed())?;
            let owner: Option<String> = sqlx::query_scalar(
                "SELECT owner FROM semel_share WHERE pipeline = ? AND share = ?",
            )
            .bind(pipeline)
            .bind(share)
            .fetch_optional(self.store.pool())
            .await
            .map_err(failed())?;
            claimed.extend(owner.filter(|owner| owner == member).map(|_| *share));
        }
        Ok(claimed)
    }

    async fn release(&mut self, shares: &[u32]) -> Result<(), Failure> {
        let Membership { pipeline, member, .. } = &self.membership;
        for share in shares {
            sqlx::query("DELETE FROM semel_share WHERE pipeline = ? AND share = ? AND owner = ?")
                .bind(pipeline)
                .bind(share)
                .bind(member)
                .execute(self.store.pool())
                .await
                .map_err(failure("give a share back"))?;
        }
        Ok(())
    }

    async fn leave(&mut self) -> Result<(), Failure> {
        self.delete_own("DELETE FROM semel_share WHERE pipeline = ? AND owner = ?").await?;
        self.delete_own("DELETE FROM semel_member WHERE pipeline = ? AND member = ?").await
    }
}
