//! Mapped tables in PostgreSQL: statements go in, rows come out.

use bytes::Bytes;
use semel_core::Failure;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{
    AssertSqlSafe, PgConnection, Postgres, Row as _, Transaction, TypeInfo as _, ValueRef as _,
};

use super::error::failure;
use super::pooler::BRIEF;
use super::schema;
use super::store::PostgresStore;
use crate::mapped::{Param, Row, Statement, Value, implement_mapped};

implement_mapped!(PostgresStore, Postgres, PgConnection);

async fn check_schema(store: &PostgresStore) -> Result<(), Failure> {
    let mut step = store.step().await?;
    schema::check(&mut step).await
}

async fn begin(store: &PostgresStore) -> Result<Transaction<'static, Postgres>, Failure> {
    store.begin_as(BRIEF).await
}

async fn read(
    store: &PostgresStore,
    what: &str,
    statement: &Statement,
) -> Result<Vec<Row>, Failure> {
    if let Some(begin) = statement.begin {
        let mut tx = store.begin_as(begin).await?;
        let rows = fetch(&mut tx, statement).await.map_err(failure(what))?;
        tx.commit().await.map_err(failure(what))?;
        return Ok(rows);
    }
    let mut step = store.step().await?;
    let rows = fetch(&mut step, statement).await.map_err(failure(what))?;
    step.end().await?;
    Ok(rows)
}

fn query(statement: &Statement) -> Query<'_, Postgres, PgArguments> {
    let mut query = sqlx::query(AssertSqlSafe(statement.sql.as_str()));
    for param in &statement.params {
        query = match param {
            Param::Text(text) => query.bind(text.as_deref()),
            Param::Int(number) => query.bind(*number),
            Param::List(texts) => query.bind(texts),
        };
    }
    query
}

/// Every column of these statements is a `bigint`, text or bytes; the last two look the same on the
/// wire.
fn row(row: &PgRow) -> Result<Row, sqlx::Error> {
    let mut values = Vec::with_capacity(row.len());
    for index in 0..row.len() {
        let value = row.try_get_raw(index)?;
        values.push(if value.is_null() {
            Value::Null
        } else if value.type_info().name() == "INT8" {
            Value::Int(row.try_get(index)?)
        } else {
            let bytes = value.as_bytes().map_err(sqlx::Error::Decode)?;
            Value::Bytes(Bytes::copy_from_slice(bytes))
        });
    }
    Ok(Row(values))
}
