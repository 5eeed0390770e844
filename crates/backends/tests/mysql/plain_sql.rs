//! Writers in any language: one plain INSERT.

use semel_core::admin::{AdminStore, Filter};
use semel_core::{Event, Limit, Source, Timestamp};
use semel_testkit::workload::event;

use super::{Database, database};
use crate::outboxes;

const COLUMNS: &str = "aggregate_type, aggregate_id, event_type, payload";

async fn insert(database: &Database, columns: &str, values: &str) -> Result<(), sqlx::Error> {
    let sql = format!("INSERT INTO semel_outbox ({columns}) VALUES ({values})");
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(database.pool()).await.map(drop)
}

async fn read(database: &Database) -> Vec<Event> {
    let mut source = database.store.source("reader").await.unwrap();
    let limit = Limit { events: 5_000, bytes: usize::MAX };
    let batch = source.next_batch(limit).await.unwrap();
    batch.deliveries.iter().map(|got| Event::clone(&got.message.event)).collect()
}

#[tokio::test]
async fn four_columns_are_enough() {
    let database = database!();
    let before = Timestamp::now();
    insert(&database, COLUMNS, r#"'order', '42', 'OrderPlaced', '{"total": 99}'"#).await.unwrap();
    outboxes::four_columns_are_enough(&read(&database).await[0], before);
}

/// A session that lives in another time zone makes no difference.
#[tokio::test]
async fn times_are_utc_whatever_the_session_says() {
    let database = database!();
    let mut session = database.pool().acquire().await.unwrap();
    let before = Timestamp::now();
    let sql = "SET time_zone = '-09:30'; \
        INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload) \
        VALUES ('order', '1', 'T', '{}'); SET time_zone = '+00:00'";
    sqlx::raw_sql(sql).execute(&mut *session).await.unwrap();
    let [event] = read(&database).await.try_into().unwrap();
    for time in [event.id.timestamp().unwrap(), event.created_at] {
        let age = time.duration_since(before).as_secs_f64();
        assert!((-1.0..60.0).contains(&age), "{time} is now");
    }
}

#[tokio::test]
async fn ids_made_by_the_table_are_valid_and_differ() {
    let database = database!();
    let numbers = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 900)";
    database
        .run(&format!(
            "INSERT INTO semel_outbox ({COLUMNS}) {numbers} SELECT 'order', i, 'T', '{{}}' FROM n"
        ))
        .await;
    let events = read(&database).await;
    assert_eq!(events.len(), 900);
    for (number, event) in (1..).zip(&events) {
        let id = event.id.as_uuid();
        assert_eq!((id.get_version_num(), id.get_variant()), (7, uuid::Variant::RFC4122), "{id}");
        assert_eq!(event.aggregate_id, number.to_string());
    }
}

#[tokio::test]
async fn text_and_bytes_arrive_as_they_were_written() {
    let database = database!();
    let columns = "aggregate_type, aggregate_id, event_type, payload, content_type, headers";
    let headers = r#"{"Tenant": "acme", "tries": 3}"#;
    for values in [
        format!("'order', '1', 'Text', 'Grüße', 'text/plain', '{headers}'"),
        "'order', '1', 'Bytes', x'00ff10', 'application/avro', NULL".to_owned(),
        "'order', '1', 'Empty', '', 'text/plain', '{}'".to_owned(),
        "'order', '1', 'Object', json_object('a', 1), 'application/json', NULL".to_owned(),
    ] {
        insert(&database, columns, &values).await.unwrap();
    }
    let events = read(&database).await;
    let payloads: Vec<&[u8]> = events.iter().map(|event| event.payload.bytes().as_ref()).collect();
    assert_eq!(payloads, ["Grüße".as_bytes(), &[0, 0xff, 0x10], b"", br#"{"a": 1}"#]);
    assert_eq!(events[1].payload.content_type(), "application/avro");
    let headers: Vec<_> = events[0].headers.iter().collect();
    assert_eq!(headers, [("tenant", "acme"), ("tries", "3")]);
}

/// Upper and lower case, accents and spaces at the end tell lanes and keys apart.
#[tokio::test]
async fn names_are_compared_exactly() {
    let database = database!();
    let names = ["k", "K", "k ", "\u{e9}", "e\u{301}", "e", "ss", "\u{df}"];
    for (number, name) in (0..).zip(names) {
        let event = event(name, number).with_idempotency_key(name);
        database.commit(&[event]).await;
    }
    let admin = database.store.admin("orders");
    for name in names {
        let filter = Filter { aggregate_id: Some(name.into()), ..Filter::default() };
        assert_eq!(admin.list(&filter, None, 10).await.unwrap().events.len(), 1, "{name:?}");
    }
}

#[tokio::test]
async fn what_makes_no_event_is_refused() {
    let database = database!();
    let headers = "aggregate_type, aggregate_id, event_type, payload, headers";
    let keyed = "aggregate_type, aggregate_id, event_type, payload, idempotency_key";
    let identified = "aggregate_type, aggregate_id, event_type, payload, id";
    let long = format!("'a', '{}', 'T', '1'", "x".repeat(256));
    let cases = [
        (COLUMNS, "'', '1', 'T', '1'"),
        (COLUMNS, "'a', '', 'T', '1'"),
        (COLUMNS, "'a', '1', '', '1'"),
        (COLUMNS, "'a', '1', 'T', NULL"),
        (COLUMNS, &long),
        ("aggregate_type, aggregate_id, payload", "'a', '1', '1'"),
        (headers, "'a', '1', 'T', '1', '[]'"),
        (headers, "'a', '1', 'T', '1', 'tenant=acme'"),
        (keyed, "'a', '1', 'T', '1', ''"),
        (identified, "'a', '1', 'T', '1', '42'"),
        (identified, "'a', '1', 'T', '1', '0190b6e8-7a3c-7def-8000-0123456789ag'"),
        (identified, "'a', '1', 'T', '1', NULL"),
    ];
    for (columns, values) in cases {
        assert!(insert(&database, columns, values).await.is_err(), "{values}");
    }
    assert!(read(&database).await.is_empty());
}

#[tokio::test]
async fn ids_in_capitals_and_numeric_aggregate_ids_are_understood() {
    let database = database!();
    let id = "0190B6E8-7A3C-7DEF-8000-0123456789AB";
    let columns = "aggregate_type, aggregate_id, event_type, payload, id";
    insert(&database, columns, &format!("'order', 42, 'T', '1', '{id}'")).await.unwrap();
    let [event] = read(&database).await.try_into().unwrap();
    assert_eq!(event.id.to_string(), id.to_lowercase());
    assert_eq!(event.aggregate_id, "42");
    assert!(database.store.admin("orders").get(event.id).await.unwrap().is_some());
    let again = format!("'order', 42, 'T', '1', '{}'", id.to_lowercase());
    insert(&database, columns, &again).await.unwrap_err();
}

/// A key is taken whoever wrote it.
#[tokio::test]
async fn keys_are_shared_with_the_library() {
    let database = database!();
    let keyed = "aggregate_type, aggregate_id, event_type, payload, idempotency_key";
    insert(&database, keyed, "'a', '1', 'T', '1', 'k'").await.unwrap();
    let again = insert(&database, keyed, "'a', '1', 'T', '1', 'k'").await.unwrap_err();
    assert!(again.to_string().contains("semel_outbox_key"), "{again}");
    let mut tx = database.begin().await;
    let taken = event("a", 1).with_idempotency_key("k");
    let refused = database.store.outbox().append(&mut tx, taken).await.unwrap_err();
    assert!(refused.to_string().contains("k exists already; the transaction can go on"));
}

/// Quotes and SQL in every name: data, never SQL.
#[tokio::test]
async fn quotes_are_data() {
    let database = database!();
    let nasty = "'; DROP TABLE semel_outbox; --\"`$1 ?1 %s \\";
    let pipeline = format!("{nasty} pipeline");
    let event =
        Event::new(nasty, nasty, nasty).with_header("quoted", nasty).with_idempotency_key(nasty);
    database.commit(std::slice::from_ref(&event)).await;
    let mut source = database.store.source(&pipeline).await.unwrap();
    let batch = source.next_batch(Limit::default()).await.unwrap();
    assert_eq!(*batch.deliveries[0].message.event, event);
    let filter = Filter { aggregate_id: Some(nasty.into()), ..Filter::default() };
    let page = database.store.admin(&pipeline).list(&filter, None, 10).await.unwrap();
    assert_eq!(page.events.len(), 1);
}
