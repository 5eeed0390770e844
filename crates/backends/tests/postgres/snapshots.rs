//! Which events are new: nothing is lost and nobody waits, whatever else is going on.

use semel_backends::postgres::PgPool;
use semel_testkit::workload::event;
use sqlx::Connection;

use super::{Database, Relay, database};

/// The reader that everybody writes first: rows after the last one seen.
struct IdCursor {
    pool: PgPool,
    last: i64,
}

impl IdCursor {
    async fn read(&mut self) -> Vec<String> {
        let rows: Vec<(i64, String)> = sqlx::query_as(
            "select seq, aggregate_id from semel.outbox where seq > $1 order by seq",
        )
        .bind(self.last)
        .fetch_all(&self.pool)
        .await
        .unwrap();
        self.last = rows.last().map_or(self.last, |row| row.0);
        rows.into_iter().map(|row| row.1).collect()
    }
}

/// The reader that everybody writes second: only rows that no running transaction can precede.
async fn read_up_to_the_oldest_writer(pool: &PgPool) -> i64 {
    sqlx::query_scalar(
        "select count(*) from semel.outbox where txid < pg_snapshot_xmin(pg_current_snapshot())",
    )
    .fetch_one(pool)
    .await
    .unwrap()
}

async fn write(database: &Database, lane: &str) {
    database.commit(&[event(lane, 0)]).await;
}

#[tokio::test]
async fn a_late_commit_is_not_passed_as_it_is_by_an_id_cursor() {
    let database = database!();
    let mut relay = database.relay().await;
    let mut wrong = IdCursor { pool: database.pool().clone(), last: 0 };

    let mut late = database.begin().await;
    database.append(&mut late, &[event("late", 0)]).await;
    write(&database, "early").await;
    assert_eq!(relay.lanes().await, ["early"]);
    assert_eq!(wrong.read().await, ["early"]);

    late.commit().await.unwrap();
    write(&database, "after").await;
    assert_eq!(relay.lanes().await, ["late", "after"]);
    assert_eq!(wrong.read().await, ["after"], "the id cursor has lost one");
}

/// Transactions that overlap in every way: each look happens while others are half-way.
#[tokio::test]
async fn any_order_of_commits_loses_nothing_where_an_id_cursor_does() {
    let database = database!();
    let mut relay = database.relay().await;
    let mut wrong = IdCursor { pool: database.pool().clone(), last: 0 };
    let (mut ours, mut theirs, mut committed) = (Vec::new(), Vec::new(), Vec::new());
    let mut open = Vec::new();
    let mut dice = 7_usize;
    for number in 0..120 {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let lane = format!("lane-{number}");
        let mut tx = database.begin().await;
        database.append(&mut tx, &[event(&lane, 0)]).await;
        open.push((lane, tx));
        while open.len() > (dice >> 33) % 8 {
            let (lane, tx) = open.swap_remove((dice >> 40) % open.len());
            if (dice >> 50).is_multiple_of(5) {
                tx.rollback().await.unwrap();
            } else {
                tx.commit().await.unwrap();
                committed.push(lane);
            }
            if (dice >> 45).is_multiple_of(3) {
                ours.extend(relay.lanes().await);
                theirs.extend(wrong.read().await);
            }
        }
        if number % 40 == 39 {
            relay = database.relay().await;
        }
    }
    for (lane, tx) in open {
        tx.commit().await.unwrap();
        committed.push(lane);
    }
    ours.extend(relay.lanes().await);
    theirs.extend(wrong.read().await);
    for list in [&mut ours, &mut committed] {
        list.sort();
    }
    assert_eq!(ours, committed);
    assert!(theirs.len() < committed.len(), "the schedule must be able to lose something");
}

#[tokio::test]
async fn a_long_writer_of_another_table_holds_nobody_up() {
    let database = database!();
    database.run("create table elsewhere (n int)").await;
    let mut relay = database.relay().await;
    let mut long = database.begin().await;
    sqlx::query("insert into elsewhere values (1)").execute(&mut *long).await.unwrap();
    for number in 0..3 {
        let lane = format!("lane-{number}");
        write(&database, &lane).await;
        assert_eq!(read_up_to_the_oldest_writer(database.pool()).await, 0, "others would wait");
        assert_eq!(relay.lanes().await, [lane]);
    }
    let mut relay = database.relay().await;
    assert!(relay.lanes().await.is_empty());
    long.commit().await.unwrap();
    assert!(relay.lanes().await.is_empty());
}

#[tokio::test]
async fn a_long_writer_in_another_database_holds_nobody_up() {
    let (database, other) = (database!(), database!());
    let mut relay = database.relay().await;
    let mut long = other.begin().await;
    other.append(&mut long, &[event("theirs", 0)]).await;
    write(&database, "ours").await;
    assert_eq!(read_up_to_the_oldest_writer(database.pool()).await, 0, "others would wait");
    assert_eq!(relay.lanes().await, ["ours"]);
    long.commit().await.unwrap();
    assert!(relay.lanes().await.is_empty());
}

#[tokio::test]
async fn savepoints_come_with_their_transaction_and_rolled_back_ones_never() {
    let database = database!();
    let mut relay = database.relay().await;
    let mut tx = database.begin().await;
    for number in 0..150 {
        let mut savepoint = tx.begin().await.unwrap();
        database.append(&mut savepoint, &[event(&format!("kept-{number}"), 0)]).await;
        let mut inner = savepoint.begin().await.unwrap();
        database.append(&mut inner, &[event(&format!("undone-{number}"), 0)]).await;
        inner.rollback().await.unwrap();
        savepoint.commit().await.unwrap();
    }
    write(&database, "beside").await;
    assert_eq!(relay.lanes().await, ["beside"], "more savepoints than a snapshot can list");
    tx.commit().await.unwrap();
    let expected: Vec<_> = (0..150).map(|number| format!("kept-{number}")).collect();
    assert_eq!(relay.lanes().await, expected);
}

#[tokio::test]
async fn rolled_back_rows_never_come_and_leave_no_hole() {
    let database = database!();
    let mut relay = database.relay().await;
    let mut undone = database.begin().await;
    database.append(&mut undone, &[event("undone", 0), event("undone", 1)]).await;
    write(&database, "before").await;
    assert_eq!(relay.lanes().await, ["before"]);
    undone.rollback().await.unwrap();
    write(&database, "after").await;
    assert_eq!(relay.lanes().await, ["after"]);
    assert!(database.relay().await.lanes().await.is_empty());
}

#[tokio::test]
async fn a_prepared_transaction_comes_when_it_is_committed() {
    let database = database!();
    if database.number("select current_setting('max_prepared_transactions')::bigint").await == 0 {
        return;
    }
    let mut relay = database.relay().await;
    let mut connection = database.pool().acquire().await.unwrap();
    for name in ["kept", "undone"] {
        sqlx::raw_sql("begin").execute(&mut *connection).await.unwrap();
        sqlx::query(
            "insert into semel.outbox (aggregate_type, aggregate_id, event_type, payload)
            values ('order', $1, 'T', '1')",
        )
        .bind(name)
        .execute(&mut *connection)
        .await
        .unwrap();
        let prepare = format!("prepare transaction '{name}-{}'", database.name);
        sqlx::raw_sql(sqlx::AssertSqlSafe(prepare)).execute(&mut *connection).await.unwrap();
    }
    write(&database, "beside").await;
    assert_eq!(relay.lanes().await, ["beside"]);
    let mut relay = database.relay().await;
    assert!(relay.lanes().await.is_empty());
    database.run(&format!("commit prepared 'kept-{}'", database.name)).await;
    database.run(&format!("rollback prepared 'undone-{}'", database.name)).await;
    assert_eq!(relay.lanes().await, ["kept"]);
}

#[tokio::test]
async fn an_idle_repeatable_read_snapshot_changes_nothing() {
    let database = database!();
    let mut idle =
        database.pool().begin_with("begin isolation level repeatable read").await.unwrap();
    sqlx::query("select count(*) from semel.outbox").execute(&mut *idle).await.unwrap();
    let mut relay = database.relay().await;
    for number in 0..200 {
        let lane = format!("lane-{number}");
        write(&database, &lane).await;
        assert_eq!(relay.lanes().await, [lane]);
    }
    idle.rollback().await.unwrap();
    assert!(database.relay().await.lanes().await.is_empty());
}

/// While it runs, a big transaction costs a poll nothing, and then all of it comes.
#[tokio::test]
async fn a_big_transaction_is_not_looked_at_before_its_end() {
    let database = database!();
    let mut relay = database.relay().await;
    let mut big = database.begin().await;
    sqlx::query(
        "insert into semel.outbox (aggregate_type, aggregate_id, event_type, payload)
        select 'order', 'big', 'T', n::text from generate_series(1, 3000) n",
    )
    .execute(&mut *big)
    .await
    .unwrap();
    for number in 0..3 {
        let lane = format!("lane-{number}");
        write(&database, &lane).await;
        assert_eq!(relay.lanes().await, [lane]);
    }
    big.commit().await.unwrap();
    let delivered = relay.deliver_all(700).await;
    let numbers: Vec<_> =
        delivered.iter().map(|got| semel_testkit::workload::number(&got.message.event)).collect();
    assert_eq!(numbers, (1..=3000).collect::<Vec<_>>());
}

#[tokio::test]
async fn an_old_owner_gets_nothing_more() {
    let database = database!();
    let mut old = database.relay().await;
    let mut new: Relay = database.relay().await;
    write(&database, "one").await;
    assert!(old.take(10).await.is_empty(), "it notices before it hands anything out");
    assert_eq!(new.lanes().await, ["one"]);
}
