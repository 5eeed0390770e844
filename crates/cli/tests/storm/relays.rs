//! The program, several times, and what is done to it.

mod shares;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use sqlx::{AnyConnection, Connection};
use tempfile::TempDir;
use tokio::time::sleep;

const FILE: &str = "type = \"file\"\npath = \"events.ndjson\"";
/// For whatever somebody does sooner or later.
const PATIENCE: Duration = Duration::from_secs(30);

/// Relays of one pipeline.
pub(crate) struct Relays {
    folder: TempDir,
    url: String,
    running: Vec<Option<Child>>,
}

impl Relays {
    /// Relays which all append to one file.
    pub(crate) fn new(
        url: &str,
        mode: &str,
        coordination: &str,
        lease: Duration,
        count: usize,
    ) -> Self {
        let source = format!("url = \"{url}\"\nmode = \"{mode}\"");
        Self::with(FILE, &source, url, coordination, lease, count)
    }

    /// Those of a table that is not semel's own. There is none yet, as there may be no table.
    pub(crate) fn mapped(url: &str, coordination: &str, lease: Duration) -> Self {
        let source =
            format!("url = \"{url}\"\ntable = \"outbox\"\ncolumns = \"polling-publisher\"");
        Self::with(FILE, &source, url, coordination, lease, 0)
    }

    /// One whose events come as messages in the log of PostgreSQL.
    pub(crate) fn of_messages(url: &str, pipeline: &str, lease: Duration) -> Self {
        let source = format!("url = \"{url}\"\noutbox = \"messages\"");
        let mut relays = Self::with(FILE, &source, url, pipeline, lease, 0);
        relays.migrate(&["--messages"]);
        relays.add();
        relays
    }

    #[cfg(feature = "kafka")]
    pub(crate) fn to(sink: &str, url: &str, pipeline: &str, lease: Duration, count: usize) -> Self {
        Self::with(sink, &format!("url = \"{url}\""), url, pipeline, lease, count)
    }

    fn with(
        sink: &str,
        source: &str,
        url: &str,
        pipeline: &str,
        lease: Duration,
        count: usize,
    ) -> Self {
        sqlx::any::install_default_drivers();
        let folder = tempfile::tempdir().unwrap();
        let config = format!(
            "[source.orders]\n{source}\n[sink.out]\n{sink}\n\
             [pipeline.orders]\nfrom = \"orders\"\nto = \"out\"\nlease = \"{}s\"\n{pipeline}\n",
            lease.as_secs()
        );
        fs::write(folder.path().join("semel.toml"), config).unwrap();
        let mut relays = Self { folder, url: url.to_owned(), running: Vec::new() };
        relays.migrate(&[]);
        for _ in 0..count {
            relays.add();
        }
        relays
    }

    fn migrate(&self, options: &[&str]) {
        let migrate = ["migrate", "up", "--database", &self.url];
        let migrated = self.command(&migrate).args(options).output().unwrap();
        assert!(migrated.status.success(), "{migrated:?}");
    }

    /// One more.
    pub(crate) fn add(&mut self) {
        self.running.push(None);
        self.start(self.running.len() - 1);
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        command.args(arguments).current_dir(self.folder.path()).stdout(Stdio::null());
        command
    }

    pub(crate) fn start(&mut self, number: usize) {
        let log = self.folder.path().join(format!("log-{number}"));
        let log = File::options().create(true).append(true).open(log).unwrap();
        let child = self.command(&["relay", "--config", "semel.toml"]).stderr(log).spawn();
        self.running[number] = Some(child.unwrap());
    }

    pub(crate) fn kill(&mut self, number: usize) {
        if let Some(mut child) = self.running[number].take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Stops it where it is, and waits until it stands: on a busy machine a thread may run on for a
    /// while before it is told.
    pub(crate) fn freeze(&self, number: usize) {
        self.signal(number, "STOP");
        let began = Instant::now();
        while self.moves(number) {
            assert!(began.elapsed() < PATIENCE, "relay {number} never stands: {}", self.logs());
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn moves(&self, number: usize) -> bool {
        let id = self.running[number].as_ref().unwrap().id();
        let process = PathBuf::from(format!("/proc/{id}"));
        let has_died = matches!(state_of(&process), None | Some('Z' | 'X'));
        assert!(!has_died, "relay {number} has died: {}", self.logs());
        let threads = fs::read_dir(process.join("task")).unwrap();
        let mut states = threads.filter_map(|thread| state_of(&thread.ok()?.path()));
        states.any(|state| state != 'T')
    }

    pub(crate) fn thaw(&self, number: usize) {
        self.signal(number, "CONT");
    }

    fn signal(&self, number: usize, signal: &str) {
        let id = self.running[number].as_ref().unwrap().id().to_string();
        let sent = Command::new("kill").args(["-s", signal, &id]).status().unwrap();
        assert!(sent.success());
    }

    /// One that has just been started would be ended by a signal that it is to answer.
    fn wait_until_it_listens(&self, number: usize) {
        const TERM: u64 = 1 << 14;
        let (id, began) = (self.running[number].as_ref().unwrap().id(), Instant::now());
        let listens = || {
            let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
            u64::from_str_radix(caught.trim(), 16).unwrap() & TERM != 0
        };
        while !listens() {
            assert!(began.elapsed() < Duration::from_secs(30), "it never listens");
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn all_run(&mut self) -> bool {
        self.running.iter_mut().flatten().all(|child| child.try_wait().unwrap().is_none())
    }

    /// Asks all to stop, and waits until they have.
    pub(crate) fn stop_all(&mut self) {
        for number in 0..self.running.len() {
            self.wait_until_it_listens(number);
            self.signal(number, "TERM");
        }
        for child in self.running.iter_mut().flatten() {
            let ended = child.wait().unwrap();
            assert!(ended.success(), "{ended}");
        }
        self.running.clear();
    }

    /// Publishes what is left, within a limit.
    pub(crate) fn drain(&mut self, limit: Duration) {
        let began = Instant::now();
        let drained = self.command(&["relay", "--drain"]).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8_lossy(&drained.stderr);
        assert!(drained.status.success(), "{said}");
        assert!(began.elapsed() < limit + Duration::from_secs(30), "{:?}", began.elapsed());
    }

    pub(crate) fn published(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.events()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// How often a relay told of something.
    pub(crate) fn told(&self, what: &str) -> usize {
        let logs = fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap());
        let logs = logs.filter(|entry| entry.file_name().to_string_lossy().starts_with("log-"));
        logs.map(|log| fs::read_to_string(log.path()).unwrap().matches(what).count()).sum()
    }

    /// What the relays said.
    pub(crate) fn logs(&self) -> String {
        let log = |number| fs::read_to_string(self.folder.path().join(format!("log-{number}")));
        (0..self.running.len()).map(|number| log(number).unwrap_or_default() + "\n").collect()
    }

    /// Runs SQL as somebody else.
    pub(crate) async fn run_sql(&self, sql: &str) {
        let mut connection = AnyConnection::connect(&self.url).await.unwrap();
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
    }

    /// How many events wait to be published.
    pub(crate) async fn waiting(&self) -> i64 {
        self.count("select count(*) from semel.unsettled('orders')").await
    }

    /// The number that PostgreSQL answers.
    pub(crate) async fn count(&self, sql: &'static str) -> i64 {
        let mut connection = sqlx::PgConnection::connect(&self.url).await.unwrap();
        sqlx::query_scalar(sql).fetch_one(&mut connection).await.unwrap()
    }

    /// How many KiB of memory a relay has had at most that are not those of its program, which may have
    /// more of them later: to be asked often.
    pub(crate) fn memory(&self, number: usize) -> u64 {
        let id = self.running[number].as_ref().unwrap().id();
        let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let read = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().trim_end_matches(" kB").parse().unwrap()
        };
        read("VmHWM:") - read("RssFile:")
    }

    /// How long it takes until something is published again, by whomever.
    pub(crate) async fn next_publishing(&self) -> Duration {
        let (began, before) = (Instant::now(), self.written());
        while self.written() == before {
            assert!(began.elapsed() < PATIENCE, "nobody took over: {}", self.logs());
            sleep(Duration::from_millis(20)).await;
        }
        began.elapsed()
    }

    fn events(&self) -> PathBuf {
        self.folder.path().join("events.ndjson")
    }

    /// How many bytes of events there are.
    fn written(&self) -> u64 {
        fs::metadata(self.events()).map_or(0, |file| file.len())
    }

    async fn pairs(&self, sql: String) -> Vec<(String, i64)> {
        let mut connection = AnyConnection::connect(&self.url).await.unwrap();
        sqlx::query_as(sqlx::AssertSqlSafe(sql)).fetch_all(&mut connection).await.unwrap()
    }

    /// As if the lease of whoever was killed had run out.
    pub(crate) async fn forget_leases(&self) {
        let mut connection = AnyConnection::connect(&self.url).await.unwrap();
        if self.url.starts_with("sqlite") {
            // Behind sixteen writers on a machine that is full.
            let patience = sqlx::raw_sql("PRAGMA busy_timeout = 60000");
            patience.execute(&mut connection).await.unwrap();
        }
        let forget = if self.url.starts_with("postgres") {
            "delete from semel.share"
        } else {
            "DELETE FROM semel_share"
        };
        sqlx::query(forget).execute(&mut connection).await.unwrap();
    }
}

/// Of a process or a thread, the letter that the system has for it; none where it is gone.
fn state_of(process: &Path) -> Option<char> {
    let state = fs::read_to_string(process.join("stat")).ok()?;
    state.rsplit_once(") ")?.1.chars().next()
}

impl Drop for Relays {
    fn drop(&mut self) {
        for child in self.running.iter_mut().flatten() {
            child.kill().ok();
            child.wait().ok();
        }
    }
}
