//! What idempotency keys cost in Redis: round trips per request, and the rate of claims beside that
//! of redis-benchmark with the same script in the same run.
//! `cargo bench -p semel-backends --features redis --bench keys`
//!
//! It starts a server of its own. Arguments: claims (100000), callers at once (64), rounds (3).

#![expect(clippy::print_stdout, reason = "it reports to the terminal")]

use std::error::Error;
use std::process::Command;
use std::time::{Duration, Instant};

use redis::{Client, cmd};
use semel_backends::redis::{RedisConfig, RedisKeys};
use semel_core::idempotency::{Claim, Fingerprint, IdempotencyStore, Record, ScopedKey};
use semel_testkit::services::{Private, Service};
use tokio::task::JoinSet;

type Outcome<T> = Result<T, Box<dyn Error>>;

const SCRIPT: &str = include_str!("../src/redis/scripts/claim.lua");
const LEASE: Duration = Duration::from_secs(30);
const KEEP: Duration = Duration::from_secs(3600);

#[tokio::main]
async fn main() -> Outcome<()> {
    let mut numbers = std::env::args().filter_map(|argument| argument.parse::<usize>().ok());
    let count = numbers.next().unwrap_or(100_000);
    let callers = numbers.next().unwrap_or(64);
    let rounds = numbers.next().unwrap_or(3);
    let Some(server) = Private::start(Service::Redis) else {
        println!("there is no redis-server: nothing to measure");
        return Ok(());
    };
    let keys = RedisConfig::new(server.address())?.connect_keys().await?;
    round_trips(&keys, server.address()).await?;
    for round in 1..=rounds {
        let ours = claims(&keys, count, callers, round).await?;
        let theirs = redis_benchmark(server.address(), count, callers)?;
        let ratio = ours / theirs;
        println!(
            "{callers} callers: {ours:.0} claims/s, {ratio:.2} of redis-benchmark ({theirs:.0}/s)"
        );
    }
    Ok(())
}

/// How many calls the server saw for a first request and for a replay.
async fn round_trips(keys: &RedisKeys, url: &str) -> Outcome<()> {
    let mut connection = Client::open(url)?.get_multiplexed_async_connection().await?;
    let mut calls = async || -> Outcome<usize> {
        let stats: String = cmd("INFO").arg("commandstats").query_async(&mut connection).await?;
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        Ok(line.and_then(|rest| rest.split(',').next()).map_or(Ok(0), str::parse)?)
    };
    let (key, print) = (ScopedKey::new(&["round trips"]), Fingerprint::new(&[b"request"]));
    let before = calls().await?;
    let Claim::Fresh { token, .. } = keys.claim(&key, &print, LEASE).await? else {
        return Err("the key is not free".into());
    };
    let record = Record { version: 1, body: vec![b'x'; 300].into() };
    let _ = keys.complete(&key, token, record, KEEP).await?;
    let first = calls().await? - before;
    keys.claim(&key, &print, LEASE).await?;
    let replay = calls().await? - before - first;
    println!("round trips: {first} for a first request, {replay} for a replay");
    Ok(())
}

/// Claims new keys; how many in a second.
async fn claims(keys: &RedisKeys, count: usize, callers: usize, round: usize) -> Outcome<f64> {
    let (mut running, started) = (JoinSet::new(), Instant::now());
    for caller in 0..callers {
        let keys = keys.clone();
        running.spawn(async move {
            let print = Fingerprint::new(&[b"request"]);
            for number in (caller..count).step_by(callers) {
                let key = ScopedKey::new(&[&round.to_string(), &number.to_string()]);
                keys.claim(&key, &print, LEASE).await?;
            }
            Ok::<_, semel_core::Failure>(())
        });
    }
    while let Some(done) = running.join_next().await {
        done??;
    }
    Ok(count as f64 / started.elapsed().as_secs_f64())
}

/// The same script on names and arguments of the same size.
fn redis_benchmark(url: &str, count: usize, callers: usize) -> Outcome<f64> {
    let (host, port) = url.trim_start_matches("redis://").split_once(':').ok_or("no port")?;
    let load = Command::new("redis-cli").args(["-u", url, "SCRIPT", "LOAD", SCRIPT]).output()?;
    let hash = String::from_utf8(load.stdout)?;
    let name = format!("semel:key:{{{}__rand_int__}}", "0".repeat(52));
    let run = Command::new("redis-benchmark")
        .args(["-h", host, "-p", port, "-q", "-r", "1000000000", "-n", &count.to_string()])
        .args(["-c", &callers.to_string(), "EVALSHA", hash.trim(), "1", &name])
        .args([&"f".repeat(32), "30000000", "86430000", &"c".repeat(16)])
        .output()?;
    let said = String::from_utf8(run.stdout)?;
    let (before, _) = said.rsplit_once(" requests per second").ok_or("no rate")?;
    Ok(before.rsplit(' ').next().ok_or("no rate")?.parse()?)
}
