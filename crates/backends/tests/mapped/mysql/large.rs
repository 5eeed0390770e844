//! Large rows, and a source that was replaced.

use semel_backends::mapped::Mapping;

use super::Database;

const TABLE: &str =
    "CREATE TABLE outbox (id BIGINT AUTO_INCREMENT PRIMARY KEY, aggregate_type TEXT,
    aggregate_id TEXT, event_type TEXT, payload LONGTEXT, sent BOOLEAN NOT NULL DEFAULT FALSE,
    KEY (sent, id))";

#[tokio::test]
async fn large_rows_come_in_order_and_all_of_them() {
    let Some(database) = Database::new().await else { return };
    database.run(TABLE).await;
    database
        .run(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
            WITH RECURSIVE n AS (SELECT 0 AS n UNION ALL SELECT n + 1 FROM n WHERE n < 11)
            SELECT 'order', 'a', n, repeat('x', 1048576) FROM n",
        )
        .await;
    let mapping = Mapping::new("outbox").mark_flag("sent");
    let open = async || database.store.mapped_source("orders", &mapping).await.unwrap();
    super::super::large_rows_come_in_order_and_all_of_them(open).await;
}

#[tokio::test]
async fn a_source_that_was_replaced_says_so() {
    let Some(database) = Database::new().await else { return };
    database.run(TABLE).await;
    let mapping = Mapping::new("outbox").mark_flag("sent");
    let open = async || database.store.mapped_source("orders", &mapping).await.unwrap();
    super::super::a_source_that_was_replaced_says_so(open).await;
}
