//! Finding events by what they are and where they are in their life.
//!
//! The state of an event is not stored; it follows from the cursor of the pipeline and, for what
//! left the straight path, from `semel_parked`.

use semel_core::admin::{EventView, Filter, Selection, State};
use semel_core::{EventId, Failure, Timestamp};
use sqlx::mysql::{MySqlDatabaseError, MySqlRow};
use sqlx::{MySql, MySqlConnection, QueryBuilder};

use super::error::failure;
use super::row::{self, AFTER_EVENT, as_micros, event_columns, share_of};
use super::store::{MysqlStore, count};

/// Where the shares of a pipeline are, in their order.
#[derive(Default)]
pub(super) struct Place(Vec<Part>);

/// Where a share is.
struct Part {
    position: u64,
    /// Spans of positions that are settled beyond it.
    ahead: Vec<(u64, u64)>,
    /// The last position that a relay has taken up.
    handed_out: u64,
}

const PLACE: &str = "SELECT share, position, ahead, handed_out, epoch FROM semel_cursor \
    WHERE pipeline = ? ORDER BY share";

impl Place {
    pub(super) async fn read(
        store: &MysqlStore,
        connection: &mut MySqlConnection,
        pipeline: &str,
    ) -> Result<Self, Failure> {
        Self::read_with(connection, pipeline, |share, epoch| {
            store.handed_out(pipeline, share, epoch)
        })
        .await
    }

    async fn read_with(
        connection: &mut MySqlConnection,
        pipeline: &str,
        handed_out: impl Fn(u32, u64) -> u64,
    ) -> Result<Self, Failure> {
        let cursors: Vec<(u32, u64, String, u64, u64)> = sqlx::query_as(PLACE)
            .bind(pipeline)
            .fetch_all(connection)
            .await
            .map_err(failure("read the cursor"))?;
        let part = |(share, position, ahead, noted, epoch): (u32, u64, String, u64, u64)| Part {
            position,
            ahead: serde_json::from_str(&ahead).unwrap_or_default(),
            handed_out: noted.max(handed_out(share, epoch)),
        };
        Ok(Self(cursors.into_iter().map(part).collect()))
    }

    /// As the tables have it.
    pub(super) async fn stored(
        connection: &mut MySqlConnection,
        pipeline: &str,
    ) -> Result<Self, Failure> {
        Self::read_with(connection, pipeline, |_, _| 0).await
    }

    /// Everything up to here is settled, in all shares.
    pub(super) fn low(&self) -> u64 {
        self.0.iter().map(|part| part.position).min().unwrap_or(0)
    }

    /// How many shares there are.
    pub(super) fn shares(&self) -> usize {
        self.0.len().max(1)
    }

    /// Whether an outbox row `o` is settled, as a condition.
    pub(super) fn is_settled(&self) -> String {
        self.in_each(|part| {
            let mut condition = format!("(o.position BETWEEN 1 AND {}", part.position);
            for (first, last) in &part.ahead {
                condition += &format!(" OR o.position BETWEEN {first} AND {last}");
            }
            condition + ")"
        })
    }

    /// Whether a relay has taken up an outbox row `o`, as a condition.
    pub(super) fn is_handed_out(&self) -> String {
        self.in_each(|part| format!("(o.position BETWEEN 1 AND {})", part.handed_out))
    }

    /// A condition that is another one in each share.
    fn in_each(&self, condition: impl Fn(&Part) -> String) -> String {
        match &self.0[..] {
            [] => "FALSE".into(),
            [only] => condition(only),
            parts => {
                let mut cases = format!(
                    "(CASE mod(crc32(concat(o.aggregate_type, '/', o.aggregate_id)), {})",
                    parts.len()
                );
                for (number, part) in parts.iter().enumerate() {
                    cases += &format!(" WHEN {number} THEN {}", condition(part));
                }
                cases + " END)"
            }
        }
    }

    /// The state of an outbox row `o` with its parked row `p`.
    fn state(&self) -> String {
        format!(
            "CASE WHEN p.taken <> 0 THEN 'publishing' \
                  WHEN p.state IN ('waiting', 'scheduled') THEN 'pending' \
                  WHEN p.state IS NOT NULL THEN p.state \
                  WHEN {} THEN 'published' \
                  WHEN {} THEN 'publishing' \
                  ELSE 'pending' END",
            self.is_settled(),
            self.is_handed_out()
        )
    }
}

/// What to look for: events of a pipeline in one of `states`.
pub(super) struct Search<'a> {
    pub(super) pipeline: &'a str,
    pub(super) place: &'a Place,
    /// Only what was written after this one.
    pub(super) after: u64,
    /// Newest first, and only what was written before this one.
    pub(super) before: Option<u64>,
    pub(super) states: Vec<State>,
    pub(super) ids: Option<&'a [EventId]>,
    pub(super) filter: &'a Filter,
}

/// The columns that [`view`] reads first: an event and how long its payload is, be it there or not.
macro_rules! measured {
    ($payload:literal) => {
        concat!("SELECT ", event_columns!($payload), ", cast(octet_length(o.payload) AS UNSIGNED)")
    };
}

/// The columns that [`view`] reads after these. The state and the number of the row follow.
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
             AND g.share = c.share AND g.position >= o.position ORDER BY g.position LIMIT 1), c.moved_at)"
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
        Self { pipeline, place, after: 0, before: None, states, ids, filter }
    }

    /// Events to show, without their payloads; [`view`] reads the rows.
    pub(super) async fn views(
        &self,
        connection: &mut MySqlConnection,
        limit: usize,
    ) -> Result<Vec<MySqlRow>, Failure> {
        self.read(connection, measured!("cast('' AS BINARY)"), limit).await
    }

    /// One of them, with its payload.
    pub(super) async fn whole(
        &self,
        connection: &mut MySqlConnection,
    ) -> Result<Option<MySqlRow>, Failure> {
        Ok(self.read(connection, measured!("o.payload"), 1).await?.pop())
    }

    /// Whoever may not select payloads gets the events without them.
    async fn read(
        &self,
        connection: &mut MySqlConnection,
        columns: &str,
        limit: usize,
    ) -> Result<Vec<MySqlRow>, Failure> {
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
        match self.before {
            Some(before) => {
                query.push(" AND o.seq < ").push_bind(before).push(" ORDER BY o.seq DESC LIMIT ")
            }
            None => query.push(" ORDER BY o.seq LIMIT "),
        };
        query.push_bind(count(limit));
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
                  LEFT JOIN semel_cursor c ON c.pipeline = p.pipeline AND c.share = ",
            );
            query.push(share_of!("c.shares")).push(" WHERE p.pipeline = ");
            query.push_bind(self.pipeline.to_owned());
        } else {
            query.push(" FROM semel_outbox o LEFT JOIN semel_cursor c ON c.pipeline = ");
            query.push_bind(self.pipeline.to_owned());
            query.push(" AND c.share = ").push(share_of!("c.shares"));
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
    view.payload_bytes = row::column(row, AFTER_EVENT)?;
    view.attempts = row::column(row, AFTER_EVENT + 1)?;
    view.next_attempt = row::time(row, AFTER_EVENT + 2)?;
    view.error = row::column(row, AFTER_EVENT + 3)?;
    let state: &str = row::column(row, AFTER_EVENT + 5)?;
    let known = State::ALL.into_iter().find(|known| known.as_str() == state);
    view.state = known.unwrap_or(State::Pending);
    if view.state == State::Published {
        view.published_at = row::time(row, AFTER_EVENT + 4)?;
    }
    Ok(view)
}

/// The place of a row of [`Search::views`] in a listing.
pub(super) fn listed_at(row: &MySqlRow) -> Result<u64, Failure> {
    row::column(row, AFTER_EVENT + 6)
}
