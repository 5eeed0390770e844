//! [`AdminStore`]: looking into the outbox of one pipeline, and repairing it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use semel_core::admin::{
    AdminStore, Cursor, EventView, Filter, Page, Selection, State, Stats, Troubles,
};
use semel_core::{EventId, Failure};
use sqlx::{AssertSqlSafe, MySqlConnection};

use super::clean::Thinned;
use super::error::failure;
use super::parking::Parking;
use super::row::{json, listed, share_of};
use super::store::{MysqlStore, count};
use super::view::{Place, Search, listed_at, view};

/// The outbox of one pipeline, for operators. Made by [`MysqlStore::admin`].
///
/// States are derived: behind the cursor is published, ahead of it pending, in between is what a
/// relay has; what left this path says so itself. A relay in another process notes what it has
/// with each batch that it settles, so its first batch shows as pending until then. The time of
/// publishing is exact to about a second for an hour, and to a minute after that.
///
/// A pipeline that is never coming back keeps its events from being cleaned until its row in
/// `semel_cursor` is deleted.
///
/// ```no_run
/// use semel_backends::mysql::MysqlConfig;
/// use semel_core::admin::{AdminStore, State};
///
/// # async fn run() -> Result<(), semel_core::Failure> {
/// let store = MysqlConfig::new("mysql://shop:secret@localhost/shop")?.connect().await?;
/// let waiting = store.admin("orders").stats().await?.count(State::Pending);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct MysqlAdmin {
    pub(super) store: MysqlStore,
    pipeline: String,
    pub(super) thinned: Arc<Mutex<Thinned>>,
}

/// What can be retried or discarded.
const UNFINISHED: &[State] = &[State::Failed, State::Dead];

/// The first and the last number.
const SPAN: &str = "SELECT cast(coalesce(min(seq), 0) AS UNSIGNED), \
    cast(coalesce(max(seq), 0) AS UNSIGNED) FROM semel_outbox";

/// How many events one call of `latest` looks at, where all of them have to be.
const LOOKED_AT: u64 = 100_000;

/// How many events one statement changes.
pub(super) const ROWS: usize = 10_000;

const LOCK: &str = "SELECT epoch FROM semel_cursor WHERE pipeline = ? ORDER BY share FOR UPDATE";

/// Whether an outbox row `o` was put aside, wherever the cursor is. Takes the pipeline.
const IS_PARKED: &str = "EXISTS (SELECT 1 FROM semel_parked p \
    WHERE p.pipeline = ? AND p.position = o.position)";

const OFFER: &str = concat!(
    "INSERT INTO semel_parked (pipeline, share, position, aggregate_type, aggregate_id, place, \
         turn, state, holds, due, changed_at) \
     SELECT ?, ",
    share_of!("?"),
    ", o.position, o.aggregate_type, o.aggregate_id, o.position, ?, 'waiting', 1, \
         utc_timestamp(6), utc_timestamp(6) FROM ",
    listed!(),
    " STRAIGHT_JOIN semel_outbox o ON o.position = j.position \
     ON DUPLICATE KEY UPDATE share = VALUES(share), state = 'waiting', holds = 1, \
         turn = least(turn, VALUES(turn)), attempts = 0, due = VALUES(due), \
         retry_at = NULL, error = NULL, changed_at = VALUES(changed_at)"
);

const DISCARD: &str = concat!(
    "UPDATE ",
    listed!(),
    " STRAIGHT_JOIN semel_parked p ON p.pipeline = ? AND p.position = j.position \
     SET p.state = 'discarded', p.holds = 0, p.due = NULL, p.changed_at = utc_timestamp(6)"
);

impl MysqlAdmin {
    pub(super) fn new(store: MysqlStore, pipeline: &str) -> Self {
        Self { store, pipeline: pipeline.to_owned(), thinned: Arc::default() }
    }

    /// Makes sure that no relay changes anything until the transaction ends.
    async fn lock(&self, connection: &mut MySqlConnection) -> Result<Place, Failure> {
        sqlx::query(LOCK)
            .bind(&self.pipeline)
            .fetch_all(&mut *connection)
            .await
            .map_err(failure("lock the cursor"))?;
        Place::read(&self.store, connection, &self.pipeline).await
    }

    /// Makes the chosen events due now, with all attempts in front of them.
    /// What was published gets a turn below 0, and keeps it: it is replayed.
    async fn offer(&self, selection: &Selection, states: &[State]) -> Result<usize, Failure> {
        let failed = || failure("offer events again");
        let turn = if states.contains(&State::Published) { -1 } else { 0 };
        let mut tx = self.store.begin_brief().await?;
        let place = self.lock(&mut tx).await?;
        let search = Search::chosen(&self.pipeline, &place, selection, states);
        let positions = search.positions(&mut tx).await?;
        for part in positions.chunks(ROWS) {
            let offer = sqlx::query(OFFER).bind(&self.pipeline).bind(count(place.shares()));
            let offer = offer.bind(turn).bind(json(part));
            offer.execute(&mut *tx).await.map_err(failed())?;
        }
        tx.commit().await.map_err(failed())?;
        self.store.announce_change();
        Ok(positions.len())
    }
}

#[async_trait]
impl AdminStore for MysqlAdmin {
    async fn stats(&self) -> Result<Stats, Failure> {
        let mut tx = self.store.begin_looking().await?;
        let place = Place::read(&self.store, &mut tx, &self.pipeline).await?;
        let mut stats = Stats::default();
        self.count_states(&mut tx, &place, &mut stats).await?;
        stats.parked_lanes = self.count_lanes(&mut tx).await?;
        stats.oldest_pending = self.oldest_pending(&mut tx, &place).await?;
        Ok(stats)
    }

    async fn list(
        &self,
        filter: &Filter,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, Failure> {
        let mut tx = self.store.begin_looking().await?;
        let search = Search {
            pipeline: &self.pipeline,
            place: &Place::read(&self.store, &mut tx, &self.pipeline).await?,
            after: after.map_or(0, |Cursor(last)| last),
            before: None,
            states: filter.state.map_or_else(|| State::ALL.to_vec(), |state| vec![state]),
            ids: None,
            filter,
        };
        let rows = search.views(&mut tx, limit.saturating_add(1)).await?;
        let shown = rows.get(..limit).unwrap_or(&rows);
        let next = match shown.last() {
            Some(last) if rows.len() > limit => Some(Cursor(listed_at(last)?)),
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
        let mut tx = self.store.begin_looking().await?;
        let (first, last): (u64, u64) =
            sqlx::query_as(SPAN).fetch_one(&mut *tx).await.map_err(failure("list events"))?;
        let end = before.map_or(last + 1, |Cursor(seq)| seq);
        let is_parked =
            matches!(filter.state, Some(State::Failed | State::Dead | State::Discarded));
        let floor = if is_parked { 0 } else { end.saturating_sub(LOOKED_AT) };
        let search = Search {
            pipeline: &self.pipeline,
            place: &Place::read(&self.store, &mut tx, &self.pipeline).await?,
            after: floor.saturating_sub(1),
            before: Some(end),
            states: filter.state.map_or_else(|| State::ALL.to_vec(), |state| vec![state]),
            ids: None,
            filter,
        };
        let rows = search.views(&mut tx, limit.saturating_add(1)).await?;
        let shown = rows.get(..limit).unwrap_or(&rows);
        let next = match shown.last() {
            Some(last) if rows.len() > limit => Some(Cursor(listed_at(last)?)),
            _ => (floor > first).then_some(Cursor(floor)),
        };
        Ok(Page { events: shown.iter().map(view).collect::<Result<_, _>>()?, next })
    }

    async fn troubles(&self, limit: usize) -> Result<Troubles, Failure> {
        self.store.troubles(&self.pipeline, limit).await
    }

    async fn get(&self, id: EventId) -> Result<Option<EventView>, Failure> {
        let mut tx = self.store.begin_looking().await?;
        let place = Place::read(&self.store, &mut tx, &self.pipeline).await?;
        let selection = Selection::Ids(vec![id]);
        let search = Search::chosen(&self.pipeline, &place, &selection, &State::ALL);
        search.whole(&mut tx).await?.as_ref().map(view).transpose()
    }

    async fn retry(&self, selection: &Selection) -> Result<usize, Failure> {
        self.offer(selection, UNFINISHED).await
    }

    async fn discard(&self, selection: &Selection) -> Result<usize, Failure> {
        let failed = || failure("discard events");
        let mut tx = self.store.begin_brief().await?;
        let place = self.lock(&mut tx).await?;
        let search = Search::chosen(&self.pipeline, &place, selection, UNFINISHED);
        let positions = search.positions(&mut tx).await?;
        for part in positions.chunks(ROWS) {
            let discard = sqlx::query(DISCARD).bind(json(part)).bind(&self.pipeline);
            discard.execute(&mut *tx).await.map_err(failed())?;
            Parking { pipeline: &self.pipeline, share: 0 }.promote(&mut tx, part).await?;
        }
        tx.commit().await.map_err(failed())?;
        self.store.announce_change();
        Ok(positions.len())
    }

    async fn replay(&self, selection: &Selection) -> Result<usize, Failure> {
        self.offer(selection, &[State::Published]).await
    }

    /// An event goes once *every* pipeline has published or discarded it longer ago than `age`.
    async fn clean(&self, age: Duration, limit: usize) -> Result<usize, Failure> {
        self.delete_old(age, limit).await
    }
}

impl MysqlAdmin {
    /// Published is what is in no other state.
    async fn count_states(
        &self,
        connection: &mut MySqlConnection,
        place: &Place,
        stats: &mut Stats,
    ) -> Result<(), Failure> {
        let (settled, handed_out, low) = (place.is_settled(), place.is_handed_out(), place.low());
        let counting = format!(
            "SELECT (SELECT count(*) FROM semel_outbox), \
                 (SELECT count(*) FROM semel_outbox WHERE position = 0) \
                     + (SELECT count(*) FROM semel_outbox o WHERE o.position > {low} \
                        AND NOT {handed_out} AND NOT {settled} AND NOT {IS_PARKED}), \
                 (SELECT count(*) FROM semel_outbox o WHERE o.position > {low} \
                      AND {handed_out} AND NOT {settled} AND NOT {IS_PARKED}), \
                 count(if(taken = 0 AND state IN ('waiting', 'scheduled'), 1, NULL)), \
                 count(if(taken <> 0, 1, NULL)), \
                 count(if(taken = 0 AND state = 'failed', 1, NULL)), \
                 count(if(state = 'dead', 1, NULL)), count(if(state = 'discarded', 1, NULL)) \
             FROM semel_parked WHERE pipeline = ?"
        );
        let counts: (i64, i64, i64, i64, i64, i64, i64, i64) =
            sqlx::query_as(AssertSqlSafe(counting))
                .persistent(false)
                .bind(&self.pipeline)
                .bind(&self.pipeline)
                .bind(&self.pipeline)
                .fetch_one(connection)
                .await
                .map_err(failure("count events"))?;
        let (all, new, out, waiting, taken, failed, dead, discarded) = counts;
        let others = [
            (State::Pending, new + waiting),
            (State::Publishing, out + taken),
            (State::Failed, failed),
            (State::Dead, dead),
            (State::Discarded, discarded),
        ];
        let mut published = all;
        for (state, count) in others {
            published -= count;
            stats.counts[state as usize] = count.unsigned_abs();
        }
        stats.counts[State::Published as usize] = u64::try_from(published).unwrap_or(0);
        Ok(())
    }

    async fn count_lanes(&self, connection: &mut MySqlConnection) -> Result<u64, Failure> {
        let lanes: i64 = sqlx::query_scalar(
            "SELECT count(DISTINCT aggregate_type, aggregate_id) FROM semel_parked \
             WHERE pipeline = ? AND holds = 1 AND state IN ('failed', 'dead')",
        )
        .bind(&self.pipeline)
        .fetch_one(connection)
        .await
        .map_err(failure("count lanes"))?;
        Ok(lanes.unsigned_abs())
    }

    /// The age of the first event that waits for nothing but a relay: not numbered, numbered or
    /// parked.
    async fn oldest_pending(
        &self,
        connection: &mut MySqlConnection,
        place: &Place,
    ) -> Result<Option<Duration>, Failure> {
        let since = "greatest(o.created_at, coalesce(o.available_at, o.created_at))";
        let is_time = "(o.available_at IS NULL OR o.available_at <= utc_timestamp(6))";
        let oldest = format!(
            "SELECT timestampdiff(MICROSECOND, min(oldest.since), utc_timestamp(6)) FROM (\
                 (SELECT {since} AS since FROM semel_outbox o \
                     WHERE o.position = 0 AND {is_time} ORDER BY o.seq LIMIT 1) \
                 UNION ALL (SELECT {since} FROM semel_outbox o WHERE o.position > {} \
                     AND NOT {} AND NOT {} AND NOT {IS_PARKED} AND {is_time} \
                     ORDER BY o.position LIMIT 1) \
                 UNION ALL (SELECT {since} FROM semel_parked p \
                     JOIN semel_outbox o ON o.position = p.position WHERE p.pipeline = ? \
                     AND p.taken = 0 AND p.state IN ('waiting', 'scheduled') \
                     AND p.due <= utc_timestamp(6) ORDER BY p.position LIMIT 1)) oldest",
            place.low(),
            place.is_handed_out(),
            place.is_settled()
        );
        let age: Option<i64> = sqlx::query_scalar(AssertSqlSafe(oldest))
            .persistent(false)
            .bind(&self.pipeline)
            .bind(&self.pipeline)
            .fetch_one(connection)
            .await
            .map_err(failure("look for the oldest event"))?;
        Ok(age.map(|age| Duration::from_micros(u64::try_from(age).unwrap_or(0))))
    }
}
