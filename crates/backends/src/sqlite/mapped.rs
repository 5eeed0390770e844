//! Mapped tables in SQLite: statements go in, rows come out.

use bytes::Bytes;
use semel_core::Failure;
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{
    AssertSqlSafe, Row as _, Sqlite, SqliteConnection, Transaction, TypeInfo as _, ValueRef as _,
};

use super::error::failure;
use super::schema;
use super::store::SqliteStore;
use crate::mapped::{Param, Row, Statement, Value, implement_mapped};

implement_mapped!(SqliteStore, Sqlite, SqliteConnection);

async fn check_schema(store: &SqliteStore) -> Result<(), Failure> {
    schema::check(store.pool()).await
}

async fn begin(store: &SqliteStore) -> Result<Transaction<'static, Sqlite>, Failure> {
    store.begin().await
}

async fn read(store: &SqliteStore, what: &str, statement: &Statement) -> Result<Vec<Row>, Failure> {
    let mut connection = store.pool().acquire().await.map_err(failure(what))?;
    fetch(&mut connection, statement).await.map_err(failure(what))
}

fn query(statement: &Statement) -> Query<'_, Sqlite, SqliteArguments> {
    let mut query = sqlx::query(AssertSqlSafe(statement.sql.as_str()));
    for param in &statement.params {
        query = match param {
            Param::Text(text) => query.bind(text.as_deref()),
            Param::Int(number) => query.bind(*number),
            Param::List(texts) => query.bind(json(texts)),
        };
    }
    query
}

/// Several texts as one parameter.
fn json(texts: &[String]) -> String {
    // Texts always make JSON.
    serde_json::to_string(texts).unwrap_or_else(|_| "[]".into())
}

/// Values are what was written, whatever the column says.
fn row(row: &SqliteRow) -> Result<Row, sqlx::Error> {
    let mut values = Vec::with_capacity(row.len());
    for index in 0..row.len() {
        let value = row.try_get_raw(index)?;
        let kind = value.type_info().name().to_owned();
        values.push(match kind.as_str() {
            _ if value.is_null() => Value::Null,
            "INTEGER" | "BOOLEAN" => Value::Int(row.try_get_unchecked(index)?),
            "REAL" => Value::Bytes(row.try_get_unchecked::<f64, _>(index)?.to_string().into()),
            _ => Value::Bytes(Bytes::copy_from_slice(row.try_get_unchecked(index)?)),
        });
    }
    Ok(Row(values))
}
