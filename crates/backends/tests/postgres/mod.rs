//! PostgreSQL: the shared suites, and what is particular to it.

mod suites;

use std::thread;

use semel_backends::postgres::{PgPool, PostgresConfig, PostgresStore};
use semel_testkit::services::{Service, service};
use uuid::Uuid;

/// A database of its own on the test server, dropped in the end.
pub(crate) struct Database {
    pub(crate) store: PostgresStore,
    server: String,
    name: String,
}

impl Database {
    /// With the tables of semel; none when there is no server.
    pub(crate) async fn new() -> Option<Self> {
        let database = Self::unmigrated().await?;
        database.store.migrate().await.unwrap();
        Some(database)
    }

    pub(crate) async fn unmigrated() -> Option<Self> {
        let server = service(Service::Postgres)?;
        let name = format!("semel_test_{}", Uuid::now_v7().simple());
        on_server(&server, &format!("create database {name}")).await;
        let store = connect(&url_of(&server, &name)).await;
        Some(Self { store, server, name })
    }

    /// The same database again, as another process would open it.
    pub(crate) async fn again(&self) -> PostgresStore {
        connect(&self.url()).await
    }

    pub(crate) fn url(&self) -> String {
        url_of(&self.server, &self.name)
    }

    pub(crate) fn pool(&self) -> &PgPool {
        self.store.pool()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let (server, name) = (self.server.clone(), self.name.clone());
        let dropping = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let sql = format!("drop database if exists {name} with (force)");
            runtime.unwrap().block_on(on_server(&server, &sql));
        });
        dropping.join().unwrap();
    }
}

async fn connect(url: &str) -> PostgresStore {
    let config = PostgresConfig::new(url).unwrap().connections(20);
    config.connect().await.unwrap()
}

async fn on_server(server: &str, sql: &str) {
    let pool = PgPool::connect(server).await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&pool).await.unwrap();
    pool.close().await;
}

/// The URL of another database of the same server.
fn url_of(server: &str, database: &str) -> String {
    let (address, query) = server.split_once('?').map_or((server, None), |(a, q)| (a, Some(q)));
    let base = address.rfind('/').filter(|slash| !address[..*slash].ends_with('/'));
    let base = base.map_or(address, |slash| &address[..slash]);
    match query {
        Some(query) => format!("{base}/{database}?{query}"),
        None => format!("{base}/{database}"),
    }
}
