//! A database of a test's own on a real server, and a folder to run the program in.

use std::fs;
use std::ops::Deref;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use semel_testkit::services::{Service, service};
use sqlx::any::{AnyRow, install_default_drivers};
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Row};
use tempfile::TempDir;

/// An empty database, dropped in the end by [`Server::remove`].
pub(crate) struct Server {
    folder: Folder,
    pub(crate) service: Service,
    pub(crate) name: String,
    /// Of the superuser.
    pub(crate) url: String,
    server: String,
}

/// A folder to run the program in.
pub(crate) struct Folder(TempDir);

impl Deref for Server {
    type Target = Folder;

    fn deref(&self) -> &Folder {
        &self.folder
    }
}

impl Server {
    /// None when the server is not there.
    pub(crate) async fn start(wanted: Service, what: &str) -> Option<Self> {
        install_default_drivers();
        let server = service(wanted)?;
        let name = format!("semel_{what}_{}", std::process::id());
        execute(&server, &format!("create database {name}")).await.unwrap();
        let (base, _) = server.rsplit_once('/').unwrap();
        let url = format!("{base}/{name}");
        let folder = Folder::new();
        Some(Self { folder, service: wanted, name, url, server })
    }

    pub(crate) async fn remove(self) {
        let how = if self.service == Service::Postgres { " with (force)" } else { "" };
        let drop = format!("drop database {}{how}", self.name);
        // A relay that was killed has its slot for a moment longer.
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = execute(&self.server, &drop).await {
            assert!(Instant::now() < deadline, "{error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The URL of another user of the same database.
    pub(crate) fn url_of(&self, user: &str) -> String {
        let (scheme, rest) = self.url.split_once("://").unwrap();
        let (_, place) = rest.rsplit_once('@').unwrap();
        format!("{scheme}://{user}@{place}")
    }

    /// What the outbox is called here.
    pub(crate) fn outbox(&self) -> &'static str {
        if self.service == Service::Postgres { "semel.outbox" } else { "semel_outbox" }
    }

    pub(crate) async fn run(&self, sql: &str) {
        execute(&self.url, sql).await.unwrap_or_else(|error| panic!("{sql}\n{error}"));
    }
}

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// The usual configuration with a line more in its pipeline.
    pub(crate) fn configure(&self, line: &str) {
        let text = format!(
            "[source.orders]\nurl = \"${{DATABASE_URL}}\"\n[sink.out]\ntype = \"file\"\n\
             path = \"events.ndjson\"\n[pipeline.orders]\nfrom = \"orders\"\nto = \"out\"\n{line}\n"
        );
        fs::write(self.file("semel.toml"), text).unwrap();
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs a command; `DATABASE_URL` is `url`.
    pub(crate) fn semel(&self, url: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        command.args(arguments).current_dir(self.0.path());
        command.env("DATABASE_URL", url).output().unwrap()
    }

    /// Runs a command that must end with this code; gives all it said.
    pub(crate) fn expect(&self, code: i32, url: &str, arguments: &[&str]) -> String {
        let output = self.semel(url, arguments);
        let [out, err] =
            [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{out}{err}");
        format!("{out}{err}")
    }
}

/// A relay that runs; killed with this value.
pub(crate) struct Running {
    process: Child,
    log: PathBuf,
}

impl Folder {
    /// Starts a relay with the configuration of the folder.
    pub(crate) fn relay(&self, url: &str) -> Running {
        let log = self.file("relay.log");
        let process = Command::new(env!("CARGO_BIN_EXE_semel"))
            .args(["relay", "--config", "semel.toml"])
            .current_dir(self.0.path())
            .env("DATABASE_URL", url)
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Running { process, log }
    }
}

impl Running {
    /// What it has logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Waits until something is so.
    pub(crate) async fn until(&mut self, what: &str, mut is_so: impl FnMut() -> bool) {
        let deadline = Instant::now() + 4 * PATIENCE;
        while !is_so() {
            let ended = self.process.try_wait().unwrap();
            assert!(ended.is_none(), "{what}: it ended\n{}", self.log());
            assert!(Instant::now() < deadline, "{what}: never\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

const PATIENCE: Duration = Duration::from_secs(30);

/// Runs statements.
pub(crate) async fn execute(url: &str, sql: &str) -> Result<(), sqlx::Error> {
    let running = async {
        let mut connection = AnyConnection::connect(url).await?;
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await?;
        connection.close().await
    };
    tokio::time::timeout(PATIENCE, running).await.unwrap()
}

/// One number.
pub(crate) async fn number(url: &str, sql: &str) -> Result<i64, sqlx::Error> {
    let running = async {
        let mut connection = AnyConnection::connect(url).await?;
        let row: AnyRow = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_one(&mut connection).await?;
        row.try_get(0)
    };
    tokio::time::timeout(PATIENCE, running).await.unwrap()
}
