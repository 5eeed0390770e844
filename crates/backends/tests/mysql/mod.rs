//! MySQL and MariaDB: the shared suites, and what is particular to them.

mod check;
mod dividing;
mod failures;
mod frozen;
mod frozen_mapped;
mod gone;
mod keys;
mod late;
mod locks;
mod many;
mod marks;
mod merged;
mod operator;
mod order;
mod parked;
mod plain_sql;
mod replaced;
mod set_up;
mod shares;
mod storm;
mod suites;
mod tail;
mod unreadable;

use std::thread;
use std::time::Duration;

use semel_backends::mysql::{
    MySql, MySqlPool, MysqlAdmin, MysqlConfig, MysqlSource, MysqlStore, Transaction,
};
use semel_testkit::services::{Service, service};
use uuid::Uuid;

use crate::outboxes::{self, url_of};

/// Returns from the test when there is no server; [`service`] has told so.
macro_rules! database {
    () => {
        match $crate::mysql::Database::new().await {
            Some(database) => database,
            None => return,
        }
    };
}
macro_rules! unmigrated {
    () => {
        match $crate::mysql::Database::unmigrated().await {
            Some(database) => database,
            None => return,
        }
    };
}
use {database, unmigrated};

/// A database of its own on the test server, dropped in the end.
pub(crate) struct Database {
    pub(crate) store: MysqlStore,
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
        let server = service(Service::Mysql)?;
        let name = format!("semel_test_{}", Uuid::now_v7().simple());
        on_server(&server, &format!("CREATE DATABASE {name}")).await;
        let store = connect(&url_of(&server, &name)).await;
        Some(Self { store, server, name })
    }

    /// The same database again, as another process would open it.
    pub(crate) async fn again(&self) -> MysqlStore {
        connect(&self.url()).await
    }

    /// The query for the share that a lane of orders belongs to.
    fn share_of_lane(lane: &str, of: u32) -> String {
        format!("SELECT cast(mod(crc32('order/{lane}'), {of}) AS SIGNED)")
    }

    pub(crate) fn url(&self) -> String {
        url_of(&self.server, &self.name)
    }

    pub(crate) fn pool(&self) -> &MySqlPool {
        self.store.pool()
    }
}

outboxes::outbox!(MySql, MysqlSource, MysqlAdmin);

/// A source whose sink confirms everything.
pub(crate) type Relay = outboxes::Relay<MysqlSource>;

impl Drop for Database {
    /// Transactions that the test left open keep their tables: their connections end first.
    fn drop(&mut self) {
        let (server, name) = (self.server.clone(), self.name.clone());
        let dropping = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                cut_off(&server, &name).await;
                on_server(&server, &format!("DROP DATABASE IF EXISTS {name}")).await;
            });
        });
        dropping.join().unwrap();
    }
}

/// Ends every connection to a database.
async fn cut_off(server: &str, database: &str) {
    let pool = MySqlPool::connect(server).await.unwrap();
    let open: Vec<u64> = sqlx::query_scalar(
        "SELECT cast(id AS UNSIGNED) FROM information_schema.processlist WHERE db = ?",
    )
    .bind(database)
    .fetch_all(&pool)
    .await
    .unwrap();
    for id in open {
        // It may have ended by itself.
        sqlx::raw_sql(sqlx::AssertSqlSafe(format!("KILL {id}"))).execute(&pool).await.ok();
    }
    pool.close().await;
}

async fn connect(url: &str) -> MysqlStore {
    let config = MysqlConfig::new(url).unwrap().connections(20).patience(Duration::from_secs(30));
    config.connect().await.unwrap()
}

async fn on_server(server: &str, sql: &str) {
    let pool = MySqlPool::connect(server).await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&pool).await.unwrap();
    pool.close().await;
}
