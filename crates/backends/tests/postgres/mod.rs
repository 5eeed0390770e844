//! PostgreSQL: the shared suites, and what is particular to it.

mod admin;
mod appends;
mod check;
mod dividing;
mod failures;
mod frozen;
mod frozen_mapped;
mod gauges;
mod inbox_partitions;
mod keys;
mod merged;
mod messages;
mod notified;
mod order;
mod parking;
mod partitions;
mod plain_sql;
mod pooled;
mod recording;
mod recovered;
mod restore;
mod set_up;
mod shares;
mod snapshots;
mod storm;
mod suites;
mod tail;
mod windows;

use std::thread;
use std::time::{Duration, Instant};

use semel_backends::postgres::{
    PgPool, Postgres, PostgresAdmin, PostgresConfig, PostgresSource, PostgresStore,
};
use semel_testkit::services::{Service, service};
use uuid::Uuid;

use crate::outboxes::{self, url_of};

/// Returns from the test when there is no server; [`service`] has told so.
macro_rules! database {
    () => {
        match $crate::postgres::Database::new().await {
            Some(database) => database,
            None => return,
        }
    };
}
macro_rules! unmigrated {
    () => {
        match $crate::postgres::Database::unmigrated().await {
            Some(database) => database,
            None => return,
        }
    };
}
use {database, unmigrated};

/// A database of its own on the test server, dropped in the end.
pub(crate) struct Database {
    pub(crate) store: PostgresStore,
    server: String,
    name: String,
    /// Past the pooler, if there is one.
    direct: Option<PgPool>,
}

impl Database {
    /// With the tables of semel; none when there is no server.
    pub(crate) async fn new() -> Option<Self> {
        let database = Self::unmigrated().await?;
        database.store.migrate().await.unwrap();
        Some(database)
    }

    pub(crate) async fn unmigrated() -> Option<Self> {
        Self::made_with("").await
    }

    /// With the tables of semel, and letters for Western Europe only.
    pub(crate) async fn latin1() -> Option<Self> {
        let options = "encoding 'LATIN1' lc_collate 'C' lc_ctype 'C' template template0";
        let database = Self::made_with(options).await?;
        database.store.migrate().await.unwrap();
        Some(database)
    }

    async fn made_with(options: &str) -> Option<Self> {
        let server = service(Service::Postgres)?;
        let name = format!("semel_test_{}", Uuid::now_v7().simple());
        on_server(&server, &format!("create database {name} {options}")).await;
        let store = connect(&url_of(&server, &name)).await;
        Some(Self { store, server, name, direct: None })
    }

    /// With a pooler between the store and the server.
    pub(crate) async fn pooled() -> Option<Self> {
        let pooler = service(Service::Pgbouncer)?;
        let mut database = Self::new().await?;
        let store = connect(&url_of(&pooler, &database.name)).await;
        let direct = std::mem::replace(&mut database.store, store);
        database.direct = Some(direct.pool().clone());
        Some(database)
    }

    /// The same database again, as another process would open it.
    pub(crate) async fn again(&self) -> PostgresStore {
        connect(&self.url()).await
    }

    /// Leaves a partitioned outbox without its partitions of now and later.
    pub(crate) async fn drop_partitions(&self) {
        self.run(
            "do $$ declare name text; begin
                for name in select relname from pg_class
                    where relname ~ '^outbox_[0-9]+$' and relkind = 'r'
                loop execute 'drop table semel.' || name; end loop;
            end $$",
        )
        .await;
    }

    /// The query for the share that a lane of orders belongs to.
    fn share_of_lane(lane: &str, of: u32) -> String {
        format!("select semel.share_of('order', '{lane}', {of})::bigint")
    }

    pub(crate) fn url(&self) -> String {
        url_of(&self.server, &self.name)
    }

    /// Of its server, as host and port.
    fn address(&self) -> &str {
        let (_, address) = self.server.split_once('@').unwrap();
        address.split('/').next().unwrap()
    }

    pub(crate) fn pool(&self) -> &PgPool {
        self.direct.as_ref().unwrap_or_else(|| self.store.pool())
    }
}

outboxes::outbox!(Postgres, PostgresSource, PostgresAdmin);

/// A source whose sink confirms everything.
pub(crate) type Relay = outboxes::Relay<PostgresSource>;

impl Drop for Database {
    fn drop(&mut self) {
        let (server, name) = (self.server.clone(), self.name.clone());
        let dropping = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            // The force is of no use against replication, its end takes a moment, and a source that
            // was not closed may begin anew.
            let cut = format!(
                "select pg_terminate_backend(active_pid) from pg_replication_slots
                where database = '{name}'"
            );
            let drop = format!("drop database if exists {name} with (force)");
            let runtime = runtime.unwrap();
            let began = Instant::now();
            loop {
                runtime.block_on(try_on_server(&server, &cut)).unwrap();
                let Err(error) = runtime.block_on(try_on_server(&server, &drop)) else { break };
                assert!(began.elapsed() < Duration::from_secs(60), "{name} is in use: {error}");
                thread::sleep(Duration::from_millis(100));
            }
        });
        dropping.join().unwrap();
    }
}

async fn connect(url: &str) -> PostgresStore {
    let config =
        PostgresConfig::new(url).unwrap().connections(20).patience(Duration::from_secs(30));
    config.connect().await.unwrap()
}

async fn on_server(server: &str, sql: &str) {
    try_on_server(server, sql).await.unwrap();
}

async fn try_on_server(server: &str, sql: &str) -> Result<(), sqlx::Error> {
    let pool = PgPool::connect(server).await?;
    let done = sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&pool).await;
    pool.close().await;
    done.map(drop)
}
