//! A server that has recovered from a crash gives transaction ids once more whose end never reached
//! the disk. A source that has seen them used must not take the new ones for what it has read.

use std::process::Command;
use std::time::Instant;

use semel_backends::postgres::{PgPool, PostgresConfig, PostgresStore};
use semel_core::{Limit, Outcome, Settlement, Source, Timestamp};
use semel_testkit::services::{Private, Service};
use semel_testkit::workload::{delivered_numbers, events, retry};

use super::Relay;
use super::tail::PATIENCE;

#[tokio::test]
async fn a_server_that_crashed_may_use_transaction_ids_again() {
    let Some(server) = Private::start(Service::Postgres) else { return };
    ids_are_used_again(&server, |writer_of_the_log| {
        server.kill();
        signal("KILL", writer_of_the_log); // Stopped, it does not notice that it is alone.
        server.restart();
    })
    .await;
}

/// The postmaster survives it, and with it the time of its start.
#[tokio::test]
async fn so_may_one_of_which_a_single_process_crashed() {
    let Some(server) = Private::start(Service::Postgres) else { return };
    ids_are_used_again(&server, |writer_of_the_log| signal("KILL", writer_of_the_log)).await;
}

async fn ids_are_used_again(server: &Private, crash: impl FnOnce(i32)) {
    let config = PostgresConfig::new(server.address()).unwrap();
    let store = config.connect().await.unwrap();
    store.migrate().await.unwrap();
    let mut relay = Relay { source: store.source("orders").await.unwrap() };
    write(&config, 0..4).await;
    let flight = relay.take(10).await;
    relay.settle(&flight[..2], |_| Outcome::Delivered).await;

    let pool = store.pool();
    let writer_of_the_log: i32 =
        sqlx::query_scalar("select pid from pg_stat_activity where backend_type = 'walwriter'")
            .fetch_one(pool)
            .await
            .unwrap();
    signal("STOP", writer_of_the_log);
    for _ in 0..50 {
        let undone = "begin; select pg_current_xact_id(); rollback";
        sqlx::raw_sql(undone).execute(pool).await.unwrap();
    }
    assert!(relay.take(10).await.is_empty(), "it has seen them come and go");
    let before = next_transaction(pool).await;
    crash(writer_of_the_log);
    let again = come_back(&config).await;
    let after = next_transaction(again.pool()).await;
    assert!(after < before, "nothing was lost: {before} before, {after} now");

    write(&config, 4..8).await;
    let began = Instant::now();
    let mut found = Vec::new();
    while found.len() < 4 {
        assert!(began.elapsed() < PATIENCE, "only {found:?}");
        // First its connection is gone.
        if let Ok(batch) = relay.source.next_batch(Limit::default()).await {
            found.extend(delivered_numbers(&batch.deliveries));
            relay.settle(&batch.deliveries, |_| Outcome::Delivered).await;
        }
    }
    assert_eq!(found, [4, 5, 6, 7]);
    relay.settle(&flight[2..], |_| Outcome::Delivered).await;
    let successor = again.source("orders").await.unwrap();
    assert!(Relay { source: successor }.deliver_all(10).await.is_empty(), "all is settled");
}

/// What failed, and what was released behind it, is settled before anything was read again.
#[tokio::test]
async fn what_is_given_back_right_after_a_crash_is_handed_out_again() {
    let Some(server) = Private::start(Service::Postgres) else { return };
    let config = PostgresConfig::new(server.address()).unwrap();
    let store = config.connect().await.unwrap();
    store.migrate().await.unwrap();
    let mut relay = Relay { source: store.source("orders").await.unwrap() };
    write(&config, 0..5).await;
    let flight = relay.take(10).await;
    server.kill();
    server.restart();
    come_back(&config).await.close().await;

    let settlements: Vec<Settlement> =
        [Outcome::Delivered, retry(Timestamp::UNIX_EPOCH, 1), Outcome::Released, Outcome::Released]
            .into_iter()
            .zip(&flight)
            .map(|(outcome, got)| Settlement { receipt: got.receipt, outcome })
            .collect();
    let began = Instant::now();
    loop {
        // First its connection is gone, and the engine repeats what it has to say.
        match relay.source.settle(&settlements).await {
            Ok(held) => break assert!(held.is_held()),
            Err(failure) => assert!(began.elapsed() < PATIENCE, "{failure}"),
        }
    }
    let again = relay.take(10).await;
    assert_eq!(delivered_numbers(&again), [1, 2, 3], "the engine still has the last one");
    relay.settle(&again, |_| Outcome::Delivered).await;
    relay.settle(&flight[4..], |_| Outcome::Delivered).await;
    let successor = store.source("orders").await.unwrap();
    assert!(Relay { source: successor }.deliver_all(10).await.is_empty(), "all is settled");
}

async fn next_transaction(pool: &PgPool) -> i64 {
    let sql = "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint";
    sqlx::query_scalar(sql).fetch_one(pool).await.unwrap()
}

async fn come_back(config: &PostgresConfig) -> PostgresStore {
    let began = Instant::now();
    loop {
        match config.connect().await {
            Ok(store) => return store,
            Err(failure) => assert!(began.elapsed() < PATIENCE, "{failure}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

async fn write(config: &PostgresConfig, numbers: std::ops::Range<u64>) {
    let writer = come_back(config).await;
    let mut tx = writer.begin().await.unwrap();
    writer.outbox().append_all(&mut tx, &events("a", numbers)).await.unwrap();
    tx.commit().await.unwrap();
    writer.close().await;
}

fn signal(name: &str, process: i32) {
    let sent = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status();
    assert!(sent.unwrap().success());
}
