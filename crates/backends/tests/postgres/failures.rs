//! Connections that break, and calls that end half-way.

use std::time::Duration;

use semel_core::{Fault, Holding, Limit, Outcome, Settlement, Source, Timestamp};
use semel_testkit::workload::{by_lane, delivered_numbers, event, events, ids, retry, settlements};
use tokio::time::timeout;

use super::{Database, Relay, database};

/// Ends every other connection to the database.
async fn cut_off(database: &Database) {
    let admin = database.again().await;
    sqlx::query(
        "select pg_terminate_backend(pid) from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid()",
    )
    .execute(admin.pool())
    .await
    .unwrap();
    admin.close().await;
}

#[tokio::test]
async fn a_source_goes_on_after_its_connection_broke() {
    let database = database!();
    let mut relay = database.relay().await;
    database.commit(&events("a", 0..3)).await;
    let flight = relay.take(2).await;
    cut_off(&database).await;
    let failure = relay.source.next_batch(Limit::default()).await.unwrap_err();
    assert_eq!(failure.fault(), Fault::Unavailable);
    assert_eq!(delivered_numbers(&relay.take(10).await), [2], "what is out stays out");
    cut_off(&database).await;
    let settlements: Vec<_> = flight
        .iter()
        .map(|got| Settlement { receipt: got.receipt, outcome: Outcome::Delivered })
        .collect();
    assert_eq!(relay.source.settle(&settlements).await.unwrap_err().fault(), Fault::Unavailable);
    assert!(relay.source.settle(&settlements).await.unwrap().is_held(), "asked again");
    assert_eq!(delivered_numbers(&database.relay().await.take(10).await), [2]);
}

/// A server that was started anew refuses what it is told, although nobody took over. By then whoever had the
/// events has dropped them.
#[tokio::test]
async fn what_was_dropped_after_a_refusal_comes_again() {
    let database = database!();
    let mut relay = database.relay().await;
    database.commit(&[event("parked", 0)]).await;
    let head = relay.take(1).await;
    relay.settle(&head, |_| retry(Timestamp::now(), 1)).await;
    database.commit(&events("a", 1..4)).await;
    for tells_by in ["settle", "next_batch"] {
        let flight = relay.take(10).await;
        assert_eq!(delivered_numbers(&flight), [0, 1, 2, 3], "before {tells_by}");
        assert_eq!(flight[0].message.attempt, 2);
        database.run("update semel.cursor set epoch = epoch + 1").await;
        if tells_by == "settle" {
            let delivered = [(flight[0].receipt, Outcome::Delivered)];
            let held = relay.source.settle(&settlements(delivered)).await.unwrap();
            assert_eq!(held, Holding::Lost);
        } else {
            database.commit(&events("a", 4..5)).await;
            assert!(relay.take(10).await.is_empty());
        }
        assert!(relay.source.is_lost());
        database.run("update semel.cursor set epoch = epoch - 1").await;
    }
    let lanes = by_lane(&relay.deliver_all(10).await);
    assert_eq!((&lanes["order/parked"][..], &lanes["order/a"][..]), (&[0][..], &[1, 2, 3, 4][..]));
    assert!(!relay.source.is_lost());
    assert!(database.relay().await.take(10).await.is_empty(), "all is settled");
}

/// Whenever a call is dropped, what it may have marked in the tables is not forgotten.
#[tokio::test]
async fn calls_dropped_at_any_moment_lose_and_double_nothing() {
    let database = database!();
    let mut relay = database.relay().await;
    let mut delivered = Vec::new();
    for round in 0..60_u64 {
        database.commit(&[event("failing", round), event(&format!("lane-{round}"), 1)]).await;
        let wait = Duration::from_micros(round * round);
        let limit = Limit { events: 3, ..Limit::default() };
        if let Ok(batch) = timeout(wait, relay.source.next_batch(limit)).await {
            let batch = batch.unwrap().deliveries;
            let now = semel_core::Timestamp::now();
            // The head of a lane fails; what is behind it was not tried.
            let failing: Vec<_> =
                batch.iter().filter(|got| got.message.event.aggregate_id == "failing").collect();
            let fails = failing.first().filter(|_| round % 3 == 0).map(|got| got.receipt);
            let settle = |got: &semel_core::Delivery| {
                let behind = fails.is_some() && got.message.event.aggregate_id == "failing";
                let outcome = match fails {
                    Some(head) if head == got.receipt => retry(now, got.message.attempt),
                    _ if behind => Outcome::Released,
                    _ => Outcome::Delivered,
                };
                Settlement { receipt: got.receipt, outcome }
            };
            let settlements: Vec<_> = batch.iter().map(settle).collect();
            drop(timeout(wait, relay.source.settle(&settlements)).await);
            assert!(relay.source.settle(&settlements).await.unwrap().is_held());
            let done = settlements.iter().zip(&batch);
            delivered.extend(
                done.filter(|(settled, _)| settled.outcome == Outcome::Delivered)
                    .map(|(_, got)| got.clone()),
            );
        }
    }
    let patience = Duration::from_secs(20);
    // A dropped call may have handed something out: the next owner gets it.
    let mut next = timeout(patience, database.relay()).await.unwrap();
    delivered.extend(timeout(patience, next.deliver_all(50)).await.unwrap());
    let failing = delivered.iter().filter(|got| got.message.event.aggregate_id == "failing");
    let failing: Vec<_> = failing.cloned().collect();
    assert_eq!(delivered_numbers(&failing), (0..60).collect::<Vec<_>>(), "once, and in order");
    let mut all = ids(&delivered);
    all.dedup();
    assert_eq!((all.len(), delivered.len()), (120, 120));
}

/// Makes every hand-out wait while somebody holds the advisory lock 1, after all else is done.
async fn with_a_gate(database: &Database) {
    database
        .run(
            "create function wait_for_gate() returns trigger language plpgsql as
            $$ begin perform pg_advisory_xact_lock(1); return new; end $$;
            create trigger gate before update on semel.cursor for each row
            when (new.out_seq is not null and new.out_seq is distinct from old.out_seq)
            execute function wait_for_gate()",
        )
        .await;
}

/// Drops a call between its last change of the tables and its return.
async fn drop_a_call_at_the_gate(database: &Database, relay: &mut Relay) {
    let mut gate = database.begin().await;
    sqlx::query("select pg_advisory_xact_lock(1)").execute(&mut *gate).await.unwrap();
    let call = relay.source.next_batch(Limit::default());
    assert!(timeout(Duration::from_millis(700), call).await.is_err(), "the gate is closed");
    gate.rollback().await.unwrap();
}

/// Parked events are marked as taken before the call returns: the mark alone must not keep them.
#[tokio::test]
async fn parked_events_of_a_dropped_call_are_offered_again() {
    let database = database!();
    with_a_gate(&database).await;
    let mut relay = database.relay().await;
    database.commit(&[event("failed", 1)]).await;
    let taken = relay.take(1).await;
    relay.settle(&taken, |_| retry(semel_core::Timestamp::now(), 1)).await;
    database.commit(&[event("new", 2)]).await;
    drop_a_call_at_the_gate(&database, &mut relay).await;
    assert_eq!(delivered_numbers(&relay.deliver_all(10).await), [1, 2]);
}

/// Events are put aside before the call returns: they must not come from both places.
#[tokio::test]
async fn events_put_aside_by_a_dropped_call_come_once() {
    let database = database!();
    with_a_gate(&database).await;
    let mut relay = database.relay().await;
    let soon = semel_core::Timestamp::now() + Duration::from_millis(1_500);
    database.commit(&[event("scheduled", 1).available_at(soon), event("new", 2)]).await;
    drop_a_call_at_the_gate(&database, &mut relay).await;
    tokio::time::sleep(Duration::from_millis(1_600)).await;
    // It comes from where it is parked, and the log is read after that.
    assert_eq!(delivered_numbers(&relay.deliver_all(1).await), [1, 2]);
}

/// A connection that goes back to the pool has no transaction open, whenever a call was dropped.
#[tokio::test]
async fn dropped_calls_leave_no_transaction_behind() {
    let database = database!();
    // In a transaction that is open already, time stands still.
    let is_open = async || {
        let look = sqlx::raw_sql("select now() <> statement_timestamp()");
        let row = look.fetch_one(database.store.pool()).await.unwrap();
        sqlx::Row::get::<bool, _>(&row, 0)
    };
    for round in 0..300_u64 {
        let wait = Duration::from_micros(round * 10);
        drop(timeout(wait, database.store.begin()).await);
        assert!(!is_open().await, "begin, after {wait:?}");
        drop(timeout(wait, database.store.source("orders")).await);
        assert!(!is_open().await, "source, after {wait:?}");
        let mut source = database.store.source("orders").await.unwrap();
        drop(timeout(wait, source.next_batch(Limit::default())).await);
        drop(source);
        assert!(!is_open().await, "next_batch, after {wait:?}");
    }
}

/// A process may be stopped in the middle of a transaction, and never go on.
#[tokio::test]
async fn a_transaction_left_open_does_not_keep_the_next_owner_out() {
    let database = database!();
    database
        .run(
            "create function wait_for_gate() returns trigger language plpgsql as
            $$ begin perform pg_advisory_xact_lock(1); return new; end $$;
            create trigger gate before insert on semel.parked for each row
            execute function wait_for_gate()",
        )
        .await;
    let mut relay = database.relay().await;
    database.commit(&events("a", 0..2)).await;
    let taken = relay.take(1).await;
    let mut gate = database.begin().await;
    sqlx::query("select pg_advisory_xact_lock(1)").execute(&mut *gate).await.unwrap();
    let failed =
        [Settlement { receipt: taken[0].receipt, outcome: retry(semel_core::Timestamp::now(), 1) }];
    let call = relay.source.settle(&failed);
    assert!(timeout(Duration::from_millis(500), call).await.is_err(), "the gate is closed");
    gate.rollback().await.unwrap();
    let next = timeout(Duration::from_secs(10), database.relay()).await;
    assert_eq!(delivered_numbers(&next.unwrap().deliver_all(10).await), [0, 1]);
    assert!(!relay.source.settle(&failed).await.unwrap().is_held(), "somebody else has it");
}

/// An error text that PostgreSQL cannot store must not keep an event from being parked.
#[tokio::test]
async fn an_awkward_error_text_is_stored() {
    let database = database!();
    database.commit(&[event("a", 1)]).await;
    let mut relay = database.relay().await;
    let taken = relay.take(1).await;
    let failure = semel_core::Failure::refused("E-X", "bad \0 byte and ü 🚀 \u{7f}");
    relay
        .settle(&taken, |_| Outcome::Dead {
            attempts: 1,
            failure: failure.clone(),
            parks_lane: true,
        })
        .await;
    let stored = "select count(*) from semel.parked where error like 'bad % byte and ü 🚀%'";
    assert_eq!(database.number(stored).await, 1);
}
