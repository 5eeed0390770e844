//! Ids that are recorded in the round trip that opens a transaction.

use futures_util::future::try_join_all;
use semel_backends::postgres::{PostgresConfig, PostgresInbox, PostgresStore};
use semel_core::inbox::Opening;
use semel_core::marks::Step;
use semel_core::{EventId, InboxStore, Marks};

use super::database;

/// Whether a transaction begins with these ids recorded; it is committed.
async fn at_once(inbox: &PostgresInbox, ids: &[EventId]) -> bool {
    let opening = Opening { ids, ..Opening::default() };
    let (tx, recorded) = inbox.begin_with("payments", opening).await.unwrap();
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

/// They come from before the tables.
#[tokio::test]
async fn connections_that_are_not_prepared_are_prepared_on_the_way() {
    const CONNECTIONS: usize = 4;
    let database = database!();
    database.store.drop_tables(None).await.unwrap();
    let config = PostgresConfig::new(&database.url()).unwrap().connections(CONNECTIONS as u32);
    let store = config.connect().await.unwrap();
    let pool = store.pool();
    let early = try_join_all((0..CONNECTIONS).map(|_| pool.acquire())).await.unwrap();
    assert_eq!(pool.size() as usize, CONNECTIONS);
    drop(early);
    store.migrate().await.unwrap();
    let inbox = store.inbox();
    for _ in 0..3 * CONNECTIONS {
        assert!(at_once(&inbox, &[EventId::now()]).await, "from the first one on");
        assert!(at_once(&inbox, &[EventId::now(), EventId::now()]).await, "of several too");
    }
    let mut all = try_join_all((0..CONNECTIONS).map(|_| pool.acquire())).await.unwrap();
    for connection in &mut all {
        let sql = "select count(*) from pg_prepared_statements where name like 'semel%'";
        let prepared: i64 = sqlx::query_scalar(sql).fetch_one(&mut **connection).await.unwrap();
        assert_eq!(prepared, 4);
    }
}

/// Prepared or not, and whatever was cut meanwhile.
#[tokio::test]
async fn a_connection_that_was_cut_is_replaced() {
    let database = database!();
    let store = database.again().await;
    let inbox = store.inbox();
    for _ in 0..3 {
        let held = try_join_all((0..5).map(|_| store.begin())).await.unwrap();
        for tx in held {
            tx.commit().await.unwrap();
        }
        database
            .run(
                "select pg_terminate_backend(pid) from pg_stat_activity \
                 where datname = current_database() and pid <> pg_backend_pid()",
            )
            .await;
        assert!(at_once(&inbox, &[EventId::now()]).await);
        assert!(store.status().await.unwrap().is_current(), "other statements too");
    }
}

/// Marks that move in the round trip that opens a transaction.
#[tokio::test]
async fn a_mark_moves_at_once_unless_it_is_elsewhere() {
    let database = database!();
    let prepared = opened_now(&database.url()).await;
    let of_the_application = PostgresStore::from_pool(prepared.pool().clone());
    for (store, scope) in [(prepared, "log:a"), (of_the_application, "log:b")] {
        let (inbox, marks) = (store.inbox(), store.marks());
        let mut tx = inbox.begin().await.unwrap();
        marks.advance(&mut tx, "payments", scope, 1).await.unwrap();
        inbox.commit(tx).await.unwrap();
        for (from, moves) in [(1, true), (2, true), (7, false)] {
            let steps = [Step { scope, from, to: from + 1 }];
            let opening = Opening { steps: &steps, ids: &[], no_letters: true };
            let (tx, moved) = inbox.begin_with("payments", opening).await.unwrap();
            assert_eq!(moved, moves, "from {from}");
            inbox.commit(tx).await.unwrap();
        }
        let mut tx = inbox.begin().await.unwrap();
        assert_eq!(marks.mark(&mut tx, "payments", scope).await.unwrap(), Some(3));
    }
}
