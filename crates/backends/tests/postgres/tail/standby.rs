//! A primary dies, and a standby that has none of its slots takes its place.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use semel_backends::postgres::{PgPool, PostgresConfig, Tailing};
use semel_core::diagnosis::{Diagnose, Needs, Severity};
use semel_core::{Delivery, Holding, Limit, Outcome, Settlement, Source};
use semel_testkit::services::{Private, Service};
use semel_testkit::workload::{delivered_numbers, events};

use super::super::Relay;
use super::PATIENCE;

/// A copy of the server that will begin as a standby.
async fn standby_of(primary: &PgPool) -> PathBuf {
    let data: String = sqlx::query_scalar("show data_directory").fetch_one(primary).await.unwrap();
    let copy = Path::new(&data).with_file_name("standby");
    let from =
        format!("host=127.0.0.1 port={} user=postgres", primary.connect_options().get_port());
    run(Command::new("pg_basebackup")
        .args(["--write-recovery-conf", "--checkpoint=fast", "--dbname", &from, "--pgdata"])
        .arg(&copy));
    run(Command::new("chown").args(["--recursive", "--reference", &data]).arg(&copy));
    copy
}

/// Puts it where the primary was, and starts it there.
fn replace(primary: &Private, standby: &Path) {
    primary.kill();
    let data = standby.with_file_name("data");
    fs::rename(&data, standby.with_file_name("dead")).unwrap();
    fs::rename(standby, &data).unwrap();
    primary.restart();
}

fn run(command: &mut Command) {
    let done = command.current_dir("/").output().unwrap();
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
}

#[tokio::test]
async fn a_standby_without_the_slot_takes_over() {
    let Some(server) = Private::start(Service::Postgres) else { return };
    let config = PostgresConfig::new(server.address()).unwrap();
    let store = config.connect().await.unwrap();
    store.migrate().await.unwrap();
    let source = store.tailing_source("orders", Tailing::WherePossible).await.unwrap();
    let mut relay = Relay { source };
    relay.until(true).await;
    write(&config, 0..5).await;
    let flight = relay.take(10).await;
    assert_eq!(delivered_numbers(&flight), [0, 1, 2, 3, 4]);
    relay.settle(&flight[..2], |_| Outcome::Delivered).await;

    let standby = standby_of(store.pool()).await;
    replace(&server, &standby);
    let again = config.connect().await.unwrap();
    let found = again.diagnose(&Needs::default()).await.unwrap();
    assert_eq!((found[0].code, found[0].severity), ("server", Severity::Problem), "{found:?}");
    let opened = again.tailing_source("orders", Tailing::WherePossible).await;
    let failure = opened.err().unwrap();
    assert_eq!(failure.code(), "E-POSTGRES-READONLY", "{failure:?}");

    sqlx::query("select pg_promote()").execute(again.pool()).await.unwrap();
    write(&config, 5..8).await;
    let began = Instant::now();
    relay.source = loop {
        assert!(began.elapsed() < PATIENCE, "nobody reads from the new primary");
        if let Ok(source) = again.tailing_source("orders", Tailing::WherePossible).await {
            break source;
        }
    };
    assert_eq!(delivered_numbers(&relay.deliver_all(10).await), [2, 3, 4, 5, 6, 7]);
    relay.until(true).await;
    write(&config, 8..9).await;
    tokio::time::timeout(PATIENCE, relay.source.wakeup()).await.unwrap();
    assert_eq!(delivered_numbers(&relay.deliver_all(10).await), [8]);
}

/// It is never opened anew: what it has in flight stays its own, and nothing comes twice.
#[tokio::test]
async fn a_source_lives_through_the_promotion() {
    let Some(server) = Private::start(Service::Postgres) else { return };
    let config = PostgresConfig::new(server.address()).unwrap();
    let store = config.connect().await.unwrap();
    store.migrate().await.unwrap();
    let source = store.tailing_source("orders", Tailing::WherePossible).await.unwrap();
    let mut relay = Relay { source };
    relay.until(true).await;
    write(&config, 0..5).await;
    let flight = relay.take(10).await;
    assert_eq!(delivered_numbers(&flight), [0, 1, 2, 3, 4]);
    relay.settle(&flight[..2], |_| Outcome::Delivered).await;

    let standby = standby_of(store.pool()).await;
    replace(&server, &standby);
    let began = Instant::now();
    // First the connection is gone, then there is a server that takes no writes.
    while relay.source.is_tailing() {
        assert!(began.elapsed() < PATIENCE, "it never noticed");
        relay.source.next_batch(Limit::default()).await.ok();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let again = config.connect().await.unwrap();
    sqlx::query("select pg_promote()").execute(again.pool()).await.unwrap();
    write(&config, 5..8).await;
    let settled = Settlement { receipt: flight[2].receipt, outcome: Outcome::Delivered };
    while !relay.source.settle(std::slice::from_ref(&settled)).await.is_ok_and(Holding::is_held) {
        assert!(began.elapsed() < PATIENCE, "it may not settle what it has");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    relay.settle(&flight[3..], |_| Outcome::Delivered).await;
    assert_eq!(delivered_numbers(&relay.deliver_all(10).await), [5, 6, 7]);
    relay.until(true).await;
    write(&config, 8..9).await;
    tokio::time::timeout(PATIENCE, relay.source.wakeup()).await.unwrap();
    assert_eq!(delivered_numbers(&relay.deliver_all(10).await), [8]);
}

/// Transactions of the dead primary never reached it: it gives their ids and the numbers of their
/// events to others. These must not be taken for what was read before.
#[tokio::test]
async fn a_standby_that_lagged_behind_takes_over() {
    let Some(server) = Private::start(Service::Postgres) else { return };
    let config = PostgresConfig::new(server.address()).unwrap();
    let store = config.connect().await.unwrap();
    store.migrate().await.unwrap();
    let source = store.tailing_source("orders", Tailing::WherePossible).await.unwrap();
    let mut relay = Relay { source };
    write(&config, 0..5).await;
    assert_eq!(relay.deliver_all(10).await.len(), 5);
    let standby = standby_of(store.pool()).await;
    for number in 5..25 {
        write(&config, number..number + 1).await;
    }
    assert_eq!(relay.deliver_all(10).await.len(), 20);
    write(&config, 25..28).await;
    let flight = relay.take(10).await;
    assert_eq!(delivered_numbers(&flight), [25, 26, 27]);

    replace(&server, &standby);
    let again = config.connect().await.unwrap();
    sqlx::query("select pg_promote()").execute(again.pool()).await.unwrap();
    for number in 100..110 {
        write(&config, number..number + 1).await;
    }
    let began = Instant::now();
    let (mut found, mut landed) = (Vec::new(), false);
    while found.len() < 10 {
        assert!(began.elapsed() < PATIENCE, "only {found:?}");
        if let Ok(batch) = relay.source.next_batch(Limit::default()).await {
            found.extend(delivered_numbers(&batch.deliveries));
            relay.settle(&batch.deliveries, |_| Outcome::Delivered).await;
        }
        if !landed {
            let settle =
                |got: &Delivery| Settlement { receipt: got.receipt, outcome: Outcome::Delivered };
            let settlements: Vec<_> = flight.iter().map(settle).collect();
            landed = relay.source.settle(&settlements).await.is_ok();
        }
    }
    assert_eq!(found, (100..110).collect::<Vec<_>>());
}

/// Writes on a connection of its own, whoever is the primary now.
async fn write(config: &PostgresConfig, numbers: Range<u64>) {
    let writer = config.connect().await.unwrap();
    let mut tx = writer.begin().await.unwrap();
    writer.outbox().append_all(&mut tx, &events("a", numbers)).await.unwrap();
    tx.commit().await.unwrap();
    writer.close().await;
}
