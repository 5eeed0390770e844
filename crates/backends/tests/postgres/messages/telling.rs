//! What is told of the carrier and its slot: by gauges, to whoever looks, and by `semel check`.

use std::time::{Duration, Instant};

use semel_backends::postgres::{Carrying, PostgresConfig, Tailing};
use semel_core::Insight;
use semel_core::diagnosis::{Diagnose, Finding, Log, Needs, Severity};
use semel_core::telemetry;
use semel_testkit::proxy::Proxy;
use semel_testkit::services::{Private, Service};
use semel_testkit::workload::{delivered_numbers, event};
use tokio::time::timeout;

use super::super::frozen::somebody_waits;
use super::super::gauges::Gauges;
use super::super::{connect, database};
use super::{Database, messages};

/// An alert goes by it: one that waits for its turn is no reason for any.
#[test]
fn whoever_carries_says_so_and_nobody_else_does() {
    const CARRIED: telemetry::Metric = telemetry::MESSAGES_CARRIED;
    Gauges::of(async |gauges| {
        let database = messages!();
        let first = database.store.carry_messages("first").await.unwrap();
        gauges.until(CARRIED, "first", 1.0).await;
        let _second = database.again().await.carry_messages("second").await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let stands_by = gauges.told(CARRIED, "second").is_none_or(f64::is_nan);
        assert!(stands_by, "{:?}", gauges.told(CARRIED, "second"));
        drop(first);
        gauges.until(CARRIED, "second", 1.0).await;
        let left = gauges.told(CARRIED, "first");
        assert!(left.is_some_and(f64::is_nan), "it is not there any more: {left:?}");

        database.run("alter table semel.outbox add constraint none_at_all check (false)").await;
        database.emit(&[event("a", 1)]).await;
        gauges.until(CARRIED, "second", 0.0).await;
        // It tries again and again, and carries nothing.
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(2) {
            assert_eq!(gauges.told(CARRIED, "second"), Some(0.0));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        database.run("alter table semel.outbox drop constraint none_at_all").await;
        gauges.until(CARRIED, "second", 1.0).await;
        for pipeline in ["first", "second"] {
            assert_eq!(gauges.told(telemetry::SOURCE_TAILING, pipeline), None, "nobody tails");
        }
    });
}

/// A carrier behind a proxy, which carries.
async fn far_away(database: &Database, gauges: &Gauges) -> (Proxy, Carrying) {
    let address = database.address();
    let proxy = Proxy::start(address).await;
    let far = connect(&database.url().replace(address, &proxy.address())).await;
    let carrying = far.carry_messages("far").await.unwrap();
    database.emit(&[event("a", 1)]).await;
    gauges.until(telemetry::MESSAGES_CARRIED, "far", 1.0).await;
    (proxy, carrying)
}

/// As a server that lost its power does, whose address is that of another soon.
async fn falls_silent(gauges: &Gauges, proxy: &Proxy) {
    const SOON: Duration = Duration::from_secs(15);
    proxy.swallow_replies(true);
    let noticed = gauges.until(telemetry::MESSAGES_CARRIED, "far", 0.0);
    timeout(SOON, noticed).await.expect("it noticed");
}

async fn comes_back(database: &Database, gauges: &Gauges, proxy: &Proxy, carrying: &Carrying) {
    proxy.swallow_replies(false);
    proxy.cut();
    gauges.until(telemetry::MESSAGES_CARRIED, "far", 1.0).await;
    carrying.caught_up().await.unwrap();
    assert_eq!(delivered_numbers(&database.relay().await.deliver_all(10).await), [1, 2]);
}

#[test]
fn a_carrier_whose_server_falls_silent_says_so_and_comes_back() {
    Gauges::of(async |gauges| {
        let database = messages!();
        let (proxy, carrying) = far_away(&database, &gauges).await;
        falls_silent(&gauges, &proxy).await;
        database.emit(&[event("a", 2)]).await;
        comes_back(&database, &gauges, &proxy, &carrying).await;
    });
}

#[test]
fn a_carrier_whose_server_falls_silent_while_it_adds_to_the_outbox_says_so_and_comes_back() {
    Gauges::of(async |gauges| {
        let database = messages!();
        let (proxy, carrying) = far_away(&database, &gauges).await;
        let mut lock = database.begin().await;
        sqlx::raw_sql("lock table semel.outbox in share mode").execute(&mut *lock).await.unwrap();
        database.emit(&[event("a", 2)]).await;
        somebody_waits(&database).await;
        falls_silent(&gauges, &proxy).await;
        lock.rollback().await.unwrap();
        comes_back(&database, &gauges, &proxy, &carrying).await;
    });
}

#[tokio::test]
async fn the_log_that_is_kept_for_messages_is_shown() {
    let database = messages!();
    let log = async || database.store.workings("orders").await.unwrap().log.unwrap();
    let unread = log().await;
    assert!(unread.slot.unwrap().starts_with("semel_messages_"));
    assert!(!unread.active && unread.retained_bytes.is_some());
    database.emit(&[event("a", 1)]).await;
    let carrying = database.carrying().await;
    carrying.caught_up().await.unwrap();
    assert!(log().await.active);
}

impl Database {
    async fn slot(&self) -> String {
        let slot = "select slot_name::text from pg_replication_slots
            where database = current_database()";
        sqlx::query_scalar(slot).fetch_one(self.pool()).await.unwrap()
    }
}

/// Whoever went back to rows, or asks without a configuration, must hear of it before the disk is full;
/// and nobody is handed what would lose messages.
#[tokio::test]
async fn a_slot_of_messages_that_nobody_reads_is_found_from_everywhere() {
    let (database, other) = (messages!(), database!());
    let slot = database.slot().await;
    let about = |all: &[Finding], code: &str, what: &str| {
        all.iter().find(|one| one.code == code && one.what.contains(what)).cloned()
    };
    for store in [&database.store, &other.store] {
        for log in [Log::Unread, Log::WherePossible] {
            let all = store.diagnose(&Needs { log, ..Needs::default() }).await.unwrap();
            let left = about(&all, "slot-left", &slot).unwrap();
            assert_eq!(left.severity, Severity::Advice, "{left:?}");
            assert!(left.what.contains("MiB") && left.sql.is_none(), "{left:?}");
            let fix = left.fix.unwrap();
            assert!(fix.contains("outbox = \"messages\"") && !fix.contains("pg_drop"), "{fix}");
        }
    }
    let needs = Needs { log: Log::Required, messages: true, ..Needs::default() };
    let all = database.store.diagnose(&needs).await.unwrap();
    assert!(about(&all, "slot-left", &slot).is_none(), "there is another finding: {all:?}");
    for needs in [needs, Needs::default()] {
        let all = database.store.diagnose(&needs).await.unwrap();
        let keep = about(&all, "wal-keep", "").unwrap();
        assert!(keep.sql.is_none() && !keep.effect.contains("hold back no log"), "{keep:?}");
    }
}

#[tokio::test]
async fn slots_and_senders_are_counted_for_those_who_need_them() {
    let Some(server) = Private::start(Service::Postgres) else { return };
    let config = || PostgresConfig::new(server.address()).unwrap();
    let store = config().connect().await.unwrap();
    for sql in
        ["alter system set max_replication_slots = 2", "alter system set max_wal_senders = 1"]
    {
        sqlx::raw_sql(sql).execute(store.pool()).await.unwrap();
    }
    store.close().await;
    server.restart();
    let store = config().connect().await.unwrap();
    store.migrate().await.unwrap();
    let slots = async |pipeline: &str, messages: bool| {
        let pipelines = vec![pipeline.to_owned()];
        let needs = Needs { pipelines, messages, ..Needs::default() };
        let all = store.diagnose(&needs).await.unwrap();
        all.into_iter().find(|one| one.code == "slots").unwrap()
    };
    let others = store.tailing_source("others", Tailing::Required).await.unwrap();
    assert!(others.is_tailing());
    assert_eq!(slots("others", false).await.severity, Severity::Good);
    let orders = slots("orders", false).await;
    assert_eq!(orders.severity, Severity::Advice, "the only sender is not its own: {orders:?}");
    drop(others);
    while slots("orders", false).await.severity > Severity::Good {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    store.prepare_messages().await.unwrap();
    let both = slots("orders", true).await;
    let sql = "alter system set max_replication_slots = 3;\nalter system set max_wal_senders = 2;";
    assert_eq!(both.sql.as_deref(), Some(sql), "one is for a moment: {both:?}");
    assert!(both.effect.contains("messages wait"), "{both:?}");
}
