//! The examples that need no server, run as their readers would; `orders` is run by the storms of
//! `crates/cli/tests`.

#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "test code: a panic is how it reports")]

use std::env;
use std::process::Command;

/// Its main kills the service with SIGKILL at every step, and ends with an error if a cent is lost or
/// doubled.
#[test]
fn payments_and_transfers_survive_a_kill_at_every_step() {
    let tests = env::current_exe().unwrap();
    let program = tests.parent().unwrap().parent().unwrap().join("examples/payments");
    let how = "cargo build --workspace --all-features --example payments";
    assert!(program.exists(), "the example is not there: {how}");
    let elsewhere = tempfile::tempdir().unwrap();
    let output = Command::new("timeout")
        .args(["300".as_ref(), program.as_os_str()])
        .current_dir(elsewhere.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    println!("{said}");
    assert!(output.status.success(), "{}: {said}{complained}", output.status);
    assert_eq!(said.matches("started again: 201").count(), 16, "{said}");
    assert!(said.ends_with("every payment was taken once, and the money has moved once\n"));
    assert_eq!(elsewhere.path().read_dir().unwrap().count(), 0, "it leaves nothing behind");
}
