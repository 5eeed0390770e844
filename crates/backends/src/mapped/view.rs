//! What an operator sees of a mapped table.

use std::time::Duration;

use semel_core::admin::{Cursor, EventView, Filter, Page, Selection, State, Stats};
use semel_core::{EventId, Failure};

use super::admin::MappedAdmin;
use super::dialect::{Dialect, Key};
use super::identity;
use super::mapping::Origin;
use super::pipeline::{CHUNK, Pipeline};
use super::statement::{Row, Statement};
use super::table::{ColumnType, PUBLISHED_AT, Table, UNMARKED};
use crate::row::timestamp;

/// PostgreSQL counts published rows up to this size of the table, and estimates beyond it.
const COUNTED_BYTES: u32 = 256 * 1024 * 1024;

impl MappedAdmin {
    pub(super) async fn count(&self) -> Result<Stats, Failure> {
        let pipeline = self.pipeline().await?;
        let out = self.out(&pipeline).await?;
        let query = self.count_query(&pipeline, &out);
        let rows = self.database.read("count events", query).await?;
        let Some(row) = rows.first() else { return Ok(Stats::default()) };
        let [unmarked, published] = [row.number(0), row.number(1)];
        let [failed, dead, discarded] = [row.number(2), row.number(3), row.number(4)];
        let publishing = (out.len() as u64).min(unmarked);
        let pending = unmarked.saturating_sub(publishing + failed + dead + discarded);
        let age = row.int(6).zip(row.int(7)).map(|(oldest, now)| now.saturating_sub(oldest));
        Ok(Stats {
            counts: [pending, publishing, published, failed, dead, discarded],
            oldest_pending: age.map(|age| Duration::from_micros(u64::try_from(age).unwrap_or(0))),
            parked_lanes: row.number(5),
        })
    }

    fn count_query(&self, pipeline: &Pipeline, out: &[String]) -> Statement {
        let (table, parked) = (&pipeline.table, self.database.dialect().parked());
        let mut sql = self.database.statement();
        let (unmarked, name) = (table.unmarked("t."), &table.name);
        sql.push(&format!("SELECT (SELECT count(*) FROM {name} t WHERE {unmarked}), "));
        count_published(&mut sql, table);
        for state in ["failed", "dead", "discarded"] {
            sql.push(&format!(", (SELECT count(*) FROM {parked} p WHERE p.pipeline = "));
            sql.text(pipeline.name.as_str()).push(&format!(" AND p.state = '{state}' AND "));
            sql.not_among(&Key::own("p.row_id"), out).push(")");
        }
        sql.push(&format!(
            ", (SELECT count(*) FROM (SELECT DISTINCT p.aggregate_type, p.aggregate_id \
             FROM {parked} p WHERE p.holds = 1 AND p.state IN ('failed', 'dead') AND p.pipeline = "
        ));
        sql.text(pipeline.name.as_str()).push(" AND ");
        sql.not_among(&Key::own("p.row_id"), out).push(") l), ");
        push_oldest(&mut sql, pipeline, out);
        sql.push(", ").now();
        sql
    }

    pub(super) async fn page(
        &self,
        filter: &Filter,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, Failure> {
        let pipeline = self.pipeline().await?;
        let (table, out) = (&pipeline.table, self.out(&pipeline).await?);
        let mut sql = self.select(&pipeline, &table.listed_columns);
        if !restrict_state(&mut sql, &pipeline, filter.state, &out) {
            return Ok(Page::default());
        }
        restrict(&mut sql, table, filter);
        let after = after.map_or(0, |Cursor(after)| i64::try_from(after).unwrap_or(i64::MAX));
        if table.is_numbered() && after > 0 {
            sql.push(&format!(" AND {} > ", table.key().column)).int(after);
        }
        sql.push(&table.order_by()).push(" LIMIT ").count(limit.saturating_add(1));
        if !table.is_numbered() {
            sql.push(" OFFSET ").int(after);
        }
        let rows = self.database.read("list events", sql).await?;
        let shown = &rows[..limit.min(rows.len())];
        let next = shown.last().filter(|_| rows.len() > limit).map(|last| {
            let passed = after.unsigned_abs().saturating_add(shown.len() as u64);
            Cursor(if table.is_numbered() { last.number(0) } else { passed })
        });
        let views = shown.iter().map(|row| view(table, row, &out).map(EventView::without_payload));
        Ok(Page { events: views.collect::<Result<_, _>>()?, next })
    }

    /// The rows of these events, with the columns of events that are wanted.
    pub(super) async fn find(
        &self,
        ids: &[EventId],
        columns: &str,
    ) -> Result<Vec<(String, EventView)>, Failure> {
        let pipeline = self.pipeline().await?;
        let (table, out) = (&pipeline.table, self.out(&pipeline).await?);
        let (identity, kind) = table.identity();
        let mut found = Vec::new();
        let mut values: Vec<String> = Vec::new();
        for id in ids {
            values.extend(spellings(table, kind, *id));
        }
        if kind == ColumnType::Text || identity.takes_anything {
            values.extend(self.search(table, &identity, ids).await?);
        }
        for values in values.chunks(CHUNK) {
            let mut sql = self.select(&pipeline, columns);
            sql.push(" AND ").among(&identity, values);
            for row in self.database.read("read an event", sql).await? {
                let view = view(table, &row, &out)?;
                if ids.contains(&view.event.id) {
                    found.push((table.row_id(&row)?, view));
                }
            }
        }
        Ok(found)
    }

    /// The rows whose ids are some text that events' ids do not lead back to: all are looked at.
    async fn search(
        &self,
        table: &Table,
        identity: &Key,
        ids: &[EventId],
    ) -> Result<Vec<String>, Failure> {
        let (mut found, mut after) = (Vec::new(), None::<String>);
        // Bytes lead back to their rows, and come after all texts.
        let texts = if identity.takes_anything {
            format!("typeof({}) <> 'blob'", identity.column)
        } else {
            "1 = 1".into()
        };
        let made = |id: &&EventId| id.as_uuid().get_version_num() == 8;
        while ids.iter().any(|id| made(&id)) {
            let mut sql = self.database.statement();
            sql.push(&format!("SELECT {} FROM {} t WHERE {texts}", identity.text, table.name));
            if let Some(after) = &after {
                sql.push(&format!(" AND {} > ", identity.column)).text(after.as_str());
            }
            sql.push(&format!(" ORDER BY {} LIMIT 10000", identity.column));
            let rows = self.database.read("look for an event", sql).await?;
            let texts: Vec<String> = rows.iter().filter_map(|row| row.text(0)).collect();
            let Some(last) = texts.last() else { break };
            after = Some(last.clone());
            let wanted = |text: &String| ids.contains(&identity::event_id(&table.mapping, text));
            found.extend(texts.into_iter().filter(wanted));
        }
        Ok(found)
    }

    /// The published rows that a selection means.
    pub(super) async fn published(
        &self,
        pipeline: &Pipeline,
        selection: &Selection,
    ) -> Result<Vec<String>, Failure> {
        let filter = match selection {
            Selection::Ids(ids) => {
                let found = self.find(ids, &pipeline.table.listed_columns).await?;
                return Ok(found.into_iter().map(|(row_id, _)| row_id).collect());
            }
            Selection::Matching(filter) => filter,
        };
        if filter.state.is_some_and(|state| state != State::Published) {
            return Ok(Vec::new());
        }
        let table = &pipeline.table;
        let mut sql = self.database.statement();
        sql.push(&format!("SELECT {} FROM {} t WHERE ", table.key().text, table.name));
        sql.push(&table.marked("t."));
        restrict(&mut sql, table, filter);
        let rows = self.database.read("look for published events", sql).await?;
        Ok(rows.iter().filter_map(|row| row.text(0)).collect())
    }

    /// All events, what failed of them, and how long their payloads are, be they there or not.
    fn select(&self, pipeline: &Pipeline, columns: &str) -> Statement {
        let table = &pipeline.table;
        let mut sql = self.database.statement();
        sql.push(&format!(
            "SELECT {columns}, p.state, p.attempts, coalesce(p.retry_at, p.due), p.error, {} FROM {} t",
            table.payload_bytes(),
            table.name
        ));
        join_parked(&mut sql, pipeline);
        sql.push(&format!(" WHERE ({} OR {})", table.unmarked("t."), table.marked("t.")));
        sql
    }
}

fn count_published(sql: &mut Statement, table: &Table) {
    let (name, marked, unmarked) = (&table.name, table.marked("t."), table.unmarked("t."));
    let counted = format!("(SELECT count(*) FROM {name} t WHERE {marked})");
    if table.dialect != Dialect::Postgres {
        sql.push(&counted);
        return;
    }
    let class = table.dialect.literal(name);
    sql.push(&format!(
        "case when pg_relation_size(to_regclass({class})) < {COUNTED_BYTES} then {counted} \
         else (select greatest(0, c.reltuples::bigint - (select count(*) from {name} t \
         where {unmarked})) from pg_class c where c.oid = to_regclass({class})) end"
    ));
}

/// Adds since when the oldest event waits that a relay could publish now.
fn push_oldest(sql: &mut Statement, pipeline: &Pipeline, out: &[String]) {
    let (table, parked) = (&pipeline.table, pipeline.table.dialect.parked());
    let made = table.micros(table.mapping.created_at.as_ref());
    let since = match &table.mapping.available_at {
        None => made,
        due => {
            let due = table.micros(due.as_ref());
            format!("CASE WHEN {due} > {made} THEN {due} ELSE {made} END")
        }
    };
    let (name, unmarked) = (&table.name, table.unmarked("t."));
    sql.push(&format!("(SELECT min({since}) FROM {name} t"));
    join_parked(sql, pipeline);
    sql.push(&format!(" WHERE {unmarked} AND coalesce(p.state, 'waiting') = 'waiting'"));
    table.available(sql);
    sql.push(&format!(" AND NOT EXISTS (SELECT 1 FROM {parked} h WHERE h.pipeline = "));
    sql.text(pipeline.name.as_str());
    let (aggregate_type, aggregate_id) = table.lane();
    sql.push(&format!(
        " AND h.aggregate_type = {aggregate_type} AND h.aggregate_id = {aggregate_id} AND h.holds = 1 \
         AND h.state IN ('failed', 'dead')) AND "
    ));
    sql.not_among(&table.key(), out).push(")");
}

fn join_parked(sql: &mut Statement, pipeline: &Pipeline) {
    let parked = pipeline.table.dialect.parked();
    sql.push(&format!(" LEFT JOIN {parked} p ON p.pipeline = ")).text(pipeline.name.as_str());
    sql.push(&format!(" AND p.row_id = {}", pipeline.table.key().text));
}

/// Adds that a row of `t` is in a state; says whether there can be one.
fn restrict_state(
    sql: &mut Statement,
    pipeline: &Pipeline,
    state: Option<State>,
    out: &[String],
) -> bool {
    let Some(state) = state else { return true };
    let table = &pipeline.table;
    let mark = if state == State::Published { table.marked("t.") } else { table.unmarked("t.") };
    sql.push(&format!(" AND {mark}"));
    match state {
        State::Published => return true,
        State::Publishing => {
            sql.push(" AND ").among(&table.key(), out);
            return !out.is_empty();
        }
        State::Pending => sql.push(" AND coalesce(p.state, 'waiting') = 'waiting'"),
        _ => sql.push(&format!(" AND p.state = '{}'", state.as_str())),
    };
    sql.push(" AND ").not_among(&table.key(), out);
    true
}

/// Adds that a row of `t` matches the other fields of a filter.
fn restrict(sql: &mut Statement, table: &Table, filter: &Filter) {
    let aggregate_id = Origin::Column(table.mapping.aggregate_id.clone());
    let texts = [
        (&table.mapping.aggregate_type, &filter.aggregate_type),
        (&aggregate_id, &filter.aggregate_id),
        (&table.mapping.event_type, &filter.event_type),
    ];
    for (origin, wanted) in texts {
        if let Some(wanted) = wanted {
            let value = table.dialect.exact(&table.text_of(origin));
            sql.push(&format!(" AND {value} = ")).text(wanted.as_str());
        }
    }
    let times = [(">=", filter.since), ("<", filter.until)];
    for (compare, time) in times {
        if let (Some(time), Some(name)) = (time, &table.mapping.created_at) {
            sql.push(&format!(" AND {} {compare} ", table.micros(Some(name))));
            sql.int(time.as_microsecond());
        }
    }
}

/// How an event's id may be written in a column of this kind.
fn spellings(table: &Table, kind: ColumnType, id: EventId) -> Vec<String> {
    let mut all = identity::row_ids(&table.mapping, id);
    match kind {
        ColumnType::Integer => all.retain(|text| text.parse::<u64>().is_ok() && text.len() < 21),
        ColumnType::Uuid => all.truncate(1),
        ColumnType::Bytes if table.dialect == Dialect::Mysql => all.retain(|text| text.len() == 32),
        _ => {}
    }
    all
}

fn view(table: &Table, row: &Row, out: &[String]) -> Result<EventView, Failure> {
    let first = table.width();
    let mut view = EventView::pending(table.event(row)?);
    if row.int(first + 4).is_some() {
        view.payload_bytes = row.number(first + 4);
    }
    if !row.is_true(UNMARKED) {
        view.state = State::Published;
        view.published_at = row.int(PUBLISHED_AT).map(timestamp);
        return Ok(view);
    }
    view.attempts = u32::try_from(row.number(first + 1)).unwrap_or(u32::MAX);
    view.error = row.text(first + 3);
    if out.contains(&table.row_id(row)?) {
        view.state = State::Publishing;
    } else if let Some(state) = row.text(first) {
        let known = State::ALL.into_iter().find(|known| known.as_str() == state);
        view.state = known.unwrap_or(State::Pending);
        let waits = view.state == State::Failed;
        view.next_attempt = row.int(first + 2).filter(|_| waits).map(timestamp);
    }
    Ok(view)
}
