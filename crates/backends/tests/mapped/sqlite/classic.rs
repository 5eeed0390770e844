//! The classic table as teams have it, and what is particular to SQLite.

use semel_backends::mapped::{LaneOrder, Mapping};
use semel_core::{AdminStore, Clock, Fault, Outcome};

use super::super::{
    deliver_all, insert_flag, insert_twice, insert_with_ids, inserts, long_lanes, retry_now,
    settle, take,
};
use super::{Database, run};

const TRANSACTIONAL_OUTBOX: &str = "CREATE TABLE outbox (id CHAR(36) PRIMARY KEY,
    aggregate_type VARCHAR(255), aggregate_id VARCHAR(255), event_type VARCHAR(255), payload TEXT,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP, published_at TIMESTAMP NULL);
    CREATE INDEX waiting ON outbox (published_at, created_at)";

const POLLING_PUBLISHER: &str = "CREATE TABLE outbox (id INTEGER PRIMARY KEY AUTOINCREMENT,
    aggregate_type VARCHAR(255), aggregate_id VARCHAR(255), event_type VARCHAR(255), payload TEXT,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP, published BOOLEAN DEFAULT FALSE,
    published_at TIMESTAMP NULL, retry_count INT DEFAULT 0,
    idempotency_key VARCHAR(255) UNIQUE NOT NULL);
    CREATE INDEX waiting ON outbox (published, created_at)";

async fn number(database: &Database, sql: &str) -> i64 {
    let pool = database.store.pool();
    sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(pool).await.unwrap()
}

async fn write(database: &Database, lanes: &[&str]) {
    for insert in inserts(lanes) {
        run(database, &insert).await;
    }
}

#[tokio::test]
async fn a_transactional_outbox_is_marked_when_published() {
    let database = Database::new().await;
    run(&database, TRANSACTIONAL_OUTBOX).await;
    for insert in insert_with_ids(&["good", "bad", "worse"]) {
        run(&database, &insert).await;
    }
    let mapping = Mapping::transactional_outbox("outbox");
    let open = async || database.store.mapped_source("orders", &mapping).await.unwrap();
    let admin = database.store.mapped_admin("orders", &mapping);
    let now = database.clock.now().as_second();
    let is_published = format!("abs(unixepoch(published_at) - {now}) < 60");
    let counted = async |sql: String| number(&database, &sql).await;
    super::super::a_transactional_outbox_is_marked_when_published(
        open,
        &admin,
        &is_published,
        counted,
    )
    .await;
}

#[tokio::test]
async fn a_polling_publisher_has_true_marks_and_counts() {
    let database = Database::new().await;
    run(&database, POLLING_PUBLISHER).await;
    write(&database, &["good", "bad", "worse"]).await;
    let mapping = Mapping::polling_publisher("outbox");
    let mut source = database.store.mapped_source("orders", &mapping).await.unwrap();
    let admin = database.store.mapped_admin("orders", &mapping);
    let waits = "published = 0 AND published_at IS NULL";
    let is_published = "published = 1 AND datetime(published_at) IS NOT NULL";
    let counted = async |sql: String| number(&database, &sql).await;
    super::super::a_polling_publisher_has_true_marks_and_counts(
        &mut source,
        &admin,
        [waits, is_published],
        counted,
    )
    .await;
}

#[tokio::test]
async fn rows_whose_flag_is_null_are_published() {
    let classic = "CREATE INDEX waiting ON outbox (published, created_at)";
    let in_order = "CREATE INDEX waiting ON outbox (published, id)";
    let partial = "CREATE INDEX waiting ON outbox (id) WHERE published = 0";
    for (index, at_once) in [(classic, true), (in_order, true), ("", true), (partial, false)] {
        let database = Database::new().await;
        run(&database, &POLLING_PUBLISHER.replace(classic, index)).await;
        let mapping = Mapping::polling_publisher("outbox");
        let open = async || database.store.mapped_source("orders", &mapping).await.unwrap();
        let run = async |sql: String| run(&database, &sql).await;
        let admin = database.store.mapped_admin("orders", &mapping);
        super::super::rows_whose_flag_is_null_are_published(&admin, open, run, at_once).await;
    }
}

/// A partial index does not have them: they are looked for every minute.
#[tokio::test]
async fn rows_whose_flag_is_null_and_that_no_index_has_are_found_after_a_minute() {
    let database = Database::new().await;
    let classic = "CREATE INDEX waiting ON outbox (published, created_at)";
    let partial = "CREATE INDEX waiting ON outbox (id) WHERE published = 0";
    run(&database, &POLLING_PUBLISHER.replace(classic, partial)).await;
    let mapping = Mapping::polling_publisher("outbox");
    let mut source = database.store.mapped_source("orders", &mapping).await.unwrap();
    run(&database, &insert_flag("a", "null", 0)).await;
    database.clock.advance(std::time::Duration::from_secs(61));
    assert_eq!(deliver_all(&mut source).await.len(), 1);
}

#[tokio::test]
async fn a_lane_with_a_long_name_waits_behind_its_dead_letter() {
    let database = Database::new().await;
    run(&database, POLLING_PUBLISHER).await;
    let lanes = long_lanes();
    for insert in insert_twice(&lanes) {
        run(&database, &insert).await;
    }
    let mapping = Mapping::polling_publisher("outbox");
    let mut source = database.store.mapped_source("orders", &mapping).await.unwrap();
    let admin = database.store.mapped_admin("orders", &mapping);
    super::super::a_lane_with_a_long_name_waits_behind_its_dead_letter(&mut source, &admin, &lanes)
        .await;
}

#[tokio::test]
async fn rows_go_once_they_are_published() {
    let database = Database::new().await;
    run(
        &database,
        "CREATE TABLE outboxevent (id TEXT PRIMARY KEY, aggregatetype TEXT NOT NULL,
            aggregateid TEXT NOT NULL, type TEXT NOT NULL, payload TEXT, seq INTEGER, tenant TEXT);
        INSERT INTO outboxevent VALUES
            ('f190b6e8-7a3c-7def-8000-0123456789ab', 'order', '42', 'OrderPlaced', '{}', 1, 'acme'),
            ('0190b6e8-7a3c-7def-8000-0123456789ab', 'order', '42', 'OrderPaid', '{}', 2, NULL)",
    )
    .await;
    let mapping = Mapping::debezium("outboxevent");
    assert_eq!(database.store.check_mapping(&mapping).await.unwrap(), LaneOrder::None);
    let mapping = mapping.order_by("seq");
    assert_eq!(database.store.check_mapping(&mapping).await.unwrap(), LaneOrder::ByColumn);
    let mut source = database.store.mapped_source("orders", &mapping).await.unwrap();
    let batch = take(&mut source).await;
    let kinds: Vec<_> = batch.iter().map(|got| got.message.event.event_type.as_str()).collect();
    assert_eq!(kinds, ["OrderPlaced", "OrderPaid"]);
    assert_eq!(batch[0].message.event.headers.iter().next(), Some(("tenant", "acme")));
    settle(&mut source, &batch[0], Outcome::Delivered).await;
    assert_eq!(number(&database, "SELECT count(*) FROM outboxevent").await, 1);
    settle(&mut source, &batch[1], retry_now(1)).await;
    assert_eq!(number(&database, "SELECT count(*) FROM outboxevent").await, 1);
    assert_eq!(deliver_all(&mut source).await.len(), 1);
    assert_eq!(number(&database, "SELECT count(*) FROM outboxevent").await, 0);
}

#[tokio::test]
async fn numbers_become_ids_that_stay() {
    let database = Database::new().await;
    run(&database, POLLING_PUBLISHER).await;
    write(&database, &["a", "b", "c"]).await;
    let mapping = Mapping::polling_publisher("outbox");
    let ids = async || {
        let store = database.again().await;
        let mut source = store.mapped_source("orders", &mapping).await.unwrap();
        let batch = take(&mut source).await;
        batch.iter().map(|got| got.message.event.id).collect::<Vec<_>>()
    };
    let (before, after) = (ids().await, ids().await);
    assert_eq!((before.len(), &before), (3, &after), "the same after a restart");
    let admin = database.store.mapped_admin("orders", &mapping);
    let view = admin.get(before[1]).await.unwrap().expect("found by its id");
    assert_eq!(view.event.aggregate_id, "b");
}

/// Seconds, milliseconds and microseconds since 1970, and texts, are told apart by their values.
#[tokio::test]
async fn times_may_be_numbers_or_texts() {
    let database = Database::new().await;
    run(
        &database,
        "CREATE TABLE outbox (id TEXT PRIMARY KEY, aggregate_type TEXT, aggregate_id TEXT,
            event_type TEXT, payload TEXT, at, done INTEGER);
        INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload, at) VALUES
            ('a', 'order', '1', 'Placed', '', 1767225600), ('b', 'order', '2', 'Placed', '', 1767225600000),
            ('c', 'order', '3', 'Placed', '', 1767225600000000), ('d', 'order', '4', 'Placed', '', 1767225600.0),
            ('e', 'order', '5', 'Placed', '', '2026-01-01 00:00:00'), ('f', 'order', '6', 'Placed', '', '2026-01-01T01:00:00+01:00')",
    )
    .await;
    let mapping = Mapping::new("outbox").created_at("at").mark_time("done").order_by("id");
    let mut source = database.store.mapped_source("orders", &mapping).await.unwrap();
    let delivered = deliver_all(&mut source).await;
    assert_eq!(delivered.len(), 6);
    for got in &delivered {
        let event = &got.message.event;
        assert_eq!(event.created_at.to_string(), "2026-01-01T00:00:00Z", "{}", event.aggregate_id);
    }
    assert_eq!(number(&database, "SELECT count(*) FROM outbox WHERE done > 0").await, 6);
}

#[tokio::test]
async fn waiting_rows_are_found_by_their_mark() {
    let database = Database::new().await;
    run(&database, POLLING_PUBLISHER).await;
    run(
        &database,
        "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 5000)
        INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, published, idempotency_key)
        SELECT 'order', n, 'Placed', '', n <= 4980, n FROM n;
        ANALYZE",
    )
    .await;
    let mapping = Mapping::polling_publisher("outbox");
    let source = database.store.mapped_source("orders", &mapping).await.unwrap();
    let plan = source.plan().await.unwrap().join("\n");
    assert!(plan.contains("SEARCH t USING INDEX waiting (published=?)"), "{plan}");
    drop(source);
    run(&database, "CREATE INDEX in_order ON outbox (published, id); ANALYZE").await;
    let mut source = database.store.mapped_source("orders", &mapping).await.unwrap();
    let plan = source.plan().await.unwrap().join("\n");
    assert!(plan.contains("in_order") && !plan.contains("TEMP B-TREE"), "{plan}");
    assert_eq!(deliver_all(&mut source).await.len(), 20);
}

#[tokio::test]
async fn any_characters_may_be_in_names() {
    let database = Database::new().await;
    run(
        &database,
        r#"CREATE TABLE "o'ut""box; --" ("the ""id""" INTEGER PRIMARY KEY, "a type" TEXT,
            "key'" TEXT, "Event" TEXT, "päyload" TEXT, "st'atus" TEXT);
        INSERT INTO "o'ut""box; --" VALUES (1, 'order', '42', 'Placed', '1', 'it''s \ new')"#,
    )
    .await;
    let mapping = Mapping::new(r#"o'ut"box; --"#)
        .id(r#"the "id""#)
        .aggregate_type("a type")
        .aggregate_id("key'")
        .event_type("Event")
        .payload("päyload")
        .mark_status("st'atus", r"it's \ new", "it's done");
    let mut source = database.store.mapped_source("orders", &mapping).await.unwrap();
    let batch = take(&mut source).await;
    settle(&mut source, &batch[0], retry_now(1)).await;
    assert_eq!(deliver_all(&mut source).await.len(), 1);
    let done = r#"SELECT count(*) FROM "o'ut""box; --" WHERE "st'atus" = 'it''s done'"#;
    assert_eq!(number(&database, done).await, 1);
}

#[tokio::test]
async fn a_mapping_that_does_not_fit_is_refused_with_all_faults() {
    let database = Database::new().await;
    let missing = database.store.check_mapping(&Mapping::polling_publisher("outbox")).await;
    assert_eq!(missing.unwrap_err().code(), "E-MAPPED-TABLE");
    run(&database, POLLING_PUBLISHER).await;
    let mapping =
        Mapping::polling_publisher("outbox").aggregate_id("agregate_id").mark_time("published");
    let failure = database.store.check_mapping(&mapping).await.unwrap_err();
    assert_eq!(failure.fault(), Fault::Misconfigured);
    let text = failure.to_string();
    assert!(text.contains("no column \"agregate_id\""), "{text}");
    assert!(text.contains("\"published\" for mark_time is BOOLEAN"), "{text}");
    assert!(failure.fix().unwrap().contains("did you mean \"aggregate_id\"?"));
}
