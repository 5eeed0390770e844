//! [`Insight`]: how far pipelines are, who works on them, and who changed what.

use std::time::Duration;

use async_trait::async_trait;
use semel_core::admin::{ErrorGroup, ParkedLane, State, Troubles};
use semel_core::insight::{
    AuditEntry, ConsumerView, EffectView, Insight, LogView, Outage, OutageView, Workings,
};
use semel_core::{EventId, Failure};

use super::error::failure;
use super::row::as_micros;
use super::store::{MysqlStore, count, timestamp};
use crate::applied::if_allowed;
use crate::coordination::relays;

/// The numbers that were given out, counting those that wait for one, and the last settled one; when
/// the cursor moved; the size of the table; and why it is polled for. Takes the pipeline three times.
const PROGRESS: &str = concat!(
    "SELECT (SELECT last FROM semel_counter WHERE name = 'position') \
            + (SELECT count(*) FROM semel_outbox WHERE position = 0), \
        (SELECT max(position) FROM semel_cursor WHERE pipeline = ?), \
        (SELECT ",
    as_micros!("max(moved_at)"),
    " FROM semel_cursor WHERE pipeline = ?), \
        (SELECT data_length + index_length FROM information_schema.tables \
            WHERE table_schema = database() AND table_name = 'semel_outbox'), \
        (SELECT max(polling) FROM semel_cursor WHERE pipeline = ?)"
);

const RELAYS: &str = "SELECT m.member, m.shares, \
        timestampdiff(MICROSECOND, utc_timestamp(6), m.expires_at), s.share \
    FROM semel_member m LEFT JOIN semel_share s \
        ON s.pipeline = m.pipeline AND s.owner = m.member AND s.expires_at > utc_timestamp(6) \
    WHERE m.pipeline = ? AND m.expires_at > utc_timestamp(6) ORDER BY m.member, s.share";

const CONSUMERS: &str = concat!(
    "SELECT consumer, count(*), ",
    as_micros!("max(processed_at)"),
    " FROM (SELECT consumer, processed_at FROM semel_inbox ORDER BY processed_at DESC LIMIT 100000) \
      newest GROUP BY consumer ORDER BY consumer LIMIT 1000"
);

/// What they counted: under these two names there is one mark for each consumer.
const COUNTED: &str = "SELECT scope, max(if(consumer = 'tally:applied', position, 0)), \
        max(if(consumer = 'tally:duplicates', position, 0)) \
    FROM semel_marks WHERE consumer IN ('tally:applied', 'tally:duplicates') \
    GROUP BY scope ORDER BY scope LIMIT 1000";

const NOTE: &str = "INSERT INTO semel_audit (changed_at, who, what, pipeline, filter) \
    VALUES (utc_timestamp(6), ?, ?, ?, ?)";

const ACTIVITY: &str = concat!(
    "SELECT id, ",
    as_micros!("changed_at"),
    ", who, what, pipeline, filter, events FROM semel_audit WHERE id < ? ORDER BY id DESC LIMIT ?"
);

const GROUPS: &str = concat!(
    "SELECT p.state = 'dead', coalesce(p.error, ''), o.event_type, count(*), ",
    as_micros!("min(o.created_at)"),
    ", ",
    as_micros!("max(o.created_at)"),
    ", max(o.id) FROM semel_parked p STRAIGHT_JOIN semel_outbox o ON o.position = p.position \
     WHERE p.pipeline = ? AND p.state IN ('failed', 'dead') \
     GROUP BY 1, 2, 3 ORDER BY 4 DESC, 2 LIMIT ?"
);

const LANES: &str = "SELECT aggregate_type, aggregate_id, max(state = 'dead'), \
        coalesce(max(if(state IN ('failed', 'dead'), error, NULL)), ''), \
        count(if(state = 'waiting', 1, NULL)) AS waiting \
    FROM semel_parked WHERE pipeline = ? AND holds = 1 \
    GROUP BY 1, 2 HAVING max(state IN ('failed', 'dead')) ORDER BY waiting DESC, 1, 2 LIMIT ?";

#[async_trait]
impl Insight for MysqlStore {
    async fn workings(&self, pipeline: &str) -> Result<Workings, Failure> {
        type Progress = (Option<u64>, Option<u64>, Option<i64>, Option<u64>, Option<String>);
        let failed = || failure("look at a pipeline");
        let mut tx = self.begin_looking().await?;
        let (written, settled, moved_at, bytes, polling): Progress = sqlx::query_as(PROGRESS)
            .bind(pipeline)
            .bind(pipeline)
            .bind(pipeline)
            .fetch_one(&mut *tx)
            .await
            .map_err(failed())?;
        let rows: Vec<(String, u32, i64, Option<u32>)> =
            sqlx::query_as(RELAYS).bind(pipeline).fetch_all(&mut *tx).await.map_err(failed())?;
        let relay = |(name, of, left, share): (String, u32, i64, Option<u32>)| {
            (name, of, Duration::from_micros(left.try_into().unwrap_or(0)), share)
        };
        let active = self.is_tailed(pipeline).await?;
        Ok(Workings {
            written: Some(written.unwrap_or(0)),
            settled: Some(settled.unwrap_or(0)),
            moved_at: moved_at.map(timestamp),
            bytes,
            relays: relays(rows.into_iter().map(relay)),
            log: Some(LogView { active, polling, ..LogView::default() }),
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
            sqlx::query_as(CONSUMERS).fetch_all(self.pool()).await.map_err(failed())?;
        let counted: Vec<(String, i64, i64)> =
            if_allowed(sqlx::query_as(COUNTED).fetch_all(self.pool()).await.map_err(failed()))?;
        Ok(ConsumerView::all(
            seen.into_iter()
                .map(|(name, count, last)| (name, count.unsigned_abs(), timestamp(last))),
            counted.into_iter().map(|(name, applied, duplicates)| {
                (name, applied.unsigned_abs(), duplicates.unsigned_abs())
            }),
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
        let query = sqlx::query(NOTE).bind(who).bind(what).bind(pipeline).bind(filter);
        let noted = query.execute(self.pool()).await.map_err(failure("write down a change"))?;
        Ok(noted.last_insert_id())
    }

    async fn conclude(&self, entry: u64, events: u64) -> Result<(), Failure> {
        sqlx::query("UPDATE semel_audit SET events = ? WHERE id = ?")
            .bind(events)
            .bind(entry)
            .execute(self.pool())
            .await
            .map_err(failure("write down a change"))
            .map(drop)
    }

    async fn activity(
        &self,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<AuditEntry>, Failure> {
        type Row = (u64, i64, String, String, String, String, Option<u64>);
        let rows: Vec<Row> = sqlx::query_as(ACTIVITY)
            .bind(before.unwrap_or(u64::MAX))
            .bind(count(limit))
            .fetch_all(self.pool())
            .await
            .map_err(failure("read what was changed"))?;
        let entry = |(id, at, who, what, pipeline, filter, events): Row| {
            let at = timestamp(at);
            AuditEntry { id, at, who, what, pipeline, filter, events }
        };
        Ok(rows.into_iter().map(entry).collect())
    }
}

impl MysqlStore {
    pub(super) async fn troubles(&self, pipeline: &str, limit: usize) -> Result<Troubles, Failure> {
        type Group = (bool, String, String, i64, i64, i64, String);
        let failed = || failure("look at what failed");
        let mut tx = self.begin_looking().await?;
        let groups: Vec<Group> = sqlx::query_as(GROUPS)
            .bind(pipeline)
            .bind(count(limit))
            .fetch_all(&mut *tx)
            .await
            .map_err(failed())?;
        let lanes: Vec<(String, String, bool, String, i64)> = sqlx::query_as(LANES)
            .bind(pipeline)
            .bind(count(limit))
            .fetch_all(&mut *tx)
            .await
            .map_err(failed())?;
        let group = |(dead, error, event_type, events, oldest, newest, sample): Group| {
            let (state, events) = (state_of(dead), events.unsigned_abs());
            let (oldest, newest) = (timestamp(oldest), timestamp(newest));
            let sample: EventId = sample.parse().ok()?;
            Some(ErrorGroup { state, error, event_type, events, oldest, newest, sample })
        };
        let lane = |(aggregate_type, aggregate_id, dead, error, waiting)| {
            let (state, waiting) = (state_of(dead), i64::unsigned_abs(waiting));
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
