//! Connections that break, and calls that end half-way.

use std::time::Duration;

use semel_core::{Delivery, Fault, Limit, Outcome, Settlement, Source};
use semel_testkit::workload::{delivered_numbers, event, events, ids, retry};
use tokio::time::timeout;

use super::{cut_off, database};

#[tokio::test]
async fn a_source_goes_on_after_its_connections_broke() {
    let database = database!();
    let mut relay = database.relay().await;
    database.commit(&events("a", 0..3)).await;
    let flight = relay.take(2).await;
    cut_off(&database.server, &database.name).await;
    // The pool looks before it hands a connection out; if not, it is an outage.
    let batch = match relay.source.next_batch(Limit::default()).await {
        Ok(batch) => batch.deliveries,
        Err(failure) => {
            assert_eq!(failure.fault(), Fault::Unavailable, "{failure:?}");
            relay.take(10).await
        }
    };
    assert_eq!(delivered_numbers(&batch), [2], "what is out stays out");
    cut_off(&database.server, &database.name).await;
    let settlements: Vec<_> = flight
        .iter()
        .map(|got| Settlement { receipt: got.receipt, outcome: Outcome::Delivered })
        .collect();
    if let Err(failure) = relay.source.settle(&settlements).await {
        assert_eq!(failure.fault(), Fault::Unavailable, "{failure:?}");
        assert!(relay.source.settle(&settlements).await.unwrap().is_held(), "asked again");
    }
    assert_eq!(delivered_numbers(&database.relay().await.take(10).await), [2]);
}

/// Whenever a call is dropped, what it may have marked in the tables is not forgotten.
#[tokio::test]
async fn calls_dropped_at_any_moment_lose_and_double_nothing() {
    let database = database!();
    let mut relay = database.relay().await;
    let mut delivered = Vec::new();
    for round in 0..60_u64 {
        database.commit(&[event("failing", round), event(&format!("lane-{round}"), 1)]).await;
        let wait = Duration::from_micros(round * round * 3);
        let limit = Limit { events: 3, ..Limit::default() };
        let Ok(batch) = timeout(wait, relay.source.next_batch(limit)).await else { continue };
        let batch = batch.unwrap().deliveries;
        let settlements = outcomes(&batch, round % 3 == 0);
        drop(timeout(wait, relay.source.settle(&settlements)).await);
        assert!(relay.source.settle(&settlements).await.unwrap().is_held());
        let done = settlements.iter().zip(&batch);
        delivered.extend(
            done.filter(|(settled, _)| settled.outcome == Outcome::Delivered)
                .map(|(_, got)| got.clone()),
        );
    }
    // A dropped call may have handed something out: the next owner gets it.
    delivered.extend(database.relay().await.deliver_all(50).await);
    let failing = delivered.iter().filter(|got| got.message.event.aggregate_id == "failing");
    let failing: Vec<_> = failing.cloned().collect();
    assert_eq!(delivered_numbers(&failing), (0..60).collect::<Vec<_>>(), "once, and in order");
    let mut all = ids(&delivered);
    all.dedup();
    assert_eq!((all.len(), delivered.len()), (120, 120));
}

/// The head of the failing lane fails, if it is to; what is behind it was not tried.
fn outcomes(batch: &[Delivery], fails: bool) -> Vec<Settlement> {
    let now = semel_core::Timestamp::now();
    let is_failing = |got: &&Delivery| got.message.event.aggregate_id == "failing";
    let head = batch.iter().find(is_failing).filter(|_| fails).map(|got| got.receipt);
    let outcome = |got: &Delivery| match head {
        Some(head) if head == got.receipt => retry(now, got.message.attempt),
        Some(_) if is_failing(&got) => Outcome::Released,
        _ => Outcome::Delivered,
    };
    batch.iter().map(|got| Settlement { receipt: got.receipt, outcome: outcome(got) }).collect()
}

/// No text of an error keeps an event from being parked.
#[tokio::test]
async fn an_awkward_error_text_is_stored() {
    let database = database!();
    database.commit(&[event("a", 1)]).await;
    let mut relay = database.relay().await;
    let taken = relay.take(1).await;
    let text = format!("bad \0 byte, 'quotes' \"too\", \\ and ü 🚀 \u{7f}{}", "x".repeat(100_000));
    let failure = semel_core::Failure::refused("E-X", text.clone());
    let dead = Outcome::Dead { attempts: 1, failure, parks_lane: true };
    relay.settle(&taken, |_| dead.clone()).await;
    let stored: String = sqlx::query_scalar("SELECT error FROM semel_parked")
        .fetch_one(database.pool())
        .await
        .unwrap();
    assert_eq!(stored, text);
}
