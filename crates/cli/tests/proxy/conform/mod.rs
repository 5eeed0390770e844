//! `semel keys conform` against our own: the proxy and the layer, on every store.

mod fixture;
mod layered;
mod page;

use std::collections::BTreeSet;
use std::process::Output;

use serde_json::Value;
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use self::fixture::Fixture;
use super::PATIENCE;
use super::program::{Program, mysql, postgres, redis, sqlite};

/// What only the layer can do: whoever may not is turned away by the application itself.
const ONLY_INSIDE: [u64; 2] = [71, 91];
/// What needs several instances on one store.
const SEVERAL: [u64; 2] = [21, 49];

/// Leases of seconds need a machine that is not busy with all stores at once.
static TURNS: Semaphore = Semaphore::const_new(3);

async fn conform(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.args(["keys", "conform"]).args(arguments).kill_on_drop(true);
    timeout(5 * PATIENCE, command.output()).await.expect("an end").unwrap()
}

/// That all behaviours are seen at these addresses, except those that cannot be tried there.
async fn conforms(addresses: &[&str], cannot: &[u64]) {
    let _turn = TURNS.acquire().await.unwrap();
    let urls: Vec<_> = addresses.iter().map(|it| format!("http://{it}/conform")).collect();
    let mut arguments = vec!["--output", "json"];
    arguments.extend(urls.iter().map(String::as_str));
    let output = conform(&arguments).await;
    let said = String::from_utf8_lossy(&output.stderr);
    let report: Value = serde_json::from_slice(&output.stdout).expect(&said);
    let all = report["behaviours"].as_array().unwrap();
    let with = |result: &str| all.iter().filter(|it| it["result"] == result).collect::<Vec<_>>();
    assert_eq!(with("fail"), [&Value::Null; 0], "{said}");
    let skipped: BTreeSet<u64> =
        with("skip").iter().map(|it| it["number"].as_u64().unwrap()).collect();
    assert_eq!(skipped, cannot.iter().copied().collect());
    assert_eq!(with("pass").len() + skipped.len(), all.len());
    assert_eq!(output.status.code(), Some(0));
}

/// Two proxies on a store, in front of the fixture.
async fn proxies_conform(store: &str, more: &str) {
    let upstream = Fixture::start(fixture::Place::BehindProxy).await;
    let rules = format!("{more}\n{}", fixture::RULES);
    let arguments = ["--scope", "header:Conform-Tenant"];
    let one = Program::with(&upstream.address, store, &rules, &arguments);
    if store == "memory:" {
        let cannot = [SEVERAL, ONLY_INSIDE].concat();
        return conforms(&[&one.client.address], &cannot).await;
    }
    let other = Program::with(&upstream.address, store, &rules, &arguments);
    conforms(&[&one.client.address, &other.client.address], &ONLY_INSIDE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_conforms_in_memory() {
    proxies_conform("memory:", "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_conforms_over_http2_to_the_upstream() {
    proxies_conform("memory:", "upstream_http2 = true").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_conforms_on_redis() {
    let Some(store) = redis() else { return };
    proxies_conform(&store, "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_conforms_on_postgres() {
    let Some(store) = postgres().await else { return };
    proxies_conform(&store, "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_conforms_on_mysql() {
    let Some(store) = mysql().await else { return };
    proxies_conform(&store, "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_conforms_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    proxies_conform(&sqlite(folder.path()), "").await;
}

/// Two proxies whose clocks are twenty minutes apart: only the store's is asked.
async fn conforms_at_any_time(store: &str) {
    let _turn = TURNS.acquire().await.unwrap();
    let upstream = Fixture::start(fixture::Place::BehindProxy).await;
    let arguments = ["--scope", "header:Conform-Tenant"];
    let off_by =
        |offset| Program::off_by(offset, &upstream.address, store, fixture::RULES, &arguments);
    let (Some(early), Some(late)) = (off_by("-10m"), off_by("+10m")) else { return };
    for (first, second) in [(&early, &late), (&late, &early)] {
        let urls = [first, second].map(|it| format!("http://{}/conform", it.client.address));
        // In progress, many leases, after a crash, for how long; and over both of them.
        let output = conform(&["--only", "21,44,49,52,59,79,80", &urls[0], &urls[1]]).await;
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("7 passed, 0 failed, 0 skipped"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clocks_that_differ_make_no_difference_on_redis() {
    let Some(store) = redis() else { return };
    conforms_at_any_time(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clocks_that_differ_make_no_difference_on_postgres() {
    let Some(store) = postgres().await else { return };
    conforms_at_any_time(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clocks_that_differ_make_no_difference_on_mysql() {
    let Some(store) = mysql().await else { return };
    conforms_at_any_time(&store).await;
}

/// Without keys in front of it, the kit finds what is missing: it can fail.
#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_without_keys_does_not_conform() {
    let bare = Fixture::start(fixture::Place::Bare).await;
    let url = format!("http://{}/conform", bare.address);
    let output = conform(&["--only", "3,18,19,35,44", &url]).await;
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for line in ["pass   3", "pass  18", "FAIL  19", "FAIL  35", "FAIL  44", "3 failed"] {
        assert!(said.contains(line), "no {line:?} in {said}");
    }
    let output = conform(&[&format!("http://{}/nothing", bare.address)]).await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{said}");
    assert!(said.contains("E-CONFORM-ENDPOINT"), "{said}");
    assert_eq!(conform(&["https://shop.example"]).await.status.code(), Some(64));
}
