//! A database full of events, a broker, and a relay between them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use semel_testkit::services::{Private, Service};
use serde_json::Value;
use sqlx::{Connection, PgConnection};
use tempfile::TempDir;

use crate::brokers::Broker;

const LANES: u32 = 100;
const PATIENCE: Duration = Duration::from_secs(240);
const PUBLISHED: &str = "semel_events_published_total{";

/// One relay at work.
pub(crate) struct Run {
    pub(crate) broker: Private,
    /// How many events each lane has.
    pub(crate) written: BTreeMap<String, u64>,
    folder: TempDir,
    relay: Child,
    _database: Private,
}

impl Run {
    /// Starts servers and relay; nothing if a server cannot be had.
    pub(crate) fn start(broker: &Broker, events: u32) -> Option<Self> {
        let (database, server) =
            (Private::start(Service::Postgres)?, Private::start(broker.service)?);
        (broker.prepare)(&server)?;
        let folder = tempfile::tempdir().unwrap();
        let config = format!(
            "[source.orders]\nurl = \"{}\"\n[sink.out]\n{}\n[pipeline.orders]\nfrom = \"orders\"\n\
             to = \"out\"\ntopic = \"semel-outage\"\n[http]\nlisten = \"127.0.0.1:0\"\n",
            database.address(),
            (broker.sink)(&server)
        );
        fs::write(folder.path().join("semel.toml"), config).unwrap();
        let migrate = ["migrate", "up", "--database", database.address()];
        assert!(semel(&folder, &migrate).status().unwrap().success());
        let written = write(database.address(), events);
        let log = File::create(folder.path().join("log")).unwrap();
        let relay = semel(&folder, &["relay"]).stderr(log).spawn().unwrap();
        Some(Self { broker: server, written, folder, relay, _database: database })
    }

    /// What `semel status` says.
    fn status(&self) -> Value {
        let status = semel(&self.folder, &["status", "--output", "json"]);
        let output = { status }.stdout(Stdio::piped()).output().unwrap();
        let all: Value = serde_json::from_slice(&output.stdout).unwrap();
        all[0].clone()
    }

    fn published(&self) -> u64 {
        self.status()["published"].as_u64().unwrap()
    }

    /// How many are published when no confirmation is on its way any more.
    pub(crate) fn published_at_rest(&self) -> u64 {
        let mut last = self.published();
        loop {
            sleep(Duration::from_millis(500));
            let now = self.published();
            if now == last {
                return now;
            }
            last = now;
        }
    }

    /// What the relay says.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    pub(crate) fn wait_until_published(&mut self, count: u32) {
        let began = Instant::now();
        while self.published() < u64::from(count) {
            assert!(self.relay.try_wait().unwrap().is_none(), "the relay ended: {}", self.log());
            assert!(
                began.elapsed() < PATIENCE,
                "{} after {PATIENCE:?}: {}",
                self.status(),
                self.log()
            );
            sleep(Duration::from_millis(50));
        }
    }

    /// Waits until so many of all events are published, and not yet all: an outage in front of an idle
    /// relay would show nothing. The relay itself is asked, for it answers at once.
    pub(crate) fn wait_until_at_work(&self, count: u32, all: u32) {
        let began = Instant::now();
        let published = loop {
            let published = self.published_and_repeated();
            if published >= count.into() {
                break published;
            }
            assert!(began.elapsed() < PATIENCE, "{published} after {PATIENCE:?}: {}", self.log());
            sleep(Duration::from_millis(5));
        };
        println!("{published} of {all} events are published");
        assert!(published < all.into(), "all {all} events are published: begin with more");
    }

    /// How many times an event was published since the relay began.
    fn published_and_repeated(&self) -> u64 {
        let metrics = self.metrics();
        let counts = metrics.lines().filter(|line| line.starts_with(PUBLISHED));
        counts.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    }

    pub(crate) fn time_until_more_than(&self, count: u64) -> Duration {
        let began = Instant::now();
        while self.published() <= count {
            assert!(began.elapsed() < PATIENCE, "nothing flows: {}", self.status());
            sleep(Duration::from_millis(50));
        }
        began.elapsed()
    }

    /// An outage uses up no attempt: nothing failed, waits or died, and nothing ever did since the
    /// relay began.
    pub(crate) fn assert_nothing_failed(&self) {
        let status = self.status();
        for state in ["failed", "dead", "parked_aggregates"] {
            assert_eq!(status[state], 0, "{state}: {status}");
        }
        let metrics = self.metrics();
        assert!(metrics.contains(PUBLISHED), "{metrics}");
        let mut attempts = metrics.lines().filter(|line| {
            line.starts_with("semel_events_failed_total{") && !line.contains("\"unavailable\"")
        });
        assert_eq!(attempts.next(), None, "{}", self.log());
    }

    /// What the relay counts.
    fn metrics(&self) -> String {
        let log = self.log();
        let (_, rest) = log.split_once("metrics on http://").unwrap();
        let mut relay = TcpStream::connect(rest.split('/').next().unwrap()).unwrap();
        relay.set_read_timeout(Some(PATIENCE)).unwrap();
        relay
            .write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        relay.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.relay.kill().ok();
        self.relay.wait().ok();
    }
}

fn semel(folder: &TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(arguments).current_dir(folder.path()).stdout(Stdio::null());
    command
}

/// Writes the events, evenly over the lanes and numbered in each.
fn write(url: &str, events: u32) -> BTreeMap<String, u64> {
    let each = events / LANES;
    let insert = format!(
        "insert into semel.outbox (aggregate_type, aggregate_id, event_type, payload)
        select 'lane', lane::text, 'Counted', number::text
        from generate_series(1, {each}) each (number), generate_series(1, {LANES}) lane
        order by each.number"
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut connection = PgConnection::connect(url).await.unwrap();
        sqlx::query(sqlx::AssertSqlSafe(insert)).execute(&mut connection).await.unwrap();
    });
    (1..=LANES).map(|lane| (lane.to_string(), each.into())).collect()
}
