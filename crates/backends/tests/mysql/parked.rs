//! Parked events that are large, or not as large as others were.

use semel_core::{Limit, Outcome, Source, Timestamp};
use semel_testkit::workload::{event, lanes, retry};

use super::{Database, database};

const ALL: Limit = Limit { events: 10_000, bytes: usize::MAX };

async fn fall_due(database: &Database) {
    database.run("UPDATE semel_parked SET due = utc_timestamp(6) - INTERVAL 1 SECOND").await;
}

fn tomorrow() -> Timestamp {
    Timestamp::now() + std::time::Duration::from_secs(86_400)
}

/// What is due after a restart is read as far as there is room, and not all of it.
#[tokio::test]
async fn large_parked_events_come_as_there_is_room() {
    let database = database!();
    let large = |number: u64| {
        event(&format!("lane-{number}"), number).with_bytes("application/x", vec![7; 1 << 20])
    };
    for number in 0..30 {
        database.commit(&[large(number)]).await;
    }
    let mut relay = database.relay().await;
    let got = relay.source.next_batch(ALL).await.unwrap().deliveries;
    assert_eq!(got.len(), 30);
    relay.settle(&got, |_| retry(tomorrow(), 1)).await;
    fall_due(&database).await;
    let mut relay = database.relay().await;
    let mut seen = 0;
    while seen < 30 {
        let batch = relay.source.next_batch(Limit::default()).await.unwrap();
        assert_eq!(batch.deliveries.len(), 3, "as many as fit");
        assert!(batch.deliveries.iter().all(|got| got.message.attempt == 2));
        seen += batch.deliveries.len();
        assert!(batch.more || seen == 30, "{seen} of 30, and no more is ready");
    }
    assert!(relay.take(10).await.is_empty());
}

/// After large events less is asked for; that must not look like all there is.
#[tokio::test]
async fn small_parked_events_after_a_large_one_are_not_forgotten() {
    let database = database!();
    database.commit(&lanes(10)).await;
    let mut relay = database.relay().await;
    let got = relay.take(10).await;
    relay.settle(&got, |_| retry(tomorrow(), 1)).await;
    database.commit(&[event("large", 99).with_bytes("application/x", vec![7; 1 << 20])]).await;
    let got = relay.take(10).await;
    relay.settle(&got, |_| Outcome::Delivered).await;
    fall_due(&database).await;
    let limit = Limit { bytes: 2 << 20, ..Limit::default() };
    let mut seen = 0;
    while seen < 10 {
        let batch = relay.source.next_batch(limit).await.unwrap();
        seen += batch.deliveries.len();
        assert!(batch.more || seen == 10, "{seen} of 10, and no more is ready");
    }
}
