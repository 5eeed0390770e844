//! What left the straight path of a pipeline: failed and dead events, those that wait behind them,
//! and those whose time has not come.
//!
//! Order inside a lane is `(place, turn, position)`. A row with `holds = 1` makes the later events
//! of its lane wait. A row is offered when it is due and every earlier row that holds its lane is
//! due as well; whoever waits behind another has no due time, until [`Parking::promote`] gives it
//! one. So a lane with a hundred thousand waiting events costs a poll nothing.
//!
//! Whoever changes these rows holds the lock of the cursor row of their share, so that nobody waits for
//! another in a circle.

use futures_util::stream::BoxStream;
use semel_core::{Clock, Failure, Outcome};
use serde_json::{Value, json};
use sqlx::MySqlConnection;
use sqlx::mysql::MySqlRow;

use super::error::failure;
use super::row::{self, event_columns, listed};
use super::store::{count, micros};

/// The parked events of one share of a pipeline.
#[derive(Clone, Copy)]
pub(super) struct Parking<'a> {
    pub(super) pipeline: &'a str,
    pub(super) share: u32,
}

/// How an event is put aside.
#[derive(Debug)]
pub(super) struct Aside {
    state: &'static str,
    holds: bool,
    attempts: u32,
    /// How long until it is offered.
    wait: Option<i64>,
    /// When that is by the relay's clock.
    retry_at: Option<i64>,
    error: Option<String>,
}

/// Whether a row of the outbox can be handed out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    Free,
    /// Something holds its lane.
    Held,
    /// It is in the table already.
    Parked,
}

impl Aside {
    /// Behind what holds its lane.
    pub(super) fn waiting() -> Self {
        let (wait, retry_at, error) = (None, None, None);
        Self { state: "waiting", holds: true, attempts: 0, wait, retry_at, error }
    }

    /// Until the time that its row names; its lane does not wait for it.
    pub(super) fn scheduled() -> Self {
        Self { state: "scheduled", holds: false, ..Self::waiting() }
    }

    /// A row that cannot be read.
    pub(super) fn unreadable(failure: &Failure) -> Self {
        Self { state: "dead", error: Some(failure.to_string()), ..Self::waiting() }
    }

    /// What becomes of an event that failed; none for other outcomes.
    pub(super) fn failed(outcome: &Outcome, clock: &dyn Clock) -> Option<Self> {
        match outcome {
            Outcome::Retry { at, attempts, failure } => Some(Self {
                state: "failed",
                attempts: *attempts,
                // The server counts it on its own clock.
                wait: Some(micros(at.duration_since(clock.now()).try_into().unwrap_or_default())),
                retry_at: Some(at.as_microsecond()),
                error: Some(failure.to_string()),
                ..Self::waiting()
            }),
            Outcome::Dead { attempts, failure, parks_lane } => {
                Some(Self { holds: *parks_lane, attempts: *attempts, ..Self::unreadable(failure) })
            }
            Outcome::Delivered | Outcome::Released => None,
        }
    }

    fn as_json(&self, position: u64) -> Value {
        let Self { state, holds, attempts, wait, retry_at, error } = self;
        json!([position, state, u8::from(*holds), attempts, wait, retry_at, error])
    }
}

/// The [`Standing`] of an outbox row `o`, as a number. Takes the pipeline twice.
macro_rules! standing {
    () => {
        "CASE \
         WHEN EXISTS (SELECT 1 FROM semel_parked p \
             WHERE p.pipeline = ? AND p.position = o.position) THEN 2 \
         WHEN EXISTS (SELECT 1 FROM semel_parked p \
             WHERE p.pipeline = ? AND p.aggregate_type = o.aggregate_type \
                 AND p.aggregate_id = o.aggregate_id AND p.holds = 1) THEN 1 \
         ELSE 0 END"
    };
}
pub(super) use standing;

impl Standing {
    /// Reads what [`standing`] wrote.
    pub(super) fn from_column(value: i32) -> Self {
        match value {
            0 => Self::Free,
            1 => Self::Held,
            _ => Self::Parked,
        }
    }
}

const PUT: &str = concat!(
    "INSERT INTO semel_parked (pipeline, share, position, aggregate_type, aggregate_id, place, turn, \
         state, holds, attempts, due, retry_at, error, changed_at) \
     SELECT ?, ?, o.position, o.aggregate_type, o.aggregate_id, o.position, \
         if(j.state = 'scheduled', ",
    row::as_micros!("o.available_at"),
    ", 0), j.state, j.holds, j.attempts, \
         if(j.state = 'scheduled', o.available_at, utc_timestamp(6) + INTERVAL j.wait MICROSECOND), \
         timestamp'1970-01-01 00:00:00' + INTERVAL j.retry_at MICROSECOND, j.error, \
         utc_timestamp(6) \
     FROM JSON_TABLE(cast(? AS CHAR), '$[*]' COLUMNS (position BIGINT UNSIGNED PATH '$[0]', \
         state VARCHAR(10) PATH '$[1]', holds INT PATH '$[2]', attempts INT UNSIGNED PATH '$[3]', \
         wait BIGINT PATH '$[4]', retry_at BIGINT PATH '$[5]', error MEDIUMTEXT PATH '$[6]')) j \
         STRAIGHT_JOIN semel_outbox o ON o.position = j.position \
     ON DUPLICATE KEY UPDATE state = VALUES(state), holds = VALUES(holds), \
         attempts = VALUES(attempts), due = VALUES(due), retry_at = VALUES(retry_at), \
         error = VALUES(error), taken = 0, changed_at = VALUES(changed_at)"
);

const FOLLOW: &str = concat!(
    "INSERT IGNORE INTO semel_parked (pipeline, share, position, aggregate_type, aggregate_id, \
         place, state, holds, changed_at) \
     SELECT ?, ?, o.position, o.aggregate_type, o.aggregate_id, o.position, 'waiting', 1, \
         utc_timestamp(6) \
     FROM ",
    listed!(),
    " STRAIGHT_JOIN semel_outbox o ON o.position = j.position \
     WHERE EXISTS (SELECT 1 FROM semel_parked p WHERE p.pipeline = ? AND p.holds = 1 \
         AND p.aggregate_type = o.aggregate_type AND p.aggregate_id = o.aggregate_id)"
);

const PARKED_AMONG: &str = concat!(
    "SELECT p.position FROM ",
    listed!(),
    " STRAIGHT_JOIN semel_parked p ON p.pipeline = ? AND p.position = j.position"
);

/// Changes the listed rows.
macro_rules! change {
    ($set:literal) => {
        concat!(
            "UPDATE ",
            listed!(),
            " STRAIGHT_JOIN semel_parked p ON p.pipeline = ? AND p.position = j.position SET ",
            $set
        )
    };
}

const DELIVERED: &str = change!(
    "p.state = 'published', p.holds = 0, p.due = NULL, p.taken = 0, \
     p.changed_at = utc_timestamp(6) WHERE p.taken <> 0"
);
const RELEASED: &str = change!("p.taken = 0");
const WAKE: &str = change!("p.state = 'waiting', p.holds = 1, p.due = NULL, p.place = ?");
const TAKE: &str = change!("p.taken = ?");

/// The lanes of the listed rows whose first event waits for nothing but to be offered.
const READY_LANES: &str = concat!(
    "SELECT l.aggregate_type, l.aggregate_id FROM (\
         SELECT DISTINCT p.aggregate_type, p.aggregate_id FROM ",
    listed!(),
    " STRAIGHT_JOIN semel_parked p ON p.pipeline = ? AND p.position = j.position) l \
     WHERE (SELECT e.state FROM semel_parked e FORCE INDEX (semel_parked_lane) \
         WHERE e.pipeline = ? AND e.aggregate_type = l.aggregate_type \
             AND e.aggregate_id = l.aggregate_id AND e.holds = 1 \
         ORDER BY e.place, e.turn, e.position LIMIT 1) = 'waiting'"
);

const PROMOTE: &str = "UPDATE (SELECT position FROM semel_parked FORCE INDEX (semel_parked_lane) \
         WHERE pipeline = ? AND aggregate_type = ? AND aggregate_id = ? AND holds = 1 \
         ORDER BY place, turn, position LIMIT 100) head \
     STRAIGHT_JOIN semel_parked p ON p.pipeline = ? AND p.position = head.position \
     SET p.due = utc_timestamp(6) WHERE p.due IS NULL AND p.state = 'waiting'";

const SCHEDULED: &str = "SELECT position FROM semel_parked WHERE pipeline = ? AND share = ? \
    AND state = 'scheduled' AND taken = 0 AND due <= utc_timestamp(6) ORDER BY due LIMIT 1000";

const DUE: &str = concat!(
    "SELECT ",
    event_columns!(),
    ", p.attempts, p.turn < 0 FROM semel_parked p FORCE INDEX (semel_parked_offer) \
         STRAIGHT_JOIN semel_outbox o ON o.position = p.position \
     WHERE p.pipeline = ? AND p.share = ? AND p.offered = 1 AND p.due <= utc_timestamp(6) \
         AND NOT coalesce((\
             SELECT (e.place, e.turn, e.position) < (p.place, p.turn, p.position) \
             FROM semel_parked e FORCE INDEX (semel_parked_lane) \
             WHERE e.pipeline = p.pipeline AND e.aggregate_type = p.aggregate_type \
                 AND e.aggregate_id = p.aggregate_id AND e.holds = 1 \
                 AND (e.due IS NULL OR e.due > utc_timestamp(6)) \
             ORDER BY e.place, e.turn, e.position LIMIT 1), 0) \
     ORDER BY p.place, p.turn, p.position LIMIT ?"
);

const FREE: &str = "UPDATE semel_parked SET taken = 0 \
    WHERE pipeline = ? AND share = ? AND state IN ('waiting', 'failed') AND taken > 0";

const FREE_OTHERS: &str = concat!(
    "UPDATE semel_parked p LEFT JOIN ",
    listed!(),
    " ON j.position = p.position SET p.taken = 0 WHERE p.pipeline = ? \
         AND p.share = ? AND p.state IN ('waiting', 'failed') AND p.taken > 0 AND j.position IS NULL"
);

impl Parking<'_> {
    /// Puts events aside, or changes how they are.
    pub(super) async fn put(
        &self,
        connection: &mut MySqlConnection,
        asides: &[(u64, &Aside)],
    ) -> Result<(), Failure> {
        if asides.is_empty() {
            return Ok(());
        }
        let rows = asides.iter().map(|(position, aside)| aside.as_json(*position)).collect();
        sqlx::query(PUT)
            .bind(self.pipeline)
            .bind(self.share)
            .bind(Value::Array(rows).to_string())
            .execute(connection)
            .await
            .map_err(failure("park events"))
            .map(drop)
    }

    /// Puts events behind what holds their lanes; says which ones. The others' lanes are free.
    pub(super) async fn follow(
        &self,
        connection: &mut MySqlConnection,
        positions: &[u64],
    ) -> Result<Vec<u64>, Failure> {
        if positions.is_empty() {
            return Ok(Vec::new());
        }
        let (failed, list) = (|| failure("park events"), row::json(positions));
        sqlx::query(FOLLOW)
            .bind(self.pipeline)
            .bind(self.share)
            .bind(&list)
            .bind(self.pipeline)
            .execute(&mut *connection)
            .await
            .map_err(failed())?;
        let among = sqlx::query_scalar(PARKED_AMONG).bind(list).bind(self.pipeline);
        among.fetch_all(connection).await.map_err(failed())
    }

    /// Parked events were delivered: their lanes go on without them.
    pub(super) async fn delivered(
        &self,
        connection: &mut MySqlConnection,
        positions: &[u64],
    ) -> Result<(), Failure> {
        self.change(DELIVERED, connection, positions, None).await
    }

    /// Parked events were not tried: they are offered again in their place.
    pub(super) async fn released(
        &self,
        connection: &mut MySqlConnection,
        positions: &[u64],
    ) -> Result<(), Failure> {
        self.change(RELEASED, connection, positions, None).await
    }

    /// Marks rows as in flight.
    pub(super) async fn take(
        &self,
        connection: &mut MySqlConnection,
        positions: &[u64],
        epoch: u64,
    ) -> Result<(), Failure> {
        self.change(TAKE, connection, positions, Some(epoch)).await
    }

    async fn change(
        &self,
        sql: &'static str,
        connection: &mut MySqlConnection,
        positions: &[u64],
        value: Option<u64>,
    ) -> Result<(), Failure> {
        if positions.is_empty() {
            return Ok(());
        }
        let mut change = sqlx::query(sql).bind(row::json(positions)).bind(self.pipeline);
        if let Some(value) = value {
            change = change.bind(value);
        }
        change.execute(connection).await.map_err(failure("change parked events")).map(drop)
    }

    /// Makes the events that wait at the heads of these rows' lanes due, unless the first of them
    /// failed. Says whether there were any.
    pub(super) async fn promote(
        &self,
        connection: &mut MySqlConnection,
        positions: &[u64],
    ) -> Result<bool, Failure> {
        if positions.is_empty() {
            return Ok(false);
        }
        let failed = || failure("let lanes go on");
        let lanes: Vec<(String, String)> = sqlx::query_as(READY_LANES)
            .bind(row::json(positions))
            .bind(self.pipeline)
            .bind(self.pipeline)
            .fetch_all(&mut *connection)
            .await
            .map_err(failed())?;
        let mut something_is_due = false;
        for (aggregate_type, aggregate_id) in lanes {
            let promoted = sqlx::query(PROMOTE)
                .bind(self.pipeline)
                .bind(aggregate_type)
                .bind(aggregate_id)
                .bind(self.pipeline)
                .execute(&mut *connection)
                .await
                .map_err(failed())?;
            something_is_due |= promoted.rows_affected() > 0;
        }
        Ok(something_is_due)
    }

    /// Gives the scheduled events whose time has come their place in their lanes: behind all that
    /// was read so far. Says whether one of them need not wait there.
    pub(super) async fn wake_scheduled(
        &self,
        connection: &mut MySqlConnection,
        read: u64,
    ) -> Result<bool, Failure> {
        let woken: Vec<u64> = sqlx::query_scalar(SCHEDULED)
            .bind(self.pipeline)
            .bind(self.share)
            .fetch_all(&mut *connection)
            .await
            .map_err(failure("wake scheduled events"))?;
        self.change(WAKE, connection, &woken, Some(read)).await?;
        self.promote(connection, &woken).await
    }

    /// Rows to offer now, at most `limit`: the columns of the event, then the attempts.
    pub(super) fn due<'c>(
        &self,
        connection: &'c mut MySqlConnection,
        limit: usize,
    ) -> BoxStream<'c, Result<MySqlRow, sqlx::Error>> {
        sqlx::query(DUE)
            .bind(self.pipeline.to_owned())
            .bind(self.share)
            .bind(count(limit))
            .fetch(connection)
    }

    /// Frees everything that is in flight, except `positions`.
    pub(super) async fn free_all_but(
        &self,
        connection: &mut MySqlConnection,
        positions: &[u64],
    ) -> Result<(), Failure> {
        let freed = if positions.is_empty() {
            sqlx::query(FREE)
        } else {
            sqlx::query(FREE_OTHERS).bind(row::json(positions))
        };
        let freed = freed.bind(self.pipeline).bind(self.share);
        freed.execute(connection).await.map_err(failure("free parked events")).map(drop)
    }
}
