//! A folder to run the program in, for the tests of its commands.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, SqliteConnection};
use tempfile::TempDir;

/// A folder with a database, a configuration, and a file that events go to.
pub(crate) struct Shop {
    pub(crate) folder: TempDir,
}

impl Shop {
    pub(crate) fn new() -> Self {
        let shop = Self { folder: tempfile::tempdir().unwrap() };
        shop.configure("");
        shop.expect(0, &["migrate", "up", "--database", "sqlite://shop.db"]);
        shop
    }

    /// The usual configuration with a line more in its pipeline.
    pub(crate) fn configure(&self, line: &str) {
        let text = format!(
            "[source.orders]\nurl = \"sqlite://shop.db\"\n[sink.out]\ntype = \"file\"\n\
             path = \"events.ndjson\"\n[pipeline.orders]\nfrom = \"orders\"\nto = \"out\"\n{line}\n"
        );
        self.write_config(&text);
    }

    pub(crate) fn write_config(&self, text: &str) {
        fs::write(self.file("semel.toml"), text).unwrap();
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        command.args(arguments).current_dir(self.folder.path());
        command
    }

    /// Runs a command that must end with this code; gives its standard output.
    pub(crate) fn expect(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", all(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command that must fail with this code; gives its message.
    pub(crate) fn refused(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", all(&output));
        String::from_utf8(output.stderr).unwrap()
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let arguments = [arguments, &["--output", "json"]].concat();
        serde_json::from_str(&self.expect(0, &arguments)).unwrap()
    }

    /// The whole lines so far: a relay may be in the middle of another.
    pub(crate) fn published(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.file("events.ndjson")).unwrap_or_default();
        lines(text.rsplit_once('\n').map_or("", |(whole, _)| whole))
    }

    pub(crate) fn count(&self, state: &str) -> Value {
        self.json(&["status"])[0][state].clone()
    }

    /// Plain SQL, as a service in any language would write it.
    pub(crate) fn insert(&self, aggregate: &str, payload: &str) {
        let sql = "INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload) \
                   VALUES ('order', ?, 'OrderPlaced', ?)";
        self.ask(async |connection| {
            let insert = sqlx::query(sql).bind(aggregate).bind(payload);
            insert.execute(connection).await.unwrap();
        });
    }

    pub(crate) fn insert_of_type(&self, aggregate: &str, event_type: &str) {
        self.execute(&format!(
            "INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload)
             VALUES ('order', '{aggregate}', '{event_type}', '{{}}')"
        ));
    }

    pub(crate) fn execute(&self, sql: &str) {
        self.ask(async |connection| {
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.unwrap();
        });
    }

    /// One text.
    pub(crate) fn text(&self, sql: &str) -> String {
        self.ask(async |connection| {
            sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(connection).await.unwrap()
        })
    }

    pub(crate) fn ask<T>(&self, question: impl AsyncFnOnce(&mut SqliteConnection) -> T) -> T {
        let url = format!("sqlite://{}", self.file("shop.db").display());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut connection = SqliteConnection::connect(&url).await.unwrap();
            question(&mut connection).await
        })
    }

    /// A relay that goes on, with its log in a file.
    pub(crate) fn relay(&self) -> Running {
        self.background(&["relay"])
    }

    /// A command that goes on; its output and its log are files.
    pub(crate) fn background(&self, arguments: &[&str]) -> Running {
        let file = |name: &str| fs::File::create(self.file(name)).unwrap();
        let mut command = self.command(arguments);
        let command = command.stdout(file("out")).stderr(file("log")).stdin(Stdio::null());
        Running(command.spawn().unwrap())
    }

    pub(crate) fn log(&self) -> String {
        self.read("log")
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).unwrap_or_default()
    }

    /// Where the page of the relay is, by its log.
    #[cfg(feature = "page")]
    pub(crate) fn page(&self) -> String {
        let address = || {
            let log = self.log();
            let (_, rest) = log.split_once("on http://")?;
            Some(rest.split_once('/')?.0.to_owned())
        };
        self.wait_until("it serves", || address().is_some());
        address().unwrap()
    }

    pub(crate) fn wait_until(&self, what: &str, is_so: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_so() {
            let (log, out) = (self.log(), self.read("out"));
            assert!(Instant::now() < deadline, "never: {what}\n{log}\n{out}");
            sleep(Duration::from_millis(10));
        }
    }
}

/// A process that ends with the test.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    pub(crate) fn signal(&self, name: &str) {
        let id = self.0.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status().unwrap();
        assert!(sent.success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

pub(crate) fn all(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

pub(crate) fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
