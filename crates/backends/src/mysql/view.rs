//! Finding events by what they are and where they are in their life.
//!
//! The state of an event is not stored; it follows from the cursor of the pipeline and, for what
//! left the straight path, from `semel_parked`.

use semel_core::admin::{EventView, Filter, Selection, State};
use semel_core::{EventId, Failure, Timestamp};
use sqlx::mysql::{MySqlDatabaseError, MySqlRow};
use sqlx::{MySql, MySqlConnection, QueryBuilder};

use super::error::failure;
use super::row::{self, AFTER_EVENT, as_micros, event_columns};
use super::store::{MysqlStore, count};

/// Where a pipeline is.
pub(super) struct Place {
    pub(super) position: u64,
    /// Spans of positions that are settled beyond it.
    ahead: Vec<(u64, u64)>,
    /// The last position that a relay has taken up.
    pub(super) handed_out: u64,
}

const PLACE: &str =
    "SELECT position, ahead, handed_out, epoch FROM semel_cursor WHERE pipeline = ?";

impl Place {
    pub(super) async fn read(
        store: &MysqlStore,
        connection: &mut MySqlConnection,
        pipeline: &str,
    ) -> Result<Self, Failure> {
        let cursor: Option<(u64, String, u64, u64)> = sqlx::query_as(PLACE)
            .bind(pipeline)
            .fetch_optional(connection)
            .await
            .map_err(failure("read the cursor"))?;
        let (position, ahead, noted, epoch) = cursor.unwrap_or_default();
        Ok(Self {
            position,
            ahead: serde_json::from_str(&ahead).unwrap_or_default(),
            handed_out: noted.max(store.handed_out(pipeline, epoch)),
        })
    }

    /// Whether an outbox row `o` is settled, as a condition.
    pub(super) fn is_settled(&self) -> String {
        let mut condition = format!("(o.position BETWEEN 1 AND {}", self.position);
        for (first, last) in &self.ahead {
            condition += &format!(" OR o.position BETWEEN {first} AND {last}");
        }
        condition + ")"
    }

    /// The state of an outbox row `o` with its parked row `p`.
    fn state(&self) -> String {
        format!(
            "CASE WHEN p.taken <> 0 THEN 'publishing' \
                  WHEN p.state IN ('waiting', 'scheduled') THEN 'pending' \
                  WHEN p.state IS NOT NULL THEN p.state \
                  WHEN {} THEN 'published' \
                  WHEN o.position BETWEEN 1 AND {} THEN 'publishing' \
                  ELSE 'pending' END",
            self.is_settled(),
            self.handed_out
        )
    }
}

/// What to look for: events of a pipeline in one of `states`.
pub(super) struct Search<'a> {
    pub(super) pipeline: &'a str,
    pub(super) place: &'a Place,
    /// Only what was written after this one.
    pub(super) after: u64,
    pub(super) states: Vec<State>,
    pub(super) ids: Option<&'a [EventId]>,
    pub(super) filter: &'a Filter,
}

/// The columns that [`view`] reads after those of the event. The state and the number of the row
/// follow.
const VIEW: &str = concat!(
    ", cast(coalesce(p.attempts, 0) AS UNSIGNED), ",
    "CASE WHEN p.state = 'failed' THEN ",
    as_micros!("p.retry_at"),
    " WHEN p.state IN ('waiting', 'scheduled') THEN ",
    as_micros!("p.due"),
    " END, p.error, CASE WHEN p.state = 'published' THEN ",
    as_micros!("p.changed_at"),
    " WHEN p.state IS NULL THEN ",
    as_micros!(
        "coalesce((SELECT g.passed_at FROM semel_progress g WHERE g.pipeline = c.pipeline \
             AND g.position >= o.position ORDER BY g.position LIMIT 1), c.moved_at)"
    ),
    " END, "
);

impl<'a> Search<'a> {
    /// The chosen events that are in one of `changeable`.
    pub(super) fn chosen(
        pipeline: &'a str,
        place: &'a Place,
        selection: &'a Selection,
        changeable: &[State],
    ) -> Self {
        let (ids, filter) = match selection {
            Selection::Ids(ids) => (Some(ids.as_slice()), &EVERYTHING),
            Selection::Matching(filter) => (None, filter),
        };
        let wanted = |state: &State| filter.state.is_none_or(|wanted| wanted == *state);
        let states = changeable.iter().copied().filter(wanted).collect();
        Self { pipeline, place, after: 0, states, ids, filter }
    }

    /// Events to show, oldest first; [`view`] reads the rows. Whoever may not select payloads gets
    /// the events without them.
    pub(super) async fn views(
        &self,
        connection: &mut MySqlConnection,
        limit: usize,
    ) -> Result<Vec<MySqlRow>, Failure> {
        let columns = concat!("SELECT ", event_columns!());
        let found = match self.find(connection, columns, limit).await {
            Err(error) if is_denied_column(&error) => {
                let visible = columns.replace("o.payload", "cast('' AS BINARY)");
                self.find(connection, &visible, limit).await
            }
            found => found,
        };
        found.map_err(failure("look for events"))
    }

    async fn find(
        &self,
        connection: &mut MySqlConnection,
        columns: &str,
        limit: usize,
    ) -> Result<Vec<MySqlRow>, sqlx::Error> {
        let mut query = QueryBuilder::new(columns);
        query.push(VIEW).push(self.place.state()).push(", o.seq");
        self.push_rows(&mut query);
        query.push(" ORDER BY o.seq LIMIT ").push_bind(count(limit));
        query.build().persistent(false).fetch_all(connection).await
    }

    /// The positions of the events that were found.
    pub(super) async fn positions(
        &self,
        connection: &mut MySqlConnection,
    ) -> Result<Vec<u64>, Failure> {
        let mut query = QueryBuilder::new("SELECT o.position");
        self.push_rows(&mut query);
        query.push(" ORDER BY o.position");
        let query = query.build().persistent(false);
        let rows = query.fetch_all(connection).await.map_err(failure("look for events"))?;
        rows.iter().map(row::position).collect()
    }

    /// Where the rows come from, and which ones.
    fn push_rows(&self, query: &mut QueryBuilder<MySql>) {
        let is_parked =
            |state: &State| matches!(state, State::Failed | State::Dead | State::Discarded);
        // From the few rows that must match to the rest, so that no more than needed is read.
        if self.ids.is_none() && self.states.iter().all(is_parked) {
            query.push(
                " FROM semel_parked p STRAIGHT_JOIN semel_outbox o ON o.position = p.position \
                  LEFT JOIN semel_cursor c ON c.pipeline = p.pipeline WHERE p.pipeline = ",
            );
            query.push_bind(self.pipeline.to_owned());
        } else {
            query.push(" FROM semel_outbox o LEFT JOIN semel_cursor c ON c.pipeline = ");
            query.push_bind(self.pipeline.to_owned());
            query.push(" LEFT JOIN semel_parked p ON p.position = o.position AND p.pipeline = ");
            query.push_bind(self.pipeline.to_owned()).push(" WHERE TRUE");
        }
        query.push(" AND o.seq > ").push_bind(self.after);
        self.push_filter(query);
        let states: Vec<_> = self.states.iter().map(|state| state.as_str()).collect();
        query.push(format!(" AND {} IN ('{}')", self.place.state(), states.join("', '")));
    }

    fn push_filter(&self, query: &mut QueryBuilder<MySql>) {
        if let Some(ids) = self.ids {
            // Nothing but hexadecimal digits and hyphens.
            let ids: Vec<_> = ids.iter().map(EventId::to_string).collect();
            query.push(format!(" AND o.id IN ('{}')", ids.join("', '")));
        }
        let filter = self.filter;
        let texts = [
            (" AND o.aggregate_type = ", &filter.aggregate_type),
            (" AND o.aggregate_id = ", &filter.aggregate_id),
            (" AND o.event_type = ", &filter.event_type),
        ];
        for (condition, wanted) in texts {
            if let Some(wanted) = wanted {
                query.push(condition).push_bind(wanted.clone());
            }
        }
        let times = [(">=", filter.since), ("<", filter.until)];
        for (comparison, time) in times {
            if let Some(micros) = time.map(Timestamp::as_microsecond) {
                query.push(format!(" AND o.created_at {comparison} {EPOCH} + INTERVAL "));
                query.push_bind(micros).push(" MICROSECOND");
            }
        }
    }
}

fn is_denied_column(error: &sqlx::Error) -> bool {
    let error = error.as_database_error().and_then(|error| error.try_downcast_ref());
    error.is_some_and(|error: &MySqlDatabaseError| error.number() == 1143)
}

const EPOCH: &str = "timestamp'1970-01-01 00:00:00'";

static EVERYTHING: Filter = Filter {
    state: None,
    aggregate_type: None,
    aggregate_id: None,
    event_type: None,
    since: None,
    until: None,
};

/// Reads a row of [`Search::views`].
pub(super) fn view(row: &MySqlRow) -> Result<EventView, Failure> {
    let (event, _) = row::event(row)?;
    let mut view = EventView::pending(event);
    view.attempts = row::column(row, AFTER_EVENT)?;
    view.next_attempt = row::time(row, AFTER_EVENT + 1)?;
    view.error = row::column(row, AFTER_EVENT + 2)?;
    let state: &str = row::column(row, AFTER_EVENT + 4)?;
    let known = State::ALL.into_iter().find(|known| known.as_str() == state);
    view.state = known.unwrap_or(State::Pending);
    if view.state == State::Published {
        view.published_at = row::time(row, AFTER_EVENT + 3)?;
    }
    Ok(view)
}

/// The place of a row of [`Search::views`] in a listing.
pub(super) fn listed_at(row: &MySqlRow) -> Result<u64, Failure> {
    row::column(row, AFTER_EVENT + 5)
}
