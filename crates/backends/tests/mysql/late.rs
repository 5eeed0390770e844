//! Transactions that commit in another order than they got their numbers.

use semel_core::Event;
use semel_testkit::workload::{event, events, numbers};

use super::{Database, Relay, database};

/// What looks for new events.
trait Reader {
    async fn read(&mut self) -> Vec<Event>;
}

impl Reader for Relay {
    async fn read(&mut self) -> Vec<Event> {
        let delivered = self.deliver_all(100).await;
        delivered.iter().map(|got| Event::clone(&got.message.event)).collect()
    }
}

/// The obvious reader, which is wrong: a cursor over the auto-increment number.
pub(super) struct ByNumber {
    pub(super) database: semel_backends::mysql::MySqlPool,
    pub(super) last: u64,
}

impl Reader for ByNumber {
    async fn read(&mut self) -> Vec<Event> {
        let found: Vec<(u64, Vec<u8>)> =
            sqlx::query_as("SELECT seq, payload FROM semel_outbox WHERE seq > ? ORDER BY seq")
                .bind(self.last)
                .fetch_all(&self.database)
                .await
                .unwrap();
        self.last = found.last().map_or(self.last, |(seq, _)| *seq);
        let made = |payload: Vec<u8>| event("?", 0).with_bytes("application/json", payload);
        found.into_iter().map(|(_, payload)| made(payload)).collect()
    }
}

/// Three transactions that overlap; the first to write is the last to commit, and one is undone.
async fn schedule(database: &Database, reader: &mut impl Reader) -> Vec<u64> {
    let mut seen = Vec::new();
    let mut late = database.begin().await;
    database.append(&mut late, &events("late", 0..2)).await;
    let mut undone = database.begin().await;
    database.append(&mut undone, &events("undone", 50..52)).await;
    database.commit(&events("early", 10..12)).await;
    seen.extend(reader.read().await);
    database.append(&mut late, &events("late", 2..3)).await;
    database.commit(&events("early", 12..13)).await;
    undone.rollback().await.unwrap();
    seen.extend(reader.read().await);
    late.commit().await.unwrap();
    seen.extend(reader.read().await);
    database.commit(&events("early", 13..14)).await;
    seen.extend(reader.read().await);
    let mut seen = numbers(&seen);
    seen.sort_unstable();
    seen
}

#[tokio::test]
async fn what_commits_late_is_read_and_what_is_undone_is_not() {
    let database = database!();
    let mut relay = database.relay().await;
    let all = [0, 1, 2, 10, 11, 12, 13];
    assert_eq!(schedule(&database, &mut relay).await, all);
    let mut other = Relay { source: database.store.source("audit").await.unwrap() };
    let mut again = numbers(&other.read().await);
    again.sort_unstable();
    assert_eq!(again, all, "a pipeline that comes later finds all of it");
}

/// The schedule is one that a cursor over the numbers fails.
#[tokio::test]
async fn a_cursor_over_the_numbers_loses_what_commits_late() {
    let database = database!();
    let mut wrong = ByNumber { database: database.pool().clone(), last: 0 };
    assert_eq!(schedule(&database, &mut wrong).await, [10, 11, 12, 13], "0, 1 and 2 are lost");
}

/// Late rows come after a restart as well, in the order of their transaction.
#[tokio::test]
async fn what_commits_after_a_crash_of_the_relay_is_read() {
    let database = database!();
    let mut late = database.begin().await;
    database.append(&mut late, &events("late", 0..3)).await;
    database.commit(&events("early", 10..13)).await;
    let mut relay = database.relay().await;
    let taken = relay.take(2).await;
    relay.settle(&taken[1..], |_| semel_core::Outcome::Delivered).await;
    drop(relay);
    late.commit().await.unwrap();
    let mut relay = database.relay().await;
    assert_eq!(numbers(&relay.read().await), [10, 12, 0, 1, 2]);
}

/// The isolation level of the writer makes no difference.
#[tokio::test]
async fn writers_of_every_isolation_level_are_read() {
    let database = database!();
    let mut relay = database.relay().await;
    let levels = ["READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];
    let mut open = Vec::new();
    for (lane, level) in (0..).zip(levels) {
        let begin = format!("SET TRANSACTION ISOLATION LEVEL {level}; START TRANSACTION");
        let mut tx = database.pool().begin_with(sqlx::AssertSqlSafe(begin)).await.unwrap();
        sqlx::query("SELECT count(*) FROM semel_inbox").execute(&mut *tx).await.unwrap();
        database.append(&mut tx, &[event(level, lane)]).await;
        open.push((lane, tx));
        assert!(relay.read().await.is_empty(), "nothing is committed, and nobody waits");
    }
    for (lane, tx) in open.into_iter().rev() {
        tx.commit().await.unwrap();
        assert_eq!(numbers(&relay.read().await), [lane]);
    }
}
