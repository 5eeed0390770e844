//! Ids lead back to their rows, whatever was written into whatever column: one that does not would be
//! published for ever. Libraries write a UUID as 16 bytes into a column of text.

use semel_backends::mapped::Mapping;
use semel_core::admin::{AdminStore, Filter, Selection, State};
use semel_core::{Fault, Limit, Outcome, Settlement, Source};

use super::super::{dead, deliver_all, retry_now, settle, take};
use super::{Database, run};

const BYTES: &str = "unhex('0190b6e87a3c7def800000000000000' || n)";
const TEXT: &str = "'0190b6e8-7a3c-7def-8000-00000000000' || n";

async fn with_rows(id: &str, value: &str, lane: &str) -> Database {
    let database = Database::new().await;
    run(
        &database,
        &format!(
            "CREATE TABLE outbox (id {id} PRIMARY KEY, aggregate_type TEXT, aggregate_id TEXT,
                event_type TEXT, payload TEXT, sent BOOLEAN NOT NULL DEFAULT FALSE, tries INT);
            WITH n(n) AS (VALUES (1), (2), (3)) INSERT INTO outbox
                SELECT {value}, 'order', {lane}, 'Placed', n, FALSE, NULL FROM n"
        ),
    )
    .await;
    database
}

fn mapping() -> Mapping {
    Mapping::new("outbox").mark_flag("sent").retry_count("tries").order_by("payload")
}

async fn sent(database: &Database) -> i64 {
    let count = "SELECT count(*) FROM outbox WHERE sent";
    sqlx::query_scalar(count).fetch_one(database.store.pool()).await.unwrap()
}

#[tokio::test]
async fn rows_are_marked_and_published_once_whatever_their_ids_are() {
    for column in ["UUID", "CHAR(36)", "TEXT", "BLOB", ""] {
        for value in [BYTES, TEXT] {
            let first = published_once(column, value).await;
            assert_eq!(first, "0190b6e8-7a3c-7def-8000-000000000001", "{column} {value}");
        }
    }
    for column in ["TEXT", "NUMERIC", "INT", ""] {
        let first = published_once(column, "n").await;
        assert!(first.starts_with("00000000-0000-8000-8"), "{column}: {first}");
    }
    for column in ["TEXT", ""] {
        published_once(column, "'evt_' || n").await;
    }
}

/// Gives the id of the first event.
async fn published_once(column: &str, value: &str) -> String {
    let database = with_rows(column, value, "n").await;
    let mut source = database.store.mapped_source("orders", &mapping()).await.unwrap();
    let admin = database.store.mapped_admin("orders", &mapping());
    let what = format!("{column} with {value}");
    let batch = take(&mut source).await;
    assert_eq!(batch.len(), 3, "{what}");
    assert!(take(&mut source).await.is_empty(), "{what}: they are in flight");
    settle(&mut source, &batch[0], Outcome::Delivered).await;
    assert_eq!(sent(&database).await, 1, "{what}");
    settle(&mut source, &batch[1], retry_now(1)).await;
    settle(&mut source, &batch[2], dead()).await;
    assert_eq!(deliver_all(&mut source).await.len(), 1, "{what}: what failed comes again, once");
    let letters = Filter { state: Some(State::Dead), ..Filter::default() };
    assert_eq!(admin.retry(&Selection::Matching(letters)).await.unwrap(), 1, "{what}");
    assert_eq!(deliver_all(&mut source).await.len(), 1, "{what}");
    assert_eq!(sent(&database).await, 3, "{what}");
    let found = admin.get(batch[2].message.event.id).await.unwrap();
    assert_eq!(found.expect("found by its id").state, State::Published, "{what}");
    batch[0].message.event.id.to_string()
}

/// Bytes that are no UUID are an id as good as any.
#[tokio::test]
async fn rows_with_other_bytes_as_ids_are_published_once() {
    let database = with_rows("TEXT", "unhex('ff0' || n)", "n").await;
    let mut source = database.store.mapped_source("orders", &mapping()).await.unwrap();
    assert_eq!(deliver_all(&mut source).await.len(), 3);
    assert_eq!(sent(&database).await, 3);
}

#[tokio::test]
async fn a_lane_whose_name_is_a_uuid_in_bytes_waits_behind_its_dead_letter() {
    let lane = "unhex('0190b6e87a3c7def8000000000000000')";
    let database = with_rows("INTEGER", "n", lane).await;
    let mut source = database.store.mapped_source("orders", &mapping()).await.unwrap();
    let first = source.next_batch(Limit { events: 1, ..Limit::default() }).await.unwrap();
    let name = "0190b6e8-7a3c-7def-8000-000000000000";
    assert_eq!(first.deliveries[0].message.event.aggregate_id, name);
    settle(&mut source, &first.deliveries[0], dead()).await;
    assert!(take(&mut source).await.is_empty(), "they wait");
    let admin = database.store.mapped_admin("orders", &mapping());
    let filter = Filter { aggregate_id: Some(name.into()), ..Filter::default() };
    assert_eq!(admin.list(&filter, None, 10).await.unwrap().events.len(), 3);
    assert_eq!(admin.retry(&Selection::Matching(filter)).await.unwrap(), 1);
    let types: Vec<_> = deliver_all(&mut source).await;
    let order: Vec<_> = types.iter().map(|got| got.message.event.payload.bytes()).collect();
    assert_eq!(order, ["1", "2", "3"]);
}

#[tokio::test]
async fn a_lane_that_is_no_text_is_refused() {
    let database = with_rows("INTEGER", "n", "unhex('ff01')").await;
    let mut source = database.store.mapped_source("orders", &mapping()).await.unwrap();
    let failure = source.next_batch(Limit::default()).await.unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-MAPPED-TYPE"));
    assert!(failure.fix().unwrap().contains("write text"), "{failure:?}");
}

/// Bytes in a column of numbers are not found, nor a row whose mark a trigger takes back. That somebody
/// deleted a row is fine.
#[tokio::test]
async fn a_row_that_is_not_marked_ends_the_pipeline() {
    let trigger = "CREATE TRIGGER undo AFTER UPDATE OF sent ON outbox WHEN new.sent BEGIN
        SELECT raise(ignore); END";
    for (column, value, sql, code) in [
        ("INT", BYTES, "SELECT 1", Some("E-MAPPED-ID")),
        ("TEXT", TEXT, &trigger.replace("AFTER", "BEFORE"), Some("E-MAPPED-ID")),
        ("TEXT", TEXT, "DELETE FROM outbox WHERE payload = 1", None),
    ] {
        let database = with_rows(column, value, "n").await;
        let mut source = database.store.mapped_source("orders", &mapping()).await.unwrap();
        let batch = take(&mut source).await;
        run(&database, sql).await;
        let outcome = Outcome::Delivered;
        let all =
            batch.iter().map(|got| Settlement { receipt: got.receipt, outcome: outcome.clone() });
        let settled = source.settle(&all.collect::<Vec<_>>()).await;
        assert_eq!(settled.err().map(|failure| failure.code()), code, "{column} {sql}");
    }
}
