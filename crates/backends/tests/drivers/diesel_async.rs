//! diesel-async on PostgreSQL, which needs no C library.

use diesel::sql_types::{Binary, Nullable, Text};
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl};
use semel_backends::postgres::append_statement;
use semel_backends::statement::Parameter;
use semel_core::Event;

use super::{End, Shop, check, in_time};
use crate::postgres::Database;

type Error = Box<dyn std::error::Error + Send + Sync>;

async fn append(tx: &mut AsyncPgConnection, event: &Event) -> Result<bool, Error> {
    let append = append_statement(event, &Default::default())?;
    let mut insert = diesel::sql_query(append.sql).into_boxed();
    for parameter in append.parameters {
        insert = match parameter {
            Parameter::Text(text) => insert.bind::<Nullable<Text>, _>(text),
            Parameter::Bytes(bytes) => insert.bind::<Nullable<Binary>, _>(bytes),
        };
    }
    let new = insert.execute(tx).await? == 1;
    Ok(new)
}

struct DieselShop {
    database: Database,
    connection: AsyncPgConnection,
}

impl Shop for DieselShop {
    async fn place(&mut self, events: &[Event], end: End) -> Vec<bool> {
        let mut new = Vec::new();
        let placed = self.connection.transaction(async |tx| {
            diesel::sql_query("insert into orders default values").execute(tx).await?;
            for event in events {
                new.push(append(tx, event).await?);
            }
            if end == End::Commit { Ok(()) } else { Err(Error::from("rolled back")) }
        });
        assert_eq!(placed.await.is_ok(), end == End::Commit);
        new
    }

    async fn orders(&self) -> i64 {
        self.database.number("select count(*) from orders").await
    }
}

#[tokio::test]
async fn diesel_async_appends_in_its_own_transaction() {
    let Some(database) = Database::new().await else { return };
    database.run("create table orders (id serial)").await;
    let connection = in_time(AsyncPgConnection::establish(&database.url())).await.unwrap();
    let mut source = database.store.source("orders").await.unwrap();
    check(&mut DieselShop { database, connection }, &mut source).await;
}
