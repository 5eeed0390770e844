//! What is handed out, and in which order.

use std::sync::Arc;

use semel_core::{Event, Limit};

use super::SourceProbe;
use crate::probe::{Ran, Skip};
use crate::workload::{
    Drive, assert_intact, awkward_events, by_lane, delivered_numbers, event, events, retry, time_in,
};

/// It does not wait for events to come.
pub async fn an_empty_source_hands_out_nothing<P: SourceProbe>(probe: &Arc<P>) -> Ran {
    let mut drive = Drive::open(&**probe).await;
    let batch = drive.ask(Limit::default()).await;
    assert!(batch.deliveries.is_empty() && !batch.more && batch.next_due.is_none(), "{batch:?}");
    Ok(())
}

/// Deliveries of one lane are handed out in the order they were committed.
pub async fn a_lane_keeps_its_order_over_transactions_and_batches<P: SourceProbe>(
    probe: &Arc<P>,
) -> Ran {
    let mut drive = Drive::open(&**probe).await;
    Skip::unless(drive.guarantees().lane_order, "it does not keep lanes in order")?;
    for numbers in [0..1, 1..8, 8..10, 10..25] {
        let both = numbers.flat_map(|number| [event("a", number), event("b", number)]);
        probe.commit_all(&both.collect::<Vec<_>>()).await;
    }
    let mut seen = Vec::new();
    while seen.len() < 50 {
        let batch = drive.batch_of(Limit { events: 7, ..Limit::default() }).await.deliveries;
        drive.deliver(&batch).await;
        seen.extend(batch);
    }
    drive.expect_nothing().await;
    for (lane, numbers) in by_lane(&seen) {
        assert_eq!(numbers, (0..25).collect::<Vec<_>>(), "lane {lane}");
    }
    Ok(())
}

/// A lane is the aggregate type and the aggregate id, not their text glued together.
pub async fn lanes_are_told_apart_by_type_and_id<P: SourceProbe>(probe: &Arc<P>) -> Ran {
    let mut drive = Drive::open(&**probe).await;
    Skip::unless(drive.guarantees().parking, "it does not park lanes")?;
    let made = |kind: &str, id: &str| Event::new(kind, id, "Happened");
    probe.commit_all(&[made("order", "11")]).await;
    let head = drive.take(1).await;
    let tomorrow = time_in(&**probe, std::time::Duration::from_secs(86_400));
    drive.settle([(head[0].receipt, retry(tomorrow, 1))]).await;

    let others = [made("order", "1"), made("order1", "1"), made("customer", "11")];
    probe.commit_all(&others).await;
    let got = drive.drain(3).await;
    for other in &others {
        assert!(got.iter().any(|got| got.message.event.id == other.id), "{} waits", other.lane());
    }
    Ok(())
}

/// The events exist if, and only if, the caller's transaction commits.
pub async fn rolled_back_events_never_appear<P: SourceProbe>(probe: &Arc<P>) -> Ran {
    let mut drive = Drive::open(&**probe).await;
    probe.commit_all(&events("a", 0..2)).await;
    let mut tx = probe.begin().await;
    probe.append(&mut tx, &events("a", 100..103)).await.expect("append");
    probe.roll_back(tx).await;
    probe.commit_all(&events("a", 2..4)).await;
    assert_eq!(delivered_numbers(&drive.drain(4).await), [0, 1, 2, 3]);
    drive.reopen().await.expect_nothing().await;
    Ok(())
}

/// A transaction that began early and commits late is handed out, whatever was settled meanwhile.
pub async fn a_transaction_that_commits_late_is_not_lost<P: SourceProbe>(probe: &Arc<P>) -> Ran {
    probe.interleaves()?;
    let mut drive = Drive::open(&**probe).await;
    let mut late = probe.begin().await;
    probe.append(&mut late, &events("late", 0..2)).await.expect("append");
    for number in 0..3 {
        probe.commit_all(&[event("early", number)]).await;
        assert_eq!(delivered_numbers(&drive.drain(1).await), [number]);
    }
    probe.append(&mut late, &events("late", 2..3)).await.expect("append");
    probe.commit_all(&[event("early", 3)]).await;
    probe.commit(late).await;
    let lanes = by_lane(&drive.drain(4).await);
    assert_eq!(lanes["order/late"], [0, 1, 2]);
    assert_eq!(lanes["order/early"], [3]);
    Ok(())
}

/// An event is made once and never changed on the way.
pub async fn content_survives_unchanged<P: SourceProbe>(probe: &Arc<P>) -> Ran {
    let written = awkward_events();
    probe.commit_all(&written).await;
    let mut drive = Drive::open(&**probe).await;
    let got = drive.drain(written.len()).await;
    for event in &written {
        let found = got.iter().find(|got| got.message.event.id == event.id);
        assert_intact(event, &found.expect("every event").message.event);
    }
    if drive.guarantees().lane_order {
        let kinds = got.iter().map(|got| &got.message.event.event_type);
        assert!(kinds.eq(written.iter().map(|event| &event.event_type)), "in their order");
    }
    assert!(got.iter().all(|got| got.message.attempt == 1), "first attempts");
    Ok(())
}
