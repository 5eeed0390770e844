//! [`AdminStore`]: looking into the outbox of one pipeline, and repairing it.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use semel_core::admin::{
    AdminStore, Cursor, EventView, Filter, Page, Selection, State, Stats, Troubles,
};
use semel_core::{EventId, Failure};
use sqlx::SqliteConnection;

use super::error::failure;
use super::parking::{Parking, lane};
use super::row::{self, position, stored};
use super::store::{SqliteStore, timestamp};
use super::view::{Search, is_ahead, view};

/// The outbox of one pipeline, for operators. Made by [`SqliteStore::admin`].
///
/// States are derived: behind the cursor is published, ahead of it pending, in between is what a
/// relay has; what left this path says so itself. A relay in another process notes what it has
/// with each batch that it settles, so its first batch shows as pending until then. The time of
/// publishing is exact to about a second for an hour, and to a minute after that. The count of a
/// backlog beyond 100,000 is an estimate.
///
/// A pipeline that is never coming back keeps its events from being cleaned until its row in
/// `semel_cursor` is deleted.
///
/// ```
/// use semel_backends::sqlite::SqliteConfig;
/// use semel_core::Event;
/// use semel_core::admin::{AdminStore, State};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// # let folder = tempfile::tempdir()?;
/// # let url = format!("sqlite://{}/shop.db", folder.path().display());
/// let store = SqliteConfig::new(&url)?.connect().await?;
/// store.migrate().await?;
/// let mut tx = store.begin().await?;
/// store.outbox().append(&mut tx, Event::new("order", "42", "OrderPlaced")).await?;
/// tx.commit().await?;
/// assert_eq!(store.admin("orders").stats().await?.count(State::Pending), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct SqliteAdmin {
    pub(super) store: SqliteStore,
    pipeline: String,
}

/// How many events of a backlog are counted one by one.
const COUNTED: i64 = 100_000;

/// How many events one call of `latest` looks at, where all of them have to be.
const LOOKED_AT: u64 = 100_000;

/// What can be retried or discarded.
const UNFINISHED: &[State] = &[State::Failed, State::Dead];

impl SqliteAdmin {
    pub(super) fn new(store: SqliteStore, pipeline: &str) -> Self {
        Self { store, pipeline: pipeline.to_owned() }
    }

    /// The last event that a relay has taken up.
    async fn handed_out(&self, connection: &mut SqliteConnection) -> Result<u64, Failure> {
        let cursor: Option<(i64, i64)> =
            sqlx::query_as("SELECT handed_out, epoch FROM semel_cursor WHERE pipeline = ?1")
                .bind(&self.pipeline)
                .fetch_optional(connection)
                .await
                .map_err(failure("read the cursor"))?;
        Ok(cursor.map_or(0, |(noted, epoch)| {
            position(noted).max(self.store.handed_out(&self.pipeline, epoch))
        }))
    }

    /// Makes the chosen events due now, with all attempts in front of them.
    /// What was published gets a turn below 0, and keeps it: it is replayed.
    async fn offer(&self, selection: &Selection, states: &[State]) -> Result<usize, Failure> {
        let mut tx = self.store.begin().await?;
        let handed_out = self.handed_out(&mut tx).await?;
        let offered = Search::chosen(&self.pipeline, handed_out, selection, states)
            .statement(
                "INSERT INTO semel_parked (pipeline, seq, aggregate_type, aggregate_id, place, \
                     turn, state, holds, due, changed_at) \
                 SELECT ?1, seq, aggregate_type, aggregate_id, seq, ?12, 'waiting', 1, ?11, ?11 \
                 FROM semel_outbox WHERE seq IN (",
                ") ON CONFLICT (pipeline, seq) DO UPDATE SET state = 'waiting', holds = 1, \
                     turn = min(turn, excluded.turn), attempts = 0, due = excluded.due, error = NULL, \
                     changed_at = excluded.changed_at",
            )
            .bind(self.store.now())
            .bind(if states.contains(&State::Published) { -1 } else { 0 })
            .execute(&mut *tx)
            .await
            .map_err(failure("offer events again"))?;
        tx.commit().await.map_err(failure("offer events again"))?;
        self.store.announce_change();
        Ok(usize::try_from(offered.rows_affected()).unwrap_or(usize::MAX))
    }
}

#[async_trait]
impl AdminStore for SqliteAdmin {
    async fn stats(&self) -> Result<Stats, Failure> {
        let failed = || failure("count events");
        let mut tx = self.store.readers.begin().await.map_err(failed())?;
        let handed_out = self.handed_out(&mut tx).await?;
        let (pending, first) = self.backlog(&mut tx, handed_out).await?;
        let counts: (i64, i64, i64, i64, i64, i64, i64) = sqlx::query_as(STATS)
            .bind(&self.pipeline)
            .bind(stored(handed_out))
            .fetch_one(&mut *tx)
            .await
            .map_err(failed())?;
        let (all, out, taken, waiting, failed_count, dead, discarded) = counts;
        let mut stats = Stats::default();
        let mut set = |state: State, count: i64| stats.counts[state as usize] = position(count);
        set(State::Pending, pending + waiting);
        set(State::Publishing, out + taken);
        set(State::Failed, failed_count);
        set(State::Dead, dead);
        set(State::Discarded, discarded);
        let others = pending + waiting + out + taken + failed_count + dead + discarded;
        set(State::Published, all - others);
        stats.parked_lanes = self.count_lanes(&mut tx).await?;
        stats.oldest_pending = self.oldest_pending(&mut tx, first).await?;
        Ok(stats)
    }

    async fn list(
        &self,
        filter: &Filter,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, Failure> {
        let failed = || failure("list events");
        let mut tx = self.store.readers.begin().await.map_err(failed())?;
        let search = Search {
            pipeline: &self.pipeline,
            handed_out: self.handed_out(&mut tx).await?,
            after: after.map_or(0, |Cursor(last)| last),
            before: None,
            states: filter.state.map_or_else(|| State::ALL.to_vec(), |state| vec![state]),
            ids: None,
            filter,
        };
        let query = search.views(limit.saturating_add(1));
        let rows = query.fetch_all(&mut *tx).await.map_err(failed())?;
        let shown = rows.get(..limit).unwrap_or(&rows);
        let next = match shown.last() {
            Some(last) if rows.len() > limit => Some(Cursor(row::seq(last)?)),
            _ => None,
        };
        Ok(Page { events: shown.iter().map(view).collect::<Result<_, _>>()?, next })
    }

    async fn latest(
        &self,
        filter: &Filter,
        before: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, Failure> {
        let failed = || failure("list events");
        let mut tx = self.store.readers.begin().await.map_err(failed())?;
        let (first, last): (i64, i64) =
            sqlx::query_as("SELECT coalesce(min(seq), 0), coalesce(max(seq), 0) FROM semel_outbox")
                .fetch_one(&mut *tx)
                .await
                .map_err(failed())?;
        let end = before.map_or(position(last) + 1, |Cursor(seq)| seq);
        let is_parked =
            matches!(filter.state, Some(State::Failed | State::Dead | State::Discarded));
        let floor = if is_parked { 0 } else { end.saturating_sub(LOOKED_AT) };
        let search = Search {
            pipeline: &self.pipeline,
            handed_out: self.handed_out(&mut tx).await?,
            after: floor.saturating_sub(1),
            before: Some(end),
            states: filter.state.map_or_else(|| State::ALL.to_vec(), |state| vec![state]),
            ids: None,
            filter,
        };
        let query = search.views(limit.saturating_add(1));
        let rows = query.fetch_all(&mut *tx).await.map_err(failed())?;
        let shown = rows.get(..limit).unwrap_or(&rows);
        let next = match shown.last() {
            Some(last) if rows.len() > limit => Some(Cursor(row::seq(last)?)),
            _ => (floor > position(first)).then_some(Cursor(floor)),
        };
        Ok(Page { events: shown.iter().map(view).collect::<Result<_, _>>()?, next })
    }

    async fn troubles(&self, limit: usize) -> Result<Troubles, Failure> {
        self.store.troubles(&self.pipeline, limit).await
    }

    async fn get(&self, id: EventId) -> Result<Option<EventView>, Failure> {
        let failed = || failure("look up an event");
        let mut tx = self.store.readers.begin().await.map_err(failed())?;
        let handed_out = self.handed_out(&mut tx).await?;
        let selection = Selection::Ids(vec![id]);
        let search = Search::chosen(&self.pipeline, handed_out, &selection, &State::ALL);
        let row = search.whole().fetch_optional(&mut *tx).await.map_err(failed())?;
        row.map(|row| view(&row)).transpose()
    }

    async fn retry(&self, selection: &Selection) -> Result<usize, Failure> {
        self.offer(selection, UNFINISHED).await
    }

    async fn discard(&self, selection: &Selection) -> Result<usize, Failure> {
        let failed = || failure("discard events");
        let now = self.store.now();
        let mut tx = self.store.begin().await?;
        let handed_out = self.handed_out(&mut tx).await?;
        let discarded = Search::chosen(&self.pipeline, handed_out, selection, UNFINISHED)
            .statement(
                "UPDATE semel_parked SET state = 'discarded', holds = 0, due = NULL, \
                 changed_at = ?11 WHERE pipeline = ?1 AND seq IN (",
                ") RETURNING aggregate_type, aggregate_id",
            )
            .bind(now)
            .fetch_all(&mut *tx)
            .await
            .map_err(failed())?;
        let lanes = discarded.iter().map(lane).collect::<Result<BTreeSet<_>, _>>()?;
        for lane in &lanes {
            Parking { pipeline: &self.pipeline, now }.promote(&mut tx, lane).await?;
        }
        tx.commit().await.map_err(failed())?;
        self.store.announce_change();
        Ok(discarded.len())
    }

    async fn replay(&self, selection: &Selection) -> Result<usize, Failure> {
        self.offer(selection, &[State::Published]).await
    }

    /// An event goes once *every* pipeline has published or discarded it longer ago than `age`.
    async fn clean(&self, age: Duration, limit: usize) -> Result<usize, Failure> {
        self.delete_old(age, limit).await
    }
}

/// Whether an outbox row `o` was put aside, wherever the cursor is.
macro_rules! is_parked {
    () => {
        "EXISTS (SELECT 1 FROM semel_parked p WHERE p.pipeline = ?1 AND p.seq = o.seq)"
    };
}

/// All events; those a relay has straight from the log; and the parked ones by state.
const STATS: &str = concat!(
    "SELECT (SELECT count(*) FROM semel_outbox), \
        (SELECT count(*) FROM semel_outbox o JOIN semel_cursor c ON c.pipeline = ?1 \
            WHERE o.seq > c.position AND o.seq <= ?2 AND NOT ",
    is_ahead!(),
    " AND NOT ",
    is_parked!(),
    "), count(*) FILTER (WHERE taken IS NOT NULL), \
        count(*) FILTER (WHERE taken IS NULL AND state IN ('waiting', 'scheduled')), \
        count(*) FILTER (WHERE taken IS NULL AND state = 'failed'), \
        count(*) FILTER (WHERE state = 'dead'), \
        count(*) FILTER (WHERE state = 'discarded') \
     FROM semel_parked WHERE pipeline = ?1"
);

/// Events that nobody has taken up.
macro_rules! backlog {
    () => {
        concat!(
            "SELECT o.seq FROM semel_outbox o \
             LEFT JOIN semel_cursor c ON c.pipeline = ?1 WHERE o.seq > ?2 AND NOT ",
            is_ahead!(),
            " AND NOT ",
            is_parked!()
        )
    };
}

/// Of these: how many, up to a limit; and the first whose time has come.
const BACKLOG: &str = concat!(
    "SELECT (SELECT count(*) FROM (",
    backlog!(),
    " ORDER BY o.seq LIMIT ?3)), (",
    backlog!(),
    " AND (o.available_at IS NULL OR o.available_at <= ?4) ORDER BY o.seq LIMIT 1), \
     (SELECT max(seq) FROM semel_outbox)"
);

impl SqliteAdmin {
    /// How many events nobody has taken up, and the first that could be. Rows are only ever deleted
    /// behind the cursor, so that of a long backlog the difference of two numbers is close.
    async fn backlog(
        &self,
        connection: &mut SqliteConnection,
        handed_out: u64,
    ) -> Result<(i64, Option<i64>), Failure> {
        let (counted, first, last): (i64, Option<i64>, Option<i64>) = sqlx::query_as(BACKLOG)
            .bind(&self.pipeline)
            .bind(stored(handed_out))
            .bind(COUNTED)
            .bind(self.store.now())
            .fetch_one(connection)
            .await
            .map_err(failure("count events"))?;
        let estimate = last.unwrap_or(0) - stored(handed_out);
        Ok((if counted < COUNTED { counted } else { estimate.max(counted) }, first))
    }

    async fn count_lanes(&self, connection: &mut SqliteConnection) -> Result<u64, Failure> {
        let lanes: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM (SELECT DISTINCT aggregate_type, aggregate_id FROM semel_parked \
             WHERE pipeline = ?1 AND holds = 1 AND state IN ('failed', 'dead'))",
        )
        .bind(&self.pipeline)
        .fetch_one(connection)
        .await
        .map_err(failure("count lanes"))?;
        Ok(position(lanes))
    }

    /// The age of the first event that waits, in the log from `first` on or parked.
    async fn oldest_pending(
        &self,
        connection: &mut SqliteConnection,
        first: Option<i64>,
    ) -> Result<Option<Duration>, Failure> {
        let since: Option<i64> = sqlx::query_scalar(
            "SELECT max(created_at, coalesce(available_at, created_at)) FROM semel_outbox \
             WHERE seq = min(?2, coalesce(\
                 (SELECT min(seq) FROM semel_parked WHERE pipeline = ?1 AND taken IS NULL \
                     AND state IN ('waiting', 'scheduled') AND due <= ?3), ?2))",
        )
        .bind(&self.pipeline)
        .bind(first.unwrap_or(i64::MAX))
        .bind(self.store.now())
        .fetch_optional(connection)
        .await
        .map_err(failure("look for the oldest event"))?;
        let age = |since| self.store.clock.now().duration_since(timestamp(since));
        Ok(since.map(|since| age(since).try_into().unwrap_or(Duration::ZERO)))
    }
}
