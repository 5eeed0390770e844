//! Migrations, versions, privileges, addresses: what is wrong is said, with what to do about it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use semel_backends::mysql::{MysqlConfig, migrate, schema_sql};
use semel_core::{Fault, InboxStore};
use semel_testkit::workload::{by_lane, event, events};

use super::{Database, database, unmigrated, url_of};

const ALL: [&str; 4] =
    ["0001_tables", "0002_consumers", "0003_polling_beside_0002", "0004_outages_beside_0002"];

/// What takes back all but the first, the latest first.
const BACK_TO_THE_FIRST: &str = concat!(
    include_str!("../../src/mysql/migrations/0004_outages_beside_0002.down.sql"),
    include_str!("../../src/mysql/migrations/0003_polling_beside_0002.down.sql"),
    include_str!("../../src/mysql/migrations/0002_consumers.down.sql"),
    "DELETE FROM semel_migrations WHERE version > 1;"
);

#[tokio::test]
async fn migrating_is_repeatable_and_tells_what_it_did() {
    let database = unmigrated!();
    assert_eq!(database.store.migrate().await.unwrap(), ALL);
    database.commit(&[event("a", 1)]).await;
    assert!(database.store.migrate().await.unwrap().is_empty());
    assert_eq!(database.relay().await.deliver_all(10).await.len(), 1);
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
    let written: Vec<u64> = join_all(writers).await.into_iter().map(|done| done.unwrap()).collect();
    let mut relay = database.relay().await;
    let delivered = by_lane(&relay.deliver_all(1000).await);
    assert_eq!(delivered["order/waiting"], [0, 1, 2, 3, 4]);
    for (writer, written) in written.iter().enumerate() {
        let all: Vec<_> = (0..*written).collect();
        assert_eq!(delivered[&format!("order/writer-{writer}")], all);
    }
    assert_eq!(delivered.len(), 1 + written.len(), "nothing is published twice");
    long.commit().await.unwrap();
    assert_eq!(relay.deliver_all(10).await.len(), 5, "what was open all the time");
}

/// MySQL cannot undo the half of a migration: it is done again, and the rest with it.
#[tokio::test]
async fn a_migration_that_ended_half_way_is_finished() {
    let database = database!();
    database.commit(&[event("a", 1)]).await;
    database
        .run("DROP TABLE semel_keys; DROP TABLE semel_inbox; DELETE FROM semel_migrations")
        .await;
    assert_eq!(database.store.migrate().await.unwrap(), ALL);
    assert_eq!(database.relay().await.deliver_all(10).await.len(), 1);
    let all = semel_backends::mysql::schema_sql().matches("CREATE TABLE").count();
    assert_eq!(tables(&database).await.len(), all);
}

#[tokio::test]
async fn the_printed_schema_is_the_migrated_one() {
    let (printed, migrated) = (unmigrated!(), database!());
    printed.run(&schema_sql()).await;
    assert!(printed.store.migrate().await.unwrap().is_empty(), "it is up to date");
    assert_eq!(tables(&printed).await, tables(&migrated).await);
}

async fn tables(database: &Database) -> Vec<(String, String)> {
    let names: Vec<String> =
        sqlx::query_scalar("SHOW TABLES").fetch_all(database.pool()).await.unwrap();
    let mut tables = Vec::new();
    for name in names {
        let show = sqlx::AssertSqlSafe(format!("SHOW CREATE TABLE {name}"));
        let (name, sql): (String, String) =
            sqlx::query_as(show).fetch_one(database.pool()).await.unwrap();
        let sql = sql.split(" AUTO_INCREMENT=").next().unwrap().to_owned();
        tables.push((name, sql));
    }
    tables
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
async fn tables_of_another_version_are_refused() {
    let database = database!();
    database.run("INSERT INTO semel_migrations (version, name) VALUES (99, 'later')").await;
    for failure in [
        database.store.source("orders").await.unwrap_err(),
        database.store.migrate().await.unwrap_err(),
    ] {
        assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-SCHEMA-NEWER"));
        assert!(failure.to_string().contains("version 99"), "{failure}");
    }
    database.run("DELETE FROM semel_migrations").await;
    let failure = database.store.source("orders").await.unwrap_err();
    assert_eq!(failure.code(), "E-SCHEMA-MISSING");
    assert!(failure.to_string().contains("version 0"), "{failure}");
}

/// A relay that was there before the migration, and is started again after it.
#[tokio::test]
async fn later_tables_that_say_so_are_worked_with() {
    let database = database!();
    let latest = database.store.status().await.unwrap().latest;
    let later = format!("({latest} + 1, 'later_beside_{latest}')");
    database.run(&format!("INSERT INTO semel_migrations (version, name) VALUES {later}")).await;
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
            "INSERT INTO semel_letters (consumer, message_id, lane, place, state, attempts, message,
            changed_at) VALUES ('billing', 'm', 1, 0, 'behind', 0, '{}', utc_timestamp(6))",
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
async fn addresses_that_lead_nowhere_are_told_apart() {
    let database = unmigrated!();
    let url = MysqlConfig::new("mysql://root@127.0.0.1:1/shop").unwrap();
    assert_eq!(url.connect().await.unwrap_err().fault(), Fault::Unavailable);
    let nobody = "mysql://nobody_here:wrong@";
    let wrong = [
        (url_of(&database.server, "no_such_database"), "E-MYSQL-ACCESS"),
        (database.url().replacen("mysql://", nobody, 1).replacen("root@", "", 1), "E-MYSQL-LOGIN"),
    ];
    for (url, code) in wrong {
        let failure = MysqlConfig::new(&url).unwrap().connect().await.unwrap_err();
        assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, code));
        assert!(failure.fix().is_some() && !failure.to_string().contains("wrong"), "{failure}");
    }
    for url in ["sqlite://shop.db", "mysql://root@127.0.0.1", "mysql://root@127.0.0.1/"] {
        let failure = MysqlConfig::new(url).unwrap_err();
        assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-MYSQL-URL"));
        assert!(failure.fix().unwrap().contains("mysql://"));
    }
    let long = database.store.source(&"x".repeat(101)).await.unwrap_err();
    assert_eq!((long.fault(), long.code()), (Fault::Misconfigured, "E-PIPELINE-NAME"));
}

/// A writer needs to insert and nothing else; what it may not do says who can change that.
#[tokio::test]
async fn missing_privileges_are_named() {
    let database = database!();
    let (name, user) = (&database.name, format!("w_{}", &database.name[31..]));
    // An anonymous user of one host would come before a named one of all hosts.
    for host in ["%", "localhost"] {
        database.run(&format!("CREATE USER '{user}'@'{host}' IDENTIFIED BY 'pw'")).await;
        let grant = format!(
            "GRANT INSERT (id, aggregate_type, aggregate_id, event_type, payload, content_type, \
             headers, idempotency_key, created_at, available_at) \
             ON {name}.semel_outbox TO '{user}'@'{host}'"
        );
        database.run(&grant).await;
    }
    let (scheme, rest) = database.server.split_once("://").unwrap();
    let address = rest.split_once('@').map_or(rest, |(_, address)| address);
    let url = url_of(&format!("{scheme}://{user}:pw@{address}"), name);
    let writer = MysqlConfig::new(&url).unwrap().connect().await.unwrap();
    let mut tx = writer.begin().await.unwrap();
    let event = event("a", 1).with_idempotency_key("k");
    writer.outbox().append(&mut tx, event.clone()).await.unwrap();
    writer.outbox().append(&mut tx, event).await.unwrap_err();
    writer.outbox().append_all(&mut tx, &events("many", 0..20)).await.unwrap();
    let plain = "INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload) \
        VALUES ('order', '42', 'OrderPlaced', '{}')";
    sqlx::query(plain).execute(&mut *tx).await.unwrap();
    let meddling = "INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload, \
        position) VALUES ('order', '42', 'OrderPlaced', '{}', 7)";
    sqlx::query(meddling).execute(&mut *tx).await.unwrap_err();
    tx.commit().await.unwrap();
    let failure = writer.source("orders").await.unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-MYSQL-PRIVILEGE"));
    writer.close().await;
    database.run(&format!("DROP USER '{user}'@'%', '{user}'@'localhost'")).await;
    assert_eq!(database.relay().await.deliver_all(10).await.len(), 22);
}

/// Without row-based logging InnoDB refuses READ COMMITTED; it is said before anything is lost.
#[tokio::test]
async fn a_log_of_statements_is_refused() {
    let database = database!();
    database.commit(&[event("a", 1)]).await;
    let options: sqlx::mysql::MySqlConnectOptions = database.url().parse().unwrap();
    let pool = sqlx::mysql::MySqlPoolOptions::new()
        .after_connect(|connection, _| {
            Box::pin(async move {
                use sqlx::Executor;
                connection.execute("SET SESSION binlog_format = 'STATEMENT'").await.map(drop)
            })
        })
        .connect_with(options)
        .await
        .unwrap();
    if database.number("SELECT @@log_bin").await == 0 {
        return;
    }
    let store = semel_backends::mysql::MysqlStore::from_pool(pool);
    let failure = store.source("orders").await.unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-MYSQL-BINLOG"));
    assert!(failure.fix().unwrap().contains("binlog_format"));
    assert_eq!(database.relay().await.deliver_all(10).await.len(), 1);
}
