//! `semel keys`, on what a proxy left.

use std::time::Duration;

use semel_core::EventId;
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::PATIENCE;
use super::program::{Program, insist, postgres, redis, sqlite};
use super::upstream::Upstream;

/// Runs `semel keys`; gives what it printed.
fn keys(code: i32, arguments: &[&str]) -> String {
    let output = insist(&[&["keys"], arguments].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    String::from_utf8(output.stdout).unwrap() + &said
}

/// All hashes there are.
fn listed(store: &str) -> Vec<String> {
    let (mut all, mut after) = (Vec::new(), None::<String>);
    loop {
        let mut arguments = vec!["list", "--store", store, "--output", "json", "--limit", "1000"];
        if let Some(place) = &after {
            arguments.extend(["--after", place]);
        }
        let page: Value = serde_json::from_str(&keys(0, &arguments)).unwrap();
        let keys = page["keys"].as_array().unwrap();
        all.extend(keys.iter().map(|key| key["key"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(place) => after = Some(place.to_owned()),
            None => return all,
        }
    }
}

/// A payment whose outcome nobody knows is found by what the client was told, and released.
async fn release_one(store: &str) {
    let upstream = Upstream::start().await;
    let proxy = Program::start(&upstream.address, store, "after_crash = \"uncertain\"");
    let key = EventId::now().to_string();
    let pay = async |expected: u16| {
        let reply = proxy.client.insist("/lost", &key, "{\"card\":4242}").await;
        assert_eq!(reply.status, expected, "{reply:?}, and in its log: {}", proxy.log());
        reply
    };
    pay(502).await;
    // A slow store may know a little later than the client that the outcome is unknown.
    let told = async {
        loop {
            let problem: Value = serde_json::from_str(pay(409).await.text()).unwrap();
            if let Some(hash) = problem["operation"].as_str() {
                return hash.to_owned();
            }
            sleep(Duration::from_millis(50)).await;
        }
    };
    let hash = &*timeout(PATIENCE, told).await.expect("an operation to refer to");

    assert!(listed(store).contains(&hash.to_owned()));
    let shown: Value =
        serde_json::from_str(&keys(0, &["show", hash, "--store", store, "--output", "json"]))
            .unwrap();
    assert_eq!(shown["state"], "uncertain");
    assert!(
        keys(0, &["release", hash, "--store", store, "--dry-run"]).contains("would be released")
    );
    pay(409).await;
    assert!(keys(0, &["release", hash, "--store", store]).contains("released"));
    assert!(keys(1, &["show", hash, "--store", store]).contains("E-KEY-FREE"));
    assert!(keys(0, &["release", hash, "--store", store]).contains("was free"));
    pay(502).await;
    assert_eq!(upstream.taken(), 2);
    assert!(keys(64, &["show", "k1", "--store", store]).contains("is not the hash of a key"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_in_redis_is_found_and_released() {
    let Some(store) = redis() else { return };
    release_one(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_in_postgres_is_found_and_released() {
    let Some(store) = postgres().await else { return };
    release_one(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_in_sqlite_is_found_and_released() {
    let folder = tempfile::tempdir().unwrap();
    release_one(&sqlite(folder.path())).await;
}
