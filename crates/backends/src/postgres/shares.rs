//! How many shares a pipeline has: making their cursors, and dividing a pipeline anew.
//!
//! A share is the lanes whose hash falls to it, so another number of shares gives most lanes to
//! another cursor. What the old cursors have not settled is parked, where the order of a lane is
//! kept without a cursor, and the new ones start with the present, all in one transaction. Their
//! epochs are higher than any before: whoever owned an old share is fenced off from all new ones.

use semel_core::Failure;
use sqlx::PgConnection;

use super::error::failure;
use super::store::integer;

/// "seme" in ASCII, and the pipeline.
const LOCK: &str = "select pg_advisory_xact_lock(1936026981, hashtext($1))";
const LOCK_SHARED: &str = "select pg_advisory_xact_lock_shared(1936026981, hashtext($1))";

/// Ends with nobody else changing anything of the pipeline, until the transaction is over.
const CURSORS: &str = "\
select shares, epoch, windows from semel.cursor where pipeline = $1 order by share for update";

/// A new pipeline has seen no transaction.
const CREATE: &str = "\
insert into semel.cursor (pipeline, share, shares, epoch, server, passed)
select $1, n, $2, 0, $3, '1:1:' from generate_series(0, $2 - 1) n";

const COUNT: &str = "select count(*) from (select from semel.unsettled($1) limit $2) u";

/// Scheduled events keep their time; everything else waits for its turn, behind what is parked. The
/// window that was being read comes before what is after it.
const PARK: &str = "\
insert into semel.parked
    (pipeline, seq, share, place, aggregate_type, aggregate_id, state, holds, due)
select $1, o.seq, semel.share_of(o.aggregate_type, o.aggregate_id, $2),
    c.windows + case when pg_visible_in_snapshot(o.txid, c.window_end) then 1 else 2 end,
    o.aggregate_type, o.aggregate_id,
    case when o.available_at > now() then 'scheduled' else 'waiting' end,
    (o.available_at > now()) is not true,
    greatest(o.available_at, now())
from semel.unsettled($1) u
join semel.outbox o on o.seq = u.seq
join semel.cursor c on c.pipeline = $1 and c.share = u.share
where pg_visible_in_snapshot(o.txid, $3::text::pg_snapshot)
on conflict (pipeline, seq) do nothing";

/// What is over stays as it was: most of it would be moved in vain. The whole of a name that was cut
/// off is with the event.
const MOVE: &str = "\
update semel.parked p set share = new.share, taken = null from (
    select m.seq, coalesce(case when greatest(length(m.aggregate_type), length(m.aggregate_id)) > 200
        then (select semel.share_of(o.aggregate_type, o.aggregate_id, $2)
            from semel.outbox o where o.seq = m.seq) end,
        semel.share_of(m.aggregate_type, m.aggregate_id, $2)) as share
    from semel.parked m where m.pipeline = $1 and m.state not in ('published', 'discarded')
) new
where p.pipeline = $1 and p.seq = new.seq and (p.taken is not null or p.share <> new.share)";

const HEADS: &str = "\
update semel.parked p set head = true from (
    select distinct on (aggregate_type, aggregate_id) seq, head
    from semel.parked where pipeline = $1 and holds
    order by aggregate_type, aggregate_id, place, seq
) first
where p.pipeline = $1 and p.seq = first.seq and not first.head";

/// When the old shares were where says nothing about the new ones.
const FORGET: &str = "delete from semel.passage where pipeline = $1";
const END: &str = "delete from semel.cursor where pipeline = $1";

const RESTART: &str = "\
insert into semel.cursor (pipeline, share, shares, epoch, server, passed, windows, top)
select $1, n, $2, $4, $5, $3::text::pg_snapshot, $6,
    coalesce((select max(seq) from semel.outbox), 0)
from generate_series(0, $2 - 1) n";

/// More would take longer to park than others can wait.
const MOST_PARKED: i64 = 100_000;

/// A cursor that is there: shares, epoch, windows.
type Old = (i32, i64, i64);

/// Lets the pipeline have so many shares, in a transaction that belongs to nobody else.
///
/// # Errors
/// `Misconfigured` when it has another number and there is too much to be parked.
pub(super) async fn divide(
    tx: &mut PgConnection,
    pipeline: &str,
    shares: u32,
    server: &str,
) -> Result<(), Failure> {
    let failed = || failure("divide the pipeline");
    sqlx::query(LOCK).bind(pipeline).execute(&mut *tx).await.map_err(failed())?;
    let old: Vec<Old> =
        sqlx::query_as(CURSORS).bind(pipeline).fetch_all(&mut *tx).await.map_err(failed())?;
    match old.first() {
        Some((present, ..)) if *present == integer(shares) => Ok(()),
        Some(_) => divide_anew(tx, pipeline, shares, server, &old).await,
        None => {
            let create = sqlx::query(CREATE).bind(pipeline).bind(integer(shares)).bind(server);
            create.execute(tx).await.map(drop).map_err(failed())
        }
    }
}

/// Keeps the number of shares as it is until the transaction ends.
pub(super) async fn keep(tx: &mut PgConnection, pipeline: &str) -> Result<(), Failure> {
    let locked = sqlx::query(LOCK_SHARED).bind(pipeline).execute(tx).await;
    locked.map(drop).map_err(failure("look at the shares of the pipeline"))
}

async fn divide_anew(
    tx: &mut PgConnection,
    pipeline: &str,
    shares: u32,
    server: &str,
    old: &[Old],
) -> Result<(), Failure> {
    let failed = || failure("divide the pipeline anew");
    let unsettled: i64 = sqlx::query_scalar(COUNT)
        .bind(pipeline)
        .bind(MOST_PARKED + 1)
        .fetch_one(&mut *tx)
        .await
        .map_err(failed())?;
    if unsettled > MOST_PARKED {
        return Err(too_many(pipeline, old.len(), shares));
    }
    // Every statement sees more than the one before: this is where the log is cut.
    let present: String = sqlx::query_scalar("select pg_current_snapshot()::text")
        .fetch_one(&mut *tx)
        .await
        .map_err(failed())?;
    let on_all = |sql| sqlx::query(sql).bind(pipeline.to_owned());
    let on_shares = |sql| on_all(sql).bind(integer(shares));
    let park = on_shares(PARK).bind(&present).execute(&mut *tx).await.map_err(failed())?;
    on_shares(MOVE).execute(&mut *tx).await.map_err(failed())?;
    for sql in [HEADS, FORGET, END] {
        on_all(sql).execute(&mut *tx).await.map_err(failed())?;
    }
    on_shares(RESTART)
        .bind(&present)
        .bind(old.iter().map(|(_, epoch, _)| *epoch).max().unwrap_or(0) + 1)
        .bind(server)
        .bind(old.iter().map(|(.., windows)| *windows).max().unwrap_or(0) + 2)
        .execute(tx)
        .await
        .map_err(failed())?;
    let (before, events) = (old.len(), park.rows_affected());
    tracing::info!(pipeline, before, shares, events, "the pipeline has another number of shares");
    Ok(())
}

fn too_many(pipeline: &str, before: usize, shares: u32) -> Failure {
    Failure::misconfigured(
        "E-SHARES",
        format!(
            "PostgreSQL: pipeline {pipeline:?} has {before} shares and more than {MOST_PARKED} \
             events that are not settled, too many to give it {shares} shares"
        ),
    )
    .with_fix(format!(
        "drain the pipeline first, then change shares: run `semel relay --drain` with {before}"
    ))
}
