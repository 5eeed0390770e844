//! What `settle` records, and who may.

use std::sync::Arc;
use std::time::Duration;

use semel_core::{Event, Holding, Outcome, Receipt, Source};

use super::SourceProbe;
use crate::probe::{Ran, Skip};
use crate::workload::{
    Drive, by_lane, dead, delivered_numbers, event, events, ids, lanes, number, retry, time_in,
};

/// A second call hands out what follows, never what is still unsettled.
pub async fn what_is_unsettled_is_not_handed_out_again<P: SourceProbe>(probe: &Arc<P>) -> Ran {
    let mut drive = Drive::open(&**probe).await;
    probe.commit_all(&lanes(3)).await;
    drive.take(3).await;
    drive.expect_nothing().await;
    probe.commit_all(&[event("another", 9)]).await;
    assert_eq!(delivered_numbers(&drive.take(1).await), [9]);
    drive.expect_nothing().await;
    Ok(())
}

/// What `settle` accepted survives a crash of the caller.
pub async fn delivered_survives_a_crash<P: SourceProbe>(probe: &Arc<P>) -> Ran {
    probe.commit_all(&lanes(4)).await;
    let mut drive = Drive::open(&**probe).await;
    drive.drain(4).await;
    let mut drive = drive.reopen().await;
    drive.expect_nothing().await;

    probe.commit_all(&events("after", 10..12)).await;
    assert_eq!(delivered_numbers(&drive.deliver_next(1).await), [10]);
    let mut drive = drive.reopen().await;
    assert_eq!(delivered_numbers(&drive.drain(1).await), [11]);
    Ok(())
}

/// What was handed out and not settled is handed out again, with the same id, as the same attempt.
pub async fn what_was_unsettled_at_a_crash_comes_again<P: SourceProbe>(probe: &Arc<P>) -> Ran {
    probe.commit_all(&lanes(5)).await;
    let mut drive = Drive::open(&**probe).await;
    let taken = drive.take(5).await;
    let (settled, open): (Vec<_>, Vec<_>) = if P::CUMULATIVE {
        let (settled, open) = taken.split_at(2);
        (settled.to_vec(), open.to_vec())
    } else {
        taken.into_iter().partition(|got| got.receipt.0 % 2 == 0)
    };
    drive.deliver(&settled).await;
    for _ in 0..2 {
        drive = drive.reopen().await;
        let again = drive.take(open.len()).await;
        assert_eq!(ids(&again), ids(&open));
        assert!(again.iter().all(|got| got.message.attempt == 1), "a crash is no attempt");
    }
    drive.expect_nothing().await;
    Ok(())
}

/// What was not tried is offered again in its place; no attempt counts.
pub async fn released_comes_again_in_its_place<P: SourceProbe>(probe: &Arc<P>) -> Ran {
    let mut drive = Drive::open(&**probe).await;
    Skip::unless(drive.guarantees().lane_order, "it does not keep lanes in order")?;
    probe.commit_all(&events("a", 0..5)).await;
    for _ in 0..2 {
        let taken = drive.batch().await;
        assert_eq!(delivered_numbers(&taken), (0..taken.len() as u64).collect::<Vec<_>>());
        assert!(taken.iter().all(|got| got.message.attempt == 1), "no attempt counts");
        drive.settle(taken.iter().rev().map(|got| (got.receipt, Outcome::Released))).await;
    }
    probe.commit_all(&events("a", 5..7)).await;
    let seen = drive.drain(7).await;
    assert_eq!(delivered_numbers(&seen), [0, 1, 2, 3, 4, 5, 6]);
    assert!(seen.iter().all(|got| got.message.attempt == 1), "no attempt counts");
    Ok(())
}

/// A repeated call with the same outcomes is harmless.
pub async fn settling_twice_is_harmless<P: SourceProbe>(probe: &Arc<P>) -> Ran {
    let mut drive = Drive::open(&**probe).await;
    probe.commit_all(&lanes(3)).await;
    let taken = drive.take(3).await;
    drive.deliver(&taken).await;
    drive.deliver(&taken).await;
    drive.expect_nothing().await;

    if drive.guarantees().parking {
        probe.commit_all(&events("a", 0..2)).await;
        let head = drive.batch().await;
        let now = time_in(&**probe, Duration::ZERO);
        let outcomes = head.iter().enumerate().map(|(place, got)| {
            (got.receipt, if place == 0 { retry(now, 1) } else { Outcome::Released })
        });
        let outcomes: Vec<_> = outcomes.collect();
        drive.settle(outcomes.clone()).await;
        drive.settle(outcomes).await;
        let seen = drive.drain(2).await;
        assert_eq!(delivered_numbers(&seen), [0, 1]);
        assert_eq!(seen[0].message.attempt, 2, "one attempt, settled twice");
    }
    drive.reopen().await.expect_nothing().await;
    Ok(())
}

/// A receipt that is not known any more is ignored, and the rest of the call counts.
pub async fn an_unknown_receipt_is_ignored<P: SourceProbe>(probe: &Arc<P>) -> Ran {
    let mut drive = Drive::open(&**probe).await;
    drive.settle([]).await;
    let nobodys = [Receipt(0), Receipt(u64::MAX), Receipt(u64::MAX / 2 + 1)];
    drive.settle(nobodys.map(|receipt| (receipt, Outcome::Delivered))).await;
    probe.commit_all(&lanes(2)).await;
    let taken = drive.take(2).await;
    let known = taken.iter().map(|got| got.receipt);
    let unknown =
        nobodys.into_iter().filter(|receipt| known.clone().all(|known| known != *receipt));
    let mixed: Vec<_> = unknown.chain([taken[0].receipt]).collect();
    drive.settle(mixed.into_iter().map(|receipt| (receipt, Outcome::Delivered))).await;
    let mut drive = drive.reopen().await;
    assert_eq!(ids(&drive.drain(1).await), ids(&taken[1..]));
    Ok(())
}

/// One call may carry every kind of outcome; all of it is recorded.
pub async fn a_mixed_settlement_is_recorded_as_one<P: SourceProbe>(probe: &Arc<P>) -> Ran {
    let mut drive = Drive::open(&**probe).await;
    Skip::unless(drive.guarantees().parking, "it does not park lanes")?;
    let heads = lanes(5);
    let follower = |head: &Event| event(&head.aggregate_id, number(head) + 100);
    let followers: Vec<_> = heads.iter().map(follower).collect();
    probe.commit_all(&heads).await;
    let mut taken = drive.take(5).await;
    taken.sort_by_key(|got| number(&got.message.event));
    probe.commit_all(&followers).await;
    let tomorrow = time_in(&**probe, Duration::from_secs(86_400));
    let outcomes =
        [Outcome::Delivered, retry(tomorrow, 1), Outcome::Released, dead(true), dead(false)];
    drive.settle(taken.iter().map(|got| got.receipt).zip(outcomes)).await;

    let mut drive = drive.reopen().await;
    let lanes = by_lane(&drive.drain(4).await);
    assert_eq!(lanes["order/lane-0"], [100], "delivered");
    assert_eq!(lanes["order/lane-2"], [2, 102], "released");
    assert_eq!(lanes["order/lane-4"], [104], "dead without parking");
    assert_eq!(lanes.len(), 3, "the other two lanes wait: {lanes:?}");
    Ok(())
}

/// `Lost` means that somebody else took over: nothing was recorded.
pub async fn an_old_owner_is_fenced_off<P: SourceProbe>(probe: &Arc<P>) -> Ran {
    probe.fences()?;
    probe.commit_all(&lanes(3)).await;
    let mut old = Drive::open(&**probe).await;
    let taken = old.take(3).await;
    let mut successor = Drive::open(&**probe).await;
    let again = successor.take(3).await;
    assert_eq!(ids(&again), ids(&taken), "the successor gets what was in flight");

    let delivered = taken.iter().map(|got| (got.receipt, Outcome::Delivered));
    assert_eq!(old.try_settle(delivered).await, Holding::Lost);
    successor.deliver(&again[..1]).await;
    drop(old);
    let mut third = successor.reopen().await;
    assert_eq!(ids(&third.drain(2).await), ids(&again[1..]), "nothing of the old one was recorded");
    Ok(())
}

/// An owner that has nothing to settle learns it all the same: otherwise it would idle for ever, and
/// look healthy.
pub async fn an_idle_owner_learns_that_another_took_over<P: SourceProbe>(probe: &Arc<P>) -> Ran {
    probe.tells_when_lost()?;
    let mut old = Drive::open(&**probe).await;
    Skip::unless(old.guarantees().parking, "a subscription learns it when it settles")?;
    old.expect_nothing().await;
    assert!(!old.source.is_lost(), "it is the owner");
    let mut successor = Drive::open(&**probe).await;
    probe.commit_all(&lanes(2)).await;
    for _ in 0..2 {
        old.expect_nothing().await;
        assert!(old.source.is_lost(), "another took over");
    }
    successor.drain(2).await;
    assert!(!successor.source.is_lost(), "nobody took over from the successor");
    Ok(())
}
