//! Exactly once into Kafka, read back with a tool that we did not write.

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
use crate::{LEADER, LEASE, kills};

/// A broker that makes topics by itself.
struct Kafka {
    folder: TempDir,
    address: String,
}

impl Kafka {
    fn start() -> Option<Self> {
        service(Service::Kafka)?;
        let folder = tempfile::tempdir().unwrap();
        let properties = "auto.create.topics.enable=true\nnum.partitions=4\n";
        fs::write(folder.path().join("storm.properties"), properties).unwrap();
        let started = server("start", folder.path());
        assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
        let address = fs::read_to_string(folder.path().join("kafka/address")).unwrap();
        Some(Self { address: address.trim().to_owned(), folder })
    }

    /// What a consumer reads that wants only what is committed.
    fn committed(&self, topic: &str) -> Vec<Value> {
        let read = Command::new("kcat")
            .args(["-C", "-e", "-q", "-b", &self.address, "-t", topic, "-f", "%k %s\\n"])
            .args(["-X", "isolation.level=read_committed"])
            .output()
            .expect("kcat runs");
        assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
        let event = |line: &str| {
            let (lane, number) = line.split_once(' ').expect("key and value");
            json!({"aggregate_id": lane, "payload": number.parse::<u64>().expect("a number")})
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
    let Some(kafka) = tokio::task::spawn_blocking(Kafka::start).await.unwrap() else { return };
    let Some(server) = Private::start(Service::Postgres) else { return };
    let sink =
        format!("type = \"kafka\"\nbrokers = \"{}\"\ndelivery = \"exactly_once\"", kafka.address);
    let pipeline = format!("topic = \"counted\"\n{LEADER}");
    let mut relays = Relays::to(&sink, server.address(), &pipeline, LEASE, 1);
    let writers = Writers::start(server.address(), 16).await;
    let mut random = StdRng::seed_from_u64(7);
    for _ in 0..kills() {
        sleep(Duration::from_millis(random.random_range(500..3000))).await;
        relays.kill(0);
        relays.forget_leases().await;
        relays.start(0);
    }
    sleep(Duration::from_secs(1)).await;
    relays.kill(0);
    relays.forget_leases().await;
    let written = writers.stop().await;
    relays.drain(LEASE * 4);
    let ledger = Ledger::read(kafka.committed("counted"));
    println!("exactly once, {} kills: {}", kills() + 1, ledger.summary(&written));
    ledger.check(&written, 0);
}
