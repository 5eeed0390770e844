//! What operators do: configure, look on, repair, prove; as they run it.

#![expect(clippy::panic, clippy::unwrap_used, reason = "helpers of tests may panic")]

#[cfg(all(feature = "page", feature = "postgres"))]
#[path = "../servers/server.rs"]
#[allow(dead_code, reason = "other tests need more of it")]
mod server;
#[path = "../shop/mod.rs"]
mod shop;

mod apart;
mod bulk;
#[cfg(all(feature = "page", feature = "webhook"))]
mod canary;
mod config;
mod init;
mod pages;
mod reload;
mod secrets;
#[cfg(unix)]
mod service;
mod verify;
mod watch;
mod wrong;

use std::fs;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, Connection, SqliteConnection};

use self::shop::Shop;

impl Shop {
    fn execute(&self, sql: &str) {
        let url = format!("sqlite://{}", self.file("shop.db").display());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut connection = SqliteConnection::connect(&url).await.unwrap();
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
        });
    }

    /// One text.
    fn text(&self, sql: &str) -> String {
        let url = format!("sqlite://{}", self.file("shop.db").display());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut connection = SqliteConnection::connect(&url).await.unwrap();
            sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut connection).await.unwrap()
        })
    }

    fn insert(&self, aggregate: &str, event_type: &str) {
        self.execute(&format!(
            "INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload)
             VALUES ('order', '{aggregate}', '{event_type}', '{{}}')"
        ));
    }

    /// A relay that goes on, with its log in a file.
    fn relay(&self) -> Running {
        self.background(&["relay"])
    }

    /// A command that goes on; its output and its log are files.
    fn background(&self, arguments: &[&str]) -> Running {
        let file = |name: &str| fs::File::create(self.file(name)).unwrap();
        let mut command = self.command(arguments);
        let command = command.stdout(file("out")).stderr(file("log")).stdin(Stdio::null());
        Running(command.spawn().unwrap())
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).unwrap_or_default()
    }

    /// Where the page of the relay is, by its log.
    #[cfg(feature = "page")]
    fn page(&self) -> String {
        let address = || {
            let log = self.read("log");
            let (_, rest) = log.split_once("on http://")?;
            Some(rest.split_once('/')?.0.to_owned())
        };
        self.wait_until("it serves", || address().is_some());
        address().unwrap()
    }

    fn wait_until(&self, what: &str, is_so: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_so() {
            let (log, out) = (self.read("log"), self.read("out"));
            assert!(Instant::now() < deadline, "never: {what}\n{log}\n{out}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A process that ends with the test.
struct Running(Child);

impl Running {
    fn signal(&self, name: &str) {
        let id = self.0.id().to_string();
        let sent = std::process::Command::new("kill").args(["-s", name, &id]).status().unwrap();
        assert!(sent.success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}
