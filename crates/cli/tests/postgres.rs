//! The same commands against a PostgreSQL server.

#![cfg(feature = "postgres")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use semel_testkit::services::{Service, service};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::time::sleep;

fn semel(folder: &Path, url: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(arguments).current_dir(folder).env("DATABASE_URL", url).output().unwrap()
}

fn expect(code: i32, output: &Output) -> String {
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{out}{err}");
    format!("{out}{err}")
}

async fn execute(url: &str, sql: &str) {
    let mut connection = PgConnection::connect(url).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
}

const CONFIG: &str = "[source.orders]
url = \"${DATABASE_URL}\"
[sink.out]
type = \"file\"
path = \"events.ndjson\"
[pipeline.orders]
from = \"orders\"
to = \"out\"
";

#[tokio::test]
async fn events_are_published_sent_replayed_and_cleaned() {
    let Some(server) = service(Service::Postgres) else { return };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let name = format!("semel_cli_{}", std::process::id());
    execute(&server, &format!("create database {name}")).await;
    let (base, _) = server.rsplit_once('/').unwrap();
    let url = format!("{base}/{name}");
    fs::write(folder.join("semel.toml"), CONFIG).unwrap();

    let message = expect(78, &semel(folder, &url, &["relay", "--drain"]));
    assert!(message.contains("semel migrate up"), "{message}");
    expect(1, &semel(folder, &url, &["migrate", "status", "--database", &url]));
    expect(0, &semel(folder, &url, &["migrate", "up", "--database", &url]));
    expect(0, &semel(folder, &url, &["migrate", "status", "--database", &url]));
    let insert = "insert into semel.outbox (aggregate_type, aggregate_id, event_type, payload)
                  select 'order', '42', 'OrderPlaced', n::text from generate_series(1, 5) n";
    execute(&url, insert).await;
    for _ in 0..2 {
        expect(0, &semel(folder, &url, &["relay", "--drain"]));
    }
    let lines = fs::read_to_string(folder.join("events.ndjson")).unwrap();
    let payloads: Vec<i64> = lines
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|event| event["payload"].as_i64().unwrap())
        .collect();
    assert_eq!(payloads, [1, 2, 3, 4, 5]);
    let status = expect(0, &semel(folder, &url, &["status", "--output", "json"]));
    assert!(status.contains("\"published\": 5"), "{status}");

    let send = ["send", "--database", &url, "--aggregate-type", "order", "--aggregate-id", "42"];
    let send = [&send[..], &["--type", "OrderPlaced", "--payload", "6", "--key", "k"]].concat();
    expect(0, &semel(folder, &url, &send));
    assert!(expect(1, &semel(folder, &url, &send)).contains("idempotency key k exists already"));
    expect(0, &semel(folder, &url, &["relay", "--drain"]));
    let replay = ["replay", "--all", "--yes", "--until", "2999-01-01T00:00:00Z"];
    let dry = semel(folder, &url, &[&replay[..], &["--dry-run"]].concat());
    assert_eq!(expect(0, &dry), "6 events would be replayed\n");
    assert_eq!(expect(0, &semel(folder, &url, &replay)), "6 events replayed\n");
    expect(0, &semel(folder, &url, &["relay", "--drain"]));
    let lines = fs::read_to_string(folder.join("events.ndjson")).unwrap();
    assert_eq!(lines.lines().count(), 12);
    let clean = ["clean", "--older-than", "0s"];
    let dry = semel(folder, &url, &[&clean[..], &["--dry-run"]].concat());
    assert_eq!(expect(0, &dry), "at most 6 events would be deleted\n");
    assert_eq!(expect(0, &semel(folder, &url, &clean)), "6 events deleted\n");
    execute(&server, &format!("drop database {name} with (force)")).await;
}

#[test]
fn a_server_that_is_not_there_is_unreachable_and_its_password_stays_secret() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("semel.toml"), CONFIG).unwrap();
    let url = "postgres://me:hunter2@127.0.0.1:1/shop";
    let message = expect(69, &semel(folder.path(), url, &["status"]));
    assert!(message.contains("postgres://127.0.0.1:1/shop"), "{message}");
    assert!(message.contains("no event is lost"), "{message}");
    assert!(!message.contains("hunter2"), "{message}");
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
