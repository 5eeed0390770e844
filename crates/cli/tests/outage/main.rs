//! From PostgreSQL to each broker, while the broker goes down and comes back. What arrived is read
//! with clients that are not ours.
//!
//! `SEMEL_OUTAGE_EVENTS` says how many events, of which some must be left at the last restart,
//! `SEMEL_OUTAGE_SECONDS` how long the broker is away, and `SEMEL_OUTAGE_RESUMES` within how many seconds
//! of its return events must flow: two are promised, on a machine that does nothing else.

#![cfg(all(
    feature = "postgres",
    feature = "page",
    any(feature = "kafka", feature = "rabbitmq", feature = "nats", feature = "redis")
))]
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "helpers of tests may panic")]

mod brokers;
#[path = "../storm/ledger.rs"]
mod ledger;
mod run;

use std::time::Duration;

use self::brokers::{BROKERS, Broker};
use self::ledger::Ledger;
use self::run::Run;

/// What the relay may have in flight: it is repeated after an outage.
const WINDOW: usize = 1_000;
fn number(variable: &str, usual: u32) -> u32 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// The broker is killed for a while, then restarted twice more while events flow.
fn survive(broker: &Broker) {
    let events = number("SEMEL_OUTAGE_EVENTS", broker.events);
    let away = Duration::from_secs(number("SEMEL_OUTAGE_SECONDS", 5).into());
    let soon = Duration::from_secs(number("SEMEL_OUTAGE_RESUMES", 20).into());
    let Some(mut run) = Run::start(broker, events) else { return };

    run.wait_until_published(events / 8);
    run.broker.kill();
    std::thread::sleep(away);
    run.assert_nothing_failed();
    let before = run.published_at_rest();
    run.broker.restart();
    let resumed = run.time_until_more_than(before);
    println!("{}: flows again {resumed:?} after the return", broker.name);
    assert!(resumed < soon, "{resumed:?}");

    for part in [3, 5] {
        run.wait_until_at_work(events / 8 * part, events);
        run.broker.restart();
        run.assert_nothing_failed();
    }
    run.wait_until_published(events);
    run.assert_nothing_failed();
    let ledger = Ledger::read((broker.read)(&run.broker));
    println!("{}: {}\n{}", broker.name, ledger.summary(&run.written), run.log());
    ledger.check(&run.written, WINDOW * 3);
}

fn survive_by_name(name: &str) {
    survive(BROKERS.iter().find(|broker| broker.name == name).unwrap());
}

#[test]
#[cfg(feature = "kafka")]
fn kafka() {
    survive_by_name("kafka");
}

#[test]
#[cfg(feature = "rabbitmq")]
fn rabbitmq() {
    survive_by_name("rabbitmq");
}

#[test]
#[cfg(feature = "nats")]
fn nats() {
    survive_by_name("nats");
}

#[test]
#[cfg(feature = "redis")]
fn redis() {
    survive_by_name("redis");
}
