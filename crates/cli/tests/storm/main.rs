//! Relays that are killed, frozen and cut off from their database while many write.
//!
//! `SEMEL_STORM_SECONDS` says how long each storm lasts, `SEMEL_STORM_KILLS` how often the relay is
//! killed that publishes exactly once.

#![cfg(feature = "postgres")]
#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "helpers of tests may panic"
)]

mod ledger;
#[cfg(feature = "kafka")]
mod once;
mod relays;
mod writers;

use std::time::{Duration, Instant};

use semel_testkit::services::{Private, Service};
use tokio::time::sleep;

use self::ledger::Ledger;
use self::relays::Relays;
use self::writers::Writers;

const LEADER: &str = "coordination = \"leader\"";
const DELETING: &str = "[retention]\ndelete = \"on_publish\"";
const LEASE: Duration = Duration::from_secs(2);

fn storm() -> Duration {
    let seconds = std::env::var("SEMEL_STORM_SECONDS").ok();
    Duration::from_secs(seconds.and_then(|seconds| seconds.parse().ok()).unwrap_or(12))
}

/// What a relay may have in flight: it is repeated after a kill.
const WINDOW: usize = 1_000;

async fn begin(
    service: Service,
    coordination: &str,
    count: usize,
) -> Option<(Private, Relays, Writers)> {
    begin_in("poll", service, coordination, count).await
}

async fn begin_in(
    mode: &str,
    service: Service,
    coordination: &str,
    count: usize,
) -> Option<(Private, Relays, Writers)> {
    let server = Private::start(service)?;
    let relays = Relays::new(server.address(), mode, coordination, LEASE, count);
    let writers = Writers::start(server.address(), 16).await;
    Some((server, relays, writers))
}

async fn end(what: &str, mut relays: Relays, writers: Writers, kills: usize) {
    let written = writers.stop().await;
    relays.drain(LEASE * 4);
    let ledger = Ledger::read(relays.published());
    println!("{what}: {}", ledger.summary(&written));
    ledger.check(&written, WINDOW * kills);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_relay_killed_every_two_seconds() {
    let Some((_server, mut relays, writers)) = begin(Service::Postgres, LEADER, 1).await else {
        return;
    };
    let (began, mut kills) = (Instant::now(), 0);
    while began.elapsed() < storm() {
        sleep(Duration::from_secs(2)).await;
        relays.kill(0);
        relays.forget_leases().await;
        relays.start(0);
        kills += 1;
    }
    relays.kill(0);
    end("killed", relays, writers, kills + 1).await;
}

/// Whatever happens to the log, to the server or to the relay, polling goes on where tailing ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_tailing_relay_is_killed_and_cut_off_from_its_log() {
    const CUT: &str = "select pg_terminate_backend(active_pid) from pg_replication_slots";
    const DROP: &str = "drop publication if exists semel_outbox";
    cut_off_from_the_log(Service::Postgres, CUT, DROP).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn a_tailing_relay_is_killed_and_cut_off_from_its_log_on_mysql() {
    const CUT: &str = "BEGIN NOT ATOMIC FOR dump IN \
            (SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%') \
        DO EXECUTE IMMEDIATE concat('KILL ', dump.id); END FOR; END";
    const PURGE: &str = "FLUSH BINARY LOGS; PURGE BINARY LOGS BEFORE now() + INTERVAL 1 HOUR";
    cut_off_from_the_log(Service::Mysql, CUT, PURGE).await;
}

async fn cut_off_from_the_log(service: Service, cut: &'static str, spoil: &'static str) {
    let Some((server, mut relays, writers)) = begin_in("auto", service, LEADER, 1).await else {
        return;
    };
    let (began, mut kills, mut round) = (Instant::now(), 0, 0);
    while began.elapsed() < storm() * 2 {
        sleep(Duration::from_millis(1_500)).await;
        match round % 6 {
            0 | 2 => relays.run_sql(cut).await,
            1 => relays.run_sql(spoil).await,
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
            }
        }
        round += 1;
    }
    relays.kill(0);
    let (tailed, polled) = (relays.told("tailing: "), relays.told("polling: "));
    println!("{kills} kills, {tailed} times to the log, {polled} times back to polling");
    assert!(tailed >= 3, "it tailed {tailed} times only");
    end("tailing", relays, writers, kills + 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_frozen_is_replaced_and_fenced() {
    freeze_leaders(Service::Postgres).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_frozen_is_replaced_and_fenced_on_mysql() {
    freeze_leaders(Service::Mysql).await;
}

async fn freeze_leaders(service: Service) {
    let Some((_server, mut relays, writers)) = begin(service, LEADER, 2).await else { return };
    let (began, mut changes) = (Instant::now(), 0);
    while began.elapsed() < storm() {
        sleep(Duration::from_secs(1)).await;
        let leader = relays.leader().await;
        relays.freeze(leader);
        let took = relays.next_owner_after(leader).await;
        println!("taken over after {took:?}, the lease is {LEASE:?}");
        assert!(took < LEASE + Duration::from_secs(3), "{took:?}");
        relays.thaw(leader);
        changes += 1;
    }
    assert!(relays.all_run(), "who lost its share stands by");
    relays.stop_all();
    end("frozen", relays, writers, changes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_relays_with_shares_are_killed_in_turn() {
    kill_in_turn(Service::Postgres).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn three_relays_with_shares_are_killed_in_turn_on_mysql() {
    kill_in_turn(Service::Mysql).await;
}

async fn kill_in_turn(service: Service) {
    let Some((_server, mut relays, writers)) =
        begin(service, &format!("coordination = \"partitioned\"\nshares = 6\n{DELETING}"), 3).await
    else {
        return;
    };
    let (began, mut kills) = (Instant::now(), 0);
    while began.elapsed() < storm() {
        sleep(Duration::from_secs(2)).await;
        let victim = kills % 3;
        relays.kill(victim);
        sleep(Duration::from_millis(500)).await;
        relays.start(victim);
        kills += 1;
    }
    sleep(Duration::from_secs(1)).await;
    assert!(relays.all_run());
    relays.stop_all();
    end("shares", relays, writers, kills).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_database_restarts_under_three_relays() {
    let Some((server, mut relays, writers)) =
        begin(Service::Postgres, "coordination = \"competing\"\nshares = 4", 3).await
    else {
        return;
    };
    let (began, mut restarts) = (Instant::now(), 0);
    while began.elapsed() < storm() {
        sleep(Duration::from_secs(4)).await;
        if restarts % 2 == 0 {
            server.kill();
        }
        server.restart();
        restarts += 1;
    }
    assert!(relays.all_run(), "an outage ends no relay");
    relays.stop_all();
    end("restarted", relays, writers, restarts * 3).await;
}
