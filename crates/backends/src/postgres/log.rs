//! Reading the outbox: one statement brings what is new and says what else there is to do.
//!
//! A statement sees one snapshot, so the snapshot it returns and the rows it returns agree, also
//! without a transaction around it.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::TryStreamExt;
use semel_core::coordination::Share;
use semel_core::{Event, Failure, Limit, Payload, Timestamp};
use sqlx::PgConnection;
use sqlx::postgres::PgRow;

use super::cursor::Cursor;
use super::error::failure;
use super::pooler::{Link, Step};
use super::row::{self, column, event_columns};
use super::store::{count, integer};
use super::types::{Snapshot, Stamp};
use super::window::Next;

/// What one look at the tables found.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) agenda: Agenda,
    /// In the order of `seq`.
    pub(super) rows: Vec<LogRow>,
    /// Whether the statement stopped at its limit.
    pub(super) full: bool,
}

/// What else there is to do.
#[derive(Debug)]
pub(super) struct Agenda {
    pub(super) snapshot: Snapshot,
    /// The server's time.
    pub(super) now: Timestamp,
    /// When the next retry falls due, as the relay that settled it said.
    pub(super) next_retry: Option<Timestamp>,
    /// A parked event is due.
    pub(super) due: bool,
    /// So is a scheduled one.
    pub(super) scheduled: bool,
    /// Some lane is held.
    pub(super) held: bool,
    /// There are rows of other shares.
    pub(super) others: bool,
}

/// A row of the outbox.
#[derive(Debug)]
pub(super) struct LogRow {
    pub(super) seq: i64,
    pub(super) event: Arc<Event>,
    /// How large the event is, whether its payload came with it or not.
    pub(super) size: usize,
    /// Whether the payload is too large to come with many others.
    large: bool,
}

impl LogRow {
    /// Whether its payload did not come with it.
    pub(super) fn is_large(&self) -> bool {
        self.large
    }
}

/// How much one statement may bring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Portion {
    rows: usize,
    /// Larger payloads are fetched when it is known that there is room for them.
    payload: usize,
}

impl Portion {
    /// Enough for `limit` and not much more, if events are as large as they were.
    pub(super) fn of(limit: Limit, average: usize) -> Self {
        const SOME: usize = 8;
        let fitting = limit.bytes / average.max(1);
        let rows = limit.events.min(fitting.saturating_add(fitting / 4 + SOME)).max(1);
        Self { rows, payload: (limit.bytes / rows).saturating_mul(4).max(4096) }
    }
}

/// The first row of every answer: flags in place of the aggregate type, the snapshot in place of
/// the aggregate id, the server's time and the next retry in place of the event's times.
///
/// Each part has an order that one index gives: a planner that is left to guess how soon a row will
/// be found reads the whole table now and then.
macro_rules! read {
    ($others:literal, $($branch:expr),+) => {
        concat!(
            "select null::bigint, null::uuid, concat(
                (select 'd' from semel.parked where pipeline = $1 and share = $4 and head
                    and taken is null and due <= now() order by due limit 1),
                (select 's' from semel.parked where pipeline = $1 and share = $4
                    and state = 'scheduled' and taken is null and due <= now()
                    order by due limit 1),
                (select 'h' from semel.parked where pipeline = $1 and holds
                    order by aggregate_type, aggregate_id, place, seq limit 1)",
            $others,
            "), pg_current_snapshot()::text, null::text, null::text, null::bytea, null::text,
            null::text, null::text, now(), (
                select retry_at from semel.parked where pipeline = $1 and share = $4 and head
                    and taken is null and state = 'failed' and due > now()
                    order by due limit 1)",
            $(
                " union all (select ",
                event_columns!(
                    "case when octet_length(o.payload) <= $3 then o.payload end",
                    "case when octet_length(o.payload_bytes) <= $3 then o.payload_bytes end"
                ),
                " from ",
                $branch,
                " limit $2)"
            ),+
        )
    };
}

/// What a transaction that still runs has written so far is not even looked at. One that is late is
/// a range of one: were it a single value, the order of `seq` would do, from the oldest row on.
macro_rules! window {
    ($others:literal, $mine:literal) => {
        read!(
            $others,
            concat!(
                "semel.outbox o where o.txid >= $5::text::xid8
                    and o.txid < (select pg_snapshot_xmax(pg_current_snapshot()))",
                $mine,
                " order by o.txid, o.seq"
            ),
            concat!(
                "unnest($6::text::xid8[]) as late cross join lateral (
                    select * from semel.outbox o where o.txid >= late and o.txid <= late",
                $mine,
                " order by o.txid, o.seq limit $2) o
                where pg_visible_in_snapshot(late, pg_current_snapshot())"
            )
        )
    };
}

/// The functions hide `txid` from the planner, so that nothing but the order of `seq` is left.
macro_rules! page {
    ($mine:literal) => {
        read!(
            "",
            concat!(
                "semel.outbox o where o.seq > $7 and o.seq <= $8
                    and pg_visible_in_snapshot(o.txid, (select $6::text::pg_snapshot))
                    and not pg_visible_in_snapshot(o.txid, (select $5::text::pg_snapshot))",
                $mine,
                " order by o.seq"
            )
        )
    };
}

/// The ways to read a whole pipeline and one share of it. A limit counts the rows of the share; its
/// condition is wrapped, so that the planner does not take it for one that hardly a row meets.
struct Statement {
    whole: &'static str,
    share: &'static str,
}

const WINDOW: Statement = Statement {
    whole: window!("", ""),
    share: window!(
        ", (select 'o' from semel.outbox where txid >= $5::text::xid8
            and txid < (select pg_snapshot_xmax(pg_current_snapshot()))
            order by txid, seq limit 1)",
        " and coalesce(semel.share_of(o.aggregate_type, o.aggregate_id, $7) = $4, false)"
    ),
};
const PAGE: Statement = Statement {
    whole: page!(""),
    share: page!(" and coalesce(semel.share_of(o.aggregate_type, o.aggregate_id, $9) = $4, false)"),
};

const THESE: &str = read!(
    "",
    "unnest($5::bigint[]) as this cross join lateral (
        select * from semel.outbox o where o.seq = this) o"
);

/// Adding zero keeps the planner from looking for the least `seq` from the oldest row on. No row
/// that was written so far has a higher number than the sequence, unless rows were copied without it;
/// what is beyond it is one look into an index, however much there is that nobody sees yet.
const BOUNDS: &str = "\
select coalesce(least((
    select min(seq + 0) from semel.outbox
    where txid >= $1::text::xid8 and txid < $2::text::xid8
        and pg_visible_in_snapshot(txid, (select $4::text::pg_snapshot))
), (
    select min(o.seq) from unnest($3::text::xid8[]) as late
    cross join lateral (
        select seq from semel.outbox where txid >= late and txid <= late
        order by txid, seq limit 1) o
    where pg_visible_in_snapshot(late, $4::text::pg_snapshot)
)), 1), greatest(sequence.last, (select max(seq) from semel.outbox where seq > sequence.last))
from (select coalesce(pg_sequence_last_value(
    pg_get_serial_sequence('semel.outbox', 'seq')::regclass), 0) as last) sequence";

const SIZES: &str = "\
select seq, coalesce(octet_length(payload), octet_length(payload_bytes)) from semel.outbox
where seq = any($1)";

const PAYLOADS: &str = "\
select seq, coalesce(convert_to(payload, 'UTF8'), payload_bytes) from semel.outbox
where seq = any($1)";

/// Keeps the planner to the indexes. Without statistics it expects few rows where there are many,
/// and would rather read and sort them all than follow an index that has them in order.
const GUIDED: &str = "begin read only; set local enable_seqscan = off; \
    set local enable_bitmapscan = off; set local jit = off";

/// What to read.
pub(super) enum What<'a> {
    Next(&'a Next),
    These(Vec<i64>),
}

/// A window with more rows is measured and read in pages.
const SMALL_WINDOW: usize = 1_000;

/// Reads rows of the share of `cursor`, at most a portion. A new window is asked for one row more: if that comes, there is
/// more, and what came is not its beginning.
///
/// With `guided` it takes two more round trips, and the plan cannot be a bad one.
pub(super) async fn read(
    link: &mut Link<'_>,
    cursor: &Cursor,
    what: &What<'_>,
    portion: Portion,
    guided: bool,
) -> Result<Look, Failure> {
    let Share { number, of, .. } = cursor.share;
    let text = |statement: Statement| if of == 1 { statement.whole } else { statement.share };
    let (sql, rows) = match what {
        What::Next(Next::Window { .. }) => (text(WINDOW), portion.rows.min(SMALL_WINDOW) + 1),
        What::Next(Next::Page { .. }) => (text(PAGE), portion.rows),
        What::These(seqs) => (THESE, seqs.len()),
    };
    let query = sqlx::query(sql)
        .bind(&cursor.pipeline)
        .bind(count(rows))
        .bind(i32::try_from(portion.payload).unwrap_or(i32::MAX))
        .bind(integer(number));
    let query = match what {
        What::Next(Next::Window { from }) => query.bind(from.end()).bind(from.running()),
        What::Next(Next::Page { from, end, after, last }) => {
            query.bind(from.to_string()).bind(end.to_string()).bind(*after).bind(*last)
        }
        What::These(seqs) => query.bind(seqs),
    };
    let query = match what {
        What::Next(_) if of > 1 => query.bind(integer(of)),
        _ => query,
    };
    let failed = || failure("read the outbox");
    let mut step = if guided {
        Step::Within(link.begin(GUIDED).await.map_err(failed())?)
    } else {
        link.step().await?
    };
    let mut look = collect(query.fetch(&mut *step), rows).await?;
    measure(&mut step, &mut look.rows).await?;
    step.end().await?;
    Ok(look)
}

/// The first and the last row of a window.
pub(super) async fn bounds(
    connection: &mut PgConnection,
    from: &Snapshot,
    end: &Snapshot,
) -> Result<(i64, i64), Failure> {
    sqlx::query_as(BOUNDS)
        .bind(from.end())
        .bind(end.end())
        .bind(from.running())
        .bind(end.to_string())
        .fetch_one(connection)
        .await
        .map_err(failure("measure the backlog"))
}

/// Fetches the payloads that were too large to come with their rows.
pub(super) async fn fill(
    connection: &mut PgConnection,
    rows: impl Iterator<Item = &mut LogRow>,
) -> Result<(), Failure> {
    let mut large: HashMap<i64, &mut LogRow> =
        rows.filter(|row| row.large).map(|row| (row.seq, row)).collect();
    if large.is_empty() {
        return Ok(());
    }
    let seqs: Vec<i64> = large.keys().copied().collect();
    let mut payloads = sqlx::query(PAYLOADS).bind(seqs).fetch(connection);
    while let Some(found) = payloads.try_next().await.map_err(failure("read large payloads"))? {
        if let Some(row) = large.remove(&row::seq(&found)?) {
            let content_type = row.event.payload.content_type().to_owned();
            let payload = Payload::new(content_type, column::<&[u8]>(&found, 1)?.to_vec());
            Arc::make_mut(&mut row.event).payload = payload;
            row.large = false;
        }
    }
    match large.keys().next() {
        None => Ok(()),
        Some(seq) => Err(gone(*seq)),
    }
}

/// Asks for the sizes of payloads that did not come with their rows.
async fn measure(connection: &mut PgConnection, rows: &mut [LogRow]) -> Result<(), Failure> {
    let seqs: Vec<i64> = rows.iter().filter(|row| row.large).map(|row| row.seq).collect();
    if seqs.is_empty() {
        return Ok(());
    }
    let sizes: Vec<(i64, i32)> = sqlx::query_as(SIZES)
        .bind(seqs)
        .fetch_all(connection)
        .await
        .map_err(failure("measure large payloads"))?;
    let sizes: HashMap<i64, i32> = sizes.into_iter().collect();
    for row in rows.iter_mut().filter(|row| row.large) {
        let size = sizes.get(&row.seq).ok_or_else(|| gone(row.seq))?;
        row.size += usize::try_from(*size).unwrap_or(0);
    }
    Ok(())
}

fn gone(seq: i64) -> Failure {
    Failure::transient(
        "E-POSTGRES-GONE",
        format!("PostgreSQL: row {seq} of semel.outbox was deleted before it was published"),
    )
    .with_fix("delete with `semel clean`, which leaves unpublished events alone")
}

async fn collect(
    mut found: impl futures_util::Stream<Item = Result<PgRow, sqlx::Error>> + Unpin,
    limit: usize,
) -> Result<Look, Failure> {
    let failed = || failure("read the outbox");
    let (mut agenda, mut rows) = (None, Vec::new());
    while let Some(found) = found.try_next().await.map_err(failed())? {
        match column::<Option<i64>>(&found, 0)? {
            None => agenda = Some(read_agenda(&found)?),
            Some(seq) => {
                let (event, complete) = row::event(&found)?;
                let (size, event) = (event.size(), Arc::new(event));
                rows.push(LogRow { seq, event, size, large: !complete });
            }
        }
    }
    let agenda = agenda.ok_or_else(|| failed()(sqlx::Error::RowNotFound))?;
    let full = rows.len() >= limit;
    rows.sort_unstable_by_key(|row| row.seq);
    Ok(Look { agenda, rows, full })
}

fn read_agenda(row: &PgRow) -> Result<Agenda, Failure> {
    let flags: &str = column(row, 2)?;
    let snapshot: &str = column(row, 3)?;
    Ok(Agenda {
        snapshot: snapshot
            .parse()
            .map_err(|error| failure("read a snapshot")(sqlx::Error::Decode(error)))?,
        now: column::<Stamp>(row, 10)?.0,
        next_retry: row::available_at(row)?,
        due: flags.contains('d'),
        scheduled: flags.contains('s'),
        held: flags.contains('h'),
        others: flags.contains('o'),
    })
}
