//! The same commands against a MySQL or MariaDB server.

#![cfg(feature = "mysql")]

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use semel_testkit::services::{Service, service};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection};

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
    let mut connection = MySqlConnection::connect(url).await.unwrap();
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
    let Some(server) = service(Service::Mysql) else { return };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let name = format!("semel_cli_{}", std::process::id());
    execute(&server, &format!("create database {name}")).await;
    let (base, _) = server.rsplit_once('/').unwrap();
    let url = format!("{base}/{name}");
    fs::write(folder.join("semel.toml"), CONFIG).unwrap();

    let message = expect(78, &semel(folder, &url, &["relay", "--drain"]));
    assert!(message.contains("semel migrate up"), "{message}");
    expect(0, &semel(folder, &url, &["migrate", "up", "--database", &url]));
    let insert = "insert into semel_outbox (aggregate_type, aggregate_id, event_type, payload)
                  values ('order', '42', 'OrderPlaced', '1'), ('order', '42', 'OrderPlaced', '2'),
                         ('order', '42', 'OrderPlaced', '3'), ('order', '42', 'OrderPlaced', '4'),
                         ('order', '42', 'OrderPlaced', '5')";
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
    execute(&server, &format!("drop database {name}")).await;
}

#[test]
fn a_server_that_is_not_there_is_unreachable_and_its_password_stays_secret() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("semel.toml"), CONFIG).unwrap();
    let url = "mysql://me:hunter2@127.0.0.1:1/shop";
    let message = expect(69, &semel(folder.path(), url, &["status"]));
    assert!(message.contains("mysql://127.0.0.1:1/shop"), "{message}");
    assert!(message.contains("no event is lost"), "{message}");
    assert!(!message.contains("hunter2"), "{message}");
}

/// Ends with the test.
struct Relay(Child);

impl Relay {
    fn start(folder: &Path, url: &str) -> Self {
        let log = fs::File::create(folder.join("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        command.arg("relay").current_dir(folder).env("DATABASE_URL", url).stderr(log);
        Self(command.spawn().unwrap())
    }

    /// The memory that it has, in bytes.
    fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        // Without the pages of the program itself, which is large when built for tests.
        let own = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        own.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn wait_for_status(folder: &Path, url: &str, part: &str, mut meanwhile: impl FnMut()) {
    let began = Instant::now();
    loop {
        let status = expect(0, &semel(folder, url, &["status", "--output", "json"]));
        if status.contains(part) {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(600), "{part} never: {status}");
        meanwhile();
        thread::sleep(Duration::from_millis(250));
    }
}

/// The log is read as it comes, and dropped: one transaction may be larger than all memory.
#[tokio::test]
async fn a_relay_that_tails_is_told_of_a_large_transaction_and_stays_small() {
    const ROWS: usize = 20_000;
    let Some(server) = service(Service::Mysql) else { return };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let name = format!("semel_cli_tail_{}", std::process::id());
    execute(&server, &format!("create database {name}")).await;
    let (base, _) = server.rsplit_once('/').unwrap();
    let url = format!("{base}/{name}");
    let config = CONFIG.replace("[sink", "mode = \"tail\"\n[sink");
    fs::write(folder.join("semel.toml"), config).unwrap();
    expect(0, &semel(folder, &url, &["migrate", "up", "--database", &url]));
    let relay = Relay::start(folder, &url);
    wait_for_status(folder, &url, "\"tailing\": true", || ());
    let before = relay.memory();
    execute(
        &url,
        &format!(
            "insert into semel_outbox (aggregate_type, aggregate_id, event_type, payload)
            select 'order', seq % 1000, 'OrderPlaced', repeat('x', 12000) from seq_1_to_{ROWS}"
        ),
    )
    .await;
    let mut most = before;
    let published = format!("\"published\": {ROWS}");
    wait_for_status(folder, &url, &published, || most = most.max(relay.memory()));
    let grown = most - before;
    assert!(grown < 64 * 1024 * 1024, "{grown} bytes more for a transaction of 240 million");
    drop(relay);
    wait_for_status(folder, &url, "\"tailing\": false", || ());
    execute(&server, &format!("drop database {name}")).await;
}
