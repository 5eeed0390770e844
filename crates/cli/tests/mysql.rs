//! The same commands against a MySQL or MariaDB server.

#![cfg(feature = "mysql")]

use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use semel_testkit::services::{Service, service};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection};

use crate::databases::{self, CONFIG, expect, semel};

async fn execute(url: &str, sql: &str) {
    let mut connection = MySqlConnection::connect(url).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
}

#[tokio::test]
async fn events_are_published_sent_replayed_and_cleaned() {
    let Some(server) = service(Service::Mysql) else { return };
    let name = format!("semel_cli_{}", std::process::id());
    execute(&server, &format!("create database {name}")).await;
    let (base, _) = server.rsplit_once('/').unwrap();
    let url = format!("{base}/{name}");
    let insert = "insert into semel_outbox (aggregate_type, aggregate_id, event_type, payload)
                  values ('order', '42', 'OrderPlaced', '1'), ('order', '42', 'OrderPlaced', '2'),
                         ('order', '42', 'OrderPlaced', '3'), ('order', '42', 'OrderPlaced', '4'),
                         ('order', '42', 'OrderPlaced', '5')";
    let insert_five = async || execute(&url, insert).await;
    databases::events_are_published_sent_replayed_and_cleaned(&url, insert_five).await;
    execute(&server, &format!("drop database {name}")).await;
}

#[test]
fn a_server_that_is_not_there_is_unreachable_and_its_password_stays_secret() {
    databases::a_server_that_is_not_there_is_unreachable_and_its_password_stays_secret("mysql");
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
