//! What left the straight path of a pipeline: failed and dead events, those that wait behind them,
//! and those whose time has not come.
//!
//! Order inside a lane is `(place, seq)`. A row with `holds` makes the later events of its lane
//! wait, and the first of these in each lane is its `head`: only heads are looked at when something
//! may be due, so a lane with a hundred thousand waiting events costs a poll nothing.
//!
//! All changes are made in a transaction that has checked the ownership of the pipeline first, or
//! check it themselves.
//!
//! Lanes are known by `semel.lane_name`, which cuts off what no index has room for.

use semel_core::{Clock, Failure, Fault, Outcome, Timestamp};
use sqlx::postgres::PgRow;
use sqlx::{Connection, PgConnection, Row};

use super::error::failure;
use super::row::event_columns;
use super::store::count;
use super::types::Stamp;
use crate::row::plain;

/// How an event is put aside.
#[derive(Debug)]
pub(super) struct Aside {
    pub(super) seq: i64,
    /// The window it came with.
    pub(super) place: i64,
    state: &'static str,
    holds: bool,
    attempts: u32,
    /// Offered after this many microseconds by the server's clock, or at this time by it.
    wait: Option<i64>,
    due: Option<Timestamp>,
    retry_at: Option<Timestamp>,
    error: Option<String>,
}

impl Aside {
    /// Behind what holds its lane.
    pub(super) fn waiting(seq: i64, place: i64) -> Self {
        Self {
            seq,
            place,
            state: "waiting",
            holds: true,
            attempts: 0,
            wait: Some(0),
            due: None,
            retry_at: None,
            error: None,
        }
    }

    /// Until its time has come; its lane does not wait for it.
    pub(super) fn scheduled(seq: i64, place: i64, until: Timestamp) -> Self {
        let waiting = Self::waiting(seq, place);
        Self { state: "scheduled", holds: false, wait: None, due: Some(until), ..waiting }
    }

    /// What becomes of an event that failed; none for other outcomes.
    ///
    /// The relay's clock may differ from the server's: only the *span* until the retry counts.
    pub(super) fn failed(
        seq: i64,
        place: i64,
        outcome: &Outcome,
        clock: &dyn Clock,
    ) -> Option<Self> {
        let waiting = Self::waiting(seq, place);
        // PostgreSQL stores no NUL characters in text.
        let readable = |failure: &Failure| Some(failure.to_string().replace('\0', "\u{fffd}"));
        match outcome {
            Outcome::Retry { at, attempts, failure } => Some(Self {
                state: "failed",
                attempts: *attempts,
                wait: Some(at.as_microsecond().saturating_sub(clock.now().as_microsecond())),
                retry_at: Some(*at),
                error: readable(failure),
                ..waiting
            }),
            Outcome::Dead { attempts, failure, parks_lane } => Some(Self {
                state: "dead",
                holds: *parks_lane,
                attempts: *attempts,
                wait: None,
                error: readable(failure),
                ..waiting
            }),
            Outcome::Delivered | Outcome::Released => None,
        }
    }
}

macro_rules! put {
    ($on_conflict:literal) => {
        concat!(
            "insert into semel.parked (pipeline, seq, share, place, aggregate_type, aggregate_id,
                state, holds, attempts, due, retry_at, error)
            select $1, x.seq, $11, x.place, o.aggregate_type, o.aggregate_id, x.state, x.holds,
                x.attempts, coalesce(x.due, clock_timestamp() + x.wait * interval '1 microsecond'),
                x.retry_at, x.error
            from unnest($2::bigint[], $3::bigint[], $4::text[], $5::boolean[], $6::integer[],
                $7::bigint[], $8::timestamptz[], $9::timestamptz[], $10::text[])
                as x (seq, place, state, holds, attempts, wait, due, retry_at, error)
            join semel.outbox o on o.seq = x.seq
            on conflict (pipeline, seq) ",
            $on_conflict,
            " returning aggregate_type, aggregate_id"
        )
    };
}

/// A row that is parked already keeps its place.
const PUT: &str = put!(
    "do update set state = excluded.state, holds = excluded.holds, attempts = excluded.attempts,
        due = excluded.due, retry_at = excluded.retry_at, error = excluded.error, taken = null,
        changed_at = clock_timestamp()"
);
const PUT_ASIDE: &str = put!("do nothing");

const FINISH: &str = "\
update semel.parked set state = 'published', holds = false, head = false, due = null,
    retry_at = null, taken = null, changed_at = clock_timestamp()
where pipeline = $1 and seq = any($2) returning aggregate_type, aggregate_id";

const RELEASE: &str = "update semel.parked set taken = null where pipeline = $1 and seq = any($2)";

const FREE: &str = "\
update semel.parked set taken = null
where pipeline = $1 and share = $3 and taken is not null and seq <> all($2)";

/// Lane by lane and row by row, of a pipeline that the planner does not see: of one that is new to its
/// statistics it expects next to nothing, and would go through all of it.
const HEADS: &str = "\
with lane as (
    select distinct * from unnest($2::text[], $3::text[]) as l (aggregate_type, aggregate_id)
), first as (
    select f.seq from lane l cross join lateral (
        select p.seq from semel.parked p
        where p.pipeline = (select $1::text) and p.aggregate_type = l.aggregate_type
            and p.aggregate_id = l.aggregate_id and p.holds
        order by p.place, p.seq limit 1) f
), candidate as (
    select seq from first
    union
    select h.seq from lane l cross join lateral (
        select p.seq from semel.parked p
        where p.pipeline = (select $1::text) and p.head and p.aggregate_type = l.aggregate_type
            and p.aggregate_id = l.aggregate_id offset 0) h
)
update semel.parked p set head = not head
where p.pipeline = (select $1::text) and p.seq = any(array(select seq from candidate))
    and p.head <> (p.seq in (select seq from first))";

/// Lane after lane, in order, up to what is not due; `$3` rows at most.
const OFFER: &str = concat!(
    "with owner as materialized (
        select from semel.cursor where pipeline = $1 and share = $5 and epoch = $2 for share
    ), lane as materialized (
        select aggregate_type, aggregate_id from semel.parked
        where pipeline = $1 and share = $5 and head and taken is null and due <= now()
        order by due limit $3
    ), line as materialized (
        select p.*, row_number() over () as turn from lane l cross join lateral (
            select * from semel.parked p
            where p.pipeline = $1 and p.aggregate_type = l.aggregate_type
                and p.aggregate_id = l.aggregate_id and p.holds
            order by p.place, p.seq limit $3) p
        limit $3
    ), free as materialized (
        select r.*, bool_or(taken is not null or due is null or due > now()) over (
            partition by aggregate_type, aggregate_id order by turn) as blocked
        from line r
    ), sized as materialized (
        select f.seq, f.turn, sum(200 + octet_length(o.aggregate_type)
            + octet_length(o.aggregate_id) + octet_length(o.event_type)
            + coalesce(octet_length(o.payload), octet_length(o.payload_bytes))
            + coalesce(octet_length(o.headers::text), 0)) over (order by f.turn) as bytes
        from free f join semel.outbox o on o.seq = f.seq where not f.blocked
    ), taken as (
        update semel.parked p set taken = $2 from sized s
        where p.pipeline = $1 and p.seq = s.seq and exists (select from owner)
            and p.holds and p.taken is null and p.due <= now()
            and (s.bytes <= $4 or s.turn = (select min(turn) from sized))
        returning p.seq, p.attempts, p.place, s.turn
    )
    select ",
    event_columns!(),
    ", t.attempts, t.place = 0 from taken t join semel.outbox o on o.seq = t.seq order by t.turn"
);

/// At most so many at once; the rest with the next poll.
const WAKE: &str = "\
with due as (
    select seq, row_number() over (order by due, seq) as turn from semel.parked
    where pipeline = $1 and share = $4 and state = 'scheduled' and taken is null and due <= now()
    order by due, seq limit $3
)
update semel.parked p
set state = 'waiting', holds = true, place = $2 + due.turn, changed_at = clock_timestamp()
from due where p.pipeline = $1 and p.seq = due.seq
returning p.aggregate_type, p.aggregate_id";

/// As of [`HEADS`], the planner does not see the pipeline.
const HELD: &str = "\
select x.seq from unnest($2::bigint[], $3::text[], $4::text[])
    as x (seq, aggregate_type, aggregate_id)
where exists (
    select from semel.parked p where p.pipeline = (select $1::text) and p.holds
        and p.aggregate_type = semel.lane_name(x.aggregate_type)
        and p.aggregate_id = semel.lane_name(x.aggregate_id) offset 0)";

/// The parked events of one share of a pipeline.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parking<'a> {
    pub(super) pipeline: &'a str,
    pub(super) share: i32,
}

/// Aggregate type and id.
pub(super) type OwnedLane = (String, String);

/// What changes at once.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Failed or dead.
    pub(super) failed: Vec<Aside>,
    /// Not to be handed out yet.
    pub(super) put_aside: Vec<Aside>,
    /// Parked, and delivered after all.
    pub(super) delivered: Vec<i64>,
    /// Parked, and not tried.
    pub(super) released: Vec<i64>,
}

impl Changes {
    pub(super) fn is_empty(&self) -> bool {
        self.failed.is_empty()
            && self.put_aside.is_empty()
            && self.delivered.is_empty()
            && self.released.is_empty()
    }
}

/// How much was parked by this process. The server keeps the plans that it made while the table was small,
/// and goes through all of it then; until it happens to analyze it.
#[derive(Debug)]
pub(super) struct Growth {
    parked: usize,
    /// When plans are made anew.
    next: usize,
}

impl Default for Growth {
    fn default() -> Self {
        Self { parked: 0, next: 128 }
    }
}

impl Growth {
    /// Whether the table has outgrown its plans with these changes.
    pub(super) fn outgrows_plans(&mut self, changes: &Changes) -> bool {
        self.parked += changes.failed.len() + changes.put_aside.len();
        let outgrown = self.parked >= self.next;
        if outgrown {
            self.next = self.parked * 4;
        }
        outgrown
    }
}

impl Parking<'_> {
    /// Records changes and finds the new heads of the lanes they touch.
    pub(super) async fn record(
        &self,
        connection: &mut PgConnection,
        changes: &Changes,
    ) -> Result<(), Failure> {
        let mut lanes = Vec::new();
        for (sql, asides) in [(PUT, &changes.failed), (PUT_ASIDE, &changes.put_aside)] {
            if !asides.is_empty() {
                lanes.extend(self.put(connection, sql, asides).await?);
            }
        }
        if !changes.delivered.is_empty() {
            let rows = self.on_rows(FINISH, &changes.delivered).fetch_all(&mut *connection).await;
            lanes.extend(all_lanes(&rows.map_err(failure("settle parked events"))?)?);
        }
        if !changes.released.is_empty() {
            let released = self.on_rows(RELEASE, &changes.released).execute(&mut *connection).await;
            released.map_err(failure("release parked events"))?;
        }
        find_heads(connection, self.pipeline, &lanes).await
    }

    /// Gives the scheduled events whose time has come their place in their lanes, after `place`:
    /// behind all that was read so far. Says how many.
    pub(super) async fn wake_scheduled(
        &self,
        connection: &mut PgConnection,
        place: i64,
    ) -> Result<usize, Failure> {
        const AT_ONCE: i64 = 1_000;
        let rows = sqlx::query(WAKE)
            .bind(self.pipeline)
            .bind(place)
            .bind(AT_ONCE)
            .bind(self.share)
            .fetch_all(&mut *connection)
            .await
            .map_err(failure("wake scheduled events"))?;
        find_heads(connection, self.pipeline, &all_lanes(&rows)?).await?;
        Ok(rows.len())
    }

    /// Marks what is due as in flight, at most so many events and bytes, and reads it: the columns
    /// of the event, then the attempts, and whether it is replayed. Nothing when the epoch is not the owner's.
    pub(super) async fn offer(
        &self,
        connection: &mut PgConnection,
        epoch: i64,
        events: usize,
        bytes: usize,
    ) -> Result<Vec<PgRow>, Failure> {
        sqlx::query(OFFER)
            .bind(self.pipeline)
            .bind(epoch)
            .bind(count(events))
            .bind(count(bytes))
            .bind(self.share)
            .fetch_all(connection)
            .await
            .map_err(failure("read parked events"))
    }

    /// Frees everything that is marked as in flight, except `rows`.
    pub(super) async fn free_all_but(
        &self,
        connection: &mut PgConnection,
        rows: &[i64],
    ) -> Result<(), Failure> {
        self.on_rows(FREE, rows)
            .bind(self.share)
            .execute(connection)
            .await
            .map_err(failure("free parked events"))
            .map(drop)
    }

    /// The rows that came with this window of the log or a later one.
    pub(super) async fn put_aside_since(
        &self,
        connection: &mut PgConnection,
        place: i64,
    ) -> Result<Vec<i64>, Failure> {
        sqlx::query_scalar(
            "select seq from semel.parked where pipeline = $1 and share = $2 and place >= $3",
        )
        .bind(self.pipeline)
        .bind(self.share)
        .bind(place)
        .fetch_all(connection)
        .await
        .map_err(failure("read parked events"))
    }

    /// Which of these rows cannot be handed out, because something holds their lane.
    pub(super) async fn held(
        &self,
        connection: &mut PgConnection,
        rows: &[(i64, String, String)],
    ) -> Result<Vec<i64>, Failure> {
        sqlx::query_scalar(HELD)
            .bind(self.pipeline)
            .bind(rows.iter().map(|row| row.0).collect::<Vec<_>>())
            .bind(rows.iter().map(|row| row.1.as_str()).collect::<Vec<_>>())
            .bind(rows.iter().map(|row| row.2.as_str()).collect::<Vec<_>>())
            .fetch_all(connection)
            .await
            .map_err(failure("look for parked lanes"))
    }

    /// Puts events aside, whatever is in their errors: a database that is not in UTF-8 may have no
    /// place for it, and an event that cannot be parked would hold back all others.
    async fn put(
        &self,
        connection: &mut PgConnection,
        sql: &'static str,
        asides: &[Aside],
    ) -> Result<Vec<OwnedLane>, Failure> {
        let errors: Vec<_> = asides.iter().map(|aside| aside.error.as_deref()).collect();
        if errors.iter().flatten().all(|error| error.is_ascii()) {
            return self.put_with(connection, sql, asides, &errors).await;
        }
        let failed = || failure("park events");
        let mut attempt = connection.begin().await.map_err(failed())?;
        match self.put_with(&mut attempt, sql, asides, &errors).await {
            Err(refusal) if refusal.fault() == Fault::Refused => {
                attempt.rollback().await.map_err(failed())?;
                let plain: Vec<_> = errors.iter().map(|error| error.map(plain)).collect();
                let plain: Vec<_> = plain.iter().map(Option::as_deref).collect();
                self.put_with(connection, sql, asides, &plain).await
            }
            Err(failure) => Err(failure),
            Ok(lanes) => {
                attempt.commit().await.map_err(failed())?;
                Ok(lanes)
            }
        }
    }

    async fn put_with(
        &self,
        connection: &mut PgConnection,
        sql: &'static str,
        asides: &[Aside],
        errors: &[Option<&str>],
    ) -> Result<Vec<OwnedLane>, Failure> {
        let times = |time: fn(&Aside) -> Option<Timestamp>| {
            asides.iter().map(|aside| time(aside).map(Stamp)).collect::<Vec<_>>()
        };
        let attempts = asides.iter().map(|aside| i32::try_from(aside.attempts).unwrap_or(i32::MAX));
        let rows = sqlx::query(sql)
            .bind(self.pipeline)
            .bind(asides.iter().map(|aside| aside.seq).collect::<Vec<_>>())
            .bind(asides.iter().map(|aside| aside.place).collect::<Vec<_>>())
            .bind(asides.iter().map(|aside| aside.state).collect::<Vec<_>>())
            .bind(asides.iter().map(|aside| aside.holds).collect::<Vec<_>>())
            .bind(attempts.collect::<Vec<_>>())
            .bind(asides.iter().map(|aside| aside.wait).collect::<Vec<_>>())
            .bind(times(|aside| aside.due))
            .bind(times(|aside| aside.retry_at))
            .bind(errors)
            .bind(self.share)
            .fetch_all(connection)
            .await
            .map_err(failure("park events"))?;
        all_lanes(&rows)
    }

    fn on_rows<'q>(&self, sql: &'static str, rows: &'q [i64]) -> Query<'q> {
        sqlx::query(sql).bind(self.pipeline.to_owned()).bind(rows)
    }
}

type Query<'q> = sqlx::query::Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments>;

/// Finds the first row of each lane.
pub(super) async fn find_heads(
    connection: &mut PgConnection,
    pipeline: &str,
    lanes: &[OwnedLane],
) -> Result<(), Failure> {
    if lanes.is_empty() {
        return Ok(());
    }
    sqlx::query(HEADS)
        .bind(pipeline)
        .bind(lanes.iter().map(|lane| lane.0.as_str()).collect::<Vec<_>>())
        .bind(lanes.iter().map(|lane| lane.1.as_str()).collect::<Vec<_>>())
        .execute(connection)
        .await
        .map_err(failure("let a lane go on"))
        .map(drop)
}

pub(super) fn all_lanes(rows: &[PgRow]) -> Result<Vec<OwnedLane>, Failure> {
    let lane = |row: &PgRow| Ok((row.try_get(0)?, row.try_get(1)?));
    rows.iter().map(lane).collect::<Result<_, _>>().map_err(failure("read a lane"))
}
