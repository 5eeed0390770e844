//! Large rows, and a source that was replaced.

use semel_backends::mapped::Mapping;

use super::Database;

const TABLE: &str = "create table outbox (id bigserial primary key, aggregate_type text,
    aggregate_id text, event_type text, payload text, sent boolean not null default false);
    create index on outbox (id) where sent = false";

#[tokio::test]
async fn large_rows_come_in_order_and_all_of_them() {
    let Some(database) = Database::new().await else { return };
    database.run(TABLE).await;
    database
        .run(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload)
            select 'order', 'a', n, repeat('x', 1048576) from generate_series(0, 11) n",
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
