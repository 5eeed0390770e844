//! The slot: nothing is written that nobody keeps, and no log is held back without need.

use std::time::{Duration, Instant};

use semel_backends::postgres::{PostgresConfig, PostgresStore};
use semel_core::Fault;
use semel_core::outbox::AppendError;
use semel_testkit::services::{Private, Service};
use semel_testkit::workload::{delivered_numbers, event, events};

use super::super::database;
use super::super::tail::PATIENCE;
use super::messages;

fn code(refused: Result<(), AppendError>) -> &'static str {
    let failure = match refused {
        Err(AppendError::Store(failure)) => Some(failure),
        _ => None,
    };
    let failure = failure.unwrap();
    assert_eq!(failure.fault(), Fault::Misconfigured);
    failure.code()
}

#[tokio::test]
async fn nothing_is_written_that_nobody_keeps() {
    let database = database!();
    let refused = database.store.carry_messages("orders").await.unwrap_err();
    assert_eq!(refused.code(), "E-MESSAGES-SLOT");
    let mut tx = database.begin().await;
    let refused = database.messages().append(&mut tx, event("a", 0)).await;
    assert_eq!(code(refused), "E-MESSAGES-SLOT");
    // The transaction can go on.
    database.append(&mut tx, &[event("a", 1)]).await;
    tx.commit().await.unwrap();

    // A slot that is still being made does not keep what is written meanwhile.
    let mut long = database.begin().await;
    sqlx::query("select pg_current_xact_id()").execute(&mut *long).await.unwrap();
    let store = database.store.clone();
    let preparing = tokio::spawn(async move { store.prepare_messages().await });
    let begun =
        "select exists (select from pg_replication_slots where database = current_database())";
    database.wait_for("the slot is begun", begun).await;
    let refused = database.messages().append(&mut long, event("a", 2)).await;
    assert_eq!(code(refused), "E-MESSAGES-SLOT");
    long.rollback().await.unwrap();
    preparing.await.unwrap().unwrap();
    database.store.prepare_messages().await.unwrap();
    database.emit(&[event("a", 3)]).await;
    database.carry_all().await;
    assert_eq!(delivered_numbers(&database.relay().await.deliver_all(10).await), [1, 3]);
}

/// Also not by whoever looked before they were written.
#[tokio::test]
async fn messages_that_were_not_carried_keep_the_tables() {
    let database = messages!();
    let (store, count) = (&database.store, async || database.store.count_messages().await.unwrap());
    assert_eq!(count().await, 0);
    let mut undecided = database.begin().await;
    database.emit_in(&mut undecided, &[event("a", 0)]).await;
    database.emit(&events("a", 1..4)).await;
    assert_eq!((count().await, count().await), (3, 3), "they stay there");
    assert_eq!(store.drop_tables(Some(0)).await.unwrap_err().code(), "E-EVENTS-LEFT");
    undecided.rollback().await.unwrap();
    database.carry_all().await;
    let is_read = "select not exists (select from pg_replication_slots
        where active and database = current_database())";
    database.wait_for("nobody carries", is_read).await;
    assert_eq!(count().await, 0);
    store.drop_tables(Some(3)).await.unwrap();
}

/// A standby that is told to has the slot as well, from PostgreSQL 17 on.
#[tokio::test]
async fn the_slot_follows_to_standbys_where_slots_can() {
    let database = messages!();
    let version = "select current_setting('server_version_num')::bigint";
    let follows = "select count(*) from pg_replication_slots s
        where database = current_database() and to_jsonb(s) ->> 'failover' = 'true'";
    let can = database.number(version).await >= 170_000;
    assert_eq!(database.number(follows).await, i64::from(can));
}

/// Neither a broker that is down nor a busy neighbour keeps the server from removing its log.
#[tokio::test]
async fn a_carried_slot_holds_back_no_log() {
    let database = messages!();
    database.run("create table other (content text)").await;
    let carrying = database.carrying().await;
    database.emit(&events("a", 0..5)).await;
    carrying.caught_up().await.unwrap();
    let mut relay = database.relay().await;
    assert_eq!(relay.take(10).await.len(), 5, "nobody settles them");
    for _ in 0..8 {
        database
            .run("insert into other select repeat(md5(n::text), 100) from generate_series(1, 3000) n")
            .await;
    }
    let held = "select pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint from \
        pg_replication_slots where database = current_database()";
    let mut retained = i64::MAX;
    for _ in 0..300 {
        database.run("checkpoint").await;
        retained = database.number(held).await;
        if retained < 16 * 1024 * 1024 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(retained < 16 * 1024 * 1024, "{retained} bytes of log are held back");
}

/// The server may be told to let a slot go when it holds back too much: then messages are lost, and
/// no more are written.
#[tokio::test]
async fn a_slot_that_is_lost_is_told_and_refuses_more() {
    let Some(server) = Private::start(Service::Postgres) else { return };
    let store = PostgresConfig::new(server.address()).unwrap().connect().await.unwrap();
    store.migrate().await.unwrap();
    store.prepare_messages().await.unwrap();
    let outbox = store.outbox().as_messages();
    let mut tx = store.begin().await.unwrap();
    outbox.append(&mut tx, event("a", 0)).await.unwrap();
    tx.commit().await.unwrap();
    for sql in [
        "alter system set max_slot_wal_keep_size = '1MB'",
        "alter system set max_wal_size = '32MB'",
        "select pg_reload_conf()",
        "create table other (content text)",
        "insert into other select repeat(md5(n::text), 100) from generate_series(1, 30000) n",
        "select pg_switch_wal()",
        "checkpoint",
        "insert into other values ('more')",
        "select pg_switch_wal()",
        "checkpoint",
    ] {
        sqlx::raw_sql(sql).execute(store.pool()).await.unwrap();
    }
    let refused = store.carry_messages("orders").await.unwrap_err();
    assert_eq!(refused.code(), "E-MESSAGES-LOST");
    let mut tx = store.begin().await.unwrap();
    assert_eq!(code(outbox.append(&mut tx, event("a", 1)).await), "E-MESSAGES-SLOT");
    tx.rollback().await.unwrap();
}

/// Where commits are not waited for, a crash of the server would undo what the carrier added.
#[tokio::test]
async fn the_log_is_let_go_when_what_was_carried_is_on_the_disk() {
    const INSERTED: &str = "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint";
    const FLUSHED: &str = "select pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0')::bigint";
    const CONFIRMED: &str = "select pg_wal_lsn_diff(confirmed_flush_lsn, '0/0')::bigint
        from pg_replication_slots";
    let Some((_server, store)) = server_that_flushes_late().await else { return };
    let place =
        async |sql| -> i64 { sqlx::query_scalar(sql).fetch_one(store.pool()).await.unwrap() };
    for was_there in [false, true] {
        let event = event("a", u64::from(was_there));
        let mut tx = store.begin().await.unwrap();
        sqlx::raw_sql("set local synchronous_commit = on").execute(&mut *tx).await.unwrap();
        store.outbox().as_messages().append(&mut tx, event.clone()).await.unwrap();
        let message: i64 = sqlx::query_scalar(INSERTED).fetch_one(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
        if was_there {
            let mut tx = store.begin().await.unwrap();
            store.outbox().append(&mut tx, event).await.unwrap();
            tx.commit().await.unwrap();
        }
        let written = place(INSERTED).await;
        let _carrying = store.carry_messages("orders").await.unwrap();
        let began = Instant::now();
        while place(CONFIRMED).await <= message {
            assert!(began.elapsed() < PATIENCE, "it is never carried");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let flushed = place(FLUSHED).await;
        assert!(flushed > written, "{flushed} of {written}, it was there before: {was_there}");
        let carried = place("select count(*) from semel.outbox").await;
        assert_eq!(carried, 1 + i64::from(was_there));
    }
}

/// One that leaves commits to a process which looks every ten seconds.
async fn server_that_flushes_late() -> Option<(Private, PostgresStore)> {
    let server = Private::start(Service::Postgres)?;
    let config = PostgresConfig::new(server.address()).unwrap();
    let store = config.connect().await.unwrap();
    store.migrate().await.unwrap();
    store.prepare_messages().await.unwrap();
    for sql in
        ["alter system set synchronous_commit = off", "alter system set wal_writer_delay = '10s'"]
    {
        sqlx::raw_sql(sql).execute(store.pool()).await.unwrap();
    }
    store.close().await;
    server.restart();
    Some((server, config.connect().await.unwrap()))
}
