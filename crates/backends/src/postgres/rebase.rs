//! What to do when transaction ids have lost their meaning.
//!
//! A dump, a logical copy or an upgrade brings the outbox and its cursors to a server that counts
//! transactions from somewhere else. Rows and cursors that came together still fit together, so
//! what each pipeline has not settled can be found once more by the old numbers. It is parked,
//! where no transaction ids are needed, and the cursor starts anew with this server's present.
//!
//! Rows written after the copy and before this was noticed have numbers of the new server. They are
//! told apart by `seq`, which goes on from the highest one of the copy. Had the sequence been left
//! behind, nothing could be told apart: then every event that is still there is offered again.

use semel_core::Failure;

use super::error::failure;
use super::pooler::Link;

const STALE: &str = "\
select exists (select from semel.cursor where server <> $1
    or pg_snapshot_xmax(passed) > pg_snapshot_xmax(pg_current_snapshot()))
or coalesce((select txid from semel.outbox order by txid desc, seq desc limit 1)
    >= pg_snapshot_xmax(pg_current_snapshot()), false)";

const LOCK: &str = "lock table semel.cursor in exclusive mode";

/// Scheduled events keep their time; everything else waits for its turn, behind what is parked. A
/// pipeline that has not seen transaction 1 finds in the log what [`ADOPT`] puts there.
const PARK: &str = "\
with pipeline as materialized (
    select c.*, c.server <> $1
        or pg_snapshot_xmax(c.passed) > pg_snapshot_xmax(pg_current_snapshot()) as stale,
        case when c.top <= last_value then c.top else 0 end as believed_top
    from semel.cursor c, pg_sequence_last_value(
        pg_get_serial_sequence('semel.outbox', 'seq')::regclass) as last_value
)
insert into semel.parked
    (pipeline, seq, share, place, aggregate_type, aggregate_id, state, holds, due)
select c.pipeline, o.seq, c.share, c.windows + 1, o.aggregate_type, o.aggregate_id,
    case when o.available_at > now() then 'scheduled' else 'waiting' end,
    (o.available_at > now()) is not true,
    greatest(o.available_at, now())
from pipeline c
join semel.cursor k on k.pipeline = c.pipeline and k.share = c.share
join semel.outbox o on c.share = semel.share_of(o.aggregate_type, o.aggregate_id, c.shares)
    and (not semel.settled(k, o.txid, o.seq) or (c.stale and o.seq > c.believed_top))
where c.stale or (pg_visible_in_snapshot('1', c.passed)
    and not pg_visible_in_snapshot(o.txid, pg_current_snapshot()))
on conflict (pipeline, seq) do nothing";

const HEADS: &str = "\
update semel.parked p set head = true from (
    select distinct on (pipeline, aggregate_type, aggregate_id) pipeline, seq, head
    from semel.parked where holds
    order by pipeline, aggregate_type, aggregate_id, place, seq
) first
where p.pipeline = first.pipeline and p.seq = first.seq and not first.head";

const RESTART: &str = "\
update semel.cursor set server = $1, passed = pg_current_snapshot(), window_end = null,
    progress = 0, ahead = '{}', windows = windows + 1, out_from = null, out_end = null,
    out_seq = null, top = coalesce((select max(seq) from semel.outbox), 0)
where server <> $1 or pg_snapshot_xmax(passed) > pg_snapshot_xmax(pg_current_snapshot())";

/// Numbers from elsewhere would come up again when this server counts so far. Transaction 1 was
/// over before there was a database.
const ADOPT: &str = "\
update semel.outbox set txid = '1' where not pg_visible_in_snapshot(txid, pg_current_snapshot())";

/// Old times of passing are in old numbers.
const FORGET: &str = "\
delete from semel.passage h using semel.cursor c
where h.pipeline = c.pipeline and h.share = c.share and (c.server <> $1
    or pg_snapshot_xmax(c.passed) > pg_snapshot_xmax(pg_current_snapshot()))";

/// Gives cursors and rows from elsewhere the numbers of this server; says how many events will be
/// offered because of it, or nothing when all is well.
pub(super) async fn rebase(link: &mut Link<'_>, server: &str) -> Result<Option<u64>, Failure> {
    let failed = || failure("adopt the outbox of another server");
    let mut step = link.step().await?;
    let stale = sqlx::query_scalar(STALE).bind(server).fetch_one(&mut *step);
    let stale: bool = stale.await.map_err(failed())?;
    step.end().await?;
    if !stale {
        return Ok(None);
    }
    let mut tx = link.begin("begin isolation level repeatable read").await.map_err(failed())?;
    sqlx::raw_sql(LOCK).execute(&mut *tx).await.map_err(failed())?;
    let parked = sqlx::query(PARK).bind(server).execute(&mut *tx).await.map_err(failed())?;
    sqlx::query(HEADS).execute(&mut *tx).await.map_err(failed())?;
    sqlx::query(FORGET).bind(server).execute(&mut *tx).await.map_err(failed())?;
    sqlx::query(RESTART).bind(server).execute(&mut *tx).await.map_err(failed())?;
    sqlx::query(ADOPT).execute(&mut *tx).await.map_err(failed())?;
    tx.commit().await.map_err(failed())?;
    Ok(Some(parked.rows_affected()))
}
