//! tokio-postgres, on its own `Transaction`.

use semel_backends::postgres::append_statement;
use semel_backends::statement::Parameter;
use semel_core::Event;
use tokio_postgres::types::ToSql;

use tokio_postgres::{Client, NoTls};

use super::{End, Shop, check, in_time};
use crate::postgres::Database;

type Error = Box<dyn std::error::Error + Send + Sync>;

async fn append(tx: &tokio_postgres::Transaction<'_>, event: &Event) -> Result<bool, Error> {
    let append = append_statement(event, &Default::default())?;
    let values = append.parameters.iter().map(|parameter| -> &(dyn ToSql + Sync) {
        match parameter {
            Parameter::Text(text) => text,
            Parameter::Bytes(bytes) => bytes,
        }
    });
    let values: Vec<_> = values.collect();
    let new = tx.execute(append.sql, &values).await? == 1;
    Ok(new)
}

struct TokioPostgresShop {
    database: Database,
    client: Client,
}

impl Shop for TokioPostgresShop {
    async fn place(&mut self, events: &[Event], end: End) -> Vec<bool> {
        let tx = self.client.transaction().await.unwrap();
        tx.execute("insert into orders default values", &[]).await.unwrap();
        let mut new = Vec::new();
        for event in events {
            new.push(append(&tx, event).await.unwrap());
        }
        match end {
            End::Commit => tx.commit().await.unwrap(),
            End::RollBack => tx.rollback().await.unwrap(),
        }
        new
    }

    async fn orders(&self) -> i64 {
        self.database.number("select count(*) from orders").await
    }
}

#[tokio::test]
async fn tokio_postgres_appends_in_its_own_transaction() {
    let Some(database) = Database::new().await else { return };
    database.run("create table orders (id serial)").await;
    let client = connect(&database).await;
    let mut source = database.store.source("orders").await.unwrap();
    check(&mut TokioPostgresShop { database, client }, &mut source).await;
}

/// The role of `semel grants` that may insert and see nothing is enough, also for a duplicate. Roles
/// are gone with the transaction that made them.
#[tokio::test]
async fn appending_needs_no_right_but_to_insert() {
    let Some(database) = Database::new().await else { return };
    let mut client = connect(&database).await;
    in_time(append_as_writer(client.transaction().await.unwrap())).await;
}

async fn append_as_writer(tx: tokio_postgres::Transaction<'_>) {
    let role = format!("test_{}", uuid::Uuid::now_v7().simple());
    let grants = semel_backends::postgres::grants_sql(&role).unwrap();
    tx.batch_execute(&format!("{grants}; set local role {role}_writer")).await.unwrap();
    let event = Event::new("order", "42", "OrderPlaced");
    assert!(append(&tx, &event).await.unwrap());
    assert!(!append(&tx, &event).await.unwrap());
    assert!(tx.batch_execute("select from semel.outbox").await.is_err(), "it may not look");
}

async fn connect(database: &Database) -> Client {
    let url = database.url();
    let (client, connection) = in_time(tokio_postgres::connect(&url, NoTls)).await.unwrap();
    tokio::spawn(connection);
    client
}
