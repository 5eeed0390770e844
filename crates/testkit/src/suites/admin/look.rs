//! What an operator sees.

use std::sync::Arc;
use std::time::Duration;

use semel_core::admin::{Filter, State, Stats, Troubles};
use semel_core::{AdminStore, Event, EventId, Outcome};

use super::{AdminProbe, in_state, list, listed, numbers, parking, settle_one, view};
use crate::probe::Ran;
use crate::workload::{Drive, assert_intact, awkward_events, dead, event, events, retry, time_in};

const DAY: Duration = Duration::from_secs(86_400);

/// Zeros and empty pages, no errors.
pub async fn an_empty_outbox_has_nothing_to_show<P: AdminProbe>(probe: &Arc<P>) -> Ran {
    let admin = probe.admin();
    assert_eq!(admin.stats().await.expect("stats"), Stats::default());
    let page = list(admin, &Filter::default(), None, 10).await;
    assert!(page.events.is_empty() && page.next.is_none(), "{page:?}");
    Ok(())
}

/// Every event is in exactly one state, the same in the counts, the listing and alone.
pub async fn each_state_is_counted_and_shown<P: AdminProbe>(probe: &Arc<P>) -> Ran {
    let (mut drive, admin) = parking(probe).await?;
    let tomorrow = time_in(&**probe, DAY);
    let made = ["published", "failed", "dead", "gone"].map(|lane| event(lane, 0));
    settle_one(&mut drive, &made[0], Outcome::Delivered).await;
    settle_one(&mut drive, &made[1], retry(tomorrow, 3)).await;
    settle_one(&mut drive, &made[2], dead(true)).await;
    settle_one(&mut drive, &made[3], dead(false)).await;
    let taken = event("publishing", 0);
    probe.commit_all(std::slice::from_ref(&taken)).await;
    drive.take(1).await;
    probe.commit_all(&events("failed", [1, 2])).await;

    let stats = admin.stats().await.expect("stats");
    let expected = [2, 1, 1, 1, 2, 0];
    assert_eq!(stats.counts, expected, "in the order of {:?}", State::ALL);
    for (state, count) in State::ALL.into_iter().zip(expected) {
        let shown = list(admin, &in_state(state), None, 100).await.events;
        assert_eq!(shown.len() as u64, count, "{state:?}");
        assert!(shown.iter().all(|view| view.state == state), "{shown:?}");
    }

    let published = view(admin, made[0].id).await;
    assert_eq!(published.state, State::Published);
    assert!(published.published_at.is_some() && published.error.is_none(), "{published:?}");
    let failed = view(admin, made[1].id).await;
    assert_eq!((failed.state, failed.attempts), (State::Failed, 3));
    assert_eq!(failed.next_attempt, Some(tomorrow));
    assert!(failed.error.is_some_and(|error| error.contains("try again")));
    for id in [made[2].id, made[3].id] {
        let dead = view(admin, id).await;
        assert_eq!((dead.state, dead.attempts, dead.next_attempt), (State::Dead, 1, None));
        assert!(dead.error.is_some_and(|error| error.contains("never")));
    }
    assert_eq!(view(admin, taken.id).await.state, State::Publishing);
    Ok(())
}

/// What was put aside is counted once, before and after its relay is gone, although nothing was settled
/// since.
pub async fn what_was_put_aside_is_counted_once<P: AdminProbe>(probe: &Arc<P>) -> Ran {
    probe.schedules()?;
    let (mut drive, admin) = parking(probe).await?;
    settle_one(&mut drive, &event("dead", 0), dead(true)).await;
    let later = event("later", 0).available_at(time_in(&**probe, DAY));
    probe.commit_all(&[event("dead", 1), later]).await;
    drive.expect_nothing().await;
    let stats = async || admin.stats().await.expect("stats");
    let expected = [2, 0, 0, 0, 1, 0];
    assert_eq!(stats().await.counts, expected, "in the order of {:?}", State::ALL);
    let _successor = drive.reopen().await;
    assert_eq!(stats().await.counts, expected, "after a crash");
    assert_eq!(stats().await.oldest_pending, None, "all wait for something else");
    Ok(())
}

/// Age of the oldest event that waits to be published; none when none waits.
pub async fn the_oldest_waiting_event_has_its_age<P: AdminProbe>(probe: &Arc<P>) -> Ran {
    let mut old = event("a", 0);
    old.created_at = time_in(&**probe, Duration::ZERO);
    probe.commit_all(&[old]).await;
    probe.pass(P::TICK).await;
    let mut young = event("b", 1);
    young.created_at = time_in(&**probe, Duration::ZERO);
    probe.commit_all(&[young]).await;
    let age = probe.admin().stats().await.expect("stats").oldest_pending.expect("one waits");
    assert!(age >= P::TICK && age < P::TICK * 100, "{age:?} old");
    Drive::open(&**probe).await.drain(2).await;
    assert_eq!(probe.admin().stats().await.expect("stats").oldest_pending, None);
    Ok(())
}

/// No relay is to blame for what waits behind a failed or dead event, or for a time that has not
/// come: only what could be published now has an age.
pub async fn what_waits_for_something_else_is_not_the_oldest<P: AdminProbe>(probe: &Arc<P>) -> Ran {
    let (mut drive, admin) = parking(probe).await?;
    let tomorrow = time_in(&**probe, DAY);
    settle_one(&mut drive, &event("failed", 0), retry(tomorrow, 1)).await;
    settle_one(&mut drive, &event("dead", 0), dead(true)).await;
    probe.commit_all(&["failed", "dead"].map(|lane| event(lane, 1))).await;
    if probe.schedules().is_ok() {
        probe.commit_all(&[event("later", 0).available_at(tomorrow)]).await;
    }
    probe.commit_all(&[event("free", 0)]).await;
    let oldest = async || admin.stats().await.expect("stats").oldest_pending;
    assert!(oldest().await.is_some(), "a free one waits");
    drive.drain(1).await;
    assert_eq!(oldest().await, None, "the others wait for something else");
    let retried = admin.retry(&super::of_lane("dead")).await.expect("retry");
    assert_eq!((retried, oldest().await.is_some()), (1, true), "it waits for a relay now");
    Ok(())
}

/// Lanes that wait behind a failed or dead event, each once; not those that merely have events.
pub async fn lanes_that_wait_are_counted<P: AdminProbe>(probe: &Arc<P>) -> Ran {
    let (mut drive, admin) = parking(probe).await?;
    let tomorrow = time_in(&**probe, DAY);
    settle_one(&mut drive, &event("failed", 0), retry(tomorrow, 1)).await;
    settle_one(&mut drive, &event("dead", 0), dead(true)).await;
    settle_one(&mut drive, &event("skipped", 0), dead(false)).await;
    settle_one(&mut drive, &event("released", 0), Outcome::Released).await;
    let behind = ["failed", "dead", "skipped"].map(|lane| events(lane, [1, 2])).concat();
    probe.commit_all(&behind).await;
    assert_eq!(admin.stats().await.expect("stats").parked_lanes, 2);
    drive.deliver_next(3).await;
    assert_eq!(admin.stats().await.expect("stats").parked_lanes, 2);
    Ok(())
}

/// Oldest first; empty fields of the filter match everything.
pub async fn a_listing_is_oldest_first_and_filtered<P: AdminProbe>(probe: &Arc<P>) -> Ran {
    let admin = probe.admin();
    let second = |number: u64| {
        semel_core::Timestamp::constant(1_767_225_600, 0)
            .checked_add(Duration::from_secs(number))
            .expect("a time")
    };
    let made = |number: u64, kind: &str, id: &str, what: &str| {
        let mut made = Event::new(kind, id, what).with_bytes("text/plain", number.to_string());
        made.created_at = second(number);
        made
    };
    let written = [
        made(0, "order", "1", "Placed"),
        made(1, "order", "2", "Placed"),
        made(2, "customer", "1", "Moved"),
        made(3, "order", "1", "Paid"),
        made(4, "order_", "1", "Paid"),
    ];
    probe.commit_all(&written).await;
    let text = |text: &str| Some(text.to_owned());
    let all = Filter::default();
    let cases = [
        (all.clone(), vec![0, 1, 2, 3, 4]),
        (Filter { aggregate_type: text("order"), ..all.clone() }, vec![0, 1, 3]),
        (Filter { aggregate_id: text("1"), ..all.clone() }, vec![0, 2, 3, 4]),
        (Filter { event_type: text("Paid"), ..all.clone() }, vec![3, 4]),
        (Filter { event_type: text("paid%"), ..all.clone() }, vec![]),
        (Filter { since: Some(second(3)), ..all.clone() }, vec![3, 4]),
        (Filter { until: Some(second(3)), ..all.clone() }, vec![0, 1, 2]),
        (Filter { since: Some(second(1)), until: Some(second(4)), ..all.clone() }, vec![1, 2, 3]),
        (
            Filter { aggregate_type: text("order"), aggregate_id: text("1"), ..all.clone() },
            vec![0, 3],
        ),
        (in_state(State::Pending), vec![0, 1, 2, 3, 4]),
        (in_state(State::Dead), vec![]),
    ];
    for (filter, expected) in cases {
        assert_eq!(listed(admin, &filter).await, expected, "{filter:?}");
    }
    Ok(())
}

/// Page after page, every event comes exactly once, whatever is committed and settled meanwhile.
pub async fn pages_are_complete_and_stable<P: AdminProbe>(probe: &Arc<P>) -> Ran {
    probe.retains()?;
    let admin = probe.admin();
    let mut drive = Drive::open(&**probe).await;
    probe.commit_all(&events("a", 0..12)).await;
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = list(admin, &Filter::default(), after, 4).await;
        assert!(!page.events.is_empty(), "a page that was promised is empty");
        seen.extend(numbers(admin, &page).await);
        if seen.len() <= 8 {
            drive.deliver_next(2).await;
        }
        if seen.len() == 4 {
            probe.commit_all(&events("a", 12..14)).await;
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen, (0..14).collect::<Vec<_>>());
    let last = list(admin, &Filter::default(), None, 14).await;
    assert_eq!(last.next, None, "nothing follows the last page");
    Ok(())
}

/// Page after page, every event comes exactly once, newest first or, where a store cannot, oldest
/// first; by state as well.
pub async fn the_latest_pages_are_complete<P: AdminProbe>(probe: &Arc<P>) -> Ran {
    probe.retains()?;
    let admin = probe.admin();
    let mut drive = Drive::open(&**probe).await;
    probe.commit_all(&events("a", 0..5)).await;
    drive.deliver_next(2).await;
    let cases = [
        (Filter::default(), vec![4, 3, 2, 1, 0]),
        (in_state(State::Published), vec![1, 0]),
        (in_state(State::Dead), vec![]),
        (Filter { aggregate_id: Some("b".into()), ..Filter::default() }, vec![]),
    ];
    for (filter, newest_first) in cases {
        let (mut seen, mut before) = (Vec::new(), None);
        loop {
            let page = admin.latest(&filter, before, 2).await.expect("a page");
            assert!(page.events.len() <= 2, "{} events on a page of 2", page.events.len());
            seen.extend(numbers(admin, &page).await);
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        let oldest_first: Vec<_> = newest_first.iter().rev().copied().collect();
        assert!(seen == newest_first || seen == oldest_first, "{filter:?}: {seen:?}");
    }
    Ok(())
}

/// The payloads of a page may be more than there is memory: what is listed says how long they are.
pub async fn a_listing_has_the_sizes_of_payloads_alone<P: AdminProbe>(probe: &Arc<P>) -> Ran {
    let (admin, all, written) = (probe.admin(), Filter::default(), awkward_events());
    probe.commit_all(&written).await;
    let oldest_first = list(admin, &all, None, 100).await;
    let newest_first = admin.latest(&all, None, 100).await.expect("a page");
    for page in [oldest_first, newest_first] {
        assert_eq!(page.events.len(), written.len());
        for listed in page.events {
            let whole = view(admin, listed.event.id).await;
            let bytes = whole.event.payload.bytes().len() as u64;
            assert_eq!((listed.payload_bytes, whole.payload_bytes), (bytes, bytes));
            let (payload, stored) = (&listed.event.payload, &whole.event.payload);
            assert!(payload.bytes().is_empty(), "{} bytes are listed", payload.bytes().len());
            assert_eq!(payload.content_type(), stored.content_type());
            assert_eq!(listed.event.headers, whole.event.headers);
        }
    }
    Ok(())
}

/// Failed and dead events by their reason, and the lanes that wait for them.
pub async fn what_failed_is_summed_up<P: AdminProbe>(probe: &Arc<P>) -> Ran {
    let (mut drive, admin) = parking(probe).await?;
    assert_eq!(admin.troubles(10).await.expect("troubles"), Troubles::default());
    settle_one(&mut drive, &event("a", 0), dead(true)).await;
    settle_one(&mut drive, &event("b", 0), dead(true)).await;
    settle_one(&mut drive, &event("c", 0), retry(time_in(&**probe, DAY), 1)).await;
    settle_one(&mut drive, &event("d", 0), Outcome::Delivered).await;
    let Troubles { groups, lanes } = admin.troubles(10).await.expect("troubles");
    let counts: Vec<_> = groups.iter().map(|group| (group.state, group.events)).collect();
    assert_eq!(counts, [(State::Dead, 2), (State::Failed, 1)]);
    assert!(groups[0].error.contains("never"), "{groups:?}");
    assert!(groups[0].oldest <= groups[0].newest);
    assert_eq!(view(admin, groups[0].sample).await.state, State::Dead);
    let mut waiting: Vec<_> = lanes.iter().map(|lane| (&*lane.aggregate_id, lane.state)).collect();
    waiting.sort_unstable();
    assert_eq!(waiting, [("a", State::Dead), ("b", State::Dead), ("c", State::Failed)]);
    assert_eq!(admin.troubles(1).await.expect("troubles").groups.len(), 1);
    Ok(())
}

/// One event, as it was written; nothing for an id that nobody knows.
pub async fn one_event_is_found_by_its_id<P: AdminProbe>(probe: &Arc<P>) -> Ran {
    let written = awkward_events();
    probe.commit_all(&written).await;
    for event in &written {
        assert_intact(event, &view(probe.admin(), event.id).await.event);
    }
    assert!(probe.admin().get(EventId::now()).await.expect("get").is_none());
    Ok(())
}
