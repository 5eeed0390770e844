//! Rows that cannot be read, because a writer got past the checks of the table.

use semel_core::admin::{AdminStore, Filter, Selection, State};

use super::database;

#[tokio::test]
async fn a_row_that_still_cannot_be_read_is_dead_again() {
    let database = database!();
    database.run("ALTER TABLE semel_outbox DROP CONSTRAINT semel_outbox_uuid").await;
    database
        .run(
            "INSERT INTO semel_outbox (id, aggregate_type, aggregate_id, event_type, payload)
            VALUES ('no id', 'order', 'broken', 'Broken', '1')",
        )
        .await;
    database
        .run(
            "INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload)
            VALUES ('order', 'broken', 'Later', '2'), ('order', 'fine', 'Fine', '3')",
        )
        .await;
    let mut relay = database.relay().await;
    let admin = database.store.admin("orders");
    let dead = Filter { state: Some(State::Dead), ..Filter::default() };
    let count = "SELECT count(*) FROM semel_parked WHERE state = 'dead'";
    assert_eq!(relay.lanes().await, ["fine"], "its lane waits");
    for _ in 0..2 {
        assert_eq!(database.number(count).await, 1);
        assert_eq!(admin.retry(&Selection::Matching(dead.clone())).await.unwrap(), 1);
        assert_eq!(relay.lanes().await, [""; 0], "neither it nor what waits behind it");
    }
    assert_eq!(database.number(count).await, 1);
    let mend = "UPDATE semel_outbox SET id = '0190b6e8-7a3c-7def-8000-0123456789ab'
        WHERE id = 'no id'";
    database.run(mend).await;
    assert_eq!(admin.retry(&Selection::Matching(dead)).await.unwrap(), 1);
    assert_eq!(relay.lanes().await, ["broken", "broken"]);
}
