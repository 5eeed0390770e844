//! A missing server is printed, counted, and fatal in CI. Environment variables belong to the whole
//! process, so each case runs this test binary again as a child.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::fs;
use std::process::{Command, Output};

use semel_testkit::services::{Service, service};

const CHILD: &str = "SEMEL_TESTKIT_ASKED";

#[test]
fn a_missing_server_is_printed_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("skipped");
    for _ in 0..2 {
        let output = ask(|child| child.env("SEMEL_TEST_SKIP_LOG", &log));
        assert!(output.status.success());
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(printed.contains("SKIPPED asked_for_kafka: kafka"), "{printed}");
        assert!(!printed.contains("address"), "{printed}");
    }
    let line = "asked_for_kafka\tkafka\tSEMEL_TEST_KAFKA_BROKERS is not set\n";
    assert_eq!(fs::read_to_string(&log).unwrap(), line.repeat(2));
}

#[test]
fn a_missing_server_is_fatal_in_ci() {
    assert!(!ask(|child| child.env("CI", "true")).status.success());
}

#[test]
fn a_server_that_is_there_is_used_in_silence() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("skipped");
    let output = ask(|child| {
        let child = child.env("SEMEL_TEST_SKIP_LOG", &log).env("CI", "true");
        child.env(Service::Kafka.variable(), "broker:9092")
    });
    assert!(output.status.success());
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(printed.contains("address broker:9092"), "{printed}");
    assert!(!log.exists());
}

/// What the child does; on its own it does nothing.
#[test]
fn asked_for_kafka() {
    if std::env::var_os(CHILD).is_some()
        && let Some(address) = service(Service::Kafka)
    {
        println!("address {address}");
    }
}

fn ask(set: impl FnOnce(&mut Command) -> &mut Command) -> Output {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "asked_for_kafka", "--nocapture"]).env(CHILD, "1");
    child.env_remove("CI").env_remove("SEMEL_TEST_SKIP_LOG");
    child.env_remove(Service::Kafka.variable());
    set(&mut child).output().unwrap()
}
