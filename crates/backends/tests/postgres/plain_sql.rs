//! Writers in any language: one plain INSERT.

use semel_core::Event;
use semel_testkit::workload::event;

use super::{Database, database};
use crate::outboxes;

const COLUMNS: &str = "aggregate_type, aggregate_id, event_type, payload";

async fn insert(database: &Database, columns: &str, values: &str) -> Result<(), sqlx::Error> {
    let sql = format!("insert into semel.outbox ({columns}) values ({values})");
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(database.pool()).await.map(drop)
}

async fn read(database: &Database) -> Vec<Event> {
    let mut source = database.store.source("reader").await.unwrap();
    let batch = semel_core::Source::next_batch(&mut source, semel_core::Limit::default()).await;
    batch.unwrap().deliveries.iter().map(|got| Event::clone(&got.message.event)).collect()
}

#[tokio::test]
async fn four_columns_are_enough() {
    let database = database!();
    let before = semel_core::Timestamp::now();
    insert(&database, COLUMNS, r#"'order', '42', 'OrderPlaced', '{"total": 99}'"#).await.unwrap();
    outboxes::four_columns_are_enough(&read(&database).await[0], before);
}

/// Ids made by the database are of version 7 and the right variant, and sort by time.
#[tokio::test]
async fn ids_made_by_the_database_are_in_order() {
    let database = database!();
    let wrong = "with made as materialized (
            select n, semel.uuid_v7() as id from generate_series(1, 300) n,
            lateral (select pg_sleep(0.002 + n * 0)) s)
        select count(*) from (select id, lag(id) over (order by n) as before from made) x
        where id <= before or id::text !~ '^.{14}7.{4}[89ab]'";
    assert_eq!(database.number(wrong).await, 0);
}

/// A column of bytes would damage this: in a literal of bytes, a backslash means something.
#[tokio::test]
async fn json_with_backslashes_arrives_unchanged() {
    let database = database!();
    let json = r#"{"path":"C:\\temp\\new","quote":"\"","line":"\n","u":"\u00fc"}"#;
    insert(&database, COLUMNS, &format!("'order', '1', 'T', '{json}'")).await.unwrap();
    sqlx::query(
        "insert into semel.outbox (aggregate_type, aggregate_id, event_type, payload)
        values ('order', '2', 'T', $1)",
    )
    .bind(json)
    .execute(database.pool())
    .await
    .unwrap();
    for event in read(&database).await {
        assert_eq!(event.payload.bytes().as_ref(), json.as_bytes());
    }
}

/// Documents, rows and whatever else the database can write as text need no cast.
#[tokio::test]
async fn expressions_of_other_types_are_taken() {
    let database = database!();
    database
        .run(
            "insert into semel.outbox (aggregate_type, aggregate_id, event_type, payload)
            select 'order', 1::text, 'T', to_jsonb(o) from (select 1 as id, 'x' as name) o;
            insert into semel.outbox (aggregate_type, aggregate_id, event_type, payload)
            values ('order', '2', 'T', json_build_object('a', 1))",
        )
        .await;
    let events = read(&database).await;
    assert_eq!(events[0].payload.bytes().as_ref(), br#"{"id": 1, "name": "x"}"#);
    assert_eq!(events[1].payload.bytes().as_ref(), br#"{"a" : 1}"#);
}

#[tokio::test]
async fn bytes_have_a_column_of_their_own() {
    let database = database!();
    let columns = "aggregate_type, aggregate_id, event_type, payload_bytes, content_type, headers";
    let values = r#"'order', '1', 'T', '\x00ff', 'application/avro', '{"Tenant":"a","n":1}'"#;
    insert(&database, columns, values).await.unwrap();
    let events = read(&database).await;
    assert_eq!(events[0].payload.bytes().as_ref(), [0, 0xff]);
    assert_eq!(events[0].payload.content_type(), "application/avro");
    assert_eq!(events[0].headers.get("tenant"), Some("a"));
    assert_eq!(events[0].headers.get("n"), Some("1"), "what is not a string is kept as JSON");
}

#[tokio::test]
async fn what_makes_no_event_is_refused() {
    let database = database!();
    let both = "aggregate_type, aggregate_id, event_type, payload, payload_bytes";
    let cases = [
        (COLUMNS, "'', '1', 'T', '1'"),
        (COLUMNS, "'a', '', 'T', '1'"),
        (COLUMNS, "'a', '1', '', '1'"),
        (COLUMNS, "'a', '1', 'T', null"),
        (both, r"'a', '1', 'T', '1', '\x00'"),
        ("aggregate_type, aggregate_id, event_type, payload, headers", "'a', '1', 'T', '1', '[]'"),
        ("aggregate_type, aggregate_id, event_type, payload, seq", "'a', '1', 'T', '1', 7"),
    ];
    for (columns, values) in cases {
        assert!(insert(&database, columns, values).await.is_err(), "{values}");
    }
    assert!(read(&database).await.is_empty());
}

/// As the library does; what is longer would fit into no index once it is parked.
#[tokio::test]
async fn names_have_255_characters_at_most() {
    let database = database!();
    let keyed = "aggregate_type, aggregate_id, event_type, idempotency_key, payload";
    let names = |which: usize, length: usize| {
        let name = |place: usize| "ü".repeat(if place == which { length } else { 255 });
        (0..4).map(|place| format!("'{}'", name(place))).collect::<Vec<_>>().join(", ")
    };
    for which in 0..4 {
        let refused = insert(&database, keyed, &(names(which, 256) + ", '1'")).await.unwrap_err();
        let refused = refused.as_database_error().unwrap();
        let refused: &sqlx::postgres::PgDatabaseError = refused.downcast_ref();
        assert_eq!((refused.code(), refused.constraint()), ("23514", Some("outbox_names")));
        assert!(refused.message().contains("too long"), "{refused}");
        assert!(refused.hint().unwrap().contains("255 characters at most"), "{refused:?}");
    }
    insert(&database, keyed, &(names(9, 256) + ", '1'")).await.unwrap();
    assert_eq!(read(&database).await[0].aggregate_id, "ü".repeat(255));
}

/// A key is taken whoever wrote it.
#[tokio::test]
async fn keys_are_shared_with_the_library() {
    let database = database!();
    let keyed = "aggregate_type, aggregate_id, event_type, payload, idempotency_key";
    insert(&database, keyed, "'a', '1', 'T', '1', 'k'").await.unwrap();
    let again = insert(&database, keyed, "'a', '1', 'T', '1', 'k'").await.unwrap_err();
    assert!(again.to_string().contains("outbox_key"), "{again}");
    let mut tx = database.begin().await;
    let taken = event("a", 1).with_idempotency_key("k");
    let refused = database.store.outbox().append(&mut tx, taken).await.unwrap_err();
    assert!(refused.to_string().contains("k exists already; the transaction can go on"));
}
