//! [`Insight`]: how far pipelines are, who works on them, and who changed what.

use std::time::Duration;

use async_trait::async_trait;
use semel_core::admin::{ErrorGroup, ParkedLane, State, Troubles};
use semel_core::insight::{
    AuditEntry, ConsumerView, EffectView, Insight, LogView, Outage, OutageView, RelayView, Workings,
};
use semel_core::{EventId, Failure};
use uuid::Uuid;

use super::error::failure;
use super::messages;
use super::store::{PostgresStore, count};
use super::tail::slot_prefix;
use super::types::Stamp;
use crate::applied::if_allowed;

/// The last numbers of the log and of the cursor, when it moved, the size of the table, and why it is
/// polled for.
const PROGRESS: &str = "\
select (select seq from semel.outbox order by seq desc limit 1),
    (select max(top) from semel.cursor where pipeline = $1),
    (select max(moved_at) from semel.cursor where pipeline = $1),
    (select sum(pg_total_relation_size(oid))::bigint from pg_class where relkind = 'r' and oid in (
        select 'semel.outbox'::regclass union all
        select inhrelid from pg_inherits where inhparent = 'semel.outbox'::regclass)),
    (select max(polling) from semel.cursor where pipeline = $1)";

const RELAYS: &str = "\
select m.member, m.shares, s.held, (extract(epoch from m.until - now()) * 1000000)::bigint
from semel.member m cross join lateral (select array(
    select s.share from semel.share s
    where s.pipeline = m.pipeline and s.owner = m.member and s.until > now() order by s.share) as held) s
where m.pipeline = $1 and m.until > now() order by s.held = '{}', m.member limit 100";

/// One that is being made, which may wait for others' transactions, tells nothing yet.
const SLOT: &str = "\
select slot_name::text, active and confirmed_flush_lsn is not null,
    pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint
from pg_replication_slots
where database = current_database() and starts_with(slot_name::text, $1)
order by active desc limit 1";

const CONSUMERS: &str = "\
select consumer, count(*), max(processed_at) from (
    select consumer, processed_at from semel.inbox order by processed_at desc limit 100000) newest
group by consumer order by consumer limit 1000";

/// What they counted: under these two names there is one mark for each consumer.
const COUNTED: &str = "\
select scope, coalesce(max(position) filter (where consumer = 'tally:applied'), 0),
    coalesce(max(position) filter (where consumer = 'tally:duplicates'), 0)
from semel.marks where consumer in ('tally:applied', 'tally:duplicates')
group by scope order by scope limit 1000";

const NOTE: &str = "\
insert into semel.audit (who, what, pipeline, filter) values ($1, $2, $3, $4) returning id";

const ACTIVITY: &str = "\
select id, at, who, what, pipeline, filter, events from semel.audit
where id < $1 order by id desc limit $2";

/// Row by row: the planner would rather read the whole outbox.
const GROUPS: &str = "\
select p.state, coalesce(p.error, ''), o.event_type, count(*), min(o.created_at),
    max(o.created_at), max(o.id::text)::uuid
from (select seq, state, error from semel.parked
    where pipeline = $1 and state in ('failed', 'dead') order by seq desc limit 100000) p
cross join lateral (
    select id, event_type, created_at from semel.outbox where seq = p.seq offset 0) o
group by 1, 2, 3 order by 4 desc, 2 limit $2";

const LANES: &str = "\
select aggregate_type, aggregate_id, bool_or(state = 'dead'),
    coalesce(max(error) filter (where state in ('failed', 'dead')), ''),
    count(*) filter (where state = 'waiting')
from semel.parked where pipeline = $1 and holds
group by 1, 2 having bool_or(state in ('failed', 'dead'))
order by 5 desc, 1, 2 limit $2";

#[async_trait]
impl Insight for PostgresStore {
    async fn workings(&self, pipeline: &str) -> Result<Workings, Failure> {
        let failed = || failure("look at a pipeline");
        let (written, settled, moved_at, bytes, polling): (
            Option<i64>,
            Option<i64>,
            Option<Stamp>,
            Option<i64>,
            Option<String>,
        ) = sqlx::query_as(PROGRESS)
            .bind(pipeline)
            .fetch_one(self.once())
            .await
            .map_err(failed())?;
        let relays: Vec<(String, i32, Vec<i32>, i64)> =
            sqlx::query_as(RELAYS).bind(pipeline).fetch_all(self.once()).await.map_err(failed())?;
        Ok(Workings {
            written: Some(number(written)),
            settled: Some(number(settled)),
            moved_at: moved_at.map(|Stamp(time)| time),
            bytes: bytes.map(i64::unsigned_abs),
            relays: relays.into_iter().map(relay).collect(),
            log: self.log(pipeline, polling).await?,
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
        let seen: Vec<(String, i64, Stamp)> =
            sqlx::query_as(CONSUMERS).fetch_all(self.once()).await.map_err(failed())?;
        let counted: Vec<(String, i64, i64)> =
            if_allowed(sqlx::query_as(COUNTED).fetch_all(self.once()).await.map_err(failed()))?;
        Ok(ConsumerView::all(
            seen.into_iter().map(|(name, count, Stamp(last))| (name, count.unsigned_abs(), last)),
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
        let query = sqlx::query_scalar(NOTE).bind(who).bind(what).bind(pipeline).bind(filter);
        let id: i64 = query.fetch_one(self.once()).await.map_err(failure("write down a change"))?;
        Ok(id.unsigned_abs())
    }

    async fn conclude(&self, entry: u64, events: u64) -> Result<(), Failure> {
        let stored = |number| i64::try_from(number).unwrap_or(i64::MAX);
        sqlx::query("update semel.audit set events = $2 where id = $1")
            .bind(stored(entry))
            .bind(stored(events))
            .execute(self.once())
            .await
            .map_err(failure("write down a change"))
            .map(drop)
    }

    async fn activity(
        &self,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<AuditEntry>, Failure> {
        let before = before.and_then(|id| id.try_into().ok()).unwrap_or(i64::MAX);
        let rows: Vec<(i64, Stamp, String, String, String, String, Option<i64>)> =
            sqlx::query_as(ACTIVITY)
                .bind(before)
                .bind(count(limit))
                .fetch_all(self.once())
                .await
                .map_err(failure("read what was changed"))?;
        let entry = |(id, Stamp(at), who, what, pipeline, filter, events): (
            i64,
            Stamp,
            String,
            String,
            String,
            String,
            Option<i64>,
        )| {
            let (id, events) = (id.unsigned_abs(), events.map(i64::unsigned_abs));
            AuditEntry { id, at, who, what, pipeline, filter, events }
        };
        Ok(rows.into_iter().map(entry).collect())
    }
}

impl PostgresStore {
    /// What is known of the log; nothing where nobody has ever tried to tail it. A pipeline without a
    /// slot of its own lives by that of messages, if there is one.
    async fn log(
        &self,
        pipeline: &str,
        polling: Option<String>,
    ) -> Result<Option<LogView>, Failure> {
        let own: Option<(String, bool, Option<i64>)> = sqlx::query_as(SLOT)
            .bind(slot_prefix(pipeline))
            .fetch_optional(self.once())
            .await
            .map_err(failure("look at a pipeline"))?;
        if let Some((slot, active, retained)) = own {
            let retained_bytes = retained.map(|bytes| number(Some(bytes)));
            let (slot, limit_bytes) = (Some(slot), Some(self.log_budget));
            return Ok(Some(LogView { slot, active, retained_bytes, limit_bytes, polling }));
        }
        let messages = messages::Slot::look(self.once()).await?;
        if !messages.exists {
            return Ok(polling.map(|why| LogView { polling: Some(why), ..LogView::default() }));
        }
        Ok(Some(LogView {
            slot: Some(messages.name),
            // Whoever says why it polls is not told by it, though somebody reads it.
            active: messages.is_read && polling.is_none(),
            retained_bytes: Some(number(Some(messages.held_bytes))),
            limit_bytes: messages.limit_bytes.map(|bytes| number(Some(bytes))),
            polling,
        }))
    }

    pub(super) async fn troubles(&self, pipeline: &str, limit: usize) -> Result<Troubles, Failure> {
        let failed = || failure("look at what failed");
        let groups: Vec<(String, String, String, i64, Stamp, Stamp, Uuid)> = sqlx::query_as(GROUPS)
            .bind(pipeline)
            .bind(count(limit))
            .fetch_all(self.once())
            .await
            .map_err(failed())?;
        let lanes: Vec<(String, String, bool, String, i64)> = sqlx::query_as(LANES)
            .bind(pipeline)
            .bind(count(limit))
            .fetch_all(self.once())
            .await
            .map_err(failed())?;
        let group = |(state, error, event_type, events, Stamp(oldest), Stamp(newest), sample): (
            String,
            String,
            String,
            i64,
            Stamp,
            Stamp,
            Uuid,
        )| {
            let (state, events) = (state_of(state == "dead"), events.unsigned_abs());
            let sample = EventId::from_uuid(sample);
            ErrorGroup { state, error, event_type, events, oldest, newest, sample }
        };
        let lane = |(aggregate_type, aggregate_id, dead, error, waiting)| {
            let waiting = i64::unsigned_abs(waiting);
            ParkedLane { aggregate_type, aggregate_id, state: state_of(dead), error, waiting }
        };
        Ok(Troubles {
            groups: groups.into_iter().map(group).collect(),
            lanes: lanes.into_iter().map(lane).collect(),
        })
    }
}

fn state_of(is_dead: bool) -> State {
    if is_dead { State::Dead } else { State::Failed }
}

fn relay((name, of, shares, left): (String, i32, Vec<i32>, i64)) -> RelayView {
    let shares = shares.into_iter().map(i32::unsigned_abs).collect();
    let lease_left = Duration::from_micros(number(Some(left)));
    RelayView { name, shares, of: of.unsigned_abs(), lease_left }
}

fn number(value: Option<i64>) -> u64 {
    value.and_then(|value| value.try_into().ok()).unwrap_or(0)
}
