//! [`AdminStore`]: looking into a mapped table, and repairing it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use semel_core::admin::{AdminStore, Cursor, EventView, Filter, Page, Selection, State, Stats};
use semel_core::{EventId, Failure};
use tokio::sync::OnceCell;

use super::Mapping;
use super::check::check;
use super::database::Database;
use super::dialect::Key;
use super::pipeline::{CHUNK, Pipeline};
use super::statement::{Kind, Statement};
use super::table::Table;

/// What an operator may ask and change about a mapped table. Made by `mapped_admin` of a store.
///
/// What a relay of another process has in flight counts as pending.
///
#[cfg_attr(feature = "sqlite", doc = "```no_run")]
#[cfg_attr(not(feature = "sqlite"), doc = "```ignore")]
/// use semel_backends::mapped::Mapping;
/// use semel_backends::sqlite::SqliteConfig;
/// use semel_core::AdminStore;
/// use semel_core::admin::State;
///
/// # async fn run() -> Result<(), semel_core::Failure> {
/// let store = SqliteConfig::new("sqlite://shop.db")?.connect().await?;
/// let admin = store.mapped_admin("orders", &Mapping::polling_publisher("outbox"));
/// println!("{} dead letters", admin.stats().await?.count(State::Dead));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct MappedAdmin {
    pub(super) database: Arc<dyn Database>,
    name: String,
    mapping: Mapping,
    table: OnceCell<Arc<Table>>,
}

const RETRY: &str = "state = 'waiting', holds = 1, attempts = 0, error = NULL, due = ";
const DISCARD: &str = "state = 'discarded', holds = 0, due = NULL, changed_at = ";

impl MappedAdmin {
    pub(crate) fn new(database: Arc<dyn Database>, pipeline: &str, mapping: &Mapping) -> Self {
        let (name, mapping) = (pipeline.to_owned(), mapping.clone());
        Self { database, name, mapping, table: OnceCell::new() }
    }

    /// The mapping, held against the table when it is first needed.
    pub(super) async fn pipeline(&self) -> Result<Pipeline, Failure> {
        let table = self.table.get_or_try_init(|| async {
            self.database.check_schema().await?;
            Ok::<_, Failure>(Arc::new(check(&*self.database, &self.mapping).await?))
        });
        Ok(Pipeline { name: self.name.clone(), table: Arc::clone(table.await?) })
    }

    /// The rows that the relay of this process has in flight.
    pub(super) async fn out(&self, pipeline: &Pipeline) -> Result<Vec<String>, Failure> {
        let epoch = pipeline.epoch(&*self.database).await?;
        Ok(self.database.airspace().of(&self.name, epoch))
    }

    /// Changes failed and dead events that are not in flight; says how many.
    async fn repair(&self, set: &str, selection: &Selection) -> Result<usize, Failure> {
        let pipeline = self.pipeline().await?;
        pipeline.tidy(&*self.database, None).await?;
        let chosen = self.choose_parked(&pipeline, selection).await?;
        let mut statements = vec![pipeline.guard(&*self.database, None)];
        for ids in chosen.chunks(CHUNK) {
            let mut sql = self.database.statement().of_kind(Kind::Change);
            sql.push(&format!("UPDATE {} SET {set}", self.database.dialect().parked())).now();
            sql.push(", retry_at = NULL WHERE pipeline = ").text(self.name.as_str());
            sql.push(" AND state IN ('failed', 'dead') AND ").among(&Key::own("row_id"), ids);
            statements.push(sql);
            if set == RETRY {
                statements.extend(pipeline.count_attempts(&*self.database, 0, ids));
            }
        }
        let answers = self.database.write("change failed events", statements).await?;
        self.database.announce_change();
        // Every second change is of the mapped table, if it counts attempts.
        let counts = set == RETRY && self.mapping.retry_count.is_some();
        let changes = answers.unwrap_or_default().into_iter().skip(1);
        let changed = changes.step_by(if counts { 2 } else { 1 }).map(|answer| answer.changed);
        Ok(usize::try_from(changed.sum::<u64>()).unwrap_or(usize::MAX))
    }

    /// The rows of failed and dead events that a selection means.
    async fn choose_parked(
        &self,
        pipeline: &Pipeline,
        selection: &Selection,
    ) -> Result<Vec<String>, Failure> {
        let out = self.out(pipeline).await?;
        let mut sql = self.database.statement();
        let parked = self.database.dialect().parked();
        sql.push(&format!("SELECT row_id, state FROM {parked} WHERE pipeline = "));
        sql.text(self.name.as_str()).push(" AND state IN ('failed', 'dead') AND ");
        sql.not_among(&Key::own("row_id"), &out).push(" ORDER BY place");
        let mut rows = self.database.read("look for failed events", sql).await?;
        if let Selection::Matching(Filter { state: Some(state), .. }) = selection {
            rows.retain(|row| row.text(1).as_deref() == Some(state.as_str()));
        }
        let all: Vec<String> = rows.iter().filter_map(|row| row.text(0)).collect();
        let mut chosen = Vec::new();
        for ids in all.chunks(CHUNK) {
            let mut sql = self.database.statement();
            let table = &pipeline.table;
            sql.push(&format!("SELECT {} FROM {} t WHERE ", table.listed_columns, table.name));
            sql.among(&table.key(), ids);
            for row in self.database.read("read failed events", sql).await? {
                let event = table.event(&row)?;
                let wanted = match selection {
                    Selection::Ids(ids) => ids.contains(&event.id),
                    Selection::Matching(filter) => {
                        let any_state = Filter { state: None, ..filter.clone() };
                        any_state.matches(&event, State::Failed)
                    }
                };
                if wanted {
                    chosen.push(table.row_id(&row)?);
                }
            }
        }
        Ok(chosen)
    }

    /// Deletes discarded rows that were given up long enough ago.
    async fn clean_discarded(
        &self,
        pipeline: &Pipeline,
        age: i64,
        limit: usize,
    ) -> Result<usize, Failure> {
        let mut sql = self.database.statement();
        let parked = self.database.dialect().parked();
        sql.push(&format!("SELECT row_id FROM {parked} WHERE pipeline = "));
        sql.text(self.name.as_str()).push(" AND state = 'discarded' AND changed_at < ").now();
        sql.push(" - ").int(age).push(" ORDER BY place LIMIT ").count(limit.min(CHUNK));
        let rows = self.database.read("look for old events", sql).await?;
        let ids: Vec<String> = rows.iter().filter_map(|row| row.text(0)).collect();
        if ids.is_empty() {
            return Ok(0);
        }
        let mut delete = self.database.statement().of_kind(Kind::Change);
        delete.push(&format!("DELETE FROM {} WHERE ", pipeline.table.name));
        delete.among(&pipeline.table.bare_key(), &ids);
        let guard = pipeline.guard(&*self.database, None);
        let forget = pipeline.forget(&*self.database, &ids);
        self.database.write("delete old events", vec![guard, delete, forget]).await?;
        Ok(ids.len())
    }

    /// Deletes rows that were published long enough ago.
    async fn clean_published(
        &self,
        pipeline: &Pipeline,
        age: i64,
        limit: usize,
    ) -> Result<usize, Failure> {
        let table = &pipeline.table;
        if table.mapping.delete || limit == 0 {
            return Ok(0);
        }
        let Some(time) = &table.mapping.time_mark else {
            let what =
                format!("nobody knows when rows of {:?} were published", table.mapping.shown());
            return Err(Failure::refused("E-MAPPED-CLEAN", what)
                .with_fix("map a column for the time of publishing, or delete old rows yourself"));
        };
        let mut sql = self.database.statement();
        sql.push(&format!("SELECT {} FROM {} t WHERE ", table.key().text, table.name));
        sql.push(&table.marked("t.")).push(&format!(" AND {} < ", table.micros(Some(time))));
        sql.now().push(" - ").int(age).push(" LIMIT ").count(limit.min(CHUNK));
        let rows = self.database.read("look for old events", sql).await?;
        let ids: Vec<String> = rows.iter().filter_map(|row| row.text(0)).collect();
        let mut delete = self.database.statement().of_kind(Kind::Change);
        delete.push(&format!("DELETE FROM {} WHERE {} AND ", table.name, table.marked("")));
        delete.among(&table.bare_key(), &ids);
        let answers = self.database.write("delete old events", vec![delete]).await?;
        let deleted: u64 = answers.iter().flatten().map(|answer| answer.changed).sum();
        Ok(usize::try_from(deleted).unwrap_or(usize::MAX))
    }

    /// Makes published rows wait again.
    fn unmark(&self, pipeline: &Pipeline, ids: &[String]) -> Statement {
        let table = &pipeline.table;
        let mut sql = self.database.statement().of_kind(Kind::Change);
        table.mark_rows(&mut sql, false, self.database.clock().now());
        sql.push(&format!(" WHERE {} AND ", table.marked("")));
        sql.among(&table.bare_key(), ids);
        sql
    }
}

#[async_trait]
impl AdminStore for MappedAdmin {
    async fn stats(&self) -> Result<Stats, Failure> {
        self.count().await
    }

    async fn list(
        &self,
        filter: &Filter,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<Page, Failure> {
        self.page(filter, after, limit).await
    }

    async fn get(&self, id: EventId) -> Result<Option<EventView>, Failure> {
        let pipeline = self.pipeline().await?;
        let found = self.find(&[id], &pipeline.table.event_columns).await?;
        Ok(found.into_iter().next().map(|(_, view)| view))
    }

    async fn retry(&self, selection: &Selection) -> Result<usize, Failure> {
        self.repair(RETRY, selection).await
    }

    async fn discard(&self, selection: &Selection) -> Result<usize, Failure> {
        self.repair(DISCARD, selection).await
    }

    async fn replay(&self, selection: &Selection) -> Result<usize, Failure> {
        let pipeline = self.pipeline().await?;
        if pipeline.table.mapping.delete {
            let what = format!("rows of {:?} are deleted on publish", self.mapping.shown());
            return Err(Failure::refused("E-MAPPED-REPLAY", what).with_fix(
                "write the events again, or mark published rows instead of deleting them",
            ));
        }
        let ids = self.published(&pipeline, selection).await?;
        let statements = ids.chunks(CHUNK).map(|ids| self.unmark(&pipeline, ids)).collect();
        let answers = self.database.write("replay events", statements).await?;
        self.database.announce_change();
        let changed: u64 = answers.iter().flatten().map(|answer| answer.changed).sum();
        Ok(usize::try_from(changed).unwrap_or(usize::MAX))
    }

    async fn clean(&self, age: Duration, limit: usize) -> Result<usize, Failure> {
        let pipeline = self.pipeline().await?;
        let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX / 4);
        let mut cleaned = 0;
        while cleaned < limit {
            let rest = limit - cleaned;
            let discarded = self.clean_discarded(&pipeline, age, rest).await?;
            let published = self.clean_published(&pipeline, age, rest - discarded).await?;
            cleaned += discarded + published;
            if discarded + published == 0 {
                break;
            }
        }
        Ok(cleaned)
    }
}
