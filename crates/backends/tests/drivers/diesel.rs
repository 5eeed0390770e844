//! Diesel on SQLite.

use diesel::sql_types::{Binary, Nullable, Text};
use diesel::{Connection, RunQueryDsl, SqliteConnection};
use semel_backends::sqlite::append_statement;
use semel_backends::statement::Parameter;
use semel_core::Event;

use super::{End, Shop, check};
use crate::sqlite::Database;

type Error = Box<dyn std::error::Error + Send + Sync>;

fn append(tx: &mut SqliteConnection, event: &Event) -> Result<bool, Error> {
    let append = append_statement(event, &Default::default())?;
    let mut insert = diesel::sql_query(append.sql).into_boxed();
    for parameter in append.parameters {
        insert = match parameter {
            Parameter::Text(text) => insert.bind::<Nullable<Text>, _>(text),
            Parameter::Bytes(bytes) => insert.bind::<Nullable<Binary>, _>(bytes),
        };
    }
    let new = insert.execute(tx)? == 1;
    Ok(new)
}

struct DieselShop {
    database: Database,
    connection: SqliteConnection,
}

impl Shop for DieselShop {
    async fn place(&mut self, events: &[Event], end: End) -> Vec<bool> {
        let mut new = Vec::new();
        let placed = self.connection.immediate_transaction(|tx| {
            diesel::sql_query("INSERT INTO orders DEFAULT VALUES").execute(tx)?;
            for event in events {
                new.push(append(tx, event)?);
            }
            if end == End::Commit { Ok(()) } else { Err(Error::from("rolled back")) }
        });
        assert_eq!(placed.is_ok(), end == End::Commit);
        new
    }

    async fn orders(&self) -> i64 {
        let count = sqlx::query_scalar("SELECT count(*) FROM orders");
        count.fetch_one(self.database.store.pool()).await.unwrap()
    }
}

#[tokio::test]
async fn diesel_appends_to_sqlite_in_its_own_transaction() {
    let database = Database::new().await;
    let mut connection = SqliteConnection::establish(database.file().to_str().unwrap()).unwrap();
    let create = "CREATE TABLE orders (id INTEGER PRIMARY KEY)";
    diesel::sql_query(create).execute(&mut connection).unwrap();
    let mut source = database.store.source("orders").await.unwrap();
    check(&mut DieselShop { database, connection }, &mut source).await;
}
