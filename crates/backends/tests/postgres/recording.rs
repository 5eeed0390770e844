//! Ids that are recorded in the round trip that opens a transaction.

use semel_backends::postgres::{PostgresConfig, PostgresInbox, PostgresStore};
use semel_core::{EventId, InboxStore};

use super::database;

/// Whether a transaction begins with these ids recorded; it is committed.
async fn at_once(inbox: &PostgresInbox, ids: &[EventId]) -> bool {
    let (tx, recorded) = inbox.begin_with("payments", ids).await.unwrap();
    inbox.commit(tx).await.unwrap();
    recorded
}

async fn opened_now(url: &str) -> PostgresStore {
    PostgresConfig::new(url).unwrap().connections(1).connect().await.unwrap()
}

#[tokio::test]
async fn new_ids_are_recorded_at_once_until_a_duplicate_comes() {
    let database = database!();
    let prepared = opened_now(&database.url()).await;
    let of_the_application = PostgresStore::from_pool(prepared.pool().clone());
    for store in [prepared, of_the_application] {
        let (inbox, id) = (store.inbox(), EventId::now());
        assert!(at_once(&inbox, &[id]).await);
        assert!(at_once(&inbox, &[EventId::now(), EventId::now()]).await);
        assert!(!at_once(&inbox, &[id]).await, "it is known");
        for _ in 0..1000 {
            assert!(!at_once(&inbox, &[EventId::now()]).await, "more may follow");
        }
        assert!(at_once(&inbox, &[EventId::now()]).await, "none did");
    }
    assert_eq!(database.number("select count(*) from semel.inbox").await, 8);
}

/// Its connections come from before the tables.
#[tokio::test]
async fn a_connection_that_is_not_prepared_is_prepared_on_the_way() {
    let database = database!();
    database.store.drop_tables(None).await.unwrap();
    let store = opened_now(&database.url()).await;
    store.migrate().await.unwrap();
    let inbox = store.inbox();
    let first = EventId::now();
    assert!(!at_once(&inbox, &[first]).await);
    let mut tries = 1;
    while !at_once(&inbox, &[EventId::now()]).await {
        tries += 1;
        assert!(tries < 100, "it is prepared soon");
    }
    assert!(at_once(&inbox, &[first]).await, "it was not recorded, only its transaction committed");
}
