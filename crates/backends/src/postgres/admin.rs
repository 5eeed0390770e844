//! [`AdminStore`]: what an operator asks and changes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use semel_core::admin::{Cursor, EventView, Filter, Page, Selection, State, Stats, Troubles};
use semel_core::{AdminStore, EventId, Failure};
use sqlx::Row;
use sqlx::postgres::{PgArguments, PgRow};
use uuid::Uuid;

use super::clean::{self, Cleaned};
use super::error::failure;
use super::parking::{all_lanes, find_heads};
use super::pooler::BRIEF;
use super::row::{self, AFTER_EVENT, column, event_columns};
use super::store::{PostgresStore, count};
use super::types::Stamp;

/// The operator's view of one pipeline. Made by [`PostgresStore::admin`].
///
/// How many events are published is an estimate once the outbox is larger than 256 MB; the other
/// counts are exact.
///
/// ```no_run
/// use semel_backends::postgres::PostgresConfig;
/// use semel_core::AdminStore;
/// use semel_core::admin::{Filter, Selection, State};
///
/// # async fn run() -> Result<(), semel_core::Failure> {
/// let store = PostgresConfig::new("postgres://localhost/shop")?.connect().await?;
/// let admin = store.admin("orders");
/// let dead = Filter { state: Some(State::Dead), ..Filter::default() };
/// println!("{} retried", admin.retry(&Selection::Matching(dead)).await?);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct PostgresAdmin {
    pub(super) store: PostgresStore,
    pub(super) pipeline: String,
    pub(super) cleaned: Arc<Mutex<Cleaned>>,
}

/// The log's part, by the index on `txid`; then what is parked.
const STATS: &str = "\
with log as (
    select u.seq, u.txid, coalesce(pg_visible_in_snapshot(u.txid, me.out_from)
        or (u.seq <= me.out_seq and pg_visible_in_snapshot(u.txid, me.out_end)), false) as out
    from semel.unsettled($1) u
    left join semel.cursor me on me.pipeline = $1 and me.share = u.share
), parked as (
    select p.*, coalesce(p.taken = me.epoch, false) as out
    from semel.parked p left join semel.cursor me on me.pipeline = $1 and me.share = p.share
    where p.pipeline = $1
), counted as (
    select count(*) filter (where not out) as pending, count(*) filter (where out) as publishing
    from log
), part as (
    select oid, reltuples from pg_class where relkind = 'r' and oid in (
        select 'semel.outbox'::regclass union all
        select inhrelid from pg_inherits where inhparent = 'semel.outbox'::regclass)
)
select
    c.pending + count(p.*) filter (where p.state in ('scheduled', 'waiting') and not p.out),
    c.publishing + count(p.*) filter (where p.out),
    count(p.*) filter (where p.state = 'failed' and not p.out),
    count(p.*) filter (where p.state = 'dead' and not p.out),
    count(p.*) filter (where p.state = 'discarded'),
    count(p.*) filter (where p.head and p.state in ('failed', 'dead')),
    (case when (select sum(pg_relation_size(oid)) from part) < 268435456
        then (select count(*) from semel.outbox)
        else (select sum(greatest(reltuples, 0))::bigint from part) end),
    (extract(epoch from clock_timestamp() - least(
        (select greatest(o.created_at, o.available_at)
            from log join semel.outbox o on o.seq = log.seq
            where not log.out and (o.available_at is null or o.available_at <= clock_timestamp())
            order by log.txid, log.seq limit 1),
        (select min(greatest(o.created_at, o.available_at))
            from parked join semel.outbox o on o.seq = parked.seq
            where (parked.state = 'scheduled' or parked.state = 'waiting' and parked.head)
            and parked.due <= clock_timestamp() and not parked.out)
    )) * 1000000)::bigint
from counted c left join parked p on true
group by c.pending, c.publishing";

/// Whether an event `o` matches the filter, whose parameters are `$3` to `$7`.
macro_rules! matching {
    () => {
        "($3::text is null or o.aggregate_type = $3) and ($4::text is null or o.aggregate_id = $4)
        and ($5::text is null or o.event_type = $5)
        and ($6::timestamptz is null or o.created_at >= $6)
        and ($7::timestamptz is null or o.created_at < $7)"
    };
}

/// What [`view`] reads after the columns of an event. How long a payload is, the server knows without
/// reading it.
macro_rules! life_columns {
    () => {
        ", o.state, o.attempts, o.next_attempt, o.error, o.published_at,
        coalesce(octet_length(o.payload), octet_length(o.payload_bytes), 0)"
    };
}

/// The events of a pipeline without their payloads, for [`view`]: those with the parameters of
/// [`matching`] and a condition.
macro_rules! list {
    ($where:literal) => {
        crate::postgres::admin::list!($where, " order by o.seq limit $9")
    };
    ($where:expr, $order:literal) => {
        concat!(
            "select ",
            event_columns!("null::text", "null::bytea"),
            crate::postgres::admin::life_columns!(),
            " from semel.events_of($1) o where ($2::text is null or o.state = $2) and ",
            crate::postgres::admin::matching!(),
            " and ",
            $where,
            $order
        )
    };
}

pub(super) use {life_columns, list, matching};

const LIST: &str = list!("o.seq > $8");

/// What failed is found where it is parked, without a look at all the others.
const LIST_PARKED: &str = list!(
    "o.seq in (select seq from semel.parked where pipeline = $1 and seq > $8 and state = $2)"
);

const GET: &str = concat!(
    "select ",
    event_columns!(),
    life_columns!(),
    " from semel.events_of($1) o where o.id = $2"
);

macro_rules! repair {
    ($set:literal) => {
        concat!(
            "update semel.parked p set ",
            $set,
            ", head = false, retry_at = null, changed_at = clock_timestamp()
            from semel.outbox o where o.seq = p.seq and p.pipeline = $1 and p.taken is null
                and p.state in ('failed', 'dead') and ($2::text is null or p.state = $2)
                and ($8::uuid[] is null or o.id = any($8)) and ",
            matching!(),
            " returning p.aggregate_type, p.aggregate_id"
        )
    };
}

const RETRY: &str =
    repair!("state = 'waiting', holds = true, attempts = 0, error = null, due = clock_timestamp()");
const DISCARD: &str = repair!("state = 'discarded', holds = false, due = null");

/// Replayed events come before all that is parked in their lane.
const REPLAY: &str = concat!(
    "insert into semel.parked
        (pipeline, seq, share, place, aggregate_type, aggregate_id, state, holds, due)
    select $1, o.seq, c.share, 0, o.aggregate_type, o.aggregate_id, 'waiting', true,
        clock_timestamp()
    from semel.outbox o join semel.cursor c on c.pipeline = $1
        and c.share = semel.share_of(o.aggregate_type, o.aggregate_id, c.shares)
    where semel.settled(c, o.txid, o.seq) and coalesce($2, 'published') = 'published'
        and ($8::uuid[] is null or o.id = any($8)) and ",
    matching!(),
    " and not exists (select from semel.parked p
        where p.pipeline = $1 and p.seq = o.seq and p.state <> 'published')
    on conflict (pipeline, seq) do update set state = 'waiting', holds = true, attempts = 0,
        share = excluded.share, place = 0, due = excluded.due, error = null, changed_at = clock_timestamp()
    returning aggregate_type, aggregate_id"
);

impl PostgresAdmin {
    pub(super) fn new(store: PostgresStore, pipeline: &str) -> Self {
        Self { store, pipeline: pipeline.to_owned(), cleaned: Arc::default() }
    }

    /// Changes what is selected, and finds the new heads of the lanes this touches.
    async fn change(&self, sql: &'static str, selection: &Selection) -> Result<usize, Failure> {
        let failed = || failure("change events");
        let everything = Filter::default();
        let (filter, ids) = match selection {
            Selection::Matching(filter) => (filter, None),
            Selection::Ids(ids) => (&everything, Some(ids)),
        };
        let ids = ids.map(|ids| ids.iter().map(|id| *id.as_uuid()).collect::<Vec<Uuid>>());
        let mut tx = self.store.begin_as(BRIEF).await?;
        clean::keep_out(&mut tx).await?;
        self.lock(&mut tx).await?;
        let changed = self.filtered(sql, filter).bind(ids).fetch_all(&mut *tx).await;
        let lanes = all_lanes(&changed.map_err(failed())?)?;
        find_heads(&mut tx, &self.pipeline, &lanes).await?;
        tx.commit().await.map_err(failed())?;
        self.store.announce_change();
        Ok(lanes.len())
    }

    /// A query whose first seven parameters are the pipeline and the filter.
    pub(super) fn filtered(&self, sql: &'static str, filter: &Filter) -> Query {
        sqlx::query(sql)
            .bind(self.pipeline.clone())
            .bind(filter.state.map(State::as_str))
            .bind(filter.aggregate_type.clone())
            .bind(filter.aggregate_id.clone())
            .bind(filter.event_type.clone())
            .bind(filter.since.map(Stamp))
            .bind(filter.until.map(Stamp))
    }
}

pub(super) type Query = sqlx::query::Query<'static, sqlx::Postgres, PgArguments>;

#[async_trait]
impl AdminStore for PostgresAdmin {
    async fn stats(&self) -> Result<Stats, Failure> {
        let failed = || failure("count events");
        let row = sqlx::query(STATS)
            .bind(&self.pipeline)
            .fetch_one(self.store.once())
            .await
            .map_err(failed())?;
        let number = |index: usize| -> Result<u64, Failure> {
            let number: Option<i64> = row.try_get(index).map_err(failed())?;
            Ok(number.and_then(|number| u64::try_from(number).ok()).unwrap_or(0))
        };
        let (pending, publishing) = (number(0)?, number(1)?);
        let (failed_events, dead, discarded) = (number(2)?, number(3)?, number(4)?);
        let unpublished = pending + publishing + failed_events + dead + discarded;
        let published = number(6)?.saturating_sub(unpublished);
        let age: Option<i64> = row.try_get(7).map_err(failed())?;
        Ok(Stats {
            counts: [pending, publishing, published, failed_events, dead, discarded],
            oldest_pending: age.map(|age| Duration::from_micros(u64::try_from(age).unwrap_or(0))),
            parked_lanes: number(5)?,
        })
    }

    async fn list(
        &self,
        filter: &Filter,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, Failure> {
        let sql = match filter.state {
            Some(State::Failed | State::Dead | State::Discarded) => LIST_PARKED,
            _ => LIST,
        };
        let after = after.map_or(0, |Cursor(seq)| i64::try_from(seq).unwrap_or(i64::MAX));
        let rows = self
            .filtered(sql, filter)
            .bind(after)
            .bind(count(limit.saturating_add(1)))
            .fetch_all(self.store.once())
            .await
            .map_err(failure("list events"))?;
        let page = &rows[..limit.min(rows.len())];
        let next = match page.last() {
            Some(last) if rows.len() > limit => Some(Cursor(row::seq(last)?.unsigned_abs())),
            _ => None,
        };
        Ok(Page { events: page.iter().map(view).collect::<Result<_, _>>()?, next })
    }

    async fn latest(
        &self,
        filter: &Filter,
        before: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, Failure> {
        self.newest(filter, before, limit).await
    }

    async fn troubles(&self, limit: usize) -> Result<Troubles, Failure> {
        self.store.troubles(&self.pipeline, limit).await
    }

    async fn get(&self, id: EventId) -> Result<Option<EventView>, Failure> {
        let row = sqlx::query(GET)
            .bind(&self.pipeline)
            .bind(id.as_uuid())
            .fetch_optional(self.store.once())
            .await
            .map_err(failure("read an event"))?;
        row.map(|row| view(&row)).transpose()
    }

    async fn retry(&self, selection: &Selection) -> Result<usize, Failure> {
        self.change(RETRY, selection).await
    }

    async fn discard(&self, selection: &Selection) -> Result<usize, Failure> {
        self.change(DISCARD, selection).await
    }

    async fn replay(&self, selection: &Selection) -> Result<usize, Failure> {
        self.change(REPLAY, selection).await
    }

    async fn upkeep(&self, age: Duration) -> Result<usize, Failure> {
        self.store.keep_partitions(age).await
    }

    async fn clean(&self, age: Duration, limit: usize) -> Result<usize, Failure> {
        self.delete_old(age, limit).await
    }
}

pub(super) fn view(found: &PgRow) -> Result<EventView, Failure> {
    let mut view = EventView::pending(row::event(found)?.0);
    let state: &str = column(found, AFTER_EVENT)?;
    view.state = State::ALL.into_iter().find(|one| one.as_str() == state).unwrap_or(view.state);
    let attempts: i32 = column(found, AFTER_EVENT + 1)?;
    view.attempts = u32::try_from(attempts).unwrap_or(0);
    let time = |index| Ok(column::<Option<Stamp>>(found, index)?.map(|Stamp(time)| time));
    view.next_attempt = time(AFTER_EVENT + 2)?;
    view.error = column(found, AFTER_EVENT + 3)?;
    view.published_at = time(AFTER_EVENT + 4)?;
    view.payload_bytes = column::<i32>(found, AFTER_EVENT + 5)?.unsigned_abs().into();
    Ok(view)
}
