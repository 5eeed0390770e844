//! Mapped tables in MySQL and MariaDB: statements go in, rows come out.

use bytes::Bytes;
use semel_core::Failure;
use sqlx::mysql::{MySqlArguments, MySqlRow};
use sqlx::query::Query;
use sqlx::{
    AssertSqlSafe, MySql, MySqlConnection, Row as _, Transaction, TypeInfo as _, ValueRef as _,
};

use super::error::failure;
use super::schema;
use super::store::MysqlStore;
use crate::mapped::{Param, Row, Statement, Value, implement_mapped};

implement_mapped!(MysqlStore, Mysql, MySqlConnection);

async fn check_schema(store: &MysqlStore) -> Result<(), Failure> {
    let mut connection = store.pool().acquire().await.map_err(failure("connect"))?;
    schema::check(&mut connection).await
}

async fn begin(store: &MysqlStore) -> Result<Transaction<'static, MySql>, Failure> {
    store.begin_brief().await
}

async fn read(store: &MysqlStore, what: &str, statement: &Statement) -> Result<Vec<Row>, Failure> {
    let mut connection = store.pool().acquire().await.map_err(failure(what))?;
    fetch(&mut connection, statement).await.map_err(failure(what))
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
