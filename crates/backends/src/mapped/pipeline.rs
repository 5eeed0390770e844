//! One pipeline over one mapped table: who owns it, what failed in it, and what comes next.

use std::sync::Arc;

use semel_core::Failure;

use super::catalog;
use super::database::Database;
use super::dialect::Key;
use super::statement::{Kind, Row, Statement};
use super::table::Table;

/// A pipeline and its table.
#[derive(Clone, Debug)]
pub(crate) struct Pipeline {
    pub(crate) name: String,
    pub(crate) table: Arc<Table>,
}

/// Statements have room for this many rows.
pub(super) const CHUNK: usize = 500;

impl Pipeline {
    /// Becomes the owner; says with which epoch.
    pub(super) async fn take_over(&self, database: &dyn Database) -> Result<i64, Failure> {
        self.refuse_others(database).await?;
        let owners = database.dialect().owners();
        let mut own = database.statement().of_kind(Kind::Change);
        own.push(&format!("INSERT INTO {owners} (pipeline, relation, epoch) VALUES ("));
        own.text(self.name.as_str()).push(", ").text(self.relation()).push(", 1) ");
        own.push(match database.dialect() {
            super::dialect::Dialect::Mysql => {
                "ON DUPLICATE KEY UPDATE epoch = epoch + 1, relation = VALUES(relation)"
            }
            super::dialect::Dialect::Postgres => {
                "ON CONFLICT (pipeline) DO UPDATE SET epoch = mapped.epoch + 1, \
                 relation = excluded.relation"
            }
            super::dialect::Dialect::Sqlite => {
                "ON CONFLICT (pipeline) DO UPDATE SET epoch = epoch + 1, relation = excluded.relation"
            }
        });
        let mut read = database.statement();
        read.push(&format!("SELECT epoch FROM {owners} WHERE pipeline = "));
        read.text(self.name.as_str());
        let answers = database.write("take over the pipeline", vec![own, read]).await?;
        let epoch = answers.iter().flatten().find_map(|answer| answer.rows.first()?.int(0));
        epoch.ok_or_else(|| {
            let what = format!("{}: cannot take over the pipeline", database.dialect().name());
            Failure::transient("E-MAPPED-OWNER", what)
        })
    }

    /// A mark says "published" once: a table has one pipeline, and a pipeline one table.
    async fn refuse_others(&self, database: &dyn Database) -> Result<(), Failure> {
        let owners = database.dialect().owners();
        let (relation, spellings) = catalog::spellings(database, &self.table.mapping).await?;
        let mut sql = database.statement();
        sql.push(&format!("SELECT pipeline, relation FROM {owners} WHERE ("));
        sql.push("pipeline = ").text(self.name.as_str());
        sql.push(" OR ").among(&relation, &spellings).push(") AND NOT (");
        sql.push("pipeline = ").text(self.name.as_str());
        sql.push(" AND ").among(&relation, &spellings).push(")");
        let rows = database.read("look who owns the table", sql).await?;
        let Some(other) = rows.first() else { return Ok(()) };
        let (pipeline, relation) = (other.text(0).unwrap_or_default(), other.text(1));
        let relation = relation.unwrap_or_default();
        let name = database.dialect().name();
        let what = if pipeline == self.name {
            format!("{name}: the pipeline {pipeline:?} reads the table {relation}")
        } else {
            format!("{name}: the table {relation} is read by the pipeline {pipeline:?}")
        };
        Err(Failure::misconfigured("E-MAPPED-TAKEN", what).with_fix(format!(
            "use that one, or, if it is not used any more, delete its rows from {owners} and {}; if they \
             are two tables, write the schema into both mappings",
            database.dialect().parked()
        )))
    }

    fn relation(&self) -> &str {
        &self.table.name
    }

    /// A statement that finds nothing, and so ends its transaction, unless this is the owner.
    pub(super) fn guard(&self, database: &dyn Database, epoch: Option<i64>) -> Statement {
        let owners = database.dialect().owners();
        let kind = if epoch.is_some() { Kind::Guard } else { Kind::Fetch };
        let mut guard = database.statement().of_kind(kind);
        guard.push(&format!("SELECT epoch FROM {owners} WHERE pipeline = "));
        guard.text(self.name.as_str());
        if let Some(epoch) = epoch {
            guard.push(" AND epoch = ").int(epoch);
        }
        guard.push(database.dialect().for_update());
        guard
    }

    /// The epoch of the present owner.
    pub(super) async fn epoch(&self, database: &dyn Database) -> Result<Option<i64>, Failure> {
        let mut sql = database.statement();
        sql.push(&format!("SELECT epoch FROM {} WHERE pipeline = ", database.dialect().owners()));
        sql.text(self.name.as_str());
        let rows = database.read("look who owns the pipeline", sql).await?;
        Ok(rows.first().and_then(|row| row.int(0)))
    }

    /// Failed rows to offer now: their ids and attempts. Whoever waits behind an earlier one of its
    /// lane that is not due is not among them.
    pub(super) async fn due(
        &self,
        database: &dyn Database,
        out: &[String],
        limit: usize,
    ) -> Result<Vec<Row>, Failure> {
        let parked = database.dialect().parked();
        let mut sql = database.statement();
        sql.push(&format!("SELECT p.row_id, p.attempts FROM {parked} p WHERE p.pipeline = "));
        sql.text(self.name.as_str()).push(" AND p.due <= ").now();
        sql.push(" AND ").not_among(&Key::own("p.row_id"), out);
        sql.push(&format!(
            " AND NOT EXISTS (SELECT 1 FROM {parked} e WHERE e.pipeline = p.pipeline \
             AND e.aggregate_type = p.aggregate_type AND e.aggregate_id = p.aggregate_id \
             AND e.holds = 1 AND e.place < p.place AND (e.due IS NULL OR e.due > "
        ));
        sql.now().push(") AND ").not_among(&Key::own("e.row_id"), out);
        sql.push(") ORDER BY p.place LIMIT ").count(limit);
        database.read("look for failed events", sql).await
    }

    /// Rows that were never tried and whose lanes do not wait, in their order. Without anything
    /// `parked` no lane waits.
    pub(super) fn waiting(
        &self,
        database: &dyn Database,
        parked: bool,
        out: &[String],
        limit: usize,
    ) -> Statement {
        let table = &self.table;
        let mut sql = database.statement();
        sql.begin = table.access.begin;
        self.push_waiting(&mut sql, &table.event_columns, &table.waits(), parked, out, limit);
        sql
    }

    /// The same for rows that meet a condition.
    pub(super) fn push_waiting(
        &self,
        sql: &mut Statement,
        columns: &str,
        condition: &str,
        parked: bool,
        out: &[String],
        limit: usize,
    ) {
        let table = &self.table;
        let (name, hint) = (&table.name, &table.access.hint);
        sql.push(&format!("SELECT {columns} FROM {name} t{hint} WHERE {condition}"));
        table.available(sql);
        sql.push(" AND ").not_among(&table.key(), out);
        if parked {
            self.not_parked(sql, out);
        }
        sql.push(&table.order_waiting_by()).push(" LIMIT ").count(limit);
    }

    /// Adds that a row of `t` did not fail, and that nothing that failed holds its lane. What is in
    /// flight holds nobody: the relay keeps it in order.
    fn not_parked(&self, sql: &mut Statement, out: &[String]) {
        let parked = self.table.dialect.parked();
        let (aggregate_type, aggregate_id) = self.table.lane();
        // With an OFFSET the subquery stays one: it is asked row by row, in the order of the rows.
        let end = match self.table.dialect {
            super::dialect::Dialect::Postgres => " OFFSET 0)",
            _ => ")",
        };
        sql.push(&format!(" AND NOT EXISTS (SELECT 1 FROM {parked} p WHERE p.pipeline = "));
        sql.text(self.name.as_str());
        sql.push(&format!(" AND p.row_id = {}{end}", self.table.key().text));
        sql.push(&format!(" AND NOT EXISTS (SELECT 1 FROM {parked} p WHERE p.pipeline = "));
        sql.text(self.name.as_str());
        sql.push(&format!(
            " AND p.aggregate_type = {aggregate_type} AND p.aggregate_id = {aggregate_id} \
             AND p.holds = 1 AND "
        ));
        sql.not_among(&Key::own("p.row_id"), out).push(end);
    }

    /// Forgets failed rows that somebody deleted or marked by hand: they hold nobody any more.
    pub(super) async fn tidy(
        &self,
        database: &dyn Database,
        epoch: Option<i64>,
    ) -> Result<(), Failure> {
        let parked = database.dialect().parked();
        let mut after = 0;
        loop {
            let mut sql = database.statement();
            sql.push(&format!("SELECT row_id, place FROM {parked} WHERE pipeline = "));
            sql.text(self.name.as_str()).push(" AND place > ").int(after);
            sql.push(" ORDER BY place LIMIT ").count(CHUNK);
            let rows = database.read("look for rows that are gone", sql).await?;
            let Some(last) = rows.last() else { return Ok(()) };
            after = last.int(1).unwrap_or(i64::MAX);
            let mut gone: Vec<String> = rows.iter().filter_map(|row| row.text(0)).collect();
            let there = self.unmarked_among(database, &gone).await?;
            gone.retain(|id| !there.contains(id));
            if !gone.is_empty() {
                let statements = vec![self.guard(database, epoch), self.forget(database, &gone)];
                database.write("forget rows that are gone", statements).await?;
            }
        }
    }

    async fn unmarked_among(
        &self,
        database: &dyn Database,
        ids: &[String],
    ) -> Result<Vec<String>, Failure> {
        let (table, key) = (&self.table, self.table.key());
        let mut sql = database.statement();
        sql.push(&format!("SELECT {} FROM {} t WHERE ", key.text, table.name));
        sql.push(&table.unmarked("t.")).push(" AND ").among(&key, ids);
        let rows = database.read("look for rows that are gone", sql).await?;
        Ok(rows.iter().filter_map(|row| row.text(0)).collect())
    }

    /// Forgets that rows failed.
    pub(super) fn forget(&self, database: &dyn Database, ids: &[String]) -> Statement {
        let mut sql = database.statement().of_kind(Kind::Change);
        sql.push(&format!("DELETE FROM {} WHERE pipeline = ", database.dialect().parked()));
        sql.text(self.name.as_str()).push(" AND ").among(&Key::own("row_id"), ids);
        sql
    }

    /// Sets the number of failed attempts of rows, if the table has a column for it.
    pub(super) fn count_attempts(
        &self,
        database: &dyn Database,
        attempts: u32,
        ids: &[String],
    ) -> Option<Statement> {
        let column = self.table.mapping.retry_count.as_ref()?;
        let mut sql = database.statement().of_kind(Kind::Change);
        let (name, column) = (&self.table.name, self.table.dialect.quote(column));
        sql.push(&format!("UPDATE {name} SET {column} = {attempts} WHERE "));
        sql.among(&self.table.bare_key(), ids);
        Some(sql)
    }
}
