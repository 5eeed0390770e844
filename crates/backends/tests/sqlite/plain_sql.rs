//! Writers of any language: one plain INSERT.

use semel_core::{Event, Limit, Source, Timestamp};
use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Connection};

use super::Database;

#[tokio::test]
async fn four_columns_are_enough() {
    let database = Database::new().await;
    run(
        &database,
        "INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload) \
         VALUES ('order', '42', 'OrderPlaced', '{\"total\": 99}')",
    )
    .await
    .unwrap();
    let [event] = read(&database).await.try_into().unwrap();
    assert_eq!(event.lane().to_string(), "order/42");
    assert_eq!(event.payload.bytes().as_ref(), br#"{"total": 99}"#);
    assert!(event.payload.is_json() && event.headers.is_empty());
    assert_eq!(event.idempotency_key(), event.id.to_string());
    let age = Timestamp::now().duration_since(event.created_at);
    assert!((0..60).contains(&age.as_secs()), "made {age} ago");
    assert_eq!(event.id.timestamp(), Some(event.created_at), "a version 7 id of that time");
}

#[tokio::test]
async fn ids_made_by_the_table_are_valid_and_differ() {
    let database = Database::new().await;
    run(
        &database,
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) \
         INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload) \
         SELECT 'order', i, 'OrderPlaced', '{}' FROM n",
    )
    .await
    .unwrap();
    let events = read(&database).await;
    assert_eq!(events.len(), 5000);
    for (number, event) in (1..).zip(&events) {
        let id = event.id.as_uuid();
        assert_eq!((id.get_version_num(), id.get_variant()), (7, uuid::Variant::RFC4122), "{id}");
        assert_eq!(event.aggregate_id, number.to_string());
    }
}

#[tokio::test]
async fn text_and_blob_payloads_are_read_as_they_were_written() {
    let database = Database::new().await;
    run(
        &database,
        "INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload, \
             content_type, headers) VALUES \
         ('order', '1', 'Text', 'Grüße', 'text/plain', '{\"Tenant\": \"acme\", \"tries\": 3}'), \
         ('order', '1', 'Blob', x'00ff10', 'application/avro', '{}'), \
         ('order', '1', 'Empty', '', 'text/plain', '{}')",
    )
    .await
    .unwrap();
    let events = read(&database).await;
    let payloads: Vec<&[u8]> = events.iter().map(|event| event.payload.bytes().as_ref()).collect();
    assert_eq!(payloads, ["Grüße".as_bytes(), &[0, 0xff, 0x10], b""]);
    let headers: Vec<_> = events[0].headers.iter().collect();
    assert_eq!(headers, [("tenant", "acme"), ("tries", "3")]);
}

#[tokio::test]
async fn ids_in_capitals_and_numeric_aggregate_ids_are_understood() {
    let database = Database::new().await;
    let id = "0190B6E8-7A3C-7DEF-8000-0123456789AB";
    let insert = format!(
        "INSERT INTO semel_outbox (id, aggregate_type, aggregate_id, event_type, payload) \
         VALUES ('{id}', 'order', 42, 'OrderPlaced', '{{}}')"
    );
    run(&database, &insert).await.unwrap();
    let [event] = read(&database).await.try_into().unwrap();
    assert_eq!(event.id.to_string(), id.to_lowercase());
    assert_eq!(event.aggregate_id, "42");
    use semel_core::AdminStore;
    assert!(database.store.admin("orders").get(event.id).await.unwrap().is_some());
    let again = run(&database, &insert.replace(id, &id.to_lowercase())).await.unwrap_err();
    assert!(again.to_string().contains("UNIQUE"), "{again}");
}

#[tokio::test]
async fn nonsense_is_refused_where_it_is_written() {
    let database = Database::new().await;
    let refused = [
        ("payload", "'order', '1', 'T', 7, '{}', NULL, NULL"),
        ("payload", "'order', '1', 'T', NULL, '{}', NULL, NULL"),
        ("aggregate_type", "'', '1', 'T', '{}', '{}', NULL, NULL"),
        ("aggregate_id", "'order', x'00', 'T', '{}', '{}', NULL, NULL"),
        ("json", "'order', '1', 'T', '{}', '[1]', NULL, NULL"),
        ("JSON", "'order', '1', 'T', '{}', 'tenant=acme', NULL, NULL"),
        ("idempotency_key", "'order', '1', 'T', '{}', '{}', '', NULL"),
        ("available_at", "'order', '1', 'T', '{}', '{}', NULL, '2026-01-01 00:00:00'"),
    ];
    for (named, values) in refused {
        let insert = format!(
            "INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload, headers, \
             idempotency_key, available_at) VALUES ({values})"
        );
        let error = run(&database, &insert).await.expect_err(values).to_string();
        assert!(error.contains(named), "{values}: {error}");
    }
    for id in ["42", "0190b6e8-7a3c-7def-8000-0123456789ag", "0190b6e87a3c-7def-8000-0123456789ab-"]
    {
        let insert = format!(
            "INSERT INTO semel_outbox (id, aggregate_type, aggregate_id, event_type, payload) \
             VALUES ('{id}', 'order', '1', 'T', '{{}}')"
        );
        let error = run(&database, &insert).await.expect_err(id).to_string();
        assert!(error.contains("CHECK constraint"), "{id}: {error}");
    }
    assert!(read(&database).await.is_empty());
}

#[tokio::test]
async fn a_key_is_unique_however_it_was_written() {
    let database = Database::new().await;
    let event = Event::new("order", "1", "T").with_idempotency_key("k");
    let mut tx = database.store.begin().await.unwrap();
    database.store.outbox().append(&mut tx, event.clone()).await.unwrap();
    tx.commit().await.unwrap();
    let insert = |key: &str| {
        format!(
            "INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload, \
             idempotency_key) VALUES ('order', '1', 'T', '{{}}', '{key}')"
        )
    };
    let error = run(&database, &insert("k")).await.unwrap_err();
    assert!(error.to_string().contains("semel_outbox_key"), "{error}");
    run(&database, &insert("other")).await.unwrap();
    run(&database, &insert("other")).await.unwrap_err();
}

/// Quotes and SQL in every name: data, never SQL.
#[tokio::test]
async fn quotes_are_data() {
    let database = Database::new().await;
    let nasty = "'; DROP TABLE semel_outbox; --\"`$1 ?1 %s \\";
    let pipeline = format!("{nasty} pipeline");
    let event =
        Event::new(nasty, nasty, nasty).with_header("quoted", nasty).with_idempotency_key(nasty);
    let mut tx = database.store.begin().await.unwrap();
    database.store.outbox().append(&mut tx, event.clone()).await.unwrap();
    tx.commit().await.unwrap();
    let mut source = database.store.source(&pipeline).await.unwrap();
    let batch = source.next_batch(Limit::default()).await.unwrap();
    assert_eq!(*batch.deliveries[0].message.event, event);
    use semel_core::admin::{AdminStore, Filter};
    let filter = Filter { aggregate_id: Some(nasty.into()), ..Filter::default() };
    let page = database.store.admin(&pipeline).list(&filter, None, 10).await.unwrap();
    assert_eq!(page.events.len(), 1);
}

/// A writer that bypasses UTF-8 makes a dead letter of its event, and stops nobody else.
#[tokio::test]
async fn an_unreadable_row_is_a_dead_letter() {
    use semel_core::admin::{AdminStore, Filter, State};
    let database = Database::new().await;
    run(
        &database,
        "INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload) VALUES \
         ('order', CAST(x'61ff' AS TEXT), 'Broken', '1'), ('order', 'fine', 'Fine', '2')",
    )
    .await
    .unwrap();
    let events = read(&database).await;
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].event_type, "Fine");
    let dead = Filter { state: Some(State::Dead), ..Filter::default() };
    let page = database.store.admin("orders").list(&dead, None, 10).await.unwrap();
    assert_eq!(page.events.len(), 1);
    assert!(page.events[0].error.as_ref().unwrap().contains("is not UTF-8"));
}

/// Runs a statement on a connection of its own, as a program that knows nothing of semel does.
async fn run(database: &Database, sql: &str) -> Result<(), sqlx::Error> {
    let url = format!("sqlite://{}", database.file().display());
    let mut connection = SqliteConnection::connect(&url).await?;
    sqlx::query(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await?;
    connection.close().await
}

async fn read(database: &Database) -> Vec<Event> {
    let mut source = database.store.source("orders").await.unwrap();
    let limit = Limit { events: usize::MAX, bytes: usize::MAX };
    let batch = source.next_batch(limit).await.unwrap();
    batch.deliveries.iter().map(|got| Event::clone(&got.message.event)).collect()
}
