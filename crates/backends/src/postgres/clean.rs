//! Old events go, and what is left of them elsewhere.
//!
//! An event that is being replayed must not go. Neither a lock on the cursor nor one on the event would
//! do: the one holds up the relay, and the other leaves a deletion that began before with what it saw.
//! So cleaning and replaying take turns.

use std::sync::PoisonError;
use std::time::Duration;

use semel_core::Failure;
use sqlx::PgConnection;

use super::admin::PostgresAdmin;
use super::error::failure;
use super::parking::{OwnedLane, all_lanes, find_heads};
use super::pooler::BRIEF;
use super::shares;
use super::store::{count, micros};

/// Where cleaning goes on: not before rows that it deleted, which may still be in the way. The last one
/// that was deleted: its transaction and its number.
#[derive(Clone, Debug)]
pub(super) struct Cleaned(String, i64);

impl Default for Cleaned {
    fn default() -> Self {
        Self("0".into(), 0)
    }
}

/// "clea" in ASCII.
const LOCK: &str = "select pg_advisory_xact_lock(1668048225, 0)";
const LOCK_SHARED: &str = "select pg_advisory_xact_lock_shared(1668048225, 0)";

/// An event goes when every pipeline has published or discarded it long enough ago. What no share
/// of some pipeline has come to is not even looked at, however long the backlog is.
const CLEAN: &str = "\
with long_ago as materialized (
    select clock_timestamp() - $1 * interval '1 microsecond' as at
), pipeline as materialized (
    select p.* from long_ago, semel.passed_before(long_ago.at) p
), reached as materialized (
    select txid from (
        select distinct on (pipeline) coalesce(pg_snapshot_xmax(passed), '0') as txid
        from pipeline order by pipeline, 1 desc) furthest
    order by txid limit 1
), gone as (
    delete from semel.deletable where seq in (
        select o.seq from semel.deletable o
        where (o.txid, o.seq) > ($3::text::xid8, $4) and o.txid < (select txid from reached)
            and not exists (
                select from pipeline l left join semel.parked p
                    on p.pipeline = l.pipeline and p.seq = o.seq
                where l.share = semel.share_of(o.aggregate_type, o.aggregate_id, l.shares)
                    and case when p.seq is null
                    then pg_visible_in_snapshot(o.txid, l.passed) is not true
                    else p.state not in ('published', 'discarded')
                        or p.changed_at >= (select at from long_ago) end)
        order by o.txid, o.seq limit $2)
    returning txid, seq
), unparked as (
    delete from semel.parked p using gone where p.seq = gone.seq
), forgotten as (
    delete from semel.passage h where (h.pipeline, h.share, h.at) in (
        select h.pipeline, h.share, h.at from semel.passage h
        where h.at < clock_timestamp() - interval '1 hour' and exists (
            select from semel.passage n
            where n.pipeline = h.pipeline and n.share = h.share and n.at > h.at
                and (n.at < (select at from long_ago)
                    or n.at < date_trunc('minute', h.at) + interval '1 minute'))
        limit $2)
)
select (select count(*) from gone), coalesce(l.txid, '0')::text, coalesce(l.seq, 0)
from (select) x left join (select txid, seq from gone order by txid desc, seq desc limit 1) l on true";

/// Lanes whose first event is due for long, and gone: it was replayed while it was deleted, by a version
/// in which the two did not take turns.
const ORPHANED: &str = "\
select distinct h.aggregate_type, h.aggregate_id from semel.cursor c cross join lateral (
    select p.seq, p.aggregate_type, p.aggregate_id from semel.parked p
    where p.pipeline = $1 and p.share = c.share and p.head and p.taken is null
        and p.due < clock_timestamp() - interval '1 minute'
    order by p.due limit $2) h
where c.pipeline = $1 and not exists (select from semel.outbox o where o.seq = h.seq)";

const FORGET_ORPHANS: &str = "\
delete from semel.parked p using unnest($2::text[], $3::text[]) as l (aggregate_type, aggregate_id)
where p.pipeline = $1 and p.aggregate_type = l.aggregate_type and p.aggregate_id = l.aggregate_id
    and p.holds and not exists (select from semel.outbox o where o.seq = p.seq)";

/// Lets nothing be deleted until the transaction ends.
pub(super) async fn keep_out(tx: &mut PgConnection) -> Result<(), Failure> {
    let locked = sqlx::query(LOCK_SHARED).execute(tx).await;
    locked.map(drop).map_err(failure("wait until old events are deleted"))
}

impl PostgresAdmin {
    pub(super) async fn delete_old(&self, age: Duration, limit: usize) -> Result<usize, Failure> {
        let failed = || failure("delete old events");
        let cleaned = || self.cleaned.lock().unwrap_or_else(PoisonError::into_inner);
        let Cleaned(txid, seq) = cleaned().clone();
        let mut tx = self.store.begin_as(BRIEF).await?;
        sqlx::query(LOCK).execute(&mut *tx).await.map_err(failed())?;
        let (deleted, txid, seq): (i64, String, i64) = sqlx::query_as(CLEAN)
            .bind(micros(age))
            .bind(count(limit))
            .bind(txid)
            .bind(seq)
            .fetch_one(&mut *tx)
            .await
            .map_err(failed())?;
        tx.commit().await.map_err(failed())?;
        // A call that found less than it might have came to the end: begin anew.
        let go_on = deleted == count(limit);
        *cleaned() = if go_on { Cleaned(txid, seq) } else { Cleaned::default() };
        if !go_on {
            self.forget_orphans().await?;
        }
        Ok(usize::try_from(deleted).unwrap_or(0))
    }

    /// What is gone cannot be offered: it would be pending for ever, every look would stumble over it, and
    /// nobody could discard it.
    async fn forget_orphans(&self) -> Result<(), Failure> {
        const AT_ONCE: i64 = 1_000;
        let failed = || failure("forget events that are gone");
        let rows = sqlx::query(ORPHANED)
            .bind(&self.pipeline)
            .bind(AT_ONCE)
            .fetch_all(self.store.once())
            .await
            .map_err(failed())?;
        let lanes = all_lanes(&rows)?;
        if lanes.is_empty() {
            return Ok(());
        }
        let mut tx = self.store.begin_as(BRIEF).await?;
        self.lock(&mut tx).await?;
        let names = |name: fn(&OwnedLane) -> &str| lanes.iter().map(name).collect::<Vec<_>>();
        let forgotten = sqlx::query(FORGET_ORPHANS)
            .bind(&self.pipeline)
            .bind(names(|lane| &lane.0))
            .bind(names(|lane| &lane.1))
            .execute(&mut *tx)
            .await
            .map_err(failed())?;
        find_heads(&mut tx, &self.pipeline, &lanes).await?;
        tx.commit().await.map_err(failed())?;
        self.store.announce_change();
        tracing::warn!(
            pipeline = self.pipeline,
            events = forgotten.rows_affected(),
            "forgot events that were to be replayed and had been deleted: they were published before, \
             and are not published again"
        );
        Ok(())
    }

    /// Lets nobody else change anything of the pipeline: a relay that settles or takes something waits
    /// for us, or we for it.
    pub(super) async fn lock(&self, tx: &mut PgConnection) -> Result<(), Failure> {
        shares::keep(tx, &self.pipeline).await?;
        sqlx::query("select from semel.cursor where pipeline = $1 order by share for update")
            .bind(&self.pipeline)
            .execute(tx)
            .await
            .map(drop)
            .map_err(failure("lock the pipeline"))
    }
}
