//! Mapped tables in MySQL and MariaDB: statements go in, rows come out.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use semel_core::{Clock, Failure};
use sqlx::mysql::{MySqlArguments, MySqlRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, MySql, MySqlConnection, Row as _, TypeInfo as _, ValueRef as _};
use tokio::sync::watch;

use super::error::failure;
use super::schema;
use super::store::MysqlStore;
use crate::mapped::{
    Airspace, Answer, Database, Dialect, Kind, LaneOrder, MappedAdmin, MappedSource, Mapping,
    Param, Row, Statement, Value, check,
};

impl MysqlStore {
    /// A table of another shape as a source for the pipeline of this name, taking it over from any
    /// other owner. semel's own tables are needed as well, for what failed.
    ///
    /// # Errors
    /// `Misconfigured` when the mapping does not fit, with everything that is wrong.
    pub async fn mapped_source(
        &self,
        pipeline: &str,
        mapping: &Mapping,
    ) -> Result<MappedSource, Failure> {
        MappedSource::open(Arc::new(self.clone()), pipeline, mapping).await
    }

    /// The operator's view of a pipeline over a table of another shape.
    #[must_use]
    pub fn mapped_admin(&self, pipeline: &str, mapping: &Mapping) -> MappedAdmin {
        MappedAdmin::new(Arc::new(self.clone()), pipeline, mapping)
    }

    /// Holds a mapping against the real table, and says which order it gives. Changes nothing.
    ///
    /// # Errors
    /// `Misconfigured` when it does not fit, with everything that is wrong.
    pub async fn check_mapping(&self, mapping: &Mapping) -> Result<LaneOrder, Failure> {
        check(self, mapping).await.map(|table| table.lane_order())
    }
}

#[async_trait]
impl Database for MysqlStore {
    fn dialect(&self) -> Dialect {
        Dialect::Mysql
    }

    fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    fn airspace(&self) -> &Airspace {
        &self.airspace
    }

    fn announce_change(&self) {
        self.announce_change();
    }

    fn changes(&self) -> watch::Receiver<()> {
        self.changes()
    }

    async fn check_schema(&self) -> Result<(), Failure> {
        let mut connection = self.pool().acquire().await.map_err(failure("connect"))?;
        schema::check(&mut connection).await
    }

    async fn read(&self, what: &'static str, statement: Statement) -> Result<Vec<Row>, Failure> {
        let mut connection = self.pool().acquire().await.map_err(failure(what))?;
        fetch(&mut connection, &statement).await.map_err(failure(what))
    }

    async fn write(
        &self,
        what: &'static str,
        statements: Vec<Statement>,
    ) -> Result<Option<Vec<Answer>>, Failure> {
        let mut tx = self.begin().await?;
        let mut answers = Vec::with_capacity(statements.len());
        for statement in &statements {
            let answer = run(&mut tx, statement).await.map_err(failure(what))?;
            if statement.kind == Kind::Guard && answer.rows.is_empty() {
                return Ok(None);
            }
            answers.push(answer);
        }
        tx.commit().await.map_err(failure(what))?;
        Ok(Some(answers))
    }
}

async fn run(
    connection: &mut MySqlConnection,
    statement: &Statement,
) -> Result<Answer, sqlx::Error> {
    if statement.kind == Kind::Change {
        let changed = query(statement).execute(connection).await?.rows_affected();
        return Ok(Answer { rows: Vec::new(), changed });
    }
    Ok(Answer { rows: fetch(connection, statement).await?, changed: 0 })
}

async fn fetch(
    connection: &mut MySqlConnection,
    statement: &Statement,
) -> Result<Vec<Row>, sqlx::Error> {
    let rows = query(statement).fetch_all(connection).await?;
    rows.iter().map(row).collect()
}

fn query(statement: &Statement) -> Query<'_, MySql, MySqlArguments> {
    let mut query = sqlx::query(AssertSqlSafe(statement.sql.as_str()));
    for param in &statement.params {
        query = match param {
            Param::Text(text) => query.bind(text.as_deref()),
            Param::Int(number) => query.bind(*number),
            Param::List(texts) => texts.iter().fold(query, Query::bind),
        };
    }
    query
}

/// Every column of these statements is a whole number, text or bytes.
fn row(row: &MySqlRow) -> Result<Row, sqlx::Error> {
    let mut values = Vec::with_capacity(row.len());
    for index in 0..row.len() {
        let value = row.try_get_raw(index)?;
        let is_number = value.type_info().name().contains("INT");
        values.push(if value.is_null() {
            Value::Null
        } else if is_number {
            Value::Int(row.try_get_unchecked(index)?)
        } else {
            Value::Bytes(Bytes::from(row.try_get_unchecked::<Vec<u8>, _>(index)?))
        });
    }
    Ok(Row(values))
}
