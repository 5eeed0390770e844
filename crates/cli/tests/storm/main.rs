//! Relays that are killed, frozen and cut off from their database while many write.
//!
//! `SEMEL_STORM_SECONDS` says how long each storm lasts; `SEMEL_STORM_KILLS` how often the relay is
//! killed that publishes exactly once, and the one that tails the log (200 for the promise in full).
//! With `SEMEL_STORM_TAKEOVER=strict`, no relay may be replaced late, not even once.

#![cfg(feature = "postgres")]
#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "helpers of tests may panic"
)]

mod killed;
mod ledger;
#[cfg(feature = "kafka")]
mod once;
#[cfg(all(feature = "kafka", feature = "nats", feature = "rabbitmq", feature = "redis"))]
mod orders;
mod relays;
mod several;
#[cfg(all(feature = "kafka", feature = "nats", feature = "rabbitmq", feature = "redis"))]
mod shop;
mod writers;

use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use semel_testkit::services::{Private, Service};
use tokio::time::sleep;

use self::ledger::Ledger;
use self::relays::Relays;
use self::writers::Writers;

const LEADER: &str = "coordination = \"leader\"";
const LEASE: Duration = Duration::from_secs(2);
/// Where leases are forgotten and not waited for: none runs out because the machine is full.
const LONG_LEASE: Duration = Duration::from_secs(15);

fn storm() -> Duration {
    storm_of(12)
}

/// So many seconds, unless somebody said how many.
fn storm_of(usual: u64) -> Duration {
    let seconds = std::env::var("SEMEL_STORM_SECONDS").ok();
    Duration::from_secs(seconds.and_then(|seconds| seconds.parse().ok()).unwrap_or(usual))
}

fn kills() -> usize {
    std::env::var("SEMEL_STORM_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(6)
}

/// What the relay of a pipeline, or of a share, may have in flight: it is repeated after a kill. Far
/// less than is published between two kills, or to repeat all of that would pass.
const WINDOW: usize = 50;

fn limited(pipeline: &str) -> String {
    format!("{pipeline}\n[limits]\nin_flight_events = {WINDOW}")
}

async fn begin(
    service: Service,
    coordination: &str,
    count: usize,
) -> Option<(Private, Relays, Writers)> {
    let server = Private::start(service)?;
    let relays = Relays::new(server.address(), "poll", &limited(coordination), LEASE, count);
    let writers = Writers::start(server.address(), 16).await;
    Some((server, relays, writers))
}

/// `losses` is how often the relay of a pipeline or share was lost.
async fn end(what: &str, mut relays: Relays, writers: Writers, losses: usize) {
    let written = writers.stop().await;
    relays.drain(LEASE * 4);
    let ledger = Ledger::read(relays.published());
    println!("{what}: {}", ledger.summary(&written));
    ledger.check(&written, WINDOW * losses);
}

/// What was lost is back within so long.
const PROMISED: Duration = LEASE.saturating_add(Duration::from_secs(1));

/// How long take-overs took, the shortest first. A machine with nothing to spare may be late.
fn sorted(what: &str, mut took: Vec<Duration>) -> Vec<Duration> {
    took.sort_unstable();
    println!("{what}: taken over {} times: {took:.2?}, lease {LEASE:?}", took.len());
    if std::env::var("SEMEL_STORM_TAKEOVER").is_ok_and(|how| how == "strict") {
        assert!(took.iter().all(|took| *took <= PROMISED), "{what}: {took:?}");
    }
    took
}

/// Whatever happens to the log, to the server or to the relay, polling goes on where tailing ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_tailing_relay_is_killed_and_cut_off_from_its_log() {
    const CUT: &str = "select count(*) filter (where pg_terminate_backend(active_pid)) \
        from pg_replication_slots where active";
    let Some(server) = Private::start(Service::Postgres) else { return };
    let mut relays = Relays::new(server.address(), "auto", &limited(LEADER), LONG_LEASE, 1);
    let writers = Writers::start(server.address(), 8).await;
    let (mut random, mut cuts, mut restarts) = (StdRng::seed_from_u64(5), 0, 0);
    let mut wait = || sleep(Duration::from_millis(random.random_range(300..2_500)));
    for kill in 0..kills() {
        wait().await;
        // A slot that is temporary is dropped by ending the session it belongs to.
        if kill % 4 == 1 {
            cuts += cut_off(&relays, CUT).await;
            wait().await;
        }
        if kill % 10 == 2 {
            relays.run_sql("drop publication if exists semel_outbox").await;
            wait().await;
        }
        if kill % 20 == 3 {
            server.kill();
            server.restart();
            restarts += 1;
            wait().await;
        }
        relays.kill(0);
        relays.forget_leases().await;
        relays.start(0);
    }
    wait().await;
    relays.kill(0);
    relays.forget_leases().await;
    let (tailed, polled) = (relays.told("tailing: "), relays.told("polling: "));
    println!(
        "{} kills, {restarts} restarts, {cuts} slots dropped, {tailed} times to the log, {polled} \
         times back to polling",
        kills() + 1
    );
    assert!(tailed * 3 >= kills(), "it tailed {tailed} times only");
    assert!(cuts > 0, "no slot was ever there to be dropped");
    end("tailing", relays, writers, kills() + restarts + 1).await;
}

/// A slot is there only when the relay has nothing more to poll, and no writer is in its way.
async fn cut_off(relays: &Relays, cut: &'static str) -> i64 {
    for _ in 0..20 {
        let cuts = relays.count(cut).await;
        if cuts > 0 {
            return cuts;
        }
        sleep(Duration::from_millis(100)).await;
    }
    0
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn a_tailing_relay_is_killed_and_cut_off_from_its_log_on_mysql() {
    const CUT: &str = "BEGIN NOT ATOMIC FOR dump IN \
            (SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%') \
        DO EXECUTE IMMEDIATE concat('KILL ', dump.id); END FOR; END";
    const PURGE: &str = "FLUSH BINARY LOGS; PURGE BINARY LOGS BEFORE now() + INTERVAL 1 HOUR";
    const PAUSE: Duration = Duration::from_millis(1_500);
    let Some(server) = Private::start(Service::Mysql) else { return };
    let mut relays = Relays::new(server.address(), "auto", &limited(LEADER), LONG_LEASE, 1);
    let writers = Writers::start(server.address(), 16).await;
    let mut kills = 0;
    for round in 0..2 * storm().as_millis() / PAUSE.as_millis() {
        sleep(PAUSE).await;
        let tailed = relays.told("tailing: ");
        match round % 6 {
            0 | 2 => relays.run_sql(CUT).await,
            1 => relays.run_sql(PURGE).await,
            4 => {
                server.kill();
                server.restart();
                kills += 1;
            }
            _ => {
                relays.kill(0);
                relays.forget_leases().await;
                relays.start(0);
                kills += 1;
                tails_again(&relays, tailed).await;
            }
        }
    }
    relays.kill(0);
    relays.forget_leases().await;
    let (tailed, polled) = (relays.told("tailing: "), relays.told("polling: "));
    println!("{kills} kills, {tailed} times to the log, {polled} times back to polling");
    assert!(tailed >= 3, "it tailed {tailed} times only: {}", relays.logs());
    end("tailing", relays, writers, kills + 1).await;
}

/// There is a log to be cut off from, however busy the machine is.
#[cfg(feature = "mysql")]
async fn tails_again(relays: &Relays, before: usize) {
    const LIMIT: Duration = Duration::from_secs(20);
    let began = Instant::now();
    while relays.told("tailing: ") == before && began.elapsed() < LIMIT {
        sleep(Duration::from_millis(50)).await;
    }
}

/// `SEMEL_LARGE_ROWS` says how many: 1000000 for the promise in full.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_of_many_rows_takes_little_memory() {
    const MOST: u64 = 64 * 1024;
    let rows = std::env::var("SEMEL_LARGE_ROWS").ok().and_then(|rows| rows.parse().ok());
    let rows: usize = rows.unwrap_or(100_000);
    let Some(server) = Private::start(Service::Postgres) else { return };
    let mut relays = Relays::new(server.address(), "auto", LEADER, LEASE, 1);
    let began = Instant::now();
    while relays.told("tailing: ") == 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "it never tails");
        sleep(Duration::from_millis(50)).await;
    }
    relays
        .run_sql(&format!(
            "insert into semel.outbox (aggregate_type, aggregate_id, event_type, payload)
            select 'order', n % 1000, 'Placed', n from generate_series(1, {rows}) n"
        ))
        .await;
    let (began, mut most) = (Instant::now(), 0);
    loop {
        let is_done = relays.waiting().await == 0;
        most = most.max(relays.memory(0));
        if is_done {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(900), "it never ends");
        sleep(Duration::from_millis(100)).await;
    }
    println!("{rows} rows in one transaction: {most} KiB, {:?}", began.elapsed());
    relays.stop_all();
    assert_eq!(relays.published().len(), rows);
    assert!(most < MOST, "{most} KiB");
}
