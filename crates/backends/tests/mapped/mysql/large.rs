//! Large rows, and a source that was replaced.

use semel_backends::mapped::Mapping;
use semel_core::admin::{AdminStore, State};
use semel_core::{Delivery, Limit, Outcome, Settlement, Source};

use super::super::dead;
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

/// MySQL has room for so many parameters in a statement, and the rows that are out are among them.
#[tokio::test]
async fn very_many_rows_in_flight_are_read_counted_and_settled() {
    const LANES: usize = 150;
    let limit = Limit { events: 1_000_000, bytes: usize::MAX };
    let Some(database) = Database::new().await else { return };
    database.run(TABLE).await;
    let last = LANES - 1;
    database
        .run(&format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
            WITH RECURSIVE n AS (SELECT 0 AS n UNION ALL SELECT n + 1 FROM n WHERE n < {last})
            SELECT 'order', a.n, b.n, '{{}}' FROM n b CROSS JOIN n a ORDER BY b.n, a.n",
        ))
        .await;
    let mapping = Mapping::new("outbox").mark_flag("sent");
    let mut source = database.store.mapped_source("orders", &mapping).await.unwrap();
    let admin = database.store.mapped_admin("orders", &mapping);
    let first = source.next_batch(Limit { events: 1, ..limit }).await.unwrap().deliveries;
    super::super::settle(&mut source, &first[0], dead()).await;

    let mut delivered = 0;
    loop {
        let mut out = Vec::new();
        let asked_again = loop {
            let batch = source.next_batch(limit).await.unwrap();
            if batch.deliveries.is_empty() {
                break batch.next_due.is_some() || batch.more;
            }
            out.extend(batch.deliveries);
        };
        assert_eq!(admin.stats().await.unwrap().count(State::Publishing), out.len() as u64);
        let settle =
            |got: &Delivery| Settlement { receipt: got.receipt, outcome: Outcome::Delivered };
        let settlements: Vec<_> = out.iter().map(settle).collect();
        assert!(source.settle(&settlements).await.unwrap().is_held());
        delivered += out.len();
        if !asked_again {
            break;
        }
    }
    assert_eq!(delivered, LANES * LANES - LANES, "all but the lane of the dead letter");
}

#[tokio::test]
async fn a_source_that_was_replaced_says_so() {
    let Some(database) = Database::new().await else { return };
    database.run(TABLE).await;
    let mapping = Mapping::new("outbox").mark_flag("sent");
    let open = async || database.store.mapped_source("orders", &mapping).await.unwrap();
    super::super::a_source_that_was_replaced_says_so(open).await;
}
