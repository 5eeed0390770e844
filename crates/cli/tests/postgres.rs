//! The same commands against a PostgreSQL server.

#![cfg(feature = "postgres")]

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use semel_testkit::services::{Service, service};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::time::sleep;

use crate::databases::{self, CONFIG, expect, semel};

async fn execute(url: &str, sql: &str) {
    let mut connection = PgConnection::connect(url).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
}

#[tokio::test]
async fn events_are_published_sent_replayed_and_cleaned() {
    let Some(server) = service(Service::Postgres) else { return };
    let name = format!("semel_cli_{}", std::process::id());
    execute(&server, &format!("create database {name}")).await;
    let (base, _) = server.rsplit_once('/').unwrap();
    let url = format!("{base}/{name}");
    let insert = "insert into semel.outbox (aggregate_type, aggregate_id, event_type, payload)
                  select 'order', '42', 'OrderPlaced', n::text from generate_series(1, 5) n";
    let insert_five = async || execute(&url, insert).await;
    databases::events_are_published_sent_replayed_and_cleaned(&url, insert_five).await;
    execute(&server, &format!("drop database {name} with (force)")).await;
}

#[test]
fn a_server_that_is_not_there_is_unreachable_and_its_password_stays_secret() {
    databases::a_server_that_is_not_there_is_unreachable_and_its_password_stays_secret("postgres");
}

/// A database of its own, and its address on another server, such as a pooler in front.
async fn database(server: &str, name: &str) -> impl Fn(&str) -> String {
    let name = format!("semel_cli_{name}_{}", std::process::id());
    execute(server, &format!("drop database if exists {name} with (force)")).await;
    execute(server, &format!("create database {name}")).await;
    move |server| format!("{}/{name}", server.rsplit_once('/').unwrap().0)
}

#[tokio::test]
async fn everything_goes_through_a_pooler_but_listening() {
    let Some(server) = service(Service::Postgres) else { return };
    let Some(pooler) = service(Service::Pgbouncer) else { return };
    let database = database(&server, "pooled").await;
    let url = database(&pooler);
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("semel.toml"), CONFIG).unwrap();
    expect(0, &semel(folder, &url, &["migrate", "up", "--database", &url]));
    let send = ["send", "--database", &url, "--aggregate-type", "order", "--aggregate-id", "42"];
    expect(0, &semel(folder, &url, &[&send[..], &["--type", "T", "--payload", "1"]].concat()));
    let said = expect(0, &semel(folder, &url, &["relay", "--drain"]));
    assert!(said.contains("there is a pooler between here and PostgreSQL"), "{said}");
    assert_eq!(fs::read_to_string(folder.join("events.ndjson")).unwrap().lines().count(), 1);
    let status = expect(0, &semel(folder, &url, &["status", "--output", "json"]));
    assert!(status.contains("\"published\": 1"), "{status}");
    assert_eq!(
        expect(0, &semel(folder, &url, &["clean", "--older-than", "0s"])),
        "1 events deleted\n"
    );

    let config = CONFIG.replace("[sink.out]", "notify = true\n[sink.out]");
    fs::write(folder.join("semel.toml"), config).unwrap();
    let said = expect(78, &semel(folder, &url, &["relay", "--drain"]));
    assert!(said.contains("E-POSTGRES-POOLER"), "{said}");
    expect(0, &semel(folder, &database(&server), &["relay", "--drain"]));
    let name = url.rsplit_once('/').unwrap().1;
    execute(&server, &format!("drop database {name} with (force)")).await;
}

#[tokio::test]
async fn a_relay_that_looks_seldom_is_woken_by_a_notification() {
    let Some(server) = service(Service::Postgres) else { return };
    let url = database(&server, "notified").await(&server);
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let seldom = "mode = \"poll\"\npoll_interval = \"60s\"\nnotify = true\n[sink.out]";
    fs::write(folder.join("semel.toml"), CONFIG.replace("[sink.out]", seldom)).unwrap();
    expect(0, &semel(folder, &url, &["migrate", "up", "--database", &url]));
    let mut relay = Command::new(env!("CARGO_BIN_EXE_semel"));
    let relay = relay.arg("relay").current_dir(folder).env("DATABASE_URL", &url);
    let log = fs::File::create(folder.join("log")).unwrap();
    let mut relay = relay.stderr(log).spawn().unwrap();
    let began = Instant::now();
    while !fs::read_to_string(folder.join("log")).unwrap().contains("relay started") {
        assert!(began.elapsed() < Duration::from_secs(60), "it never starts");
        sleep(Duration::from_millis(20)).await;
    }
    let arrives = async |limit: Duration| {
        let began = Instant::now();
        let lines = || fs::read_to_string(folder.join("events.ndjson")).unwrap_or_default();
        while lines().is_empty() && began.elapsed() < limit {
            sleep(Duration::from_millis(20)).await;
        }
        !lines().is_empty()
    };
    // After a few empty looks the next one is far away.
    sleep(Duration::from_secs(6)).await;
    let insert = "insert into semel.outbox (aggregate_type, aggregate_id, event_type, payload)
                  values ('order', '42', 'OrderPlaced', '1')";
    execute(&url, insert).await;
    let unnoticed = !arrives(Duration::from_secs(1)).await;
    execute(&url, "notify semel_outbox").await;
    let woken = arrives(Duration::from_secs(2)).await;
    relay.kill().unwrap();
    relay.wait().unwrap();
    let name = url.rsplit_once('/').unwrap().1;
    execute(&server, &format!("drop database {name} with (force)")).await;
    assert!(unnoticed && woken, "unnoticed before: {unnoticed}, woken: {woken}");
}

#[tokio::test]
async fn messages_are_carried_and_published() {
    let Some(server) = service(Service::Postgres) else { return };
    let url = database(&server, "messages").await(&server);
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let config = CONFIG.replace("[sink.out]", "outbox = \"messages\"\n[sink.out]");
    fs::write(folder.join("semel.toml"), config).unwrap();
    expect(0, &semel(folder, &url, &["migrate", "up", "--database", &url]));
    let said = expect(78, &semel(folder, &url, &["relay", "--drain"]));
    assert!(said.contains("E-MESSAGES-SLOT") && said.contains("migrate up --messages"), "{said}");
    let said = expect(1, &semel(folder, &url, &["check"]));
    assert!(said.contains("1 problem, "), "{said}");
    let up = ["migrate", "up", "--messages", "--database", &url];
    expect(0, &semel(folder, &url, &up));
    expect(0, &semel(folder, &url, &up));
    let emit = "select pg_logical_emit_message(true, 'semel', json_build_object('id',
        semel.uuid_v7(), 'aggregate_type', 'order', 'aggregate_id', '42', 'event_type',
        'OrderPlaced', 'payload', n::text)::text) from generate_series(1, 5) n";
    execute(&url, emit).await;
    for _ in 0..2 {
        expect(0, &semel(folder, &url, &["relay", "--drain"]));
    }
    let lines = fs::read_to_string(folder.join("events.ndjson")).unwrap();
    assert_eq!(lines.lines().count(), 5, "{lines}");
    let status = expect(0, &semel(folder, &url, &["status", "--output", "json"]));
    assert!(status.contains("no relay reads the slot semel_messages_"), "{status}");
    let said = expect(
        64,
        &semel(folder, &url, &["migrate", "sql", "--messages", "--database", "sqlite://x.db"]),
    );
    assert!(said.contains("E-NO-MESSAGES"), "{said}");
    expect(0, &semel(folder, &url, &["migrate", "down", "--yes", "--database", &url]));
    let name = url.rsplit_once('/').unwrap().1;
    execute(&server, &format!("drop database {name} with (force)")).await;
}
