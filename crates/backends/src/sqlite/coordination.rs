//! [`Coordinator`]: leases on the shares of a pipeline.

use std::time::Duration;

use async_trait::async_trait;
use semel_core::Failure;
use semel_core::coordination::{Coordinator, Standing};
use sqlx::SqliteConnection;

use super::error::failure;
use super::store::{SqliteStore, micros};
use crate::coordination::Membership;

/// A member of the group of relays that work on a pipeline. Made by [`SqliteStore::member`].
///
/// ```
/// use semel_backends::sqlite::SqliteConfig;
/// use semel_core::coordination::{Coordinator, Holder};
/// use std::time::Duration;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// # let folder = tempfile::tempdir()?;
/// # let url = format!("sqlite://{}/shop.db", folder.path().display());
/// let store = SqliteConfig::new(&url)?.connect().await?;
/// store.migrate().await?;
/// let mut member = store.member("orders", 1, Duration::from_secs(10))?;
/// member.claim(&[0]).await?;
/// assert_eq!(member.beat(true).await?.shares, [Holder::Me]);
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct SqliteMember {
    store: SqliteStore,
    membership: Membership,
}

impl SqliteMember {
    pub(super) fn new(
        store: SqliteStore,
        pipeline: &str,
        shares: u32,
        lease: Duration,
    ) -> Result<Self, Failure> {
        Ok(Self { store, membership: Membership::new(pipeline, shares, lease)? })
    }

    fn until(&self) -> i64 {
        self.store.now().saturating_add(micros(self.membership.lease))
    }

    async fn look(&self, connection: &mut SqliteConnection) -> Result<Standing, Failure> {
        let failed = || failure("look who works on the pipeline");
        let Membership { pipeline, member, .. } = &self.membership;
        let now = self.store.now();
        let others: Vec<(String, u32)> = sqlx::query_as(
            "SELECT member, shares FROM semel_member \
             WHERE pipeline = ?1 AND member <> ?2 AND until > ?3",
        )
        .bind(pipeline)
        .bind(member)
        .bind(now)
        .fetch_all(&mut *connection)
        .await
        .map_err(failed())?;
        let held: Vec<(u32, String)> = sqlx::query_as(
            "SELECT share, owner FROM semel_share \
             WHERE pipeline = ?1 AND (until > ?3 OR owner = ?2)",
        )
        .bind(pipeline)
        .bind(member)
        .bind(now)
        .fetch_all(connection)
        .await
        .map_err(failed())?;
        self.membership.standing(&others, &held)
    }

    async fn renew(&self, connection: &mut SqliteConnection) -> Result<(), Failure> {
        let failed = || failure("renew the leases");
        let Membership { pipeline, member, shares, .. } = &self.membership;
        let until = self.until();
        sqlx::query(
            "INSERT INTO semel_member (pipeline, member, shares, until) VALUES (?1, ?2, ?3, ?4) \
             ON CONFLICT (pipeline, member) DO UPDATE SET until = excluded.until",
        )
        .bind(pipeline)
        .bind(member)
        .bind(shares)
        .bind(until)
        .execute(&mut *connection)
        .await
        .map_err(failed())?;
        sqlx::query("UPDATE semel_share SET until = ?3 WHERE pipeline = ?1 AND owner = ?2")
            .bind(pipeline)
            .bind(member)
            .bind(until)
            .execute(&mut *connection)
            .await
            .map_err(failed())?;
        // Those who could not say that they are gone.
        sqlx::query("DELETE FROM semel_member WHERE pipeline = ?1 AND until < ?2")
            .bind(pipeline)
            .bind(self.store.before(Duration::from_secs(3600)))
            .execute(connection)
            .await
            .map_err(failed())?;
        Ok(())
    }
}

#[async_trait]
impl Coordinator for SqliteMember {
    fn lease(&self) -> Duration {
        self.membership.lease
    }

    fn name(&self) -> &str {
        &self.membership.member
    }

    /// Whoever divides the pipeline differently does not become a member.
    async fn beat(&mut self, renews: bool) -> Result<Standing, Failure> {
        let failed = || failure("look who works on the pipeline");
        if !renews {
            let mut reader = self.store.readers.acquire().await.map_err(failed())?;
            return self.look(&mut reader).await;
        }
        let mut tx = self.store.begin().await?;
        let standing = self.look(&mut tx).await?;
        self.renew(&mut tx).await?;
        tx.commit().await.map_err(failed())?;
        Ok(standing)
    }

    async fn claim(&mut self, shares: &[u32]) -> Result<Vec<u32>, Failure> {
        let failed = || failure("claim a share");
        let Membership { pipeline, member, .. } = &self.membership;
        let mut tx = self.store.begin().await?;
        let (now, until) = (self.store.now(), self.until());
        let mut claimed = Vec::new();
        for share in shares {
            let changed = sqlx::query(
                "INSERT INTO semel_share (pipeline, share, owner, until) VALUES (?1, ?2, ?3, ?4) \
                 ON CONFLICT (pipeline, share) \
                 DO UPDATE SET owner = excluded.owner, until = excluded.until \
                 WHERE until <= ?5 OR owner = excluded.owner",
            )
            .bind(pipeline)
            .bind(share)
            .bind(member)
            .bind(until)
            .bind(now)
            .execute(&mut *tx)
            .await
            .map_err(failed())?;
            claimed.extend((changed.rows_affected() > 0).then_some(*share));
        }
        tx.commit().await.map_err(failed())?;
        Ok(claimed)
    }

    async fn release(&mut self, shares: &[u32]) -> Result<(), Failure> {
        let failed = || failure("give a share back");
        let Membership { pipeline, member, .. } = &self.membership;
        let mut tx = self.store.begin().await?;
        for share in shares {
            sqlx::query(
                "DELETE FROM semel_share WHERE pipeline = ?1 AND share = ?2 AND owner = ?3",
            )
            .bind(pipeline)
            .bind(share)
            .bind(member)
            .execute(&mut *tx)
            .await
            .map_err(failed())?;
        }
        tx.commit().await.map_err(failed())
    }

    async fn leave(&mut self) -> Result<(), Failure> {
        let failed = || failure("leave the group");
        let Membership { pipeline, member, .. } = &self.membership;
        let mut tx = self.store.begin().await?;
        for sql in [
            "DELETE FROM semel_share WHERE pipeline = ?1 AND owner = ?2",
            "DELETE FROM semel_member WHERE pipeline = ?1 AND member = ?2",
        ] {
            let query = sqlx::query(sql).bind(pipeline).bind(member);
            query.execute(&mut *tx).await.map_err(failed())?;
        }
        tx.commit().await.map_err(failed())
    }
}
