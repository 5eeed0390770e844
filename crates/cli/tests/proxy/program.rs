//! The program, running.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use semel_testkit::services::{Service, faketime, service};
use tempfile::TempDir;

use super::PATIENCE;
use super::client::{Client, Reply};

const SCOPE: [&str; 2] = ["--scope", "header:Authorization"];

/// A proxy; gone with this value.
pub(crate) struct Program {
    process: Child,
    command: Command,
    folder: TempDir,
    pub(crate) client: Client,
    pub(crate) admin: Client,
}

impl Program {
    /// Starts one in front of `upstream`, with more lines in `[proxy]`.
    pub(crate) fn start(upstream: &str, store: &str, more: &str) -> Self {
        Self::with(upstream, store, more, &[])
    }

    pub(crate) fn with(upstream: &str, store: &str, more: &str, arguments: &[&str]) -> Self {
        Self::launch(Command::new(env!("CARGO_BIN_EXE_semel")), upstream, store, more, arguments)
    }

    /// The same, where clocks are off by so much, such as `+10m`; none where that cannot be had.
    pub(crate) fn off_by(
        offset: &str,
        upstream: &str,
        store: &str,
        more: &str,
        arguments: &[&str],
    ) -> Option<Self> {
        let mut command = Command::new(faketime()?);
        // Only the time of day: durations are not measured by it.
        command.args(["--exclude-monotonic", "-f", offset, env!("CARGO_BIN_EXE_semel")]);
        Some(Self::launch(command, upstream, store, more, arguments))
    }

    fn launch(
        mut command: Command,
        upstream: &str,
        store: &str,
        more: &str,
        arguments: &[&str],
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("semel.toml"), format!("[proxy]\n{more}\n")).unwrap();
        let log = File::create(folder.path().join("log")).unwrap();
        let is_url = upstream.contains("://");
        let upstream = if is_url { upstream.to_owned() } else { format!("http://{upstream}") };
        let fixed = ["--config", "semel.toml", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        command
            .arg("proxy")
            .current_dir(folder.path())
            // As much as it can say itself: tests look for what must not be said.
            .env("SEMEL_LOG", "info,semel_http=trace,semel_cli=trace,semel_backends=trace")
            .args(fixed)
            .args(["--upstream", &upstream, "--store", store])
            .args(if arguments.contains(&"--scope") { &[][..] } else { &SCOPE })
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(log)
            // What gives it another time runs beside it: signals are for both.
            .process_group(0);
        let process = command.spawn().unwrap();
        let nowhere = Client::new(String::new());
        let mut program =
            Self { process, command, folder, client: nowhere.clone(), admin: nowhere };
        program.client = Client::new(program.told("listening on "));
        program.admin = Client::new(program.told("health and metrics on "));
        program
    }

    /// The word that follows in the log.
    fn told(&mut self, after: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let log = self.log();
            let found = log.split_once(after).and_then(|(_, rest)| rest.split_once([',', '\n']));
            if let Some((word, _)) = found {
                return word.trim().to_owned();
            }
            let (ended, in_time) =
                (self.process.try_wait().unwrap().is_some(), Instant::now() < deadline);
            // A server that stands still for seconds is no fault of the proxy, which says so and ends;
            // nor is what `faketime` finds of a killed process that had the same number.
            let passes = log.contains("-DOWN]") || log.contains("_open: File exists");
            if ended && in_time && passes {
                self.process = self.command.spawn().unwrap();
                continue;
            }
            assert!(!ended && in_time, "it did not start: {log}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Sends a signal, such as `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        let group = format!("-{}", self.process.id());
        let sent = Command::new("kill").args([&format!("-{name}"), "--", &group]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits until it has ended; gives its exit code.
    pub(crate) async fn ended(&mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "it does not end: {}", self.log());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// A metric with its labels, as it is exported.
    pub(crate) async fn metric(&self, name: &str) -> u64 {
        let Reply { status, body, .. } = self.admin.get("/metrics").await;
        assert_eq!(status, 200);
        let text = String::from_utf8(body).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map_or(0, |value| value.parse().unwrap())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let group = format!("-{}", self.process.id());
        Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status().ok();
        self.process.wait().ok();
    }
}

/// The command in a folder.
pub(crate) fn command(folder: &PathBuf) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.arg("proxy").current_dir(folder);
    command
}

/// The server's Redis, without anything before it; every test has keys of its own.
pub(crate) fn redis() -> Option<String> {
    if !cfg!(feature = "redis") {
        return None;
    }
    service(Service::Redis)
}

/// A database of the test's own on PostgreSQL, with the tables.
pub(crate) async fn postgres() -> Option<String> {
    if !cfg!(feature = "postgres") {
        return None;
    }
    Some(database(&service(Service::Postgres)?).await)
}

/// The same on MySQL or MariaDB.
pub(crate) async fn mysql() -> Option<String> {
    if !cfg!(feature = "mysql") {
        return None;
    }
    Some(database(&service(Service::Mysql)?).await)
}

/// A file in this folder, with the tables.
pub(crate) fn sqlite(folder: &Path) -> String {
    let url = format!("sqlite://{}", folder.join("keys.db").display());
    migrate(&url);
    url
}

async fn database(server: &str) -> String {
    use sqlx::Connection;
    let name = format!("semel_proxy_{}", semel_core::EventId::now().to_string().replace('-', ""));
    sqlx::any::install_default_drivers();
    let mut connection = sqlx::AnyConnection::connect(server).await.unwrap();
    let create = sqlx::AssertSqlSafe(format!("create database {name}"));
    sqlx::raw_sql(create).execute(&mut connection).await.unwrap();
    let url = format!("{}/{name}", server.rsplit_once('/').unwrap().0);
    migrate(&url);
    url
}

fn migrate(url: &str) {
    let migrated = insist(&["migrate", "up", "--database", url]);
    assert!(migrated.status.success(), "{}", String::from_utf8_lossy(&migrated.stderr));
}

/// Runs the program; again while it says that a server is down, for a server that stands still for
/// seconds is no fault of the program.
pub(crate) fn insist(arguments: &[&str]) -> Output {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let output = Command::new(env!("CARGO_BIN_EXE_semel")).args(arguments).output().unwrap();
        let is_down = String::from_utf8_lossy(&output.stderr).contains("-DOWN]");
        if !is_down || Instant::now() > deadline {
            return output;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
