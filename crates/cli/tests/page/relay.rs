//! A relay with its page, over an outbox in a file.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use sqlx::{Connection, SqliteConnection};

use crate::shop::Shop;

const PATIENCE: Duration = Duration::from_secs(60);

/// A relay; gone with this value.
pub(crate) struct Relay {
    process: Child,
    /// Where its page is.
    pub(crate) url: String,
}

impl Relay {
    /// Starts one over the file; `more` is added to the configuration.
    pub(crate) fn start(shop: &Shop, payload: &str, more: &str) -> Self {
        Self::over(shop, "sqlite://shop.db", payload, more)
    }

    pub(crate) fn over(shop: &Shop, url: &str, payload: &str, more: &str) -> Self {
        shop.write_config(&format!(
            "[source.orders]\nurl = \"{url}\"\nbatch = 1000\n[sink.out]\ntype = \"file\"\n\
             path = \"events.ndjson\"\n[pipeline.orders]\nfrom = \"orders\"\nto = \"out\"\n\
             [limits]\npayload = \"{payload}\"\n[http]\nlisten = \"127.0.0.1:0\"\n{more}"
        ));
        let log = File::create(shop.file("log")).unwrap();
        let process = shop
            .command(&["relay", "--config", "semel.toml"])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut relay = Self { process, url: String::new() };
        let deadline = Instant::now() + PATIENCE;
        while relay.url.is_empty() {
            let log = std::fs::read_to_string(shop.file("log")).unwrap();
            if let Some((_, rest)) = log.split_once("metrics on ") {
                relay.url = rest.lines().next().unwrap().trim().to_owned();
            }
            let ended = relay.process.try_wait().unwrap();
            assert!(ended.is_none() && Instant::now() < deadline, "it did not start: {log}");
            sleep(Duration::from_millis(20));
        }
        relay
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.process.id().to_string();
        let sent = std::process::Command::new("kill").args(["-s", name, &id]).status().unwrap();
        assert!(sent.success());
    }

    /// Asks for a path; gives status and answer.
    pub(crate) fn get(&self, path: &str, headers: &str) -> (u16, String) {
        self.ask("GET", path, headers, "")
    }

    pub(crate) fn post(&self, path: &str, headers: &str, body: &str) -> (u16, String) {
        self.ask("POST", path, headers, body)
    }

    /// Asks for a path, and gives what follows for as long as something does.
    pub(crate) fn listen(&self, path: &str) -> BufReader<TcpStream> {
        BufReader::new(self.open("GET", path, "", ""))
    }

    fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
        let mut answer = String::new();
        self.open(method, path, headers, body).read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    fn open(&self, method: &str, path: &str, headers: &str, body: &str) -> TcpStream {
        let address = self.url.trim_start_matches("http://").trim_end_matches('/');
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let length = body.len();
        let host =
            if headers.contains("host:") { String::new() } else { format!("host: {address}\r\n") };
        let request = format!(
            "{method} {path} HTTP/1.1\r\n{host}{headers}content-type: application/json\r\n\
             content-length: {length}\r\nconnection: close\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// What a consumer and a service with idempotency keys leave behind: one message that took effect
/// and three that came again, a key whose owner died, and one that is done.
pub(crate) fn leave_traces(shop: &Shop, event: &str) {
    in_database(shop, async |connection| {
        let sql = "INSERT INTO semel_inbox (consumer, message_id, processed_at) \
                VALUES ('payments', ?1, 1893456000000000); \
            INSERT INTO semel_marks (consumer, scope, position) \
                VALUES ('tally:applied', 'payments', 1), ('tally:duplicates', 'payments', 3); \
            INSERT INTO semel_keys (key, fingerprint, attempt, version, body, until) \
                VALUES (randomblob(32), randomblob(32), 2, NULL, NULL, 0), \
                    (randomblob(32), randomblob(32), 1, 1, x'7001', 4102444800000000)";
        for statement in sql.split("; ") {
            let query = sqlx::query(statement);
            let query = if statement.contains("?1") { query.bind(event) } else { query };
            query.execute(&mut *connection).await.unwrap();
        }
    });
}

/// Writes events in one transaction: aggregate, type and payload of each.
pub(crate) fn write(shop: &Shop, events: &[(&str, &str, String)]) {
    in_database(shop, async |connection| {
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await.unwrap();
        for (aggregate, event_type, payload) in events {
            sqlx::query(
                "INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload) \
                 VALUES ('order', ?1, ?2, ?3)",
            )
            .bind(aggregate)
            .bind(event_type)
            .bind(payload)
            .execute(&mut *tx)
            .await
            .unwrap();
        }
        tx.commit().await.unwrap();
    });
}

fn in_database(shop: &Shop, work: impl AsyncFnOnce(&mut SqliteConnection)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let url = format!("sqlite://{}", shop.file("shop.db").display());
        let mut connection = SqliteConnection::connect(&url).await.unwrap();
        work(&mut connection).await;
    });
}

/// A payload that is too large for a limit of 1 KiB.
pub(crate) fn large() -> String {
    format!("{{\"secret\": \"4111\", \"note\": \"{}\"}}", "x".repeat(2000))
}
