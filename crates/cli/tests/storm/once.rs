//! Exactly once into Kafka, read back with a tool that we did not write.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use rand::{RngExt, SeedableRng, rngs::StdRng};
use semel_testkit::services::{Private, Service, service};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::sleep;

use crate::ledger::Ledger;
use crate::relays::Relays;
use crate::writers::Writers;
use crate::{LEADER, LEASE, WINDOW, kills, limited};

const PARTITIONS: usize = 4;

/// A broker that makes topics by itself.
struct Kafka {
    folder: TempDir,
    address: String,
}

impl Kafka {
    fn start() -> Option<Self> {
        service(Service::Kafka)?;
        let folder = tempfile::tempdir().unwrap();
        let properties = format!("auto.create.topics.enable=true\nnum.partitions={PARTITIONS}\n");
        fs::write(folder.path().join("storm.properties"), properties).unwrap();
        let started = server("start", folder.path());
        assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
        let address = fs::read_to_string(folder.path().join("kafka/address")).unwrap();
        Some(Self { address: address.trim().to_owned(), folder })
    }

    /// What a consumer reads that wants only what is committed, when nobody writes any more.
    fn committed(&self, topic: &str) -> Vec<Value> {
        self.read(topic, &["-e"])
    }

    /// As many as there are now: where many write, the end may never be reached.
    fn so_far(&self, topic: &str) -> Vec<Value> {
        let mut ends = Command::new("kcat");
        ends.args(["-Q", "-b", &self.address]);
        for partition in 0..PARTITIONS {
            ends.args(["-t", &format!("{topic}:{partition}:-1")]);
        }
        let ends = ends.output().expect("kcat runs").stdout;
        let end = |line: &str| line.rsplit_once(' ')?.1.parse::<usize>().ok();
        let count: usize = String::from_utf8_lossy(&ends).lines().filter_map(end).sum();
        if count == 0 { Vec::new() } else { self.read(topic, &["-c", &count.to_string()]) }
    }

    fn read(&self, topic: &str, until: &[&str]) -> Vec<Value> {
        let read = Command::new("kcat")
            .args(["-C", "-q", "-b", &self.address, "-t", topic, "-f", "%k %s\\n"])
            .args(["-X", "isolation.level=read_committed"])
            .args(until)
            .output()
            .expect("kcat runs");
        let said = String::from_utf8_lossy(&read.stderr);
        if said.contains("Unknown topic") {
            return Vec::new(); // Nothing was sent yet.
        }
        assert!(read.status.success(), "{said}");
        let event = |line: &str| {
            let (lane, number) = line.split_once(' ').expect("key and value");
            json!({"aggregate_id": lane, "payload": number.parse::<i64>().expect("a number")})
        };
        String::from_utf8(read.stdout).unwrap().lines().map(event).collect()
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        server("stop", self.folder.path());
    }
}

fn server(action: &str, folder: &Path) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/server");
    Command::new(script)
        .args(["kafka", action])
        .arg(folder)
        .env_remove(Service::Kafka.variable())
        .env("SEMEL_KAFKA_PROPERTIES", folder.join("storm.properties"))
        .output()
        .expect("scripts/server runs")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_event_is_in_kafka_once_however_often_the_relay_is_killed() {
    let Some(storm) = Storm::begin("exactly_once").await else { return };
    let (arrived, written, kills) = storm.rage(|_, killed| killed == kills()).await;
    let ledger = Ledger::read(arrived);
    println!("exactly once, {kills} kills: {}", ledger.summary(&written));
    ledger.check(&written, 0);
}

/// The same storm shows what it looks for, when nothing is done against it.
#[tokio::test(flavor = "multi_thread")]
async fn without_exactly_once_the_same_storm_shows_duplicates() {
    const ENOUGH: usize = 60;
    let Some(storm) = Storm::begin("at_least_once").await else { return };
    let shown = |kafka: &Kafka, killed| {
        killed == ENOUGH || (killed > 2 && repeats(&kafka.so_far("counted")) > 0)
    };
    let (arrived, written, kills) = storm.rage(shown).await;
    let repeats = repeats(&arrived);
    let ledger = Ledger::read(arrived);
    println!("at least once, {kills} kills: {}", ledger.summary(&written));
    assert!(repeats > 0, "{kills} kills without a duplicate prove nothing");
    ledger.check(&written, WINDOW * kills);
}

/// How many arrived that had arrived before.
fn repeats(arrived: &[Value]) -> usize {
    arrived.len() - arrived.iter().map(Value::to_string).collect::<BTreeSet<_>>().len()
}

/// A relay that is killed again and again while many write.
struct Storm {
    kafka: Kafka,
    relays: Relays,
    writers: Writers,
    _server: Private,
}

impl Storm {
    async fn begin(delivery: &str) -> Option<Self> {
        let kafka = tokio::task::spawn_blocking(Kafka::start).await.unwrap()?;
        let server = Private::start(Service::Postgres)?;
        let brokers = &kafka.address;
        let sink = format!("type = \"kafka\"\nbrokers = \"{brokers}\"\ndelivery = \"{delivery}\"");
        let pipeline = limited(&format!("topic = \"counted\"\n{LEADER}"));
        let relays = Relays::to(&sink, server.address(), &pipeline, LEASE, 1);
        let writers = Writers::start(server.address(), 16).await;
        Some(Self { kafka, relays, writers, _server: server })
    }

    /// Until it is enough; then what arrived, what was written, and how often the relay was killed.
    async fn rage(
        mut self,
        is_enough: impl Fn(&Kafka, usize) -> bool,
    ) -> (Vec<Value>, BTreeMap<String, u64>, usize) {
        let mut random = StdRng::seed_from_u64(7);
        let mut killed = 0;
        while !is_enough(&self.kafka, killed) {
            sleep(Duration::from_millis(random.random_range(500..3000))).await;
            self.relays.kill(0);
            self.relays.forget_leases().await;
            self.relays.start(0);
            killed += 1;
        }
        sleep(Duration::from_secs(1)).await;
        self.relays.kill(0);
        self.relays.forget_leases().await;
        let written = self.writers.stop().await;
        self.relays.drain(LEASE * 4);
        (self.kafka.committed("counted"), written, killed + 1)
    }
}
