//! Servers that do not allow it: a source that must tail says what to run, any other polls, and
//! tails as soon as it may.

use std::time::{Duration, Instant};

use semel_backends::postgres::{
    PostgresConfig, PostgresStore, Tailing, grants_sql, publication_sql,
};
use semel_core::diagnosis::{Log, Severity};
use semel_core::{Fault, Limit, Source};
use semel_testkit::services::{Private, Service};
use semel_testkit::workload::event;

use super::super::check::finding;
use super::super::{Database, Relay, database};
use super::PATIENCE;

/// It polls, and one that must tail is refused with this code.
async fn is_refused(writer: &PostgresStore, store: &PostgresStore, code: &str) {
    let failure = store.tailing_source("orders", Tailing::Required).await.unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, code), "{failure:?}");
    assert!(failure.fix().is_some());
    let source = store.tailing_source("orders", Tailing::WherePossible).await.unwrap();
    let mut relay = Relay { source };
    relay.take(1).await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    for _ in 0..10 {
        relay.take(1).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(!relay.source.is_tailing());
    let mut tx = writer.begin().await.unwrap();
    writer.outbox().append(&mut tx, event("a", 1)).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(relay.deliver_all(10).await.len(), 1);
}

/// What `semel check` says: a problem for those who must tail, and for others no more than advice.
async fn is_told(store: &PostgresStore, code: &str, fix: &str) {
    for log in [Log::Required, Log::WherePossible] {
        let found = finding(store, log, code).await;
        assert_eq!(found.severity, log.lack(), "{found:?}");
        let said = format!("{:?} {:?}", found.fix, found.sql);
        assert!(said.contains(fix), "{found:?}");
    }
}

#[tokio::test]
async fn a_log_that_tells_nothing_of_rows() {
    let Some(server) = Private::start_with(Service::Postgres, &["-c wal_level=replica"]) else {
        return;
    };
    let store = PostgresConfig::new(server.address()).unwrap().connect().await.unwrap();
    store.migrate().await.unwrap();
    is_refused(&store, &store, "E-TAIL-WAL-LEVEL").await;
    let failure = store.tailing_source("orders", Tailing::Required).await.unwrap_err();
    assert!(failure.fix().unwrap().contains("alter system set wal_level = logical"));
    is_told(&store, "wal-level", "alter system set wal_level = logical").await;
}

/// Also run on PostgreSQL 13, which polls, and on 17.
#[tokio::test]
async fn whether_it_tails_depends_on_the_release() {
    let database = database!();
    let version = "select current_setting('server_version_num')::bigint";
    if database.number(version).await >= 140_000 {
        let mut relay = database.tailing().await;
        database.commit(&[event("a", 1)]).await;
        assert_eq!(relay.deliver_all(10).await.len(), 1);
        let found = finding(&database.store, Log::Required, "wal-level").await;
        assert_eq!(found.severity, Severity::Good, "{found:?}");
    } else {
        is_refused(&database.store, &database.store, "E-TAIL-VERSION").await;
        is_told(&database.store, "wal-level", "upgrade the server").await;
    }
}

/// The role of those who tail may ask for what moves slots on, from PostgreSQL 16 on.
#[tokio::test]
async fn what_a_tailer_may_ask_for_depends_on_the_release() {
    let database = database!();
    let prefix = database.pool().connect_options().get_database().unwrap().to_owned();
    database.run(&grants_sql(&prefix).unwrap()).await;
    let may = format!(
        "select coalesce(has_function_privilege('{prefix}_tailer',
            to_regprocedure('pg_log_standby_snapshot()'), 'execute'), false)::int::bigint"
    );
    let version = "select current_setting('server_version_num')::bigint";
    let (may, version) = (database.number(&may).await, database.number(version).await);
    assert_eq!(may == 1, version >= 160_000);
}

/// A user who may do all with the tables, and has not REPLICATION; and what it opens.
async fn user_without_replication(database: &Database) -> (String, PostgresStore) {
    let role = database.pool().connect_options().get_database().unwrap().to_owned();
    database
        .run(&format!(
            "create role {role} login; grant all on schema semel to {role};
            grant all on all tables in schema semel to {role};
            grant all on all sequences in schema semel to {role}"
        ))
        .await;
    let url = database.url().replacen("postgres@", &format!("{role}@"), 1);
    let store = PostgresConfig::new(&url).unwrap().connect().await.unwrap();
    (role, store)
}

#[tokio::test]
async fn a_user_without_replication() {
    let database = database!();
    let (role, store) = user_without_replication(&database).await;
    is_refused(&database.store, &store, "E-TAIL-PRIVILEGE").await;
    store.close().await;
    database.run(&format!("drop owned by {role}; drop role {role}")).await;
}

/// Looks until it has been refused, and says that it polls for that.
async fn polls_because(relay: &mut Relay, store: &PostgresStore, code: &str) {
    const WHY: &str = "select coalesce(min(polling), '') from semel.cursor";
    let began = Instant::now();
    loop {
        relay.take(1).await;
        let why: String = sqlx::query_scalar(WHY).fetch_one(store.pool()).await.unwrap();
        if why.starts_with(code) {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "it never polls for {code}: {why}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(!relay.source.is_tailing());
}

/// The relay goes on, and needs nobody who starts it again.
#[tokio::test]
async fn replication_is_granted_while_it_polls() {
    let database = database!();
    let (role, store) = user_without_replication(&database).await;
    let source = store.tailing_source("orders", Tailing::WherePossible).await.unwrap();
    let mut relay = Relay { source };
    polls_because(&mut relay, &database.store, "E-TAIL-PRIVILEGE").await;
    database.run(&format!("alter role {role} replication")).await;
    relay.until(true).await;
    database.commit(&[event("a", 1)]).await;
    assert_eq!(relay.deliver_all(10).await.len(), 1);
    drop(relay);
    store.close().await;
    database.run(&format!("drop owned by {role}; drop role {role}")).await;
}

/// That takes a restart of the server; the relay is not restarted.
#[tokio::test]
async fn the_log_tells_of_rows_after_a_restart_of_the_server() {
    let Some(server) = Private::start(Service::Postgres) else { return };
    let config = PostgresConfig::new(server.address()).unwrap();
    let before = config.connect().await.unwrap();
    set_wal_level(&before, "replica").await;
    before.close().await;
    server.restart();
    let store = config.connect().await.unwrap();
    store.migrate().await.unwrap();
    let source = store.tailing_source("orders", Tailing::WherePossible).await.unwrap();
    let mut relay = Relay { source };
    polls_because(&mut relay, &store, "E-TAIL-WAL-LEVEL").await;
    set_wal_level(&store, "logical").await;
    server.restart();
    let began = Instant::now();
    // Its connection ended with the server.
    while relay.source.next_batch(Limit::default()).await.is_err() {
        assert!(began.elapsed() < PATIENCE, "it never connects again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    relay.until(true).await;
}

async fn set_wal_level(store: &PostgresStore, level: &str) {
    let sql = format!("alter system set wal_level = {level}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(store.pool()).await.unwrap();
}

#[tokio::test]
async fn a_user_who_may_not_publish() {
    let database = database!();
    let role = database.pool().connect_options().get_database().unwrap().to_owned();
    database
        .run(&format!(
            "drop publication semel_outbox; create role {role} login replication; grant all on schema semel to {role};
            grant all on all tables in schema semel to {role};
            grant all on all sequences in schema semel to {role}"
        ))
        .await;
    let url = database.url().replacen("postgres@", &format!("{role}@"), 1);
    let store = PostgresConfig::new(&url).unwrap().connect().await.unwrap();
    is_refused(&database.store, &store, "E-TAIL-PUBLICATION").await;
    // What the failure says to run helps.
    database.run(publication_sql()).await;
    let source = store.tailing_source("orders", Tailing::Required).await;
    assert!(source.is_ok());
    drop(source);
    store.close().await;
    database.run(&format!("drop owned by {role}; drop role {role}")).await;
}

#[tokio::test]
async fn a_publication_of_something_else() {
    let database = database!();
    database
        .run("create table other (n integer); alter publication semel_outbox set table other")
        .await;
    is_refused(&database.store, &database.store, "E-TAIL-PUBLICATION").await;
}

/// The tables were dropped and made again.
#[tokio::test]
async fn a_publication_of_nothing_is_made_anew() {
    let database = database!();
    database.run("alter publication semel_outbox drop table semel.outbox").await;
    let source = database.store.tailing_source("orders", Tailing::Required).await;
    assert!(source.is_ok());
    assert_eq!(database.number("select count(*) from pg_publication_tables").await, 1);
}

/// It comes with the tables, is made again by another `migrate`, follows the outbox when that is
/// divided, and goes with the tables.
#[tokio::test]
async fn the_publication_comes_and_goes_with_the_tables() {
    const TOLD: &str = "select count(*) from pg_publication p join pg_publication_tables t
        using (pubname) where pubname = 'semel_outbox' and schemaname = 'semel'
        and tablename = 'outbox' and pubinsert and not (pubupdate or pubdelete or pubtruncate)";
    let database = database!();
    assert_eq!(database.number(TOLD).await, 1);
    for lost in
        ["drop publication semel_outbox", "alter publication semel_outbox drop table semel.outbox"]
    {
        database.run(lost).await;
        assert_eq!(database.number(TOLD).await, 0);
        assert!(database.store.migrate().await.unwrap().is_empty());
        assert_eq!(database.number(TOLD).await, 1, "{lost}");
    }
    database.store.partition(Duration::from_secs(3600)).await.unwrap();
    assert_eq!(database.number(TOLD).await, 1, "of the divided outbox");
    let mut relay = database.tailing().await;
    database.commit(&[event("a", 1)]).await;
    tokio::time::timeout(PATIENCE, relay.source.wakeup()).await.unwrap();
    assert_eq!(relay.deliver_all(10).await.len(), 1);
    relay.source.close().await;

    database
        .run("create table other (n integer); alter publication semel_outbox set table other")
        .await;
    database.store.migrate().await.unwrap();
    assert_eq!(database.number(TOLD).await, 0, "what somebody made of it is left alone");
    database.store.drop_tables(None).await.unwrap();
    assert_eq!(database.number("select count(*) from pg_publication").await, 0);
}

/// Who may not make publications can see to it that the tables are up to date, and poll.
#[tokio::test]
async fn tables_without_a_publication() {
    let database = database!();
    let role = database.pool().connect_options().get_database().unwrap().to_owned();
    database
        .run(&format!(
            "drop publication semel_outbox; create role {role} login;
            grant usage on schema semel to {role}; grant select on semel.migrations to {role}"
        ))
        .await;
    let url = database.url().replacen("postgres@", &format!("{role}@"), 1);
    let store = PostgresConfig::new(&url).unwrap().connect().await.unwrap();
    assert!(store.migrate().await.unwrap().is_empty());
    assert_eq!(database.number("select count(*) from pg_publication").await, 0);
    store.close().await;
    database.run(&format!("drop owned by {role}; drop role {role}")).await;
}

/// Not a fault of the set-up: somebody may give one back.
#[tokio::test]
async fn no_slot_is_free() {
    let Some(server) = Private::start(Service::Postgres) else { return };
    let store = PostgresConfig::new(server.address()).unwrap().connect().await.unwrap();
    store.migrate().await.unwrap();
    sqlx::raw_sql(
        "select pg_create_physical_replication_slot('s' || n) from generate_series(1, 50) n",
    )
    .execute(store.pool())
    .await
    .unwrap();
    let source = store.tailing_source("orders", Tailing::Required).await.unwrap();
    let mut relay = Relay { source };
    assert!(!relay.source.is_tailing());
    sqlx::raw_sql("select pg_drop_replication_slot('s1')").execute(store.pool()).await.unwrap();
    relay.until(true).await;
    relay.source.next_batch(Limit::default()).await.unwrap();
}
