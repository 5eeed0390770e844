//! Migrations, versions, privileges, addresses: what is wrong is said, with what to do about it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use semel_backends::postgres::{PostgresConfig, migrate, schema_sql, status};
use semel_core::{Fault, InboxStore};
use semel_testkit::workload::{delivered_numbers, event, events};

use super::{database, unmigrated, url_of};

const ALL: [&str; 6] = [
    "0001_tables",
    "0002_consumers",
    "0003_claimants",
    "0004_polling_beside_0003",
    "0005_long_names_beside_0003",
    "0006_outages_beside_0003",
];

/// What takes back all but the first, the latest first.
const BACK_TO_THE_FIRST: &str = concat!(
    include_str!("../../src/postgres/migrations/0006_outages_beside_0003.down.sql"),
    include_str!("../../src/postgres/migrations/0005_long_names_beside_0003.down.sql"),
    include_str!("../../src/postgres/migrations/0004_polling_beside_0003.down.sql"),
    include_str!("../../src/postgres/migrations/0003_claimants.down.sql"),
    include_str!("../../src/postgres/migrations/0002_consumers.down.sql"),
    "delete from semel.migrations where version > 1;"
);

#[tokio::test]
async fn migrating_is_repeatable_and_tells_what_it_did() {
    let database = unmigrated!();
    let before = database.store.status().await.unwrap();
    assert_eq!((before.present, before.missing.as_slice()), (0, &ALL[..]));
    assert_eq!(database.store.migrate().await.unwrap(), ALL);
    assert!(database.store.migrate().await.unwrap().is_empty());
    assert!(status(database.pool()).await.unwrap().is_current());
}

#[tokio::test]
async fn of_many_that_migrate_at_once_one_does_it() {
    let database = unmigrated!();
    let all = (0..8).map(|_| {
        let pool = database.pool().clone();
        tokio::spawn(async move { migrate(&pool).await.unwrap().len() })
    });
    let applied: usize = join_all(all).await.into_iter().map(|done| done.unwrap()).sum();
    assert_eq!(applied, ALL.len());
}

/// Tables with events in them and a relay half-way through, while some write and one has been at it for
/// long: nobody waits for anybody, and nothing is lost.
#[tokio::test]
async fn live_tables_are_brought_up_to_date() {
    const WRITERS: u64 = 4;
    let database = database!();
    database.commit(&events("settled", 0..5)).await;
    assert_eq!(database.relay().await.deliver_all(10).await.len(), 5);
    database.commit(&events("waiting", 0..5)).await;
    database.run(BACK_TO_THE_FIRST).await;
    let failure = database.store.source("orders").await.unwrap_err();
    assert_eq!(failure.code(), "E-SCHEMA-MISSING", "{failure:?}");

    let mut long = database.begin().await;
    database.append(&mut long, &events("long", 0..5)).await;
    let migrated = Arc::new(AtomicBool::new(false));
    let writers = (0..WRITERS).map(|writer| {
        let (store, migrated) = (database.store.clone(), Arc::clone(&migrated));
        tokio::spawn(async move {
            let mut written = 0;
            // Some before, some meanwhile, some after.
            while written < 20 || !migrated.load(Ordering::SeqCst) {
                let mut tx = store.begin().await.unwrap();
                let event = event(&format!("writer-{writer}"), written);
                store.outbox().append(&mut tx, event).await.unwrap();
                tx.commit().await.unwrap();
                written += 1;
            }
            written
        })
    });
    let writers: Vec<_> = writers.collect();
    let started = tokio::time::timeout(Duration::from_secs(60), database.store.migrate()).await;
    assert_eq!(started.expect("the open transaction is waited for").unwrap(), ALL[1..]);
    migrated.store(true, Ordering::SeqCst);
    let written: u64 = join_all(writers).await.into_iter().map(|done| done.unwrap()).sum();
    let mut relay = database.relay().await;
    let delivered = relay.deliver_all(1000).await;
    assert_eq!(u64::try_from(delivered.len()).unwrap(), 5 + written);
    for writer in 0..WRITERS {
        let lane = format!("writer-{writer}");
        let of_lane: Vec<_> = delivered
            .iter()
            .filter(|got| got.message.event.aggregate_id == lane)
            .cloned()
            .collect();
        assert!(delivered_numbers(&of_lane).is_sorted(), "{lane}");
    }
    long.commit().await.unwrap();
    assert_eq!(relay.deliver_all(10).await.len(), 5, "what was open all the time");
}

#[tokio::test]
async fn the_printed_schema_is_the_same_as_the_migrated_one() {
    let database = unmigrated!();
    database.run(&schema_sql()).await;
    assert!(database.store.status().await.unwrap().is_current());
    assert!(database.store.migrate().await.unwrap().is_empty());
    assert!(database.store.source("orders").await.is_ok());
}

#[tokio::test]
async fn missing_tables_say_what_to_run() {
    let database = unmigrated!();
    let failure = database.store.source("orders").await.unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-SCHEMA-MISSING"));
    assert!(failure.fix().unwrap().contains("semel migrate up"));
    let inbox = database.store.inbox();
    let mut tx = inbox.begin().await.unwrap();
    let id = semel_core::EventId::now();
    let failure = inbox.record(&mut tx, "payments", id).await.unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-SCHEMA-MISSING"));
}

#[tokio::test]
async fn newer_tables_are_refused() {
    let database = database!();
    database.run("insert into semel.migrations (version, name) values (99, 'later')").await;
    for failure in [
        database.store.source("orders").await.unwrap_err(),
        database.store.migrate().await.unwrap_err(),
    ] {
        assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-SCHEMA-NEWER"));
        assert!(failure.to_string().contains("version 99"), "{failure}");
    }
}

/// A relay that was there before the migration, and is started again after it.
#[tokio::test]
async fn later_tables_that_say_so_are_worked_with() {
    let database = database!();
    let latest = database.store.status().await.unwrap().latest;
    let later = format!("({latest} + 1, 'later_beside_{latest}')");
    database.run(&format!("insert into semel.migrations (version, name) values {later}")).await;
    assert!(database.store.source("orders").await.is_ok());
    assert!(database.store.status().await.unwrap().is_current());
    assert!(database.store.migrate().await.unwrap().is_empty());
    let kept = database.store.drop_tables(None).await.unwrap_err();
    assert_eq!(kept.code(), "E-SCHEMA-NEWER", "who does not know them cannot drop them");
}

/// A consumer has acknowledged what it left there: it is nowhere else.
#[tokio::test]
async fn letters_of_consumers_keep_the_tables() {
    let database = database!();
    database
        .run(
            "insert into semel.letters (consumer, message_id, lane, place, state, attempts, message)
            values ('billing', gen_random_uuid(), 1, 0, 'behind', 0, '{}')",
        )
        .await;
    assert_eq!(database.store.count_letters().await.unwrap(), 1);
    let kept = database.store.drop_tables(Some(0)).await.unwrap_err();
    assert_eq!(kept.code(), "E-EVENTS-LEFT");
    database.store.drop_tables(None).await.unwrap();
}

/// They were made before consumers left letters.
#[tokio::test]
async fn tables_of_the_first_version_are_counted_and_dropped() {
    let database = database!();
    database.run(BACK_TO_THE_FIRST).await;
    assert_eq!(database.store.count_letters().await.unwrap(), 0);
    database.store.drop_tables(Some(0)).await.unwrap();
}

#[tokio::test]
async fn older_tables_are_refused() {
    let database = database!();
    database.run("delete from semel.migrations").await;
    let failure = database.store.source("orders").await.unwrap_err();
    assert_eq!(failure.code(), "E-SCHEMA-MISSING");
    assert!(failure.to_string().contains("version 0"), "{failure}");
}

#[tokio::test]
async fn addresses_that_lead_nowhere_are_told_apart() {
    let database = unmigrated!();
    let url = PostgresConfig::new("postgres://postgres@127.0.0.1:1/shop").unwrap();
    assert_eq!(url.connect().await.unwrap_err().fault(), Fault::Unavailable);
    let missing = PostgresConfig::new(&url_of(&database.server, "no_such_database")).unwrap();
    let failure = missing.connect().await.unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-POSTGRES-ACCESS"));
    let failure = PostgresConfig::new("sqlite://shop.db").unwrap_err();
    assert_eq!(failure.fault(), Fault::Misconfigured);
    assert!(failure.fix().unwrap().contains("postgres://"));
}

/// A writer needs to insert and nothing else; what it may not do says who can change that.
#[tokio::test]
async fn missing_privileges_are_named() {
    let database = database!();
    let role = format!("writer_{}", database.name);
    database
        .run(&format!(
            "create role {role} login;
            grant usage on schema semel to {role};
            grant insert, select on semel.outbox to {role}"
        ))
        .await;
    let (scheme, rest) = database.server.split_once("://").unwrap();
    let address = rest.split_once('@').map_or(rest, |(_, address)| address);
    let url = url_of(&format!("{scheme}://{role}@{address}"), &database.name);
    let writer = PostgresConfig::new(&url).unwrap().connect().await.unwrap();
    let mut tx = writer.begin().await.unwrap();
    let event = event("a", 1);
    writer.outbox().append(&mut tx, event).await.unwrap();
    tx.commit().await.unwrap();
    let failure = writer.source("orders").await.unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-POSTGRES-PRIVILEGE"));
    writer.close().await;
    database.run(&format!("drop owned by {role}; drop role {role}")).await;
}
