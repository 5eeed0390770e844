//! Backlogs that are larger than a batch.

use std::collections::HashSet;

use semel_core::{Limit, Outcome, Source};
use semel_testkit::workload::{delivered_numbers, event, events, ids, number};

use super::{Database, Relay, database};

async fn backlog(database: &Database, count: i64) {
    sqlx::query(
        "insert into semel.outbox (aggregate_type, aggregate_id, event_type, payload)
        select 'order', (n % 10)::text, 'T', n::text from generate_series(1, $1) n",
    )
    .bind(count)
    .execute(database.pool())
    .await
    .unwrap();
}

#[tokio::test]
async fn a_backlog_comes_page_by_page_over_restarts() {
    let database = database!();
    backlog(&database, 2_500).await;
    let mut seen = Vec::new();
    for _ in 0..3 {
        let mut relay = database.relay().await;
        for _ in 0..7 {
            let batch = relay.take(100).await;
            assert_eq!(batch.len(), 100);
            relay.settle(&batch, |_| Outcome::Delivered).await;
            seen.extend(delivered_numbers(&batch));
        }
        // What is out when the relay dies comes again.
        relay.take(100).await;
    }
    seen.extend(delivered_numbers(&database.relay().await.deliver_all(100).await));
    assert_eq!(seen, (1..=2_500).collect::<Vec<_>>());
}

/// While a window is read, others commit: rows between those that were read, and after them.
#[tokio::test]
async fn what_commits_while_a_window_is_read_comes_with_the_next_one() {
    let database = database!();
    let mut early = database.begin().await;
    database.append(&mut early, &[event("early", 5_001)]).await;
    backlog(&database, 300).await;
    let mut middle = database.begin().await;
    database.append(&mut middle, &[event("middle", 5_002)]).await;
    sqlx::query(
        "insert into semel.outbox (aggregate_type, aggregate_id, event_type, payload)
        select 'order', 'x', 'T', n::text from generate_series(301, 600) n",
    )
    .execute(database.pool())
    .await
    .unwrap();
    let mut relay = database.relay().await;
    let mut seen = HashSet::new();
    for page in 0.. {
        let batch = relay.take(100).await;
        if batch.is_empty() {
            break;
        }
        relay.settle(&batch, |_| Outcome::Delivered).await;
        for number in delivered_numbers(&batch) {
            assert!(seen.insert(number), "{number} came twice");
        }
        match page {
            1 => early = commit_and_begin(&database, early).await,
            3 => middle = commit_and_begin(&database, middle).await,
            4 => relay = database.relay().await,
            _ => {}
        }
    }
    let expected: HashSet<u64> = (1..=600).chain([5_001, 5_002]).collect();
    assert_eq!(seen, expected);
    drop((early, middle));
}

async fn commit_and_begin(
    database: &Database,
    tx: semel_backends::postgres::Transaction<'static, semel_backends::postgres::Postgres>,
) -> semel_backends::postgres::Transaction<'static, semel_backends::postgres::Postgres> {
    tx.commit().await.unwrap();
    database.begin().await
}

/// Settled out of order, with holes in the numbers, then a crash: only what was open comes again.
#[tokio::test]
async fn what_was_settled_out_of_order_does_not_come_again() {
    let database = database!();
    for start in (0..60).step_by(3) {
        database.commit(&events("a", start..start + 2)).await;
        let mut undone = database.begin().await;
        database.append(&mut undone, &[event("undone", 0)]).await;
        undone.rollback().await.unwrap();
    }
    let mut relay = database.relay().await;
    let mut flight = Vec::new();
    while flight.len() < 40 {
        flight.extend(relay.take(9).await);
    }
    let chosen = |keep: bool| {
        let parity =
            move |got: &&semel_core::Delivery| (number(&got.message.event) % 7 < 3) == keep;
        flight.iter().filter(parity).cloned().collect::<Vec<_>>()
    };
    relay.settle(&chosen(true), |_| Outcome::Delivered).await;
    for _ in 0..2 {
        relay = database.relay().await;
        let mut again = Vec::new();
        loop {
            let batch = relay.take(7).await;
            if batch.is_empty() {
                break;
            }
            again.extend(batch);
        }
        assert_eq!(ids(&again), ids(&chosen(false)));
    }
}

/// Large and small payloads: no batch is larger than asked for, and none is damaged.
#[tokio::test]
async fn sizes_that_vary_stay_within_the_limit() {
    let database = database!();
    let sizes = [10, 200_000, 30, 5_000, 900_000, 40, 40, 40, 300_000, 10];
    let written: Vec<_> = (0..60_u64)
        .map(|number| {
            let size = sizes[usize::try_from(number).unwrap() % sizes.len()];
            let byte = u8::try_from(number).unwrap();
            event(&format!("lane-{number}"), 0).with_bytes("application/x", vec![byte; size])
        })
        .collect();
    for events in written.chunks(7) {
        database.commit(events).await;
    }
    let mut relay = database.relay().await;
    let limit = Limit { events: 25, bytes: 1_000_000 };
    let mut seen = Vec::new();
    while seen.len() < 60 {
        let batch = relay.source.next_batch(limit).await.unwrap().deliveries;
        let bytes: usize = batch.iter().map(|got| got.message.event.size()).sum();
        assert!(!batch.is_empty() && (batch.len() == 1 || bytes <= limit.bytes), "{bytes} bytes");
        relay.settle(&batch, |_| Outcome::Delivered).await;
        seen.extend(batch);
    }
    for (written, got) in written.iter().zip(&seen) {
        assert_eq!(written.id, got.message.event.id);
        assert!(written.payload == got.message.event.payload, "payload of {}", written.lane());
    }
}

/// Parked lanes are served while a large window is being read.
#[tokio::test]
async fn a_backlog_does_not_starve_what_is_due() {
    let database = database!();
    database.commit(&[event("failed", 9_999)]).await;
    let mut relay = database.relay().await;
    let taken = relay.take(1).await;
    backlog(&database, 500).await;
    let now = semel_core::Timestamp::now();
    relay.settle(&taken, |_| semel_testkit::workload::retry(now, 1)).await;
    let batch = relay.take(100).await;
    assert_eq!(number(&batch[0].message.event), 9_999);
    assert_eq!(batch.len(), 100);
    relay.settle(&batch, |_| Outcome::Delivered).await;
    assert_eq!(relay.deliver_all(100).await.len(), 401);
}

/// A lane with many waiting events is let go in order, and looked at only when it is its turn.
#[tokio::test]
async fn a_long_lane_goes_on_in_order() {
    let database = database!();
    database.commit(&events("a", 0..1)).await;
    let mut relay = database.relay().await;
    let head = relay.take(1).await;
    relay.settle(&head, |_| semel_testkit::workload::dead(true)).await;
    database.commit(&events("a", 1..1_000)).await;
    assert!(relay.take(100).await.is_empty());
    let waiting = "select count(*) from semel.parked where state = 'waiting' and not head";
    assert_eq!(database.number(waiting).await, 999);
    let admin = database.store.admin("orders");
    let all = semel_core::admin::Selection::Matching(semel_core::admin::Filter::default());
    assert_eq!(semel_core::AdminStore::retry(&admin, &all).await.unwrap(), 1);
    let numbers = delivered_numbers(&relay.deliver_all(170).await);
    assert_eq!(numbers, (0..1_000).collect::<Vec<_>>());
}

/// The outbox itself is never changed, whatever becomes of its events.
#[tokio::test]
async fn no_row_of_the_outbox_is_ever_touched() {
    let database = database!();
    backlog(&database, 300).await;
    let mut relay = database.relay().await;
    let batch = relay.take(100).await;
    relay.settle(&batch[..1], |_| semel_testkit::workload::dead(true)).await;
    relay.settle(&batch[1..], |_| Outcome::Delivered).await;
    relay.deliver_all(100).await;
    let touched = "select count(*) from semel.outbox where xmax::text <> '0'";
    assert_eq!(database.number(touched).await, 0);
}

/// A planner that guesses wrongly reads everything at every poll; it is not given the chance.
#[tokio::test]
async fn an_empty_poll_reads_nothing_of_what_is_settled() {
    let database = database!();
    backlog(&database, 20_000).await;
    // In a connection that ends, which is when it has counted everything.
    let store = database.again().await;
    let mut relay = Relay { source: store.source("orders").await.unwrap() };
    assert_eq!(relay.deliver_all(5_000).await.len(), 20_000);
    drop(relay);
    store.close().await;
    let scanned = "select coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::bigint
        from pg_stat_user_tables
        where relid in ('semel.outbox'::regclass, 'semel.parked'::regclass)";
    for statistics in ["", "analyze"] {
        database.run(statistics).await;
        let mut long = database.begin().await;
        database.append(&mut long, &events("running", 0..10)).await;
        let mut relay = database.relay().await;
        polls_until_counted(&mut relay).await;
        let before = database.number(scanned).await;
        for _ in 0..20 {
            assert!(relay.take(100).await.is_empty());
        }
        polls_until_counted(&mut relay).await;
        assert_eq!(database.number(scanned).await - before, 0, "after {statistics:?}");
        long.rollback().await.unwrap();
    }
}

/// The server publishes what a connection has counted with its first statement of another second.
pub(super) async fn polls_until_counted(relay: &mut Relay) {
    for _ in 0..2 {
        tokio::time::sleep(std::time::Duration::from_millis(1_100)).await;
        assert!(relay.take(100).await.is_empty());
    }
}

/// The server keeps plans, and those for a table that is nearly empty go through all of it; so do
/// those for a pipeline that its statistics do not know.
#[tokio::test]
async fn many_dead_letters_are_found_by_their_indexes() {
    const LETTERS: i64 = 2_000;
    let database = database!();
    database.run("alter table semel.parked set (autovacuum_enabled = false)").await;
    database
        .run(&format!(
            "insert into semel.outbox (aggregate_type, aggregate_id, event_type, payload)
            select 'order', n::text, 'T', n::text from generate_series(1, {LETTERS}) n"
        ))
        .await;
    for pipeline in ["known", "unknown"] {
        let store = database.again().await;
        let mut relay = Relay { source: store.source(pipeline).await.unwrap() };
        park_all(&mut relay).await;
        drop(relay);
        // Its connections tell what they did when they end.
        store.close().await;
        database.run("analyze semel.parked").await;
    }
    let read = "select coalesce(seq_tup_read, 0) + (
            select sum(idx_tup_read)::bigint from pg_stat_user_indexes i where i.relid = t.relid)
        from pg_stat_user_tables t where relid = 'semel.parked'::regclass and n_tup_ins >= 4000";
    let mut rows = None;
    for _ in 0..100 {
        rows = sqlx::query_scalar::<_, i64>(read).fetch_optional(database.pool()).await.unwrap();
        if rows.is_some() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    let rows = rows.expect("the server counts");
    // For each letter, it would be all letters before it: millions.
    assert!(rows < LETTERS * 200, "{rows} rows were read");
}

async fn park_all(relay: &mut Relay) {
    loop {
        let batch = relay.take(20).await;
        if batch.is_empty() {
            return;
        }
        let failure = semel_core::Failure::refused("E-TEST", "never");
        let dead =
            |_: &_| Outcome::Dead { attempts: 1, failure: failure.clone(), parks_lane: true };
        relay.settle(&batch, dead).await;
    }
}
