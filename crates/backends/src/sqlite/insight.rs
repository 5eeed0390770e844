//! [`Insight`]: how far pipelines are, who works on them, and who changed what.

use std::time::Duration;

use async_trait::async_trait;
use semel_core::admin::{ErrorGroup, ParkedLane, State, Troubles};
use semel_core::insight::{
    AuditEntry, ConsumerView, EffectView, Insight, Outage, OutageView, Workings,
};
use semel_core::{EventId, Failure};

use super::error::failure;
use super::row::{position, stored};
use super::store::{SqliteStore, timestamp};
use crate::coordination::relays;

/// The last numbers of the log and of the cursor, when it moved, and the size of the file.
const PROGRESS: &str = "SELECT (SELECT seq FROM sqlite_sequence WHERE name = 'semel_outbox'), \
    (SELECT max(position) FROM semel_cursor WHERE pipeline = ?1), \
    (SELECT max(moved_at) FROM semel_cursor WHERE pipeline = ?1), \
    (SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size())";

const RELAYS: &str = "SELECT m.member, m.shares, m.until - ?2, s.share FROM semel_member m \
    LEFT JOIN semel_share s ON s.pipeline = m.pipeline AND s.owner = m.member AND s.until > ?2 \
    WHERE m.pipeline = ?1 AND m.until > ?2 ORDER BY m.member, s.share";

const CONSUMERS: &str = "SELECT consumer, count(*), max(processed_at) FROM (\
        SELECT consumer, processed_at FROM semel_inbox ORDER BY processed_at DESC LIMIT 100000) \
    GROUP BY consumer ORDER BY consumer LIMIT 1000";

/// What they counted: under these two names there is one mark for each consumer.
const COUNTED: &str = "SELECT scope, \
        coalesce(max(position) FILTER (WHERE consumer = 'tally:applied'), 0), \
        coalesce(max(position) FILTER (WHERE consumer = 'tally:duplicates'), 0) \
    FROM semel_marks WHERE consumer IN ('tally:applied', 'tally:duplicates') \
    GROUP BY scope ORDER BY scope LIMIT 1000";

const NOTE: &str = "INSERT INTO semel_audit (at, who, what, pipeline, filter) \
    VALUES (?1, ?2, ?3, ?4, ?5) RETURNING id";

const ACTIVITY: &str = "SELECT id, at, who, what, pipeline, filter, events FROM semel_audit \
    WHERE id < ?1 ORDER BY id DESC LIMIT ?2";

const GROUPS: &str = "SELECT p.state = 'dead', coalesce(p.error, ''), o.event_type, count(*), \
        min(o.created_at), max(o.created_at), max(o.id) \
    FROM semel_parked p JOIN semel_outbox o ON o.seq = p.seq \
    WHERE p.pipeline = ?1 AND p.state IN ('failed', 'dead') \
    GROUP BY 1, 2, 3 ORDER BY 4 DESC, 2 LIMIT ?2";

const LANES: &str = "SELECT aggregate_type, aggregate_id, max(state = 'dead'), \
        coalesce(max(error) FILTER (WHERE state IN ('failed', 'dead')), ''), \
        count(*) FILTER (WHERE state = 'waiting') \
    FROM semel_parked WHERE pipeline = ?1 AND holds = 1 \
    GROUP BY 1, 2 HAVING max(state IN ('failed', 'dead')) ORDER BY 5 DESC, 1, 2 LIMIT ?2";

#[async_trait]
impl Insight for SqliteStore {
    async fn workings(&self, pipeline: &str) -> Result<Workings, Failure> {
        let failed = || failure("look at a pipeline");
        let mut tx = self.readers.begin().await.map_err(failed())?;
        let (written, settled, moved_at, bytes): (Option<i64>, Option<i64>, Option<i64>, i64) =
            sqlx::query_as(PROGRESS).bind(pipeline).fetch_one(&mut *tx).await.map_err(failed())?;
        let rows: Vec<(String, i64, i64, Option<i64>)> = sqlx::query_as(RELAYS)
            .bind(pipeline)
            .bind(self.now())
            .fetch_all(&mut *tx)
            .await
            .map_err(failed())?;
        let relay = |(name, of, left, share): (String, i64, i64, Option<i64>)| {
            (name, small(of), Duration::from_micros(position(left)), share.map(small))
        };
        Ok(Workings {
            written: Some(position(written.unwrap_or(0))),
            settled: Some(position(settled.unwrap_or(0))),
            moved_at: moved_at.map(timestamp),
            bytes: Some(position(bytes)),
            relays: relays(rows.into_iter().map(relay)),
            log: None,
            outages: self.outages_of(pipeline).await?,
        })
    }

    async fn outages(&self, pipeline: &str) -> Result<Vec<OutageView>, Failure> {
        self.outages_of(pipeline).await
    }

    async fn tell_outage(
        &self,
        pipeline: &str,
        relay: &str,
        outage: Option<&Outage>,
    ) -> Result<(), Failure> {
        self.write_outage(pipeline, relay, outage).await
    }

    async fn consumers(&self) -> Result<Vec<ConsumerView>, Failure> {
        let failed = || failure("look at the consumers");
        let seen: Vec<(String, i64, i64)> =
            sqlx::query_as(CONSUMERS).fetch_all(&self.readers).await.map_err(failed())?;
        let counted: Vec<(String, i64, i64)> =
            sqlx::query_as(COUNTED).fetch_all(&self.readers).await.map_err(failed())?;
        Ok(ConsumerView::all(
            seen.into_iter().map(|(name, count, last)| (name, position(count), timestamp(last))),
            counted
                .into_iter()
                .map(|(name, applied, duplicates)| (name, position(applied), position(duplicates))),
        ))
    }

    async fn effects(&self, id: EventId) -> Result<Vec<EffectView>, Failure> {
        self.effects_of(id).await
    }

    async fn note(
        &self,
        who: &str,
        what: &str,
        pipeline: &str,
        filter: &str,
    ) -> Result<u64, Failure> {
        let failed = || failure("write down a change");
        let mut tx = self.begin().await?;
        let query = sqlx::query_scalar(NOTE).bind(self.now()).bind(who).bind(what);
        let id: i64 =
            query.bind(pipeline).bind(filter).fetch_one(&mut *tx).await.map_err(failed())?;
        tx.commit().await.map_err(failed())?;
        Ok(position(id))
    }

    async fn conclude(&self, entry: u64, events: u64) -> Result<(), Failure> {
        let failed = || failure("write down a change");
        let mut tx = self.begin().await?;
        sqlx::query("UPDATE semel_audit SET events = ?2 WHERE id = ?1")
            .bind(stored(entry))
            .bind(stored(events))
            .execute(&mut *tx)
            .await
            .map_err(failed())?;
        tx.commit().await.map_err(failed())
    }

    async fn activity(
        &self,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<AuditEntry>, Failure> {
        type Row = (i64, i64, String, String, String, String, Option<i64>);
        let rows: Vec<Row> = sqlx::query_as(ACTIVITY)
            .bind(before.map_or(i64::MAX, stored))
            .bind(stored(limit as u64))
            .fetch_all(&self.readers)
            .await
            .map_err(failure("read what was changed"))?;
        let entry = |(id, at, who, what, pipeline, filter, events): Row| {
            let (id, at, events) = (position(id), timestamp(at), events.map(position));
            AuditEntry { id, at, who, what, pipeline, filter, events }
        };
        Ok(rows.into_iter().map(entry).collect())
    }
}

impl SqliteStore {
    pub(super) async fn troubles(&self, pipeline: &str, limit: usize) -> Result<Troubles, Failure> {
        type Group = (bool, String, String, i64, i64, i64, String);
        let failed = || failure("look at what failed");
        let mut tx = self.readers.begin().await.map_err(failed())?;
        let limit = stored(limit as u64);
        let groups: Vec<Group> = sqlx::query_as(GROUPS)
            .bind(pipeline)
            .bind(limit)
            .fetch_all(&mut *tx)
            .await
            .map_err(failed())?;
        let lanes: Vec<(String, String, bool, String, i64)> = sqlx::query_as(LANES)
            .bind(pipeline)
            .bind(limit)
            .fetch_all(&mut *tx)
            .await
            .map_err(failed())?;
        let group = |(dead, error, event_type, events, oldest, newest, sample): Group| {
            let (state, events) = (state_of(dead), position(events));
            let (oldest, newest) = (timestamp(oldest), timestamp(newest));
            let sample: EventId = sample.parse().ok()?;
            Some(ErrorGroup { state, error, event_type, events, oldest, newest, sample })
        };
        let lane = |(aggregate_type, aggregate_id, dead, error, waiting)| {
            let (state, waiting) = (state_of(dead), position(waiting));
            ParkedLane { aggregate_type, aggregate_id, state, error, waiting }
        };
        Ok(Troubles {
            groups: groups.into_iter().filter_map(group).collect(),
            lanes: lanes.into_iter().map(lane).collect(),
        })
    }
}

fn state_of(is_dead: bool) -> State {
    if is_dead { State::Dead } else { State::Failed }
}

fn small(number: i64) -> u32 {
    u32::try_from(number).unwrap_or(0)
}
