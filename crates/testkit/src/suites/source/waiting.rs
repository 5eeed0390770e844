//! Retries, dead letters and scheduled events: what waits, and what waits behind it.

use std::sync::Arc;
use std::time::Duration;

use semel_core::{Delivery, Limit, Outcome, Receipt, Timestamp};

use super::SourceProbe;
use crate::probe::{Ran, Skip};
use crate::workload::{
    Drive, by_lane, dead, delivered_numbers, event, events, lanes, number, retry, time_in,
};

const DAY: Duration = Duration::from_secs(86_400);

/// It is offered again at `at`, not before, as attempt `attempts + 1`.
pub async fn a_retry_waits_for_its_time<P: SourceProbe>(probe: &Arc<P>) -> Ran {
    let mut drive = parking(probe).await?;
    probe.commit_all(&[event("a", 1)]).await;
    for attempts in 1..=2 {
        let taken = drive.take(1).await;
        assert_eq!(taken[0].message.attempt, attempts);
        let due = time_in(&**probe, P::TICK);
        drive.settle([(taken[0].receipt, retry(due, attempts))]).await;
        expect_nothing_before(&mut drive, due).await;
        probe.pass(P::TICK).await;
    }
    let last = drive.drain(1).await;
    assert_eq!(last[0].message.attempt, 3);
    Ok(())
}

/// The time and the attempts of a retry survive a crash.
pub async fn a_retry_survives_a_crash<P: SourceProbe>(probe: &Arc<P>) -> Ran {
    let mut drive = parking(probe).await?;
    probe.commit_all(&events("a", 0..3)).await;
    let due = time_in(&**probe, P::TICK);
    let flight = drive.batch().await;
    drive.settle(fail_head(&flight, retry(due, 4))).await;
    let mut drive = drive.reopen().await;
    expect_nothing_before(&mut drive, due).await;
    probe.pass(P::TICK).await;
    let seen = drive.drain(3).await;
    assert_eq!(delivered_numbers(&seen), [0, 1, 2]);
    assert_eq!(seen[0].message.attempt, 5);
    assert_eq!(seen[1].message.attempt, 1);
    Ok(())
}

/// Until a retry is due its lane waits behind it, also what is committed later; other lanes go on.
pub async fn a_lane_waits_behind_a_retry_and_others_go_on<P: SourceProbe>(probe: &Arc<P>) -> Ran {
    let mut drive = parking(probe).await?;
    probe.commit_all(&[event("a", 0), event("b", 0)]).await;
    let taken = drive.take(2).await;
    let outcome = |got: &Delivery| match got.message.event.aggregate_id.as_str() {
        "a" => retry(time_in(&**probe, P::TICK * 2), 1),
        _ => Outcome::Delivered,
    };
    drive.settle(taken.iter().map(|got| (got.receipt, outcome(got)))).await;
    probe.commit_all(&[event("a", 1), event("b", 1), event("c", 1)]).await;
    probe.commit_all(&[event("a", 2), event("b", 2)]).await;
    let others = by_lane(&drive.drain(3).await);
    assert_eq!(others["order/b"], [1, 2]);
    assert_eq!(others["order/c"], [1]);
    probe.pass(P::TICK * 2).await;
    assert_eq!(delivered_numbers(&drive.drain(3).await), [0, 1, 2]);
    Ok(())
}

/// The engine fails a head and releases what was in flight behind it: all come back in order.
pub async fn followers_released_with_a_failed_head_come_back_in_order<P: SourceProbe>(
    probe: &Arc<P>,
) -> Ran {
    let mut drive = parking(probe).await?;
    probe.commit_all(&events("a", 0..6)).await;
    for attempts in 1..=3 {
        let limit = Limit { events: 4, ..Limit::default() };
        let flight = drive.batch_of(limit).await.deliveries;
        assert_eq!(delivered_numbers(&flight), (0..flight.len() as u64).collect::<Vec<_>>());
        assert_eq!(flight[0].message.attempt, attempts);
        let at_once = time_in(&**probe, Duration::ZERO);
        drive.settle(fail_head(&flight, retry(at_once, attempts))).await;
    }
    let seen = drive.drain(6).await;
    assert_eq!(delivered_numbers(&seen), [0, 1, 2, 3, 4, 5]);
    let attempts: Vec<_> = seen.iter().map(|got| got.message.attempt).collect();
    assert_eq!(attempts, [4, 1, 1, 1, 1, 1]);
    Ok(())
}

/// `next_due` is when the earliest event that waits for a retry falls due.
pub async fn next_due_is_the_earliest_retry<P: SourceProbe>(probe: &Arc<P>) -> Ran {
    let mut drive = parking(probe).await?;
    probe.commit_all(&lanes(3)).await;
    let taken = drive.take(3).await;
    let times = [3, 1, 2].map(|days| time_in(&**probe, DAY * days));
    let receipts = taken.iter().map(|got| got.receipt);
    drive.settle(receipts.zip(times).map(|(receipt, at)| (receipt, retry(at, 1)))).await;
    assert_eq!(drive.ask(Limit::default()).await.next_due, Some(times[1]));

    let mut drive = drive.reopen().await;
    assert_eq!(drive.ask(Limit::default()).await.next_due, Some(times[1]), "after a crash");
    Ok(())
}

/// A dead letter that parks its lane holds it, for good.
pub async fn a_dead_event_parks_its_lane<P: SourceProbe>(probe: &Arc<P>) -> Ran {
    let mut drive = parking(probe).await?;
    probe.commit_all(&events("a", 0..3)).await;
    let flight = drive.batch().await;
    drive.settle(fail_head(&flight, dead(true))).await;
    probe.commit_all(&[event("a", 3), event("b", 0)]).await;
    assert_eq!(by_lane(&drive.drain(1).await)["order/b"], [0]);
    let batch = drive.ask(Limit::default()).await;
    assert_eq!(batch.next_due, None, "a dead letter waits for nobody's clock");
    drive.reopen().await.expect_nothing().await;
    Ok(())
}

/// A dead letter that parks nothing is never offered again, and its lane goes on.
pub async fn a_dead_event_that_parks_nothing_lets_its_lane_go_on<P: SourceProbe>(
    probe: &Arc<P>,
) -> Ran {
    let mut drive = Drive::open(&**probe).await;
    probe.commit_all(&events("a", 0..3)).await;
    let flight = drive.batch().await;
    let head = number(&flight[0].message.event);
    drive.settle(fail_head(&flight, dead(false))).await;
    let mut rest = delivered_numbers(&drive.drain(2).await);
    if !drive.guarantees().lane_order {
        rest.sort_unstable();
    }
    assert_eq!(rest, (0..3).filter(|number| *number != head).collect::<Vec<_>>());
    drive.reopen().await.expect_nothing().await;
    Ok(())
}

/// A scheduled event is not published before its time, and holds nobody up.
pub async fn a_scheduled_event_waits_for_its_time<P: SourceProbe>(probe: &Arc<P>) -> Ran {
    probe.schedules()?;
    let mut drive = Drive::open(&**probe).await;
    let due = time_in(&**probe, P::TICK);
    let past = time_in(&**probe, Duration::ZERO);
    let scheduled = [
        event("a", 0).available_at(due),
        event("a", 1),
        event("b", 2).available_at(time_in(&**probe, DAY)),
        event("b", 3).available_at(past),
    ];
    probe.commit_all(&scheduled).await;
    let mut now = delivered_numbers(&drive.deliver_next(2).await);
    now.sort_unstable();
    assert_eq!(now, [1, 3]);
    expect_nothing_before(&mut drive, due).await;
    probe.pass(P::TICK).await;
    assert_eq!(delivered_numbers(&drive.drain(1).await), [0]);
    Ok(())
}

/// A scheduled event that waits is not forgotten by a crash.
pub async fn a_scheduled_event_survives_a_crash<P: SourceProbe>(probe: &Arc<P>) -> Ran {
    probe.schedules()?;
    let mut drive = Drive::open(&**probe).await;
    let due = time_in(&**probe, P::TICK);
    probe.commit_all(&[event("a", 0).available_at(due)]).await;
    probe.commit_all(&events("b", 1..4)).await;
    assert_eq!(delivered_numbers(&drive.deliver_next(3).await), [1, 2, 3]);
    let mut drive = drive.reopen().await;
    expect_nothing_before(&mut drive, due).await;
    probe.pass(P::TICK).await;
    let mut drive = drive.reopen().await;
    assert_eq!(delivered_numbers(&drive.drain(1).await), [0]);
    drive.reopen().await.expect_nothing().await;
    Ok(())
}

/// A scheduled event takes its place in its lane when it falls due: behind a lane that waits then.
pub async fn a_scheduled_event_takes_its_place_when_due<P: SourceProbe>(probe: &Arc<P>) -> Ran {
    probe.schedules()?;
    let mut drive = parking(probe).await?;
    probe.commit_all(&[event("a", 1).available_at(time_in(&**probe, P::TICK))]).await;
    probe.commit_all(&[event("a", 0)]).await;
    let head = drive.take(1).await;
    assert_eq!(delivered_numbers(&head), [0]);
    drive.settle([(head[0].receipt, retry(time_in(&**probe, P::TICK * 3), 1))]).await;
    drive.expect_nothing().await;
    probe.pass(P::TICK).await;
    drive.expect_nothing().await;
    probe.commit_all(&[event("a", 2)]).await;
    drive.expect_nothing().await;
    probe.pass(P::TICK * 2).await;
    assert_eq!(delivered_numbers(&drive.drain(3).await), [0, 1, 2]);
    Ok(())
}

/// The same when nobody read it until it was due, as after an outage of the relay: it comes behind
/// what was written before it fell due.
pub async fn an_event_that_fell_due_unread_takes_its_place_all_the_same<P: SourceProbe>(
    probe: &Arc<P>,
) -> Ran {
    probe.places_when_due()?;
    let mut drive = Drive::open(&**probe).await;
    Skip::unless(drive.guarantees().lane_order, "it does not keep lanes in order")?;
    let mut scheduled = event("a", 2).available_at(time_in(&**probe, P::TICK));
    // By the clock that it is scheduled by, which may stand still.
    scheduled.created_at = probe.now();
    probe.commit_all(&[scheduled]).await;
    probe.commit_all(&events("a", 0..2)).await;
    probe.pass(P::TICK).await;
    assert_eq!(delivered_numbers(&drive.drain(3).await), [0, 1, 2]);

    let mut drive = drive.reopen().await;
    probe.commit_all(&[event("a", 3)]).await;
    assert_eq!(delivered_numbers(&drive.drain(1).await), [3], "its lane goes on");
    Ok(())
}

async fn parking<P: SourceProbe>(probe: &Arc<P>) -> Result<Drive<'_, P>, Skip> {
    let drive = Drive::open(&**probe).await;
    Skip::unless(drive.guarantees().parking, "it does not park lanes")?;
    Ok(drive)
}

/// The first delivery of a lane fails; those behind it were not tried.
fn fail_head(flight: &[Delivery], outcome: Outcome) -> Vec<(Receipt, Outcome)> {
    let outcomes = std::iter::once(outcome).chain(std::iter::repeat(Outcome::Released));
    flight.iter().map(|got| got.receipt).zip(outcomes).collect()
}

/// Checks that nothing comes before `due`. On a slow machine `due` may be now.
async fn expect_nothing_before<P: SourceProbe>(drive: &mut Drive<'_, P>, due: Timestamp) {
    let batch = drive.ask(Limit::default()).await;
    let early = drive.probe.now() < due && !batch.deliveries.is_empty();
    assert!(!early, "handed out before {due}: {:?}", batch.deliveries);
    if !batch.deliveries.is_empty() {
        // It took until then to ask: as if nobody had.
        let released = batch.deliveries.iter().map(|got| (got.receipt, Outcome::Released));
        drive.settle(released).await;
    }
}
