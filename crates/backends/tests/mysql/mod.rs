//! MySQL and MariaDB: the shared suites, and what is particular to them.

mod check;
mod dividing;
mod failures;
mod frozen;
mod keys;
mod late;
mod locks;
mod merged;
mod operator;
mod order;
mod plain_sql;
mod set_up;
mod shares;
mod storm;
mod suites;
mod tail;

use std::thread;
use std::time::Duration;

use semel_backends::mysql::{MySql, MySqlPool, MysqlConfig, MysqlSource, MysqlStore, Transaction};
use semel_core::coordination::Share;
use semel_core::{Delivery, Event, Limit, Outcome, Settlement, Source};
use semel_testkit::services::{Service, service};
use uuid::Uuid;

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

    pub(crate) async fn begin(&self) -> Transaction<'static, MySql> {
        self.store.begin().await.unwrap()
    }

    /// Writes events in one transaction.
    pub(crate) async fn commit(&self, events: &[Event]) {
        let mut tx = self.begin().await;
        self.append(&mut tx, events).await;
        tx.commit().await.unwrap();
    }

    pub(crate) async fn append(&self, tx: &mut Transaction<'_, MySql>, events: &[Event]) {
        self.store.outbox().append_all(tx, events).await.unwrap();
    }

    pub(crate) async fn relay(&self) -> Relay {
        Relay { source: self.store.source("orders").await.unwrap() }
    }

    /// The owner of one share of the same pipeline.
    pub(crate) async fn share(&self, number: u32, of: u32) -> Relay {
        let share = Share::new(number, of).unwrap();
        Relay { source: self.store.source_share("orders", share).await.unwrap() }
    }

    /// The owners of all shares.
    pub(crate) async fn all_shares(&self, of: u32) -> Vec<Relay> {
        let mut relays = Vec::new();
        for number in 0..of {
            relays.push(self.share(number, of).await);
        }
        relays
    }

    pub(crate) async fn run(&self, sql: &str) {
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(self.pool()).await.unwrap();
    }

    /// One number that a query gives.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(self.pool()).await.unwrap()
    }

    pub(crate) fn url(&self) -> String {
        url_of(&self.server, &self.name)
    }

    pub(crate) fn pool(&self) -> &MySqlPool {
        self.store.pool()
    }
}

/// A source whose sink confirms everything.
pub(crate) struct Relay {
    pub(crate) source: MysqlSource,
}

impl Relay {
    /// Delivers all there is, in batches of `events`.
    pub(crate) async fn deliver_all(&mut self, events: usize) -> Vec<Delivery> {
        let mut delivered = Vec::new();
        loop {
            let batch = self.take(events).await;
            if batch.is_empty() {
                return delivered;
            }
            self.settle(&batch, |_| Outcome::Delivered).await;
            delivered.extend(batch);
        }
    }

    /// The same, as the aggregate ids.
    pub(crate) async fn lanes(&mut self) -> Vec<String> {
        let delivered = self.deliver_all(100).await;
        delivered.iter().map(|got| got.message.event.aggregate_id.clone()).collect()
    }

    pub(crate) async fn take(&mut self, events: usize) -> Vec<Delivery> {
        let limit = Limit { events, ..Limit::default() };
        self.source.next_batch(limit).await.unwrap().deliveries
    }

    pub(crate) async fn settle(&mut self, batch: &[Delivery], outcome: impl Fn(&Event) -> Outcome) {
        let settle = |got: &Delivery| Settlement {
            receipt: got.receipt,
            outcome: outcome(&got.message.event),
        };
        let settlements: Vec<_> = batch.iter().map(settle).collect();
        assert!(self.source.settle(&settlements).await.unwrap().is_held());
    }
}

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
