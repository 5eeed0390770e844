//! Behind a pooler in transaction mode, where nothing outlives a transaction.

use std::time::Duration;

use semel_backends::postgres::{PostgresStore, Tailing};
use semel_core::coordination::{Coordinator, Share};
use semel_core::memory::MemoryBroker;
use semel_core::{AdminStore, Event, Insight, Limit, Outcome, Settlement, Source, telemetry};
use semel_relay::{Relay, Settings, Stop};
use semel_testkit::proxy::Proxy;
use semel_testkit::services::{Service, service};
use semel_testkit::workload::{delivered_numbers, event, lanes};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection, PgConnection, Row};
use tokio::time::timeout;

use super::gauges::Gauges;
use super::suites::{POOLED, PostgresProbe};
use super::{Database, connect, database, url_of};

semel_testkit::outbox_suite!(PostgresProbe<POOLED>);
semel_testkit::source_suite!(PostgresProbe<POOLED>);
semel_testkit::inbox_suite!(PostgresProbe<POOLED>);
semel_testkit::admin_suite!(PostgresProbe<POOLED>);
semel_testkit::idempotency_suite!(PostgresProbe<POOLED>);
semel_testkit::coordination_suite!(PostgresProbe<POOLED>);

macro_rules! pooled {
    () => {
        match Database::pooled().await {
            Some(database) => database,
            None => return,
        }
    };
}

#[tokio::test]
async fn a_pooler_is_found_and_a_server_is_not_taken_for_one() {
    let (pooled, direct) = (pooled!(), database!());
    assert!(pooled.store.is_pooled());
    assert!(!direct.store.is_pooled());
}

/// What the care is for: a pool that does not know of the pooler meets the statements of others,
/// unless the pooler knows of statements.
#[tokio::test]
async fn without_knowing_of_it_statements_collide() {
    let database = pooled!();
    let server = service(Service::Pgbouncer).unwrap();
    let url = url_of(&server, &database.name);
    let options = url.parse::<PgConnectOptions>().unwrap().extra_float_digits(None);
    let mut stores = Vec::new();
    let mut failures = 0;
    for _ in 0..4 {
        let pool = PgPoolOptions::new().max_connections(1).connect_with(options.clone()).await;
        let store = PostgresStore::from_pool(pool.unwrap());
        failures += usize::from(store.count_events().await.is_err());
        stores.push(store);
    }
    assert_eq!(failures > 0, release_of(&server).await < [1, 21]);
    assert_eq!(database.store.count_events().await.unwrap(), 0);
}

/// The release of PgBouncer, as it tells.
async fn release_of(pooler: &str) -> [u32; 2] {
    let console = url_of(pooler, "pgbouncer").parse::<PgConnectOptions>().unwrap();
    let mut console = PgConnection::connect_with(&console.extra_float_digits(None)).await.unwrap();
    let row = sqlx::raw_sql("show version").fetch_one(&mut console).await.unwrap();
    let numbers: Vec<u32> = row.get::<&str, _>(0)["PgBouncer ".len()..]
        .split('.')
        .map(|number| number.parse().unwrap())
        .collect();
    [numbers[0], numbers[1]]
}

/// Sixteen clients share eight connections, so that hardly two statements in a row meet the same.
#[tokio::test]
async fn many_clients_never_meet_each_others_statements() {
    let database = pooled!();
    let url = url_of(&service(Service::Pgbouncer).unwrap(), &database.name);
    let worker = |number: u64| {
        let url = url.clone();
        async move {
            let store = connect(&url).await;
            for round in 0..25 {
                write(&store, &[event(&format!("lane-{number}"), round)]).await;
                let mut member = store.member("others", 16, Duration::from_secs(9)).unwrap();
                let share = u32::try_from(number).unwrap();
                assert_eq!(member.claim(&[share]).await.unwrap(), [share]);
                member.leave().await.unwrap();
                store.admin("others").stats().await.unwrap();
            }
        }
    };
    let all = futures_util::future::join_all((0..16).map(|number| tokio::spawn(worker(number))));
    for done in timeout(Duration::from_secs(60), all).await.unwrap() {
        done.unwrap();
    }
    let mut relays = database.all_shares(3).await;
    let delivered = crate::outboxes::deliver_all(&mut relays).await;
    assert_eq!(delivered.len(), 16 * 25);
}

#[tokio::test]
async fn migrations_go_through_a_pooler() {
    let (Some(pooler), database) = (service(Service::Pgbouncer), super::unmigrated!()) else {
        return;
    };
    let store = connect(&url_of(&pooler, &database.name)).await;
    assert!(!store.status().await.unwrap().is_current());
    assert_eq!(store.migrate().await.unwrap().len(), store.status().await.unwrap().latest);
    assert!(store.status().await.unwrap().is_current());
    write(&store, &lanes(3)).await;
    assert_eq!(store.count_events().await.unwrap(), 3);
    store.drop_tables(None).await.unwrap();
    assert_eq!(store.status().await.unwrap().present, 0);
}

#[tokio::test]
async fn a_relay_works_from_end_to_end() {
    let database = pooled!();
    let broker = MemoryBroker::new();
    let share = Share::new(0, 1).unwrap();
    let source = database.store.source_share("orders", share).await.unwrap();
    let (stopper, stop) = Stop::new();
    let relay = Relay::new("orders", source, broker.clone())
        .with_settings(Settings { batch_events: 20, ..Settings::default() });
    let running = tokio::spawn(relay.run(stop));
    for round in 0..10 {
        let written: Vec<Event> =
            (0..30).map(|lane| event(&format!("lane-{lane}"), round)).collect();
        write(&database.store, &written).await;
    }
    let all = async {
        while broker.messages().len() < 300 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(30), all).await.unwrap();
    stopper.stop();
    assert_eq!(running.await.unwrap().unwrap().published, 300);
    let mut successor = database.store.source("orders").await.unwrap();
    assert!(successor.next_batch(Limit::default()).await.unwrap().deliveries.is_empty());
}

#[test]
fn whoever_would_rather_tail_says_that_it_cannot() {
    Gauges::of(async |gauges| {
        let database = pooled!();
        let refused = database.store.tailing_source("orders", Tailing::Required).await;
        assert_eq!(refused.unwrap_err().code(), "E-TAIL-POOLER");
        let tailing = database.store.tailing_source("orders", Tailing::WherePossible).await;
        let mut source = tailing.unwrap();
        assert_eq!(gauges.told(telemetry::SOURCE_TAILING, "orders"), Some(0.0));
        let why = database.store.workings("orders").await.unwrap().why_polling().unwrap();
        assert!(why.contains("E-TAIL-POOLER: "), "{why}");
        write(&database.store, &lanes(3)).await;
        let batch = source.next_batch(Limit::default()).await.unwrap().deliveries;
        assert_eq!(delivered_numbers(&batch), [0, 1, 2]);
    });
}

/// What is one statement elsewhere is a transaction here, and can be left open.
#[tokio::test]
async fn a_frozen_relay_keeps_its_locks_for_two_seconds() {
    const SOON: Duration = Duration::from_secs(10);
    let database = pooled!();
    let pooler = service(Service::Pgbouncer).unwrap();
    let address = pooler.split_once('@').unwrap().1.split('/').next().unwrap();
    let proxy = Proxy::start(address).await;
    let url = url_of(&pooler.replace(address, &proxy.address()), &database.name);
    let frozen = connect(&url).await;
    assert!(frozen.is_pooled());
    let mut source = frozen.source("orders").await.unwrap();
    write(&database.store, &lanes(3)).await;
    let batch = source.next_batch(Limit::default()).await.unwrap().deliveries;
    let settlements: Vec<_> = (batch.iter())
        .map(|got| Settlement { receipt: got.receipt, outcome: Outcome::Delivered })
        .collect();

    let mut lock = database.pool().begin().await.unwrap();
    sqlx::raw_sql("select from semel.cursor for update").execute(&mut *lock).await.unwrap();
    let stuck = tokio::spawn(async move { source.settle(&settlements).await });
    let waiting = "select count(*) from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock'";
    let waits = async {
        while database.number(waiting).await == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(SOON, waits).await.unwrap();
    proxy.swallow_replies(true);
    lock.rollback().await.unwrap();

    let next = timeout(SOON, database.store.source("orders")).await.expect("the lock was given up");
    let again = next.unwrap().next_batch(Limit::default()).await.unwrap().deliveries;
    assert_eq!(delivered_numbers(&again), [0, 1, 2], "what was not committed is offered again");
    stuck.abort();
}

/// What took long to read is read with plans of another kind, also here.
#[tokio::test]
async fn a_backlog_is_read_in_pages() {
    let database = pooled!();
    database
        .run(
            "insert into semel.outbox (aggregate_type, aggregate_id, event_type, payload)
            select 'order', n::text, 'T', n::text from generate_series(1, 5000) n",
        )
        .await;
    let delivered = database.relay().await.deliver_all(700).await;
    assert_eq!(delivered_numbers(&delivered), (1..=5000).collect::<Vec<_>>());
}

async fn write(store: &PostgresStore, events: &[Event]) {
    let mut tx = store.begin().await.unwrap();
    store.outbox().append_all(&mut tx, events).await.unwrap();
    tx.commit().await.unwrap();
    store.outbox().committed();
}
