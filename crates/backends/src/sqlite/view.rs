//! Finding events by what they are and where they are in their life.
//!
//! The state of an event is not stored; it follows from the cursor of the pipeline and, for what
//! left the straight path, from `semel_parked`.

use semel_core::admin::{EventView, Filter, Selection, State};
use semel_core::{EventId, Failure, Timestamp};
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{AssertSqlSafe, Sqlite};

use super::row::{self, AFTER_EVENT, event_columns, stored};
use super::store::timestamp;

/// What to look for: events of a pipeline in one of `states`.
pub(super) struct Search<'a> {
    pub(super) pipeline: &'a str,
    /// The last event that a relay has taken up.
    pub(super) handed_out: u64,
    pub(super) after: u64,
    /// Newest first, and only those before this one.
    pub(super) before: Option<u64>,
    pub(super) states: Vec<State>,
    pub(super) ids: Option<&'a [EventId]>,
    pub(super) filter: &'a Filter,
}

/// Whether an outbox row `o` is settled beyond the position of its cursor `c`.
macro_rules! is_ahead {
    () => {
        "EXISTS (SELECT 1 FROM json_each(c.ahead) WHERE o.seq BETWEEN value ->> 0 AND value ->> 1)"
    };
}
pub(super) use is_ahead;

/// The state of an outbox row `o` with its parked row `p` and its cursor `c`.
const STATE: &str = concat!(
    "CASE WHEN p.taken IS NOT NULL THEN 'publishing' \
          WHEN p.state IN ('waiting', 'scheduled') THEN 'pending' \
          WHEN p.state IS NOT NULL THEN p.state \
          WHEN o.seq <= c.position THEN 'published' \
          WHEN ",
    is_ahead!(),
    " THEN 'published' \
          WHEN o.seq <= ?2 THEN 'publishing' \
          ELSE 'pending' END"
);

/// The columns of [`view`]. How long a payload is, SQLite knows without reading it.
macro_rules! view_columns {
    ($payload:literal) => {
        concat!(
            event_columns!($payload),
            ", coalesce(p.attempts, 0), \
             CASE WHEN p.state IN ('waiting', 'failed', 'scheduled') THEN p.due END, p.error, \
             CASE WHEN p.state = 'published' THEN p.changed_at WHEN p.state IS NULL THEN coalesce(\
                 (SELECT g.at FROM semel_progress g WHERE g.pipeline = ?1 AND g.position >= o.seq \
                  ORDER BY g.position LIMIT 1), c.moved_at) END, octet_length(o.payload)"
        )
    };
}

const CONDITIONS: &str = "o.seq > ?3 AND life IN (SELECT value FROM json_each(?4)) \
    AND (?5 IS NULL OR o.id IN (SELECT value FROM json_each(?5))) \
    AND (?6 IS NULL OR o.aggregate_type = ?6) AND (?7 IS NULL OR o.aggregate_id = ?7) \
    AND (?8 IS NULL OR o.event_type = ?8) \
    AND (?9 IS NULL OR o.created_at >= ?9) AND (?10 IS NULL OR o.created_at < ?10)";

type Query<'q> = sqlx::query::Query<'q, Sqlite, SqliteArguments>;

impl<'a> Search<'a> {
    /// The chosen events that are in one of `changeable`.
    pub(super) fn chosen(
        pipeline: &'a str,
        handed_out: u64,
        selection: &'a Selection,
        changeable: &[State],
    ) -> Self {
        let (ids, filter) = match selection {
            Selection::Ids(ids) => (Some(ids.as_slice()), &EVERYTHING),
            Selection::Matching(filter) => (None, filter),
        };
        let wanted = |state: &State| filter.state.is_none_or(|wanted| wanted == *state);
        let states = changeable.iter().copied().filter(wanted).collect();
        Self { pipeline, handed_out, after: 0, before: None, states, ids, filter }
    }

    /// The query for events to show, without their payloads; [`view`] reads its rows.
    pub(super) fn views(&self, limit: usize) -> Query<'a> {
        self.read(view_columns!("x''"), limit)
    }

    /// The same for one of them, with its payload.
    pub(super) fn whole(&self) -> Query<'a> {
        self.read(view_columns!("o.payload"), 1)
    }

    fn read(&self, columns: &str, limit: usize) -> Query<'a> {
        let select = format!("SELECT {columns}, {STATE} AS life");
        let limit = stored(limit as u64);
        let tail = match self.before {
            Some(before) => {
                format!("AND o.seq < {} ORDER BY o.seq DESC LIMIT {limit}", stored(before))
            }
            None => format!("ORDER BY o.seq LIMIT {limit}"),
        };
        self.query(&select, &tail)
    }

    /// The rows that were found as a query for their numbers, inside `before` and `after`. The
    /// parameters `?1` to `?10` are those of the search.
    pub(super) fn statement(&self, before: &str, after: &str) -> Query<'a> {
        let select = format!("{before} SELECT seq FROM (SELECT o.seq, {STATE} AS life");
        self.query(&select, &format!(") {after}"))
    }

    fn query(&self, select: &str, tail: &str) -> Query<'a> {
        let sql = format!("{select} {} WHERE {CONDITIONS} {tail}", self.tables());
        let (filter, text) = (self.filter, |text: &Option<String>| text.clone());
        sqlx::query(AssertSqlSafe(sql))
            .persistent(false)
            .bind(self.pipeline)
            .bind(stored(self.handed_out))
            .bind(stored(self.after))
            .bind(json(self.states.iter().map(|state| state.as_str().to_owned())))
            .bind(self.ids.map(|ids| json(ids.iter().map(EventId::to_string))))
            .bind(text(&filter.aggregate_type))
            .bind(text(&filter.aggregate_id))
            .bind(text(&filter.event_type))
            .bind(filter.since.map(Timestamp::as_microsecond))
            .bind(filter.until.map(Timestamp::as_microsecond))
    }

    /// From the few rows that must match to the rest, so that no more than needed is read.
    fn tables(&self) -> String {
        let is_parked =
            |state: &State| matches!(state, State::Failed | State::Dead | State::Discarded);
        let rows = if self.ids.is_some() {
            "FROM json_each(?5) wanted CROSS JOIN semel_outbox o ON o.id = wanted.value \
             LEFT JOIN semel_parked p ON p.pipeline = ?1 AND p.seq = o.seq"
        } else if self.states.iter().all(is_parked) {
            "FROM semel_parked p CROSS JOIN semel_outbox o ON p.pipeline = ?1 AND o.seq = p.seq"
        } else {
            "FROM semel_outbox o LEFT JOIN semel_parked p ON p.pipeline = ?1 AND p.seq = o.seq"
        };
        format!("{rows} LEFT JOIN semel_cursor c ON c.pipeline = ?1")
    }
}

static EVERYTHING: Filter = Filter {
    state: None,
    aggregate_type: None,
    aggregate_id: None,
    event_type: None,
    since: None,
    until: None,
};

/// Reads a row of [`Search::views`].
pub(super) fn view(row: &SqliteRow) -> Result<EventView, Failure> {
    let (event, _) = row::event(row)?;
    let mut view = EventView::pending(event);
    view.attempts = row::column(row, AFTER_EVENT)?;
    view.next_attempt = row::column::<Option<i64>>(row, AFTER_EVENT + 1)?.map(timestamp);
    view.error = row::column(row, AFTER_EVENT + 2)?;
    view.payload_bytes = row::position(row::column(row, AFTER_EVENT + 4)?);
    let state: &str = row::column(row, AFTER_EVENT + 5)?;
    let known = State::ALL.into_iter().find(|known| known.as_str() == state);
    view.state = known.unwrap_or(State::Pending);
    if view.state == State::Published {
        view.published_at = row::column::<Option<i64>>(row, AFTER_EVENT + 3)?.map(timestamp);
    }
    Ok(view)
}

fn json(texts: impl Iterator<Item = String>) -> String {
    // Strings always make JSON.
    serde_json::to_string(&texts.collect::<Vec<_>>()).unwrap_or_else(|_| "[]".into())
}
