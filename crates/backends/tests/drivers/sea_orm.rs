//! sea-orm, on its own `DatabaseTransaction`, with PostgreSQL and MySQL.

use sea_orm::{ConnectionTrait, DatabaseTransaction, DbBackend, DbErr, SqlErr, Value};
use semel_backends::statement::{Parameter, Statement};

use sea_orm::{DatabaseConnection, TransactionTrait};
use semel_core::event::EventLimits;
use semel_core::{Event, Failure};

use super::{End, Shop, check, in_time};

async fn append(tx: &DatabaseTransaction, append: Statement) -> Result<bool, DbErr> {
    let values = append.parameters.into_iter().map(|parameter| match parameter {
        Parameter::Text(text) => Value::from(text),
        Parameter::Bytes(bytes) => Value::from(bytes),
    });
    let database = tx.get_database_backend();
    let insert = sea_orm::Statement::from_sql_and_values(database, append.sql, values);
    match tx.execute_raw(insert).await {
        Ok(done) => Ok(done.rows_affected() == 1),
        // On MySQL a duplicate is an error after which the transaction goes on. On PostgreSQL it is one
        // only where the transaction is over: a commit would roll back, and say nothing.
        Err(error) => match (database, error.sql_err()) {
            (DbBackend::MySql, Some(SqlErr::UniqueConstraintViolation(_))) => Ok(false),
            _ => Err(error),
        },
    }
}

struct SeaOrmShop {
    connection: DatabaseConnection,
    append_statement: fn(&Event, &EventLimits) -> Result<Statement, Failure>,
}

impl Shop for SeaOrmShop {
    async fn place(&mut self, events: &[Event], end: End) -> Vec<bool> {
        let append_statement = self.append_statement;
        let tx = self.connection.begin().await.unwrap();
        tx.execute_unprepared("insert into orders (name) values ('x')").await.unwrap();
        let mut new = Vec::new();
        for event in events {
            let statement = append_statement(event, &Default::default()).unwrap();
            new.push(append(&tx, statement).await.unwrap());
        }
        match end {
            End::Commit => tx.commit().await.unwrap(),
            End::RollBack => tx.rollback().await.unwrap(),
        }
        new
    }

    async fn orders(&self) -> i64 {
        let database = self.connection.get_database_backend();
        let count = sea_orm::Statement::from_string(database, "select count(*) from orders");
        let row = self.connection.query_one_raw(count).await.unwrap().unwrap();
        row.try_get_by_index(0).unwrap()
    }
}

async fn connect(
    url: &str,
    append_statement: fn(&Event, &EventLimits) -> Result<Statement, Failure>,
) -> SeaOrmShop {
    let connection = in_time(sea_orm::Database::connect(url)).await.unwrap();
    connection.execute_unprepared("create table orders (name varchar(10))").await.unwrap();
    SeaOrmShop { connection, append_statement }
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn sea_orm_appends_to_postgres_in_its_own_transaction() {
    let Some(database) = crate::postgres::Database::new().await else { return };
    let mut shop = connect(&database.url(), semel_backends::postgres::append_statement).await;
    check(&mut shop, &mut database.store.source("orders").await.unwrap()).await;
}

/// There a taken key ends the transaction: taken for a duplicate to go on after, the commit would lose the
/// order and say nothing.
#[cfg(feature = "postgres")]
#[tokio::test]
async fn sea_orm_reports_a_taken_key_of_a_partitioned_outbox_as_the_error_it_is() {
    let Some(database) = crate::postgres::Database::new().await else { return };
    database.store.partition(std::time::Duration::from_secs(86_400)).await.unwrap();
    let append_statement = semel_backends::postgres::append_statement;
    let mut shop = connect(&database.url(), append_statement).await;
    let keyed = || semel_testkit::workload::event("a", 1).with_idempotency_key("k");
    assert_eq!(shop.place(&[keyed()], End::Commit).await, [true]);

    let tx = shop.connection.begin().await.unwrap();
    let taken = append_statement(&keyed(), &Default::default()).unwrap();
    let error = append(&tx, taken).await.expect_err("the key is taken");
    assert!(matches!(error.sql_err(), Some(SqlErr::UniqueConstraintViolation(_))), "{error}");
    tx.execute_unprepared("insert into orders (name) values ('x')").await.expect_err("it is over");
    tx.rollback().await.unwrap();
    assert_eq!(shop.orders().await, 1);
}

#[cfg(feature = "mysql")]
#[tokio::test]
async fn sea_orm_appends_to_mysql_in_its_own_transaction() {
    let Some(database) = crate::mysql::Database::new().await else { return };
    let mut shop = connect(&database.url(), semel_backends::mysql::append_statement).await;
    check(&mut shop, &mut database.store.source("orders").await.unwrap()).await;
}
