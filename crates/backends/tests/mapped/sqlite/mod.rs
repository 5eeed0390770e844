//! Mapped tables in SQLite.

mod check;
mod classic;
mod ids;
mod large;
mod suites;

use crate::sqlite::Database;

async fn run(database: &Database, sql: &str) {
    let mut tx = database.store.begin().await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
}
