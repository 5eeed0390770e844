//! What the log tells, and what it leaves out.

use std::time::{Duration, Instant};

use semel_core::{Limit, Outcome, Source};
use semel_testkit::workload::{delivered_numbers, event, events};
use sqlx::Connection;

use super::super::database;
use super::{PATIENCE, commit_one};

#[tokio::test]
async fn every_kind_of_commit_is_heard() {
    let database = database!();
    let mut relay = database.tailing().await;
    database.commit(&events("a", 0..2)).await;
    relay.expect_news(&[0, 1]).await;

    let mut tx = database.begin().await;
    sqlx::raw_sql("SAVEPOINT one").execute(&mut *tx).await.unwrap();
    database.append(&mut tx, &[event("a", 2)]).await;
    sqlx::raw_sql("ROLLBACK TO one").execute(&mut *tx).await.unwrap();
    database.append(&mut tx, &[event("a", 3)]).await;
    tx.commit().await.unwrap();
    relay.expect_news(&[3]).await;

    let insert = "INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload) \
        VALUES ('order', 'a', 'Placed', '4')";
    database.run(insert).await;
    relay.expect_news(&[4]).await;
    database.run(&format!("SET STATEMENT binlog_row_image = MINIMAL FOR {insert}")).await;
    relay.expect_news(&[4]).await;
}

/// The rows of a transaction in two phases are in the log before anybody commits them.
#[tokio::test]
async fn a_transaction_in_two_phases_is_heard_when_it_is_committed() {
    let database = database!();
    let mut relay = database.tailing().await;
    let mut connection = sqlx::MySqlConnection::connect(&database.url()).await.unwrap();
    let insert = "XA START 'later'; \
        INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload) \
            VALUES ('order', 'a', 'Placed', '4'); \
        XA END 'later'; XA PREPARE 'later'";
    // The names of such transactions are those of the whole server.
    let name = database.name.clone();
    let named = |sql: &str| sqlx::AssertSqlSafe(sql.replace("later", &name));
    sqlx::raw_sql(named(insert)).execute(&mut connection).await.unwrap();
    assert!(!relay.is_woken(Duration::from_millis(300)).await);
    sqlx::raw_sql(named("XA COMMIT 'later'")).execute(&mut connection).await.unwrap();
    relay.expect_news(&[4]).await;
}

/// An event that is written by a trigger of another table.
#[tokio::test]
async fn a_trigger_is_heard() {
    let database = database!();
    database
        .run(
            "CREATE TABLE orders (id INT); \
            CREATE TRIGGER tell AFTER INSERT ON orders FOR EACH ROW \
            INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload) \
            VALUES ('order', NEW.id, 'Placed', NEW.id)",
        )
        .await;
    let mut relay = database.tailing().await;
    database.run("INSERT INTO orders VALUES (7)").await;
    relay.expect_news(&[7]).await;
}

#[tokio::test]
async fn only_commits_of_events_are_news() {
    let database = database!();
    database.run("CREATE TABLE business (happened TEXT)").await;
    database.commit(&[event("a", 0)]).await;
    let mut relay = database.tailing().await;
    // Its own changes of the table are none, either.
    assert_eq!(relay.deliver_all(10).await.len(), 1);
    let mut tx = database.begin().await;
    database.append(&mut tx, &events("a", 1..3)).await;
    tx.rollback().await.unwrap();
    database.run("INSERT INTO business VALUES ('changed')").await;
    database.run("DELETE FROM semel_outbox").await;
    assert!(!relay.is_woken(Duration::from_millis(500)).await);
    assert!(relay.source.is_tailing());
}

/// The outbox of another database is none of ours.
#[tokio::test]
async fn another_database_is_not_heard() {
    let (ours, theirs) = (database!(), database!());
    let mut relay = ours.tailing().await;
    theirs.commit(&events("a", 0..3)).await;
    assert!(!relay.is_woken(Duration::from_millis(300)).await);
    ours.commit(&[event("a", 9)]).await;
    relay.expect_news(&[9]).await;
}

#[tokio::test]
async fn a_column_that_is_added_changes_nothing() {
    let database = database!();
    let mut relay = database.tailing().await;
    database.commit(&[event("a", 0)]).await;
    relay.expect_news(&[0]).await;
    database.run("ALTER TABLE semel_outbox ADD COLUMN tenant TEXT").await;
    database.commit(&[event("a", 1)]).await;
    relay.expect_news(&[1]).await;
}

/// The session goes with its source, without anybody's help.
#[tokio::test]
async fn nothing_is_left_behind() {
    let database = database!();
    assert!(!database.store.is_tailed("orders").await.unwrap());
    let mut closed = database.tailing().await;
    assert_eq!(database.tails().await.len(), 1);
    assert!(database.store.is_tailed("orders").await.unwrap());
    assert!(!database.store.is_tailed("order").await.unwrap());
    closed.source.close().await;
    let began = Instant::now();
    while database.store.is_tailed("orders").await.unwrap() || !database.tails().await.is_empty() {
        assert!(began.elapsed() < PATIENCE, "the session of a closed source stays");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drop(database.tailing().await);
    while !database.tails().await.is_empty() {
        assert!(began.elapsed() < PATIENCE, "the session of a source that is gone stays");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// One transaction of many rows is one piece of news.
#[tokio::test]
async fn a_large_transaction_is_heard_once_and_read_in_parts() {
    const ROWS: usize = 30_000;
    let database = database!();
    let mut relay = database.tailing().await;
    database
        .run(&format!(
            "INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload) \
            SELECT 'order', seq % 100, 'Placed', repeat('x', 500) FROM seq_1_to_{ROWS}"
        ))
        .await;
    assert!(relay.is_woken(PATIENCE).await);
    assert_eq!(relay.deliver_all(5_000).await.len(), ROWS);
    relay.settle_down().await;
    assert!(relay.source.is_tailing());
}

/// Whoever comes next goes on where the other stopped, whichever way each of them hears.
#[tokio::test]
async fn tailing_and_polling_sources_take_turns() {
    let database = database!();
    for round in 0..3 {
        let mut tailing = database.tailing().await;
        database.commit(&events(&format!("tailed {round}"), 0..3)).await;
        let flight = tailing.take(2).await;
        tailing.settle(&flight[..1], |_| Outcome::Delivered).await;
        let mut polling = database.relay().await;
        assert_eq!(delivered_numbers(&polling.take(10).await), [1, 2], "round {round}");
        drop(polling);
        let mut polling = database.relay().await;
        assert_eq!(delivered_numbers(&polling.deliver_all(10).await), [1, 2]);
    }
}

/// What others write is read and dropped: nobody is woken by it, and nothing waits behind it.
#[tokio::test]
async fn a_busy_neighbour_wakes_nobody() {
    let database = database!();
    database.run("CREATE TABLE other (content TEXT)").await;
    let mut relay = database.tailing().await;
    for _ in 0..8 {
        database.run("INSERT INTO other SELECT repeat(md5(seq), 100) FROM seq_1_to_3000").await;
    }
    assert!(!relay.is_woken(Duration::from_millis(300)).await);
    let began = Instant::now();
    commit_one(&database.store, 1).await;
    relay.expect_news(&[1]).await;
    println!("heard {:?} after 24 MB of somebody else's rows", began.elapsed());
    assert!(relay.source.is_tailing());
    assert!(relay.source.next_batch(Limit::default()).await.unwrap().deliveries.is_empty());
}
