//! What an operator changes.

use std::sync::Arc;
use std::time::Duration;

use semel_core::admin::{Filter, Selection, State};
use semel_core::{AdminStore, Delivery, EventId, Outcome, Publication};

use super::{AdminProbe, everything, in_state, listed, of_lane, parking, settle_one, view};
use crate::probe::Ran;
use crate::workload::{
    Drive, by_lane, dead, delivered_numbers, event, events, ids, lanes, retry, time_in,
};

const DAY: Duration = Duration::from_secs(86_400);

/// A dead event is due now, with all attempts in front of it; its lane goes on behind it.
pub async fn a_retried_dead_event_goes_ahead_of_its_lane<P: AdminProbe>(probe: &Arc<P>) -> Ran {
    let (mut drive, admin) = parking(probe).await?;
    settle_one(&mut drive, &event("a", 0), dead(true)).await;
    probe.commit_all(&events("a", 1..3)).await;
    drive.expect_nothing().await;
    assert_eq!(admin.retry(&of_lane("a")).await.expect("retry"), 1);
    let seen = drive.drain(3).await;
    assert_eq!(delivered_numbers(&seen), [0, 1, 2]);
    assert_eq!(seen[0].message.attempt, 1, "all attempts in front of it");
    assert_eq!(admin.stats().await.expect("stats").count(State::Published), 3);
    Ok(())
}

/// A dead event that parked nothing comes again, after what its lane did without it.
pub async fn a_retried_dead_event_that_parked_nothing_comes_again<P: AdminProbe>(
    probe: &Arc<P>,
) -> Ran {
    let (mut drive, admin) = parking(probe).await?;
    let lost = event("a", 0);
    settle_one(&mut drive, &lost, dead(false)).await;
    settle_one(&mut drive, &event("a", 1), Outcome::Delivered).await;
    assert_eq!(admin.retry(&Selection::Ids(vec![lost.id])).await.expect("retry"), 1);
    assert_eq!(ids(&drive.drain(1).await), [lost.id]);
    assert_eq!(view(admin, lost.id).await.state, State::Published);
    Ok(())
}

/// A failed event does not wait for its time any more; also if the relay restarts first.
pub async fn a_retried_failed_event_is_due_now<P: AdminProbe>(probe: &Arc<P>) -> Ran {
    let (mut drive, admin) = parking(probe).await?;
    settle_one(&mut drive, &event("a", 0), retry(time_in(&**probe, DAY), 4)).await;
    probe.commit_all(&[event("a", 1)]).await;
    drive.expect_nothing().await;
    assert_eq!(admin.retry(&everything()).await.expect("retry"), 1);
    let mut drive = drive.reopen().await;
    let seen = drive.drain(2).await;
    assert_eq!(delivered_numbers(&seen), [0, 1]);
    assert_eq!(seen[0].message.attempt, 1, "all attempts in front of it");
    Ok(())
}

/// Dead and failed events are given up for good; their lanes go on without them.
pub async fn a_discarded_event_lets_its_lane_go_on<P: AdminProbe>(probe: &Arc<P>) -> Ran {
    let (mut drive, admin) = parking(probe).await?;
    let given_up = [event("dead", 0), event("failed", 0)];
    settle_one(&mut drive, &given_up[0], dead(true)).await;
    settle_one(&mut drive, &given_up[1], retry(time_in(&**probe, DAY), 1)).await;
    probe.commit_all(&[events("dead", 1..3), events("failed", 1..3)].concat()).await;
    drive.expect_nothing().await;
    let selection = Selection::Ids(given_up.iter().map(|event| event.id).collect());
    assert_eq!(admin.discard(&selection).await.expect("discard"), 2);
    let lanes = by_lane(&drive.drain(4).await);
    assert_eq!(lanes["order/dead"], [1, 2]);
    assert_eq!(lanes["order/failed"], [1, 2]);
    assert_eq!(listed(admin, &in_state(State::Discarded)).await, [0, 0]);
    drive.reopen().await.expect_nothing().await;
    Ok(())
}

/// Published events are offered again, with the same id, in the order of their lane.
pub async fn a_replayed_event_is_offered_again<P: AdminProbe>(probe: &Arc<P>) -> Ran {
    probe.retains()?;
    let admin = probe.admin();
    let mut drive = Drive::open(&**probe).await;
    let written = [events("a", 0..3), events("b", 5..6)].concat();
    probe.commit_all(&written).await;
    let first = drive.drain(4).await;
    let chosen = Selection::Ids(vec![written[1].id, written[0].id]);
    assert_eq!(admin.replay(&chosen).await.expect("replay"), 2);
    let again = drive.drain(2).await;
    let said = |got: &Delivery| got.message.publication;
    if first.iter().any(|got| said(got) != Publication::Unknown) {
        assert!(first.iter().all(|got| said(got) == Publication::First), "{first:?}");
        assert!(again.iter().all(|got| said(got) == Publication::Again), "{again:?}");
    }
    assert_eq!(delivered_numbers(&again), [0, 1]);
    assert_eq!(again[0].message.event.id, written[0].id);
    assert_eq!(again[0].message.attempt, 1);
    assert_eq!(admin.stats().await.expect("stats").count(State::Published), 4);

    assert_eq!(admin.replay(&of_lane("b")).await.expect("replay"), 1);
    let mut drive = drive.reopen().await;
    assert_eq!(delivered_numbers(&drive.drain(1).await), [5]);
    Ok(())
}

/// A selection by filter touches what matches and is in a state that can change, nothing else.
pub async fn a_selection_touches_what_matches_alone<P: AdminProbe>(probe: &Arc<P>) -> Ran {
    let (mut drive, admin) = parking(probe).await?;
    for lane in ["a", "b", "c"] {
        settle_one(&mut drive, &event(lane, 0), dead(true)).await;
    }
    probe.commit_all(&events("a", 1..2)).await;
    let nobody = Selection::Ids(vec![EventId::now()]);
    assert_eq!(admin.retry(&nobody).await.expect("retry"), 0);
    let failed = Selection::Matching(in_state(State::Failed));
    assert_eq!(admin.retry(&failed).await.expect("retry"), 0);
    assert_eq!(admin.discard(&of_lane("b")).await.expect("discard"), 1);
    assert_eq!(admin.retry(&of_lane("a")).await.expect("retry"), 1);
    assert_eq!(by_lane(&drive.drain(2).await)["order/a"], [0, 1]);
    assert_eq!(admin.stats().await.expect("stats").counts, [0, 0, 2, 0, 1, 1]);
    Ok(())
}

/// What a relay has in flight is left alone.
pub async fn what_is_in_flight_is_left_alone<P: AdminProbe>(probe: &Arc<P>) -> Ran {
    let (mut drive, admin) = parking(probe).await?;
    let new = event("new", 0);
    settle_one(&mut drive, &event("tried", 1), retry(time_in(&**probe, Duration::ZERO), 1)).await;
    probe.commit_all(&[new]).await;
    let taken = drive.take(2).await;
    for selection in [everything(), Selection::Ids(ids(&taken))] {
        assert_eq!(admin.retry(&selection).await.expect("retry"), 0);
        assert_eq!(admin.discard(&selection).await.expect("discard"), 0);
        assert_eq!(admin.replay(&selection).await.expect("replay"), 0);
        assert_eq!(admin.clean(Duration::ZERO, 10).await.expect("clean"), 0);
    }
    drive.expect_nothing().await;
    drive.deliver(&taken).await;
    assert_eq!(admin.stats().await.expect("stats").count(State::Published), 2);
    Ok(())
}

/// What was handled already is not handled again, and not counted.
pub async fn repetition_changes_and_counts_nothing<P: AdminProbe>(probe: &Arc<P>) -> Ran {
    probe.retains()?;
    let (mut drive, admin) = parking(probe).await?;
    let dead_ones = [event("a", 0), event("b", 1)];
    for event in &dead_ones {
        settle_one(&mut drive, event, dead(true)).await;
    }
    settle_one(&mut drive, &event("c", 2), Outcome::Delivered).await;
    let [retried, discarded] = dead_ones.map(|event| Selection::Ids(vec![event.id]));
    for expected in [1, 0] {
        assert_eq!(admin.retry(&retried).await.expect("retry"), expected);
        assert_eq!(admin.discard(&discarded).await.expect("discard"), expected);
        assert_eq!(admin.replay(&of_lane("c")).await.expect("replay"), expected);
    }
    assert_eq!(admin.retry(&discarded).await.expect("retry"), 0, "given up for good");
    assert_eq!(admin.replay(&discarded).await.expect("replay"), 0, "never published");
    let mut again = delivered_numbers(&drive.drain(2).await);
    again.sort_unstable();
    assert_eq!(again, [0, 2]);
    Ok(())
}

/// What was published or discarded longer ago than `age` is deleted, at most `limit` at a time.
pub async fn cleaning_deletes_what_is_old_enough<P: AdminProbe>(probe: &Arc<P>) -> Ran {
    probe.retains()?;
    let (mut drive, admin) = parking(probe).await?;
    let old = lanes(4);
    probe.commit_all(&old).await;
    drive.drain(4).await;
    settle_one(&mut drive, &event("dead", 4), dead(true)).await;
    assert_eq!(admin.discard(&everything()).await.expect("discard"), 1);
    probe.pass(P::TICK).await;
    let between = probe.now();
    probe.pass(P::TICK).await;
    settle_one(&mut drive, &event("young", 5), Outcome::Delivered).await;
    assert_eq!(admin.clean(P::TICK * 100, 10).await.expect("clean"), 0, "nothing is that old");
    for expected in [3, 2, 0] {
        // However long the last one took.
        let age = probe.now().duration_since(between).unsigned_abs();
        assert_eq!(admin.clean(age, 3).await.expect("clean"), expected);
    }
    assert_eq!(listed(admin, &Filter::default()).await, [5]);
    assert!(admin.get(old[0].id).await.expect("get").is_none());
    drive.reopen().await.expect_nothing().await;
    Ok(())
}

/// What is not published is never deleted, however old, and still comes.
pub async fn cleaning_leaves_the_unpublished_alone<P: AdminProbe>(probe: &Arc<P>) -> Ran {
    probe.retains()?;
    let (mut drive, admin) = parking(probe).await?;
    settle_one(&mut drive, &event("published", 0), Outcome::Delivered).await;
    settle_one(&mut drive, &event("failed", 1), retry(time_in(&**probe, P::TICK), 1)).await;
    settle_one(&mut drive, &event("dead", 2), dead(true)).await;
    settle_one(&mut drive, &event("skipped", 3), dead(false)).await;
    probe.commit_all(&[event("pending", 4)]).await;
    let pending = drive.take(1).await;
    drive.settle([(pending[0].receipt, Outcome::Released)]).await;
    probe.pass(P::TICK * 2).await;
    assert_eq!(admin.clean(Duration::ZERO, 100).await.expect("clean"), 1);
    assert_eq!(listed(admin, &Filter::default()).await, [1, 2, 3, 4]);
    let mut rest = delivered_numbers(&drive.drain(2).await);
    rest.sort_unstable();
    assert_eq!(rest, [1, 4]);
    Ok(())
}
