//! Waiting rows are found by their mark, however much was published before.

use semel_backends::mapped::Mapping;
use semel_core::{Limit, Source};

use super::super::{deliver_all, retry_now, settle, take};
use super::Database;

/// 30,000 published rows and 40 that wait.
async fn history(database: &Database, id: &str, index: &str) {
    database
        .run(&format!(
            "create table outbox (id {id} primary key, aggregate_type text,
                aggregate_id text, event_type text, payload text, created_at timestamp,
                published boolean not null default false, published_at timestamp,
                retry_count int default 0, idempotency_key text);
            {index};
            insert into outbox (aggregate_type, aggregate_id, event_type, payload, created_at,
                published, published_at)
            select 'order', n, 'Placed', repeat('x', 100), now() - n * interval '1 second', n > 40,
                case when n > 40 then now() end
            from generate_series(1, 30040) n order by n desc;
            analyze outbox"
        ))
        .await;
}

/// Rows whose flag is null are looked for as well, if there can be any.
#[tokio::test]
async fn a_flag_that_may_be_null_is_found_by_the_same_index() {
    let Some(database) = Database::new().await else { return };
    let index = "create index waiting on outbox (published, id);
        alter table outbox alter published drop not null";
    history(&database, "bigserial", index).await;
    let plan = plan(&database, &Mapping::polling_publisher("outbox")).await;
    assert!(plan.contains("using waiting on outbox t"), "{plan}");
    assert!(!plan.contains("outbox_pkey") && !plan.contains("Seq Scan on outbox"), "{plan}");
}

async fn plan(database: &Database, mapping: &Mapping) -> String {
    let mut source = database.store.mapped_source("orders", mapping).await.unwrap();
    let batch = take(&mut source).await;
    assert_eq!(batch.len(), 40);
    // With something parked and something in flight.
    settle(&mut source, &batch[0], retry_now(1)).await;
    let plan = source.plan().await.unwrap().join("\n");
    assert!(!plan.contains("Seq Scan on outbox"), "{plan}");
    drop(source);
    let mut source = database.store.mapped_source("orders", mapping).await.unwrap();
    assert_eq!(deliver_all(&mut source).await.len(), 40);
    plan
}

#[tokio::test]
async fn the_partial_index_of_a_transactional_outbox_is_used() {
    let Some(database) = Database::new().await else { return };
    let index = "create index waiting on outbox (created_at) where published_at is null";
    history(&database, "uuid default gen_random_uuid()", index).await;
    let plan = plan(&database, &Mapping::transactional_outbox("outbox")).await;
    assert!(plan.contains("using waiting on outbox"), "{plan}");
}

#[tokio::test]
async fn the_index_of_a_polling_publisher_is_used_and_not_the_primary_key() {
    let Some(database) = Database::new().await else { return };
    let index = "create index waiting on outbox (published, created_at)";
    history(&database, "bigserial", index).await;
    let plan = plan(&database, &Mapping::polling_publisher("outbox")).await;
    assert!(plan.contains("waiting") && !plan.contains("outbox_pkey"), "{plan}");
}

#[tokio::test]
async fn an_index_that_has_the_waiting_rows_in_order_needs_no_sort() {
    let Some(database) = Database::new().await else { return };
    let index = "create index waiting on outbox (id) where published = false";
    history(&database, "bigserial", index).await;
    let plan = plan(&database, &Mapping::polling_publisher("outbox")).await;
    assert!(plan.contains("using waiting on outbox") && !plan.contains("Sort"), "{plan}");
}

/// Statistics that were made while everything waited do not lead to a walk through all of it.
#[tokio::test]
async fn a_history_that_the_statistics_do_not_know_is_not_read() {
    let Some(database) = Database::new().await else { return };
    let index = "alter table outbox set (autovacuum_enabled = false);
        create index waiting on outbox (published, created_at)";
    history(&database, "bigserial", index).await;
    database
        .run(
            "update outbox set published = false; analyze outbox;
            update outbox set published = true, published_at = now() where id > 40",
        )
        .await;
    let plan = plan(&database, &Mapping::polling_publisher("outbox")).await;
    assert!(plan.contains("using waiting on outbox"), "{plan}");
}

/// Statistics that were made while nothing waited do not lead to a sort of all that waits.
#[tokio::test]
async fn a_backlog_that_the_statistics_do_not_know_is_read_in_order() {
    let Some(database) = Database::new().await else { return };
    let index = "alter table outbox set (autovacuum_enabled = false);
        create index by_time on outbox (published, created_at);
        create index waiting on outbox (id) where published = false";
    history(&database, "bigserial", index).await;
    database
        .run(
            "update outbox set published = true, published_at = now() where not published;
            analyze outbox;
            insert into outbox (aggregate_type, aggregate_id, event_type, payload, created_at)
            select 'order', n, 'Placed', 'x', now() from generate_series(1, 20000) n",
        )
        .await;
    let mapping = Mapping::polling_publisher("outbox");
    let mut source = database.store.mapped_source("orders", &mapping).await.unwrap();
    let plan = source.plan().await.unwrap().join("\n");
    assert!(plan.contains("using waiting on outbox") && !plan.contains("Sort"), "{plan}");
    let batch = source.next_batch(Limit::default()).await.unwrap();
    assert_eq!((batch.deliveries.len(), batch.more), (100, true));
}
