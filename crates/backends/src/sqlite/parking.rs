//! What left the straight path of a pipeline: failed and dead events, those that wait behind them,
//! and those whose time has not come.
//!
//! Order inside a lane is `(place, turn, seq)`. A row with `holds = 1` makes the later events of
//! its lane wait. A row is offered when it is due and every earlier row that holds its lane is due
//! as well; whoever waits behind another has no due time, until [`Parking::promote`] gives it one.
//! So a lane with a hundred thousand waiting events costs a poll nothing.

use std::collections::{BTreeSet, HashSet};

use futures_util::stream::BoxStream;
use semel_core::{Failure, Outcome};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use super::error::failure;
use super::row::{column, event_columns, position, stored};

/// The parked events of one pipeline, changed by its owner at one moment.
#[derive(Clone, Copy)]
pub(super) struct Parking<'a> {
    pub(super) pipeline: &'a str,
    pub(super) now: i64,
}

/// Aggregate type and id.
pub(super) type OwnedLane = (String, String);

/// How an event is put aside.
pub(super) struct Aside {
    state: &'static str,
    holds: bool,
    attempts: u32,
    due: Option<i64>,
    error: Option<String>,
    turn: i64,
}

/// What came of waking scheduled events.
#[derive(Default)]
pub(super) struct Woken {
    /// One of them, or another of its lane, need not wait.
    pub(super) something_is_due: bool,
    /// There may be more of them.
    pub(super) more: bool,
}

/// What to do with an event that could wait behind its lane, but need not.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FreeLanes {
    Park,
    LeaveOut,
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
    /// Until its time has come; its lane does not wait for it.
    pub(super) fn scheduled(until: i64) -> Self {
        let (state, due) = ("scheduled", Some(until));
        Self { state, holds: false, attempts: 0, due, error: None, turn: until }
    }

    /// Until an operator has a look; its lane waits.
    pub(super) fn dead(attempts: u32, failure: &Failure) -> Self {
        let (state, error) = ("dead", Some(failure.to_string()));
        Self { state, holds: true, attempts, due: None, error, turn: 0 }
    }

    /// What becomes of an event that failed; none for other outcomes.
    pub(super) fn failed(outcome: &Outcome) -> Option<Self> {
        match outcome {
            Outcome::Retry { at, attempts, failure } => Some(Self {
                state: "failed",
                due: Some(at.as_microsecond()),
                ..Self::dead(*attempts, failure)
            }),
            Outcome::Dead { attempts, failure, parks_lane } => {
                Some(Self { holds: *parks_lane, ..Self::dead(*attempts, failure) })
            }
            Outcome::Delivered | Outcome::Released => None,
        }
    }
}

/// The [`Standing`] of an outbox row `o`, as a number; `?1` is the pipeline.
macro_rules! standing {
    () => {
        "CASE \
         WHEN EXISTS (SELECT 1 FROM semel_parked p WHERE p.pipeline = ?1 AND p.seq = o.seq) THEN 2 \
         WHEN EXISTS (SELECT 1 FROM semel_parked p INDEXED BY semel_parked_lane \
             WHERE p.pipeline = ?1 AND p.holds = 1 \
             AND p.aggregate_type = o.aggregate_type AND p.aggregate_id = o.aggregate_id) THEN 1 \
         ELSE 0 END"
    };
}
pub(super) use standing;

impl Standing {
    /// Reads what [`standing`] wrote.
    pub(super) fn from_column(value: i64) -> Self {
        match value {
            0 => Self::Free,
            1 => Self::Held,
            _ => Self::Parked,
        }
    }
}

const DUE: &str = concat!(
    "SELECT ",
    event_columns!(),
    ", p.attempts, p.turn < 0 FROM semel_parked p INDEXED BY semel_parked_offer \
         CROSS JOIN semel_outbox o ON o.seq = p.seq \
     WHERE p.pipeline = ?1 AND p.holds = 1 AND p.taken IS NULL AND p.due <= ?2 \
         AND NOT EXISTS (\
             SELECT 1 FROM semel_parked e INDEXED BY semel_parked_lane \
             WHERE e.pipeline = ?1 AND e.holds = 1 \
             AND e.aggregate_type = p.aggregate_type AND e.aggregate_id = p.aggregate_id \
             AND (e.place, e.turn, e.seq) < (p.place, p.turn, p.seq) \
             AND (e.due IS NULL OR e.due > ?2)) \
     ORDER BY p.place, p.turn, p.seq LIMIT ?3"
);

impl Parking<'_> {
    /// Puts an event aside, or changes how it is; says which lane it belongs to.
    pub(super) async fn put(
        &self,
        connection: &mut SqliteConnection,
        seq: u64,
        aside: &Aside,
    ) -> Result<Option<OwnedLane>, Failure> {
        sqlx::query(
            "INSERT INTO semel_parked (pipeline, seq, aggregate_type, aggregate_id, place, turn, \
                 state, holds, attempts, due, error, changed_at) \
             SELECT ?1, seq, aggregate_type, aggregate_id, seq, ?3, ?4, ?5, ?6, ?7, ?8, ?9 \
             FROM semel_outbox WHERE seq = ?2 \
             ON CONFLICT (pipeline, seq) DO UPDATE SET state = excluded.state, \
                 holds = excluded.holds, attempts = excluded.attempts, due = excluded.due, \
                 error = excluded.error, taken = NULL, changed_at = excluded.changed_at \
             RETURNING aggregate_type, aggregate_id",
        )
        .bind(self.pipeline)
        .bind(stored(seq))
        .bind(aside.turn)
        .bind(aside.state)
        .bind(aside.holds)
        .bind(aside.attempts)
        .bind(aside.due)
        .bind(aside.error.as_deref())
        .bind(self.now)
        .fetch_optional(connection)
        .await
        .map_err(failure("park an event"))?
        .map(|row| lane(&row))
        .transpose()
    }

    /// Puts events behind what holds their lanes; says which events, and their lanes. Those whose
    /// lane is free are parked too, or left out as `free_lanes` says.
    pub(super) async fn follow(
        &self,
        connection: &mut SqliteConnection,
        seqs: &[u64],
        free_lanes: FreeLanes,
    ) -> Result<Vec<(OwnedLane, u64)>, Failure> {
        sqlx::query(
            "INSERT INTO semel_parked (pipeline, seq, aggregate_type, aggregate_id, place, \
                 state, holds, changed_at) \
             SELECT ?1, seq, aggregate_type, aggregate_id, seq, 'waiting', 1, ?3 \
             FROM semel_outbox o WHERE seq IN (SELECT value FROM json_each(?2)) AND (?4 OR EXISTS (\
                 SELECT 1 FROM semel_parked p INDEXED BY semel_parked_lane \
                 WHERE p.pipeline = ?1 AND p.holds = 1 \
                     AND p.aggregate_type = o.aggregate_type AND p.aggregate_id = o.aggregate_id)) \
             ON CONFLICT DO NOTHING RETURNING aggregate_type, aggregate_id, seq",
        )
        .bind(self.pipeline)
        .bind(json(seqs))
        .bind(self.now)
        .bind(free_lanes == FreeLanes::Park)
        .fetch_all(connection)
        .await
        .map_err(failure("park events"))?
        .iter()
        .map(|row| Ok((lane(row)?, position(column(row, 2)?))))
        .collect()
    }

    /// Parked events were delivered: their lanes go on without them. Says which lanes.
    pub(super) async fn delivered(
        &self,
        connection: &mut SqliteConnection,
        seqs: &[u64],
    ) -> Result<Vec<OwnedLane>, Failure> {
        sqlx::query(
            "UPDATE semel_parked SET state = 'published', holds = 0, due = NULL, taken = NULL, \
                 changed_at = ?3 WHERE pipeline = ?1 AND taken IS NOT NULL \
                 AND seq IN (SELECT value FROM json_each(?2)) \
             RETURNING aggregate_type, aggregate_id",
        )
        .bind(self.pipeline)
        .bind(json(seqs))
        .bind(self.now)
        .fetch_all(connection)
        .await
        .map_err(failure("settle parked events"))?
        .iter()
        .map(lane)
        .collect()
    }

    /// Parked events were not tried: they are offered again in their place.
    pub(super) async fn released(
        &self,
        connection: &mut SqliteConnection,
        seqs: &[u64],
    ) -> Result<(), Failure> {
        sqlx::query(
            "UPDATE semel_parked SET taken = NULL WHERE pipeline = ?1 \
                 AND seq IN (SELECT value FROM json_each(?2))",
        )
        .bind(self.pipeline)
        .bind(json(seqs))
        .execute(connection)
        .await
        .map_err(failure("release parked events"))
        .map(drop)
    }

    /// Makes the events that wait at the head of a lane due, unless the first of them failed. Says
    /// whether there were any.
    pub(super) async fn promote(
        &self,
        connection: &mut SqliteConnection,
        (aggregate_type, aggregate_id): &OwnedLane,
    ) -> Result<bool, Failure> {
        sqlx::query(
            "WITH head AS (SELECT seq, state FROM semel_parked INDEXED BY semel_parked_lane \
                 WHERE pipeline = ?1 AND holds = 1 AND aggregate_type = ?2 AND aggregate_id = ?3 ORDER BY place, turn, seq LIMIT 100) \
             UPDATE semel_parked SET due = ?4 \
             WHERE pipeline = ?1 AND seq IN (SELECT seq FROM head) \
                 AND due IS NULL AND state = 'waiting' \
                 AND (SELECT state FROM head LIMIT 1) = 'waiting'",
        )
        .bind(self.pipeline)
        .bind(aggregate_type)
        .bind(aggregate_id)
        .bind(self.now)
        .execute(connection)
        .await
        .map_err(failure("let a lane go on"))
        .map(|promoted| promoted.rows_affected() > 0)
    }

    /// The same for several lanes.
    pub(super) async fn promote_all(
        &self,
        connection: &mut SqliteConnection,
        lanes: &BTreeSet<OwnedLane>,
    ) -> Result<bool, Failure> {
        let mut something_is_due = false;
        for lane in lanes {
            something_is_due |= self.promote(connection, lane).await?;
        }
        Ok(something_is_due)
    }

    /// Gives the scheduled events whose time has come their place in their lanes: behind all that
    /// was read so far. At most so many at once, since nobody else can write meanwhile.
    pub(super) async fn wake_scheduled(
        &self,
        connection: &mut SqliteConnection,
        read: u64,
    ) -> Result<Woken, Failure> {
        const AT_ONCE: usize = 1_000;
        let woken = sqlx::query(
            "UPDATE semel_parked SET state = 'waiting', holds = 1, place = ?3, due = NULL \
             WHERE pipeline = ?1 AND seq IN (\
                 SELECT seq FROM semel_parked INDEXED BY semel_parked_due \
                 WHERE pipeline = ?1 AND state = 'scheduled' AND due <= ?2 AND taken IS NULL \
                 ORDER BY due, seq LIMIT ?4) \
             RETURNING aggregate_type, aggregate_id",
        )
        .bind(self.pipeline)
        .bind(self.now)
        .bind(stored(read))
        .bind(stored(AT_ONCE as u64))
        .fetch_all(&mut *connection)
        .await
        .map_err(failure("wake scheduled events"))?;
        let lanes: BTreeSet<OwnedLane> = woken.iter().map(lane).collect::<Result<_, _>>()?;
        let something_is_due = self.promote_all(connection, &lanes).await?;
        Ok(Woken { something_is_due, more: woken.len() == AT_ONCE })
    }

    /// Rows to offer now, at most `limit`: the columns of the event, then the attempts, and
    /// whether it is replayed.
    pub(super) fn due<'c>(
        &self,
        connection: &'c mut SqliteConnection,
        limit: usize,
    ) -> BoxStream<'c, Result<SqliteRow, sqlx::Error>> {
        sqlx::query(DUE)
            .bind(self.pipeline.to_owned())
            .bind(self.now)
            .bind(stored(limit as u64))
            .fetch(connection)
    }

    /// Marks rows as in flight; says which of them were still to be had.
    pub(super) async fn take(
        &self,
        connection: &mut SqliteConnection,
        seqs: &[u64],
        epoch: i64,
    ) -> Result<HashSet<u64>, Failure> {
        let granted: Vec<i64> = sqlx::query_scalar(
            "UPDATE semel_parked SET taken = ?2 WHERE pipeline = ?1 AND holds = 1 AND taken IS NULL \
                 AND due <= ?3 \
                 AND seq IN (SELECT value FROM json_each(?4)) RETURNING seq",
        )
        .bind(self.pipeline)
        .bind(epoch)
        .bind(self.now)
        .bind(json(seqs))
        .fetch_all(connection)
        .await
        .map_err(failure("take parked events"))?;
        Ok(granted.into_iter().map(position).collect())
    }

    /// Frees everything that is in flight, except `seqs`.
    pub(super) async fn free_all_but(
        &self,
        connection: &mut SqliteConnection,
        seqs: &[u64],
    ) -> Result<(), Failure> {
        sqlx::query(
            "UPDATE semel_parked SET taken = NULL WHERE pipeline = ?1 AND taken IS NOT NULL \
                 AND seq NOT IN (SELECT value FROM json_each(?2))",
        )
        .bind(self.pipeline)
        .bind(json(seqs))
        .execute(connection)
        .await
        .map_err(failure("free parked events"))
        .map(drop)
    }
}

/// Numbers as a JSON array, for `json_each`.
pub(super) fn json(seqs: &[u64]) -> String {
    // Numbers always make JSON.
    serde_json::to_string(seqs).unwrap_or_else(|_| "[]".into())
}

/// The lane of a row that has nothing but a lane. Of a lane that is not UTF-8 every event is dead,
/// so that nothing there is ever promoted.
pub(super) fn lane(row: &SqliteRow) -> Result<OwnedLane, Failure> {
    let text = |index| Ok(String::from_utf8_lossy(column(row, index)?).into_owned());
    Ok((text(0)?, text(1)?))
}
