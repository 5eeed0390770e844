//! Large rows, and a source that was replaced.

use semel_backends::mapped::Mapping;

use super::{Database, run};

const TABLE: &str = "CREATE TABLE outbox (id INTEGER PRIMARY KEY, aggregate_type TEXT,
    aggregate_id TEXT, event_type TEXT, payload TEXT, sent BOOLEAN NOT NULL DEFAULT FALSE);
    CREATE INDEX waiting ON outbox (sent, id)";

#[tokio::test]
async fn large_rows_come_in_order_and_all_of_them() {
    let database = Database::new().await;
    run(&database, TABLE).await;
    run(
        &database,
        "WITH RECURSIVE n(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n < 11)
        INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
        SELECT 'order', 'a', n, hex(zeroblob(524288)) FROM n",
    )
    .await;
    let mapping = Mapping::new("outbox").mark_flag("sent");
    let open = async || database.store.mapped_source("orders", &mapping).await.unwrap();
    super::super::large_rows_come_in_order_and_all_of_them(open).await;
}

#[tokio::test]
async fn a_source_that_was_replaced_says_so() {
    let database = Database::new().await;
    run(&database, TABLE).await;
    let mapping = Mapping::new("outbox").mark_flag("sent");
    let open = async || database.store.mapped_source("orders", &mapping).await.unwrap();
    super::super::a_source_that_was_replaced_says_so(open).await;
}
