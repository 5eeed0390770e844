//! Idempotency keys: the shared suite, and what a server of their own can do to them.

use std::time::Duration;

use redis::cmd;
use semel_backends::redis::{RedisConfig, RedisKeys};
use semel_core::idempotency::{Claim, Fingerprint, KeyAdmin, Record, ScopedKey, Token};
use semel_core::{EventId, Failure, Holding, IdempotencyStore};
use semel_testkit::probe::{Probe, Ran, Skip};
use semel_testkit::proxy::Proxy;
use semel_testkit::services::{Service, service};
use semel_testkit::suites::idempotency::IdempotencyProbe;
use tokio::time::timeout;

use super::server::OwnServer;
use super::{PATIENCE, Reader, random_name};

semel_testkit::idempotency_suite!(Keys);

const LEASE: Duration = Duration::from_secs(600);

struct Keys(RedisKeys);

impl Probe for Keys {
    const BACKEND: &'static str = "Redis";

    async fn fresh() -> Option<Self> {
        let config = RedisConfig::new(&service(Service::Redis)?).unwrap();
        Some(Self(connect(config.key_prefix(random_name("keys:"))).await.unwrap()))
    }
}

impl IdempotencyProbe for Keys {
    type Store = RedisKeys;

    fn store(&self) -> &RedisKeys {
        &self.0
    }

    fn admin(&self) -> Option<&dyn KeyAdmin> {
        Some(&self.0)
    }

    fn keeps_expired(&self) -> Ran {
        Err(Skip::because("the server deletes what is expired"))
    }
}

async fn connect(config: RedisConfig) -> Result<RedisKeys, Failure> {
    timeout(PATIENCE, config.connect_keys()).await.expect("an answer")
}

fn anything() -> (ScopedKey, Fingerprint) {
    (ScopedKey::new(&["test", &EventId::now().to_string()]), Fingerprint::new(&[b"request"]))
}

fn paid() -> Record {
    Record { version: 1, body: "paid".into() }
}

async fn fresh(keys: &RedisKeys, key: &ScopedKey, print: &Fingerprint) -> Token {
    let claim = timeout(PATIENCE, keys.claim(key, print, LEASE)).await.expect("an answer").unwrap();
    let token = if let Claim::Fresh { token, .. } = claim { Some(token) } else { None };
    token.expect("the key is free")
}

async fn complete(keys: &RedisKeys, key: &ScopedKey, token: Token) -> Holding {
    let completed = timeout(PATIENCE, keys.complete(key, token, paid(), LEASE)).await;
    completed.expect("an answer").unwrap()
}

/// How often a command was called.
async fn calls(reader: &Reader, command: &str) -> usize {
    let stats: String = reader.ask(cmd("INFO").arg("commandstats")).await;
    let start = format!("cmdstat_{command}:calls=");
    let line = stats.lines().find_map(|line| line.strip_prefix(&start));
    line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
}

#[tokio::test]
async fn every_call_is_one_round_trip() {
    let Some(server) = OwnServer::start(&[]).await else { return };
    let (keys, reader) = (connect(server.config()).await.unwrap(), server.reader().await);
    let (key, print) = anything();
    let token = fresh(&keys, &key, &print).await;
    assert_eq!(complete(&keys, &key, token).await, Holding::Held);
    assert_eq!(calls(&reader, "evalsha").await, 2, "a first request");
    assert_eq!(keys.claim(&key, &print, LEASE).await.unwrap(), Claim::Done(paid()));
    assert_eq!(calls(&reader, "evalsha").await, 3, "a replay");
    assert_eq!(calls(&reader, "eval").await, 0);
}

#[tokio::test]
async fn a_server_that_forgot_its_scripts_is_told_them_again() {
    let Some(server) = OwnServer::start(&[]).await else { return };
    let (keys, reader) = (connect(server.config()).await.unwrap(), server.reader().await);
    let (key, print) = anything();
    reader.ask::<()>(cmd("SCRIPT").arg("FLUSH")).await;
    let token = fresh(&keys, &key, &print).await;
    assert_eq!(complete(&keys, &key, token).await, Holding::Held);
    assert_eq!(keys.claim(&key, &print, LEASE).await.unwrap(), Claim::Done(paid()));
    assert_eq!(calls(&reader, "eval").await, 2, "once each");
}

/// Ends the server as a crash would; back when it has read its data.
pub(super) async fn restart(server: &mut OwnServer) {
    server.restart().await;
    let reader = server.reader().await;
    let loaded = async {
        while !reader.ask::<String>(&cmd("INFO")).await.contains("\nloading:0") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, loaded).await.expect("its data is loaded");
}

#[tokio::test]
async fn a_claim_survives_a_crash_of_the_server() {
    let settings = ["--appendonly", "yes", "--appendfsync", "always"];
    let Some(mut server) = OwnServer::start(&settings).await else { return };
    let keys = connect(server.config()).await.unwrap();
    let (key, print) = anything();
    let token = fresh(&keys, &key, &print).await;
    restart(&mut server).await;
    // The lost connection and the scripts are made anew behind the caller's back.
    let claim = timeout(PATIENCE, keys.claim(&key, &print, LEASE)).await.unwrap().unwrap();
    assert!(matches!(claim, Claim::InFlight { .. }), "{claim:?}");
    assert_eq!(complete(&keys, &key, token).await, Holding::Held);
    restart(&mut server).await;
    assert_eq!(keys.claim(&key, &print, LEASE).await.unwrap(), Claim::Done(paid()));
}

/// A cluster of three nodes that know each other.
pub(super) async fn cluster() -> Option<Vec<OwnServer>> {
    let mut nodes = Vec::new();
    for (from, to) in [(0, 5460), (5461, 10922), (10923, 16383)] {
        let node = OwnServer::start(&["--cluster-enabled", "yes"]).await?;
        let reader = node.reader().await;
        reader.ask::<()>(cmd("CLUSTER").arg("ADDSLOTSRANGE").arg(from).arg(to)).await;
        if let Some(first) = nodes.first() {
            reader.ask::<()>(&OwnServer::meeting(first)).await;
        }
        nodes.push(node);
    }
    for node in &nodes {
        let reader = node.reader().await;
        let up = async {
            loop {
                let info: String = reader.ask(cmd("CLUSTER").arg("INFO")).await;
                if info.contains("slots_assigned:16384") && info.contains("state:ok") {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, up).await.expect("the cluster is up");
    }
    Some(nodes)
}

#[tokio::test]
async fn keys_are_found_on_all_nodes_of_a_cluster() {
    let Some(nodes) = cluster().await else { return };
    let keys = connect(nodes[0].config()).await.unwrap();
    let mut made = Vec::new();
    for _ in 0..40 {
        let (key, print) = anything();
        let token = fresh(&keys, &key, &print).await;
        assert_eq!(keys.renew(&key, token, LEASE).await.unwrap(), Holding::Held);
        assert_eq!(complete(&keys, &key, token).await, Holding::Held);
        assert_eq!(keys.claim(&key, &print, LEASE).await.unwrap(), Claim::Done(paid()));
        made.push(key);
    }
    for node in &nodes {
        let held: usize = node.reader().await.ask(&cmd("DBSIZE")).await;
        assert!((1..40).contains(&held), "{held} of 40 keys on one node of three");
    }
    // From whichever node one starts, all are listed, each once.
    let keys = connect(nodes[1].config()).await.unwrap();
    let (mut listed, mut after) = (Vec::new(), None);
    loop {
        let page = keys.list(after.as_deref(), 10).await.unwrap();
        listed.extend(page.keys.into_iter().map(|view| view.key));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    listed.sort_unstable();
    made.sort_unstable();
    assert_eq!(listed, made);
    assert!(keys.look(&made[0]).await.unwrap().is_some());
    assert!(keys.free(&made[0]).await.unwrap());
    assert!(keys.look(&made[0]).await.unwrap().is_none());
}

#[tokio::test]
async fn a_slot_that_moves_to_another_node_is_followed() {
    let Some(nodes) = cluster().await else { return };
    let keys = connect(nodes[0].config()).await.unwrap();
    let (key, print) = anything();
    let token = fresh(&keys, &key, &print).await;
    let name = format!("semel:key:{{{key}}}");
    let mut readers = Vec::new();
    for node in &nodes {
        readers.push(node.reader().await);
    }
    let slot: u16 = readers[0].ask(cmd("CLUSTER").arg("KEYSLOT").arg(&name)).await;
    let from = usize::from(slot > 5460) + usize::from(slot > 10922);
    let to = (from + 1) % nodes.len();
    let id: String = readers[to].ask(cmd("CLUSTER").arg("MYID")).await;
    // As redis-cli --cluster reshard does it, in the short form: the key, then the slot.
    let dumped: Vec<u8> = readers[from].ask(cmd("DUMP").arg(&name)).await;
    let source: String = readers[from].ask(cmd("CLUSTER").arg("MYID")).await;
    let setting = |state: &str, node: &str| {
        let mut command = cmd("CLUSTER");
        command.arg("SETSLOT").arg(slot).arg(state).arg(node);
        command
    };
    readers[from].ask::<()>(cmd("DEL").arg(&name)).await;
    readers[to].ask::<()>(&setting("IMPORTING", &source)).await;
    readers[to].ask::<()>(&setting("NODE", &id)).await;
    readers[to].ask::<()>(cmd("RESTORE").arg(&name).arg(0).arg(dumped)).await;
    readers[from].ask::<()>(&setting("NODE", &id)).await;
    assert_eq!(complete(&keys, &key, token).await, Holding::Held);
    assert_eq!(keys.claim(&key, &print, LEASE).await.unwrap(), Claim::Done(paid()));
}

/// Whoever lost the answer to a claim is its owner all the same, once.
#[tokio::test]
async fn a_claim_whose_answer_is_lost_is_found_again() {
    let Some(server) = OwnServer::start(&[]).await else { return };
    let proxy = Proxy::start(server.url().trim_start_matches("redis://")).await;
    let config = RedisConfig::new(&format!("redis://{}", proxy.address())).unwrap();
    let (keys, reader) = (connect(config).await.unwrap(), server.reader().await);
    let (key, print) = anything();
    proxy.swallow_replies(true);
    let made = async {
        while reader.ask::<usize>(&cmd("DBSIZE")).await == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        proxy.swallow_replies(false);
        proxy.cut();
    };
    let (token, ()) = tokio::join!(fresh(&keys, &key, &print), made);
    let other = connect(server.config()).await.unwrap();
    let claim = other.claim(&key, &print, LEASE).await.unwrap();
    assert!(matches!(claim, Claim::InFlight { .. }), "{claim:?}");
    assert_eq!(complete(&keys, &key, token).await, Holding::Held);
}

#[tokio::test]
async fn what_is_over_leaves_the_server() {
    let Some(server) = OwnServer::start(&[]).await else { return };
    let (keys, reader) = (connect(server.config()).await.unwrap(), server.reader().await);
    let (key, print) = anything();
    let token = fresh(&keys, &key, &print).await;
    let name = format!("semel:key:{{{key}}}");
    let life: i64 = reader.ask(cmd("PTTL").arg(&name)).await;
    let day = 24 * 60 * 60 * 1000;
    assert!(life > day, "an abandoned claim is remembered for a day, not {life} ms");
    let short = Duration::from_millis(50);
    assert_eq!(keys.complete(&key, token, paid(), short).await.unwrap(), Holding::Held);
    let gone = async {
        while reader.ask::<usize>(&cmd("DBSIZE")).await > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, gone).await.expect("it is gone");
}
