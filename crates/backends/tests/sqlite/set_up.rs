//! What can be wrong with the file, its tables and its settings.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use semel_backends::sqlite::{SqliteConfig, SqliteStore, schema_sql};
use semel_core::{Event, Failure, Fault, Limit, Source};
use semel_testkit::workload::{by_lane, event as numbered};

use super::Database;

const ALL: [&str; 3] = ["0001_tables", "0002_consumers", "0003_outages_beside_0002"];

/// What takes back all but the first, the latest first.
const BACK_TO_THE_FIRST: &str = concat!(
    include_str!("../../src/sqlite/migrations/0003_outages_beside_0002.down.sql"),
    include_str!("../../src/sqlite/migrations/0002_consumers.down.sql"),
    "DELETE FROM semel_migrations WHERE version > 1;"
);

#[tokio::test]
async fn migrating_twice_changes_nothing() {
    let database = Database::unmigrated().await;
    assert_eq!(database.store.migrate().await.unwrap(), ALL);
    write(&database.store).await;
    assert!(database.store.migrate().await.unwrap().is_empty());
    let mut source = database.store.source("orders").await.unwrap();
    assert_eq!(source.next_batch(Limit::default()).await.unwrap().deliveries.len(), 1);
}

#[tokio::test]
async fn of_two_that_migrate_at_once_one_does() {
    let database = Database::unmigrated().await;
    let other = database.again().await;
    let (one, two) = tokio::join!(database.store.migrate(), other.migrate());
    assert_eq!(one.unwrap().len() + two.unwrap().len(), ALL.len());
}

/// Four write through connections of their own, as other processes would: each waits for its turn, and
/// nothing is lost.
#[tokio::test]
async fn a_live_file_is_brought_up_to_date() {
    const WRITERS: usize = 4;
    let database = Database::new().await;
    write(&database.store).await;
    let mut tx = database.store.begin().await.unwrap();
    sqlx::raw_sql(BACK_TO_THE_FIRST).execute(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(database.store.status().await.unwrap().missing, ALL[1..]);

    let migrated = Arc::new(AtomicBool::new(false));
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let (store, migrated) = (database.again().await, Arc::clone(&migrated));
        writers.push(tokio::spawn(async move {
            let mut written = 0;
            // Some before, some meanwhile, some after.
            while written < 20 || !migrated.load(Ordering::SeqCst) {
                let mut tx = store.begin().await.unwrap();
                let event = numbered(&format!("writer-{writer}"), written);
                store.outbox().append(&mut tx, event).await.unwrap();
                tx.commit().await.unwrap();
                written += 1;
                // The lock of a file has no queue: who never pauses keeps it.
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            written
        }));
    }
    assert_eq!(database.store.migrate().await.unwrap(), ALL[1..]);
    migrated.store(true, Ordering::SeqCst);
    let written: Vec<u64> = join_all(writers).await.into_iter().map(|done| done.unwrap()).collect();
    let mut source = database.store.source("orders").await.unwrap();
    let limit = Limit { events: usize::MAX, bytes: usize::MAX };
    let delivered = source.next_batch(limit).await.unwrap().deliveries;
    let by_writers = by_lane(&delivered[1..]);
    assert_eq!(by_writers.len(), WRITERS);
    for (writer, written) in written.iter().enumerate() {
        let all: Vec<_> = (0..*written).collect();
        assert_eq!(by_writers[&format!("order/writer-{writer}")], all);
    }
}

#[tokio::test]
async fn the_printed_schema_is_the_migrated_one() {
    let (printed, migrated) = (Database::unmigrated().await, Database::new().await);
    sqlx::raw_sql(sqlx::AssertSqlSafe(schema_sql())).execute(printed.store.pool()).await.unwrap();
    assert!(printed.store.migrate().await.unwrap().is_empty(), "it is up to date");
    assert_eq!(tables(&printed.store).await, tables(&migrated.store).await);
}

#[tokio::test]
async fn missing_tables_say_what_to_run() {
    let database = Database::unmigrated().await;
    let failure = database.store.source("orders").await.unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-SCHEMA-MISSING"));
    assert_eq!(failure.fix(), Some("run `semel migrate up --database URL`"));
    let status = database.store.status().await.unwrap();
    assert_eq!((status.present, status.latest, status.is_current()), (0, ALL.len(), false));

    let mut tx = database.store.begin().await.unwrap();
    let error = database.store.outbox().append(&mut tx, event()).await.unwrap_err();
    assert!(error.to_string().contains("no such table: semel_outbox"), "{error}");
}

#[tokio::test]
async fn tables_of_another_version_are_refused() {
    let database = Database::new().await;
    set_version(&database.store, "DELETE FROM semel_migrations").await;
    let older = database.store.source("orders").await.unwrap_err();
    assert_eq!((older.fault(), older.code()), (Fault::Misconfigured, "E-SCHEMA-MISSING"));
    assert_eq!(database.store.status().await.unwrap().missing, ALL);

    set_version(&database.store, "INSERT INTO semel_migrations VALUES (99, '0099_later', '')")
        .await;
    for newer in [
        database.store.source("orders").await.map(drop).unwrap_err(),
        database.store.migrate().await.map(drop).unwrap_err(),
    ] {
        assert_eq!((newer.fault(), newer.code()), (Fault::Misconfigured, "E-SCHEMA-NEWER"));
        assert!(newer.to_string().contains("have version 99"), "{newer}");
    }
}

/// A relay that was there before the migration, and is started again after it.
#[tokio::test]
async fn later_tables_that_say_so_are_worked_with() {
    let database = Database::new().await;
    let later = "INSERT INTO semel_migrations VALUES (4, '0004_later_beside_0003', '')";
    set_version(&database.store, later).await;
    assert!(database.store.source("orders").await.is_ok());
    assert!(database.store.status().await.unwrap().is_current());
    assert!(database.store.migrate().await.unwrap().is_empty());
    let kept = database.store.drop_tables(None).await.unwrap_err();
    assert_eq!(kept.code(), "E-SCHEMA-NEWER", "who does not know them cannot drop them");
}

/// A consumer has acknowledged what it left there: it is nowhere else.
#[tokio::test]
async fn letters_of_consumers_keep_the_tables() {
    let database = Database::new().await;
    let insert =
        "INSERT INTO semel_letters (consumer, message_id, lane, place, state, attempts, message,
        changed_at) VALUES ('billing', 'm', 1, 0, 'behind', 0, '{}', 0)";
    set_version(&database.store, insert).await;
    assert_eq!(database.store.count_letters().await.unwrap(), 1);
    let kept = database.store.drop_tables(Some(0)).await.unwrap_err();
    assert_eq!(kept.code(), "E-EVENTS-LEFT");
    database.store.drop_tables(None).await.unwrap();
}

/// They were made before consumers left letters.
#[tokio::test]
async fn tables_of_the_first_version_are_counted_and_dropped() {
    let database = Database::new().await;
    set_version(&database.store, BACK_TO_THE_FIRST).await;
    assert_eq!(database.store.count_letters().await.unwrap(), 0);
    database.store.drop_tables(Some(0)).await.unwrap();
}

#[tokio::test]
async fn a_wrong_url_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let inside = |name: &str| format!("sqlite://{}/{name}", folder.path().display());
    std::fs::write(folder.path().join("text.db"), "this is not a database".repeat(100)).unwrap();
    let cases = [
        (inside("missing.db?mode=rw"), "E-SQLITE-ACCESS"),
        (inside("no/such/folder/x.db"), "E-SQLITE-ACCESS"),
        (inside("text.db"), "E-SQLITE-CORRUPT"),
        (inside("x.db?mode=sideways"), "E-SQLITE-ACCESS"),
        ("sqlite::memory:".into(), "E-SQLITE-MEMORY"),
    ];
    for (url, code) in cases {
        let failure = connect(&url).await.expect_err(&url);
        assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, code), "{url}");
        assert!(failure.fix().is_some(), "{url}");
    }
}

#[tokio::test]
async fn a_lock_that_is_held_is_an_outage() {
    let database = Database::new().await;
    let url = format!("sqlite://{}", database.file().display());
    let config = SqliteConfig::new(&url).unwrap().busy_timeout(Duration::from_millis(50));
    let impatient = config.connect().await.unwrap();
    let mut source = impatient.source("orders").await.unwrap();

    let tx = database.store.begin().await.unwrap();
    let failure = impatient.begin().await.unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, "E-SQLITE-BUSY"));
    let failure = source.settle(&[]).await.unwrap_err();
    assert_eq!(failure.fault(), Fault::Unavailable, "{failure}");
    assert!(source.next_batch(Limit::default()).await.is_ok(), "reading needs no lock");

    tx.rollback().await.unwrap();
    assert!(source.settle(&[]).await.unwrap().is_held(), "and goes on when it is free");
}

#[tokio::test]
async fn the_file_is_opened_as_promised() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/shop.db", folder.path().display());
    let store = SqliteConfig::new(&url).unwrap().connect().await.unwrap();
    let mut tx = store.begin().await.unwrap();
    let pragma = async |tx: &mut sqlx::Transaction<'_, sqlx::Sqlite>, sql: &'static str| {
        sqlx::query_scalar::<_, i64>(sql).fetch_one(&mut **tx).await.unwrap()
    };
    assert_eq!(pragma(&mut tx, "PRAGMA synchronous").await, 2, "FULL");
    assert_eq!(pragma(&mut tx, "PRAGMA foreign_keys").await, 1);
    assert_eq!(pragma(&mut tx, "PRAGMA busy_timeout").await, 5_000);
    let mode: String = sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&mut *tx).await.unwrap();
    assert_eq!(mode, "wal");
}

fn event() -> Event {
    Event::new("order", "42", "OrderPlaced")
}

async fn connect(url: &str) -> Result<SqliteStore, Failure> {
    SqliteConfig::new(url)?.connect().await
}

async fn write(store: &SqliteStore) {
    let mut tx = store.begin().await.unwrap();
    store.outbox().append(&mut tx, event()).await.unwrap();
    tx.commit().await.unwrap();
}

async fn set_version(store: &SqliteStore, sql: &'static str) {
    sqlx::raw_sql(sql).execute(store.pool()).await.unwrap();
}

async fn tables(store: &SqliteStore) -> Vec<(String, Option<String>)> {
    sqlx::query_as("SELECT name, sql FROM sqlite_schema ORDER BY name")
        .fetch_all(store.pool())
        .await
        .unwrap()
}
