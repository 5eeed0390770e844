//! One relay, killed every two seconds while sixteen write: on every database, and on tables of the
//! classic shape that somebody else made. Two of one SQLite file, whose leader is killed.

use std::time::{Duration, Instant};

use semel_testkit::services::{Private, Service};
use sqlx::{AnyConnection, Connection};
use tempfile::TempDir;
use tokio::time::sleep;

use crate::relays::Relays;
use crate::writers::Writers;
use crate::{LEADER, LEASE, LONG_LEASE, begin, end, limited, sorted, storm, storm_of};

/// How many seconds it lasts on the others, unless somebody said how many.
const SHORT: u64 = 6;

#[tokio::test(flavor = "multi_thread")]
async fn one_relay_killed_every_two_seconds() {
    let Some((_server, relays, writers)) = begin(Service::Postgres, LEADER, 1).await else {
        return;
    };
    kill_every_two_seconds("killed", relays, writers, storm()).await;
}

/// What the killed one had not carried is in the log, which the server keeps when it is killed itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_carries_messages_is_killed_and_so_is_its_server() {
    let Some(server) = Private::start(Service::Postgres) else { return };
    let mut relays = Relays::of_messages(server.address(), &limited(LEADER), LONG_LEASE);
    let writers = Writers::emit(server.address(), 16).await;
    let (began, mut losses) = (Instant::now(), 0);
    while began.elapsed() < storm_of(SHORT) || losses < 3 {
        sleep(Duration::from_secs(2)).await;
        if losses % 3 == 1 {
            server.kill();
            server.restart();
        } else {
            relays.kill(0);
            relays.forget_leases().await;
            relays.start(0);
        }
        losses += 1;
    }
    relays.kill(0);
    relays.forget_leases().await;
    end("messages", relays, writers, losses + 1).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn one_relay_killed_every_two_seconds_on_mysql() {
    let Some((_server, relays, writers)) = begin(Service::Mysql, LEADER, 1).await else { return };
    kill_every_two_seconds("killed, MySQL", relays, writers, storm_of(SHORT)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_relay_killed_every_two_seconds_on_sqlite() {
    let (_folder, url) = file();
    let relays = Relays::new(&url, "poll", &limited(LEADER), LEASE, 1);
    let writers = Writers::start(&url, 16).await;
    kill_every_two_seconds("killed, SQLite", relays, writers, storm_of(SHORT)).await;
}

/// Nobody forgets its lease: the other one takes over when it has run out.
#[tokio::test(flavor = "multi_thread")]
async fn the_leader_of_two_is_killed_and_replaced_on_sqlite() {
    let (_folder, url) = file();
    let mut relays = Relays::new(&url, "poll", &limited(LEADER), LEASE, 2);
    let writers = Writers::start(&url, 16).await;
    let (began, mut took) = (Instant::now(), Vec::new());
    while began.elapsed() < storm_of(SHORT) || took.len() < 2 {
        sleep(Duration::from_secs(1)).await;
        let leader = relays.owner_of(0).await;
        relays.kill(leader);
        took.push(relays.next_publishing().await);
        relays.start(leader);
    }
    assert!(relays.all_run(), "who does not lead stands by");
    // Sixteen others want to write as well: a lease may run out that was to be renewed.
    let losses = took.len() + relays.told("lost share");
    relays.stop_all();
    end("leader, SQLite", relays, writers, losses).await;
    sorted("leader, SQLite", took);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_relay_of_a_mapped_table_killed_every_two_seconds() {
    const TABLE: &str = "
        create table outbox (id bigserial primary key, aggregate_type text, aggregate_id text,
            event_type text, payload text, created_at timestamp default now(),
            published boolean default false, published_at timestamp, retry_count int default 0,
            idempotency_key text unique not null default gen_random_uuid()::text);
        create index on outbox (id) where published = false";
    let Some(server) = Private::start(Service::Postgres) else { return };
    kill_on_a_mapped_table("mapped", server.address(), TABLE).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn one_relay_of_a_mapped_table_killed_every_two_seconds_on_mysql() {
    const TABLE: &str = "
        CREATE TABLE outbox (id BIGINT AUTO_INCREMENT PRIMARY KEY, aggregate_type VARCHAR(255),
            aggregate_id VARCHAR(255), event_type VARCHAR(255), payload TEXT,
            created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP, published BOOLEAN DEFAULT FALSE,
            published_at TIMESTAMP NULL, retry_count INT DEFAULT 0,
            idempotency_key VARCHAR(255) NOT NULL UNIQUE DEFAULT (uuid()),
            KEY waiting (published, id))";
    let Some(server) = Private::start(Service::Mysql) else { return };
    kill_on_a_mapped_table("mapped, MySQL", server.address(), TABLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_relay_of_a_mapped_table_killed_every_two_seconds_on_sqlite() {
    const TABLE: &str = "
        CREATE TABLE outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, aggregate_type VARCHAR(255),
            aggregate_id VARCHAR(255), event_type VARCHAR(255), payload TEXT,
            created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP, published BOOLEAN DEFAULT FALSE,
            published_at TIMESTAMP NULL, retry_count INT DEFAULT 0,
            idempotency_key VARCHAR(255) NOT NULL UNIQUE DEFAULT (hex(randomblob(16))));
        CREATE INDEX waiting ON outbox (published, id)";
    let (_folder, url) = file();
    kill_on_a_mapped_table("mapped, SQLite", &url, TABLE).await;
}

/// In the end every row is marked, too.
async fn kill_on_a_mapped_table(what: &str, url: &str, table: &str) {
    const UNMARKED: &str =
        "select count(*) from outbox where published = false or published_at is null";
    let mut relays = Relays::mapped(url, &limited(LEADER), LEASE);
    relays.run_sql(table).await;
    relays.add();
    let writers = Writers::start_on(url, "outbox", 16).await;
    kill_every_two_seconds(what, relays, writers, storm_of(SHORT)).await;
    let mut connection = AnyConnection::connect(url).await.unwrap();
    let unmarked: i64 = sqlx::query_scalar(UNMARKED).fetch_one(&mut connection).await.unwrap();
    assert_eq!(unmarked, 0);
}

async fn kill_every_two_seconds(what: &str, mut relays: Relays, writers: Writers, lasts: Duration) {
    let (began, mut kills) = (Instant::now(), 0);
    while began.elapsed() < lasts {
        sleep(Duration::from_secs(2)).await;
        relays.kill(0);
        relays.forget_leases().await;
        relays.start(0);
        kills += 1;
    }
    relays.kill(0);
    end(what, relays, writers, kills + 1).await;
}

/// Where a database file can be, for as long as the folder is kept.
fn file() -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/shop.db", folder.path().display());
    (folder, url)
}
