//! Ids of every type lead back to their rows: one that does not would be published for ever.

use semel_backends::mapped::Mapping;
use semel_core::Outcome;
use semel_core::admin::{AdminStore, Filter, Selection, State};

use super::super::{dead, deliver_all, retry_now, settle, take};
use super::Database;

const TYPES: &str = "create domain fixed as char(36); create domain varying as varchar(36)";

#[tokio::test]
async fn rows_are_marked_and_published_once_whatever_the_type_of_the_id() {
    let Some(database) = Database::new().await else { return };
    database.run(TYPES).await;
    for id in ["char(36)", "char(40)", "varchar(36)", "text", "uuid", "fixed", "varying"] {
        published_once(&database, id).await;
    }
}

async fn published_once(database: &Database, id: &str) {
    database
        .run(&format!(
            "drop table if exists outbox;
            delete from semel.mapped; delete from semel.mapped_parked;
            create table outbox (id {id} primary key, aggregate_type text, aggregate_id text,
                event_type text, payload text, sent boolean not null default false, tries int);
            insert into outbox select cast('0190b6e8-7a3c-7def-8000-00000000000' || n as {id}),
                'order', n, 'Placed', n from generate_series(1, 3) n"
        ))
        .await;
    let mapping = Mapping::new("outbox").mark_flag("sent").retry_count("tries");
    let mut source = database.store.mapped_source("orders", &mapping).await.unwrap();
    let admin = database.store.mapped_admin("orders", &mapping);
    let sent = async || database.number("select count(*) from outbox where sent").await;
    let batch = take(&mut source).await;
    assert_eq!(batch.len(), 3, "{id}");
    settle(&mut source, &batch[0], Outcome::Delivered).await;
    assert_eq!(sent().await, 1, "{id}");
    settle(&mut source, &batch[1], retry_now(1)).await;
    settle(&mut source, &batch[2], dead()).await;
    assert_eq!(deliver_all(&mut source).await.len(), 1, "{id}: what failed comes again, once");
    let letters = Filter { state: Some(State::Dead), ..Filter::default() };
    assert_eq!(admin.retry(&Selection::Matching(letters)).await.unwrap(), 1, "{id}");
    assert_eq!(deliver_all(&mut source).await.len(), 1, "{id}");
    assert_eq!(sent().await, 3, "{id}");
    let found = admin.get(batch[2].message.event.id).await.unwrap();
    assert_eq!(found.expect("found by its id").state, State::Published, "{id}");
}
