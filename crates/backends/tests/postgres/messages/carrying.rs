//! From the log into the outbox: all of it, once, and in order.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use semel_core::event::EventLimits;
use semel_core::{Event, Source, outbox::AppendError};
use semel_testkit::workload::{delivered_numbers, event, events, number};
use tokio::time::timeout;

use super::super::tail::PATIENCE;
use super::super::tail::storm::{LANES, write};
use super::{Database, messages};

const STORM: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_commit_is_carried_and_wakes_the_source() {
    let database = messages!();
    let _carrying = database.carrying().await;
    let mut relay = database.relay().await;
    assert!(relay.take(1).await.is_empty());
    database.emit(&events("a", 0..3)).await;
    // The messages of one commit may come one by one.
    let mut delivered = Vec::new();
    while delivered.len() < 3 {
        timeout(PATIENCE, relay.source.wakeup()).await.unwrap();
        delivered.extend(delivered_numbers(&relay.deliver_all(10).await));
    }
    assert_eq!(delivered, [0, 1, 2]);
    assert!(database.store.is_carried().await.unwrap());
}

#[tokio::test]
async fn what_was_written_while_nobody_carried_comes_in_the_order_of_the_commits() {
    let database = messages!();
    let mut late = database.begin().await;
    database.emit_in(&mut late, &[event("a", 3)]).await;
    database.emit(&events("a", 0..2)).await;
    let mut rolled_back = database.begin().await;
    database.emit_in(&mut rolled_back, &[event("a", 7)]).await;
    rolled_back.rollback().await.unwrap();
    let mut parts = database.begin().await;
    sqlx::raw_sql("savepoint one").execute(&mut *parts).await.unwrap();
    database.emit_in(&mut parts, &[event("a", 8)]).await;
    sqlx::raw_sql("rollback to one").execute(&mut *parts).await.unwrap();
    database.emit_in(&mut parts, &[event("a", 2)]).await;
    sqlx::raw_sql("prepare transaction 'in parts'").execute(&mut *parts).await.unwrap();
    drop(parts);
    database.run("commit prepared 'in parts'").await;
    late.commit().await.unwrap();
    database.carry_all().await;
    let mut relay = database.relay().await;
    assert_eq!(delivered_numbers(&relay.deliver_all(10).await), [0, 1, 2, 3]);
}

/// The slot is confirmed a moment after the outbox has them: what comes again is known.
#[tokio::test]
async fn what_comes_again_is_left_alone() {
    let database = messages!();
    database.emit(&events("a", 0..5)).await;
    let known: Vec<_> = events("a", 5..8);
    database.commit(&known).await;
    database.emit(&known).await;
    database.emit(&events("a", 8..10)).await;
    for _ in 0..3 {
        database.carry_all().await;
    }
    let mut relay = database.relay().await;
    let mut got = delivered_numbers(&relay.deliver_all(100).await);
    got.sort_unstable();
    assert_eq!(got, (0..10).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_key_that_exists_already_is_left_out() {
    let database = messages!();
    for partitioned in [false, true] {
        if partitioned {
            database.store.partition(Duration::from_secs(86_400)).await.unwrap();
        }
        let key = format!("the same {partitioned}");
        let keyed = |number| event("a", number).with_idempotency_key(&*key);
        database.emit(&[keyed(1), event("a", 2), keyed(3)]).await;
        database.emit(&[keyed(4), event("b", 5)]).await;
        database.carry_all().await;
        let mut relay = database.relay().await;
        assert_eq!(delivered_numbers(&relay.deliver_all(10).await), [1, 2, 5]);
    }
}

#[tokio::test]
async fn other_messages_are_nobodys_business() {
    let database = messages!();
    database
        .run(
            "select pg_logical_emit_message(true, 'somebody', '{}'),
                pg_logical_emit_message(false, 'semel', '{}'),
                pg_logical_emit_message(true, 'semel', 'no event'),
                pg_logical_emit_message(true, 'semel', json_build_object('id', semel.uuid_v7(),
                    'aggregate_type', 'order', 'aggregate_id', '42', 'event_type', 'OrderPlaced',
                    'payload', '{\"total\": 99}')::text)",
        )
        .await;
    database.carry_all().await;
    assert_eq!(database.relay().await.lanes().await, ["42"]);
}

/// The log has text as the server does, and other databases have other letters.
#[tokio::test]
async fn messages_of_a_database_that_is_not_in_unicode_are_carried() {
    let Some(database) = Database::latin1().await else { return };
    database.store.prepare_messages().await.unwrap();
    let named = |lane: &str| Event::new("order", lane, "Numbered");
    let greeting = named("Jürgen").with_header("note", "à la carte");
    database.emit(&[greeting.with_bytes("text/plain", "grüß Gott")]).await;
    database
        .run(
            "select pg_logical_emit_message(true, 'semel', json_build_object('id', semel.uuid_v7(),
                'aggregate_type', 'order', 'aggregate_id', 'Ã¼', 'event_type', 'Numbered',
                'payload', '1')::text)",
        )
        .await;
    database.emit(&[named("plain")]).await;
    // Whoever writes what the database has no letters for is told, and nothing is lost later.
    let mut tx = database.begin().await;
    let refused = database.messages().append(&mut tx, named("\u{1f680}")).await;
    assert!(matches!(refused, Err(AppendError::Store(_))), "{refused:?}");
    tx.rollback().await.unwrap();
    database.carry_all().await;
    let carried = database.relay().await.deliver_all(10).await;
    let mut lanes: Vec<_> = carried.iter().map(|got| &*got.message.event.aggregate_id).collect();
    lanes.sort_unstable();
    assert_eq!(lanes, ["Jürgen", "plain", "Ã¼"]);
    let greeting = carried.iter().find(|got| got.message.event.aggregate_id == "Jürgen").unwrap();
    let greeting = &greeting.message.event;
    assert_eq!(&greeting.payload.bytes()[..], "grüß Gott".as_bytes());
    assert_eq!(greeting.headers.get("note"), Some("à la carte"));
}

/// Nobody could refuse it to the writer, and it must not hold back the log for ever.
#[tokio::test]
async fn what_the_table_refuses_is_left_out() {
    let database = messages!();
    database.emit(&[event("a", 1), event("c", 3), event("a", 5)]).await;
    // A time that PostgreSQL has no room for.
    database
        .run(
            "select pg_logical_emit_message(true, 'semel', json_build_object('id', semel.uuid_v7(),
                'aggregate_type', 'order', 'aggregate_id', 'd', 'event_type', 'Numbered',
                'payload', '6', 'created_at', '-009000-01-01T00:00:00Z')::text)",
        )
        .await;
    database.emit(&[event("c", 7)]).await;
    database.carry_all().await;
    let mut got = delivered_numbers(&database.relay().await.deliver_all(10).await);
    got.sort_unstable();
    assert_eq!(got, [1, 3, 5, 7]);
}

/// The limits of a writer are its own: what it may write is published, as it would be from the table.
#[tokio::test]
async fn what_a_writer_may_write_is_carried() {
    let database = messages!();
    let limits = EventLimits { name_chars: 400, headers: 100, payload_bytes: 2 * 1024 * 1024 };
    let outbox = database.messages().with_limits(limits);
    let laden = event("a", 1).with_header("x".repeat(255), "long");
    let laden = (1..100).fold(laden, |event, n| event.with_header(format!("header-{n}"), "v"));
    let mut tx = database.begin().await;
    for long in [event(&"x".repeat(256), 2), event("a", 3).with_idempotency_key("x".repeat(256))] {
        let refused = outbox.append(&mut tx, long).await;
        assert!(matches!(refused, Err(AppendError::Invalid(_))), "{refused:?}");
    }
    outbox.append(&mut tx, laden).await.unwrap();
    outbox.append(&mut tx, event(&"x".repeat(255), 4)).await.unwrap();
    let large = event("b", 5).with_bytes("text/plain", "x".repeat(2 * 1024 * 1024));
    outbox.append(&mut tx, large).await.unwrap();
    tx.commit().await.unwrap();
    database.carry_all().await;
    let carried = database.relay().await.deliver_all(10).await;
    assert_eq!(carried.len(), 3);
    let laden = carried.iter().find(|got| got.message.event.aggregate_id == "a").unwrap();
    assert_eq!(laden.message.event.headers.len(), 100);
}

/// Somebody can take back what refuses them.
#[tokio::test]
async fn messages_wait_behind_a_constraint() {
    let database = messages!();
    database.run("alter table semel.outbox add constraint no_b check (aggregate_id <> 'b')").await;
    database.emit(&[event("a", 1), event("b", 2)]).await;
    let carrying = database.carrying().await;
    assert!(timeout(Duration::from_secs(2), carrying.caught_up()).await.is_err());
    database.run("alter table semel.outbox drop constraint no_b").await;
    carrying.caught_up().await.unwrap();
    let mut got = delivered_numbers(&database.relay().await.deliver_all(10).await);
    got.sort_unstable();
    assert_eq!(got, [1, 2]);
}

#[tokio::test]
async fn a_large_transaction_is_carried_page_by_page() {
    const EVENTS: u64 = 20_000;
    let database = messages!();
    let mut tx = database.begin().await;
    for first in (0..EVENTS).step_by(1000) {
        database.emit_in(&mut tx, &events("a", first..first + 1000)).await;
    }
    tx.commit().await.unwrap();
    database.carry_all().await;
    let delivered = database.relay().await.deliver_all(5000).await;
    assert_eq!(delivered_numbers(&delivered), (0..EVENTS).collect::<Vec<_>>());
}

#[tokio::test]
async fn one_carries_and_another_takes_over() {
    let database = messages!();
    let first = database.carrying().await;
    first.caught_up().await.unwrap();
    let other = database.again().await;
    let second = other.carry_messages("others").await.unwrap();
    database.emit(&[event("a", 0)]).await;
    second.caught_up().await.unwrap();
    drop(first);
    database.emit(&[event("a", 1)]).await;
    second.caught_up().await.unwrap();
    assert_eq!(delivered_numbers(&database.relay().await.deliver_all(10).await), [0, 1]);
}

/// Whoever writes messages may do nothing else here.
#[tokio::test]
async fn a_writer_needs_no_right_at_all() {
    let database = messages!();
    let mut tx = database.begin().await;
    let role = format!("nobody_{}", uuid::Uuid::now_v7().simple());
    let become_nobody = format!("create role {role}; set local role {role}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(become_nobody)).execute(&mut *tx).await.unwrap();
    let refused = database.store.outbox();
    sqlx::raw_sql("savepoint here").execute(&mut *tx).await.unwrap();
    let refused = refused.append(&mut tx, event("a", 0)).await;
    assert!(matches!(refused, Err(AppendError::Store(_))), "{refused:?}");
    sqlx::raw_sql("rollback to here").execute(&mut *tx).await.unwrap();
    database.emit_in(&mut tx, &[event("a", 1)]).await;
    let leave = format!("reset role; drop role {role}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(leave)).execute(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
    database.carry_all().await;
    assert_eq!(delivered_numbers(&database.relay().await.deliver_all(10).await), [1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_carrier_that_is_cut_off_under_eight_writers_loses_doubles_and_reorders_nothing() {
    const WRITERS: u64 = 8;
    let database = messages!();
    database.run("create table lanes (lane bigint primary key, version bigint)").await;
    let lanes = format!("insert into lanes select n, 0 from generate_series(0, {LANES}) n");
    database.run(&lanes).await;
    let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let writers: Vec<_> = (1..=WRITERS)
        .map(|seed| {
            let (stop, written) = (Arc::clone(&stop), Arc::clone(&written));
            let (store, outbox) = (database.store.clone(), database.messages());
            tokio::spawn(write(store, outbox, seed, stop, written))
        })
        .collect();
    let began = Instant::now();
    let mut relay = database.relay().await;
    let mut delivered = Vec::new();
    let mut carrying = database.carrying().await;
    let mut round = 0;
    while began.elapsed() < STORM {
        round += 1;
        tokio::time::sleep(Duration::from_millis(200)).await;
        delivered.extend(relay.deliver_all(50).await);
        if round % 2 == 0 {
            database.cut_tail().await;
        } else {
            drop(carrying);
            carrying = database.carrying().await;
        }
    }
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
    carrying.caught_up().await.unwrap();
    delivered.extend(relay.deliver_all(1000).await);
    let mut versions: HashMap<&str, u64> = HashMap::new();
    for got in &delivered {
        let event = &got.message.event;
        let version = versions.entry(&event.aggregate_id).or_default();
        *version += 1;
        assert_eq!(number(event), *version, "lane {}", event.aggregate_id);
    }
    assert_eq!(delivered.len() as u64, written.load(Ordering::Relaxed), "none lost or invented");
}
