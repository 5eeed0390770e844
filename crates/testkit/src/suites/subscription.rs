//! What every [`Source`] must do that is a subscription to a broker, beside what every source must.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use semel_core::wire::Epitaph;
use semel_core::{Delivery, Event, EventId, Failure, Fault, Limit, Outcome, Source};
use tokio::time::timeout;

use super::source::SourceProbe;
use crate::probe::{Ran, Skip};
use crate::workload::{
    Drive, assert_intact, by_lane, delivered_numbers, event, events, eventually, ids, lanes,
    number, settlements,
};

/// How the suite gets at a broker. The source is a member of one group; to commit is to publish
/// through the sink of the same broker.
pub trait SubscriptionProbe: SourceProbe {
    /// How long it may take until another member gets what a member gave back by `close`.
    const HANDOVER: Duration = Duration::from_secs(10);

    /// Everything in the place of dead letters.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn dead_letters(&self) -> impl Future<Output = Result<Vec<DeadLetter>, Skip>> + Send;

    /// Publishes a message as somebody would who does not know semel.
    ///
    /// # Errors
    /// Why only events can be published.
    fn publish_foreign(
        &self,
        headers: &[(&str, &str)],
        body: &'static [u8],
    ) -> impl Future<Output = Ran> + Send;

    /// Opens the subscription of another group.
    ///
    /// # Errors
    /// Why there is none.
    fn open_other_group(&self) -> impl Future<Output = Result<Self::Source, Skip>> + Send {
        std::future::ready(Err(Skip::because("the probe knows one group")))
    }

    /// Whether several members of a group share its messages.
    ///
    /// # Errors
    /// Why not.
    fn shares(&self) -> Ran {
        Ok(())
    }

    /// The most deliveries that are handed out before one is settled: less than 500.
    ///
    /// # Errors
    /// Why there is no bound.
    fn most_unsettled(&self) -> Result<usize, Skip>;

    /// Makes the broker unreachable.
    ///
    /// # Errors
    /// Why that cannot be done.
    fn interrupt(&self) -> impl Future<Output = Ran> + Send {
        std::future::ready(Err(Skip::because("the probe cannot make it unreachable")))
    }

    /// Makes the broker reachable again.
    fn restore(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// A message in the place of dead letters.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    /// The event, if it can be read as one.
    pub event: Option<Event>,
    /// The body.
    pub body: Bytes,
    /// The headers that say why it died, and others.
    pub headers: BTreeMap<String, String>,
}

type Headers<'a> = &'a [(&'a str, &'a str)];

/// One test per scenario for a subscription, for a
/// [`SubscriptionProbe`](crate::suites::subscription::SubscriptionProbe).
#[macro_export]
macro_rules! subscription_suite {
    ($probe:ty) => {
        $crate::stamp_suite! { subscription, $probe,
            a_message_says_where_it_came_from
            a_dead_letter_keeps_the_event_and_says_why
            a_dead_letter_holds_nothing_back
            what_is_no_event_becomes_a_dead_letter_and_blocks_nothing
            a_cloud_event_of_somebody_else_is_an_event
            what_is_settled_out_of_order_loses_nothing
            every_group_gets_every_message
            members_share_the_work_and_nothing_comes_twice
            what_a_member_gives_back_comes_to_another_soon
            closing_with_nothing_handed_out_is_quick
            what_is_unsettled_is_bounded
            what_is_larger_than_may_wait_comes_in_the_end
            an_outage_is_unavailable_and_passes
        }
    };
}

/// The topic of a message is where it came from, and the same for all of them.
pub async fn a_message_says_where_it_came_from<P: SubscriptionProbe>(probe: &Arc<P>) -> Ran {
    probe.commit_all(&lanes(3)).await;
    let got = Drive::open(&**probe).await.drain(3).await;
    let topics: BTreeSet<_> = got.iter().map(|got| got.message.topic.as_str()).collect();
    assert!(topics.len() == 1 && !topics.contains(""), "{topics:?}");
    Ok(())
}

/// What died is kept as it was, with the reason, and is not handed out again.
pub async fn a_dead_letter_keeps_the_event_and_says_why<P: SubscriptionProbe>(
    probe: &Arc<P>,
) -> Ran {
    let written = event("a", 7).with_header("tenant", "ACME & Söhne");
    probe.commit_all(std::slice::from_ref(&written)).await;
    let mut drive = Drive::open(&**probe).await;
    let taken = drive.take(1).await;
    let failure = Failure::refused("E-TEST", "no order 42: \"ü\"\r\nnever");
    let dead = Outcome::Dead { attempts: 3, failure, parks_lane: false };
    drive.settle([(taken[0].receipt, dead.clone())]).await;
    drive.settle([(taken[0].receipt, dead)]).await;
    drive.expect_nothing().await;
    drive.reopen().await.expect_nothing().await;

    let letters = letters(&**probe, 1).await?;
    assert_eq!(letters.len(), 1, "settled twice, dead once: {letters:?}");
    assert_intact(&written, letters[0].event.as_ref().expect("it is still an event"));
    let said = |name: &str| letters[0].headers.get(name).map(String::as_str);
    assert_eq!(said(Epitaph::CODE), Some("E-TEST"));
    assert_eq!(said(Epitaph::ATTEMPTS), Some("3"));
    assert!(said(Epitaph::ERROR).is_some_and(|why| why.contains("no order 42")), "{letters:?}");
    assert!(said(Epitaph::CONSUMER).is_some_and(|who| !who.is_empty()), "{letters:?}");
    assert!(said(Epitaph::ORIGIN).is_some_and(|place| !place.is_empty()), "{letters:?}");
    Ok(())
}

/// Those behind a dead letter go on, in their order.
pub async fn a_dead_letter_holds_nothing_back<P: SubscriptionProbe>(probe: &Arc<P>) -> Ran {
    probe.commit_all(&events("a", 0..5)).await;
    let mut drive = Drive::open(&**probe).await;
    let mut alive = Vec::new();
    for _ in 0..5 {
        let taken = drive.take(1).await;
        let dies = number(&taken[0].message.event).is_multiple_of(2);
        let failure = Failure::refused("E-TEST", "even");
        let dead = Outcome::Dead { attempts: 1, failure, parks_lane: false };
        let outcome = if dies { dead } else { Outcome::Delivered };
        drive.settle([(taken[0].receipt, outcome)]).await;
        if !dies {
            alive.extend(delivered_numbers(&taken));
        }
    }
    drive.expect_nothing().await;
    alive.sort_unstable();
    assert_eq!(alive, [1, 3]);
    let letters = letters(&**probe, 3).await?;
    let mut dead: Vec<_> = letters.iter().filter_map(|letter| letter.event.as_ref()).collect();
    dead.sort_by_key(|event| number(event));
    assert_eq!(dead.into_iter().map(number).collect::<Vec<_>>(), [0, 2, 4]);
    Ok(())
}

/// A message of somebody else, or a broken one, is put aside as it is; events around it come.
pub async fn what_is_no_event_becomes_a_dead_letter_and_blocks_nothing<P: SubscriptionProbe>(
    probe: &Arc<P>,
) -> Ran {
    let broken = ("semel-event-id", "seven");
    let foreign: [(Headers<'_>, &'static [u8]); 3] =
        [(&[], b"hello"), (&[broken], b"{}"), (&[("x", "y")], &[0xff, 0, 0xfe])];
    for (number, (headers, body)) in (0..).zip(foreign) {
        probe.commit_all(&[event("a", number)]).await;
        probe.publish_foreign(headers, body).await?;
    }
    probe.commit_all(&[event("a", 3)]).await;
    let mut drive = Drive::open(&**probe).await;
    let mut seen = delivered_numbers(&drive.drain(4).await);
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2, 3]);
    let letters = letters(&**probe, 3).await?;
    assert_eq!(letters.len(), 3, "{letters:?}");
    for (_, body) in foreign {
        let letter = letters.iter().find(|letter| letter.body == body);
        let letter = letter.unwrap_or_else(|| panic!("{body:?} is not in {letters:?}"));
        assert_eq!(letter.headers.get(Epitaph::CODE).map(String::as_str), Some("E-WIRE"));
    }
    drive.reopen().await.expect_nothing().await;
    Ok(())
}

/// It has what the specification wants, and no more: its id is no UUID, and it has no subject.
pub async fn a_cloud_event_of_somebody_else_is_an_event<P: SubscriptionProbe>(
    probe: &Arc<P>,
) -> Ran {
    let values = ["1.0", "A234-1234", "/till", "Sold"];
    // Each broker has one of these spellings. The others mean nothing there.
    for prefix in ["ce_", "ce-", "cloudEvents_"] {
        let names = ["specversion", "id", "source", "type"].map(|name| format!("{prefix}{name}"));
        let headers: Vec<_> = names.iter().map(String::as_str).zip(values).collect();
        probe.publish_foreign(&headers, b"{}").await?;
    }
    let got = Drive::open(&**probe).await.drain(1).await;
    let event = &got[0].message.event;
    assert_eq!(event.id.to_string(), "2f987818-6c39-52af-b617-3b322006e955", "from source and id");
    assert_eq!(event.idempotency_key(), "A234-1234");
    assert_eq!((&*event.aggregate_type, &*event.event_type), ("/till", "Sold"));
    assert!(!event.aggregate_id.is_empty(), "its key, or itself");
    assert_eq!(letters(&**probe, 2).await?.len(), 2);
    Ok(())
}

/// What was settled behind something unsettled does not take it along.
pub async fn what_is_settled_out_of_order_loses_nothing<P: SubscriptionProbe>(
    probe: &Arc<P>,
) -> Ran {
    probe.commit_all(&lanes(12)).await;
    let mut drive = Drive::open(&**probe).await;
    let taken = drive.take(12).await;
    let (open, settled) = taken.split_at(1);
    for chunk in settled.rchunks(4) {
        drive.deliver(chunk).await;
    }
    let mut drive = drive.reopen().await;
    let mut again: Vec<Delivery> = drive.batch().await;
    while !ids(&again).contains(&open[0].message.event.id) {
        again.extend(drive.batch().await);
    }
    drive.deliver(&again).await;
    // The rest of what a cumulative source forgot comes as well.
    loop {
        let batch = drive.next_unless_quiet(Limit::default()).await;
        if batch.is_empty() {
            break;
        }
        drive.deliver(&batch).await;
        again.extend(batch);
    }
    let all = ids(&taken);
    assert!(ids(&again).iter().all(|id| all.contains(id)), "{again:?}");
    assert!(P::CUMULATIVE || ids(&again) == ids(open), "{again:?}");
    drive.reopen().await.expect_nothing().await;
    Ok(())
}

/// Groups do not take messages from each other.
pub async fn every_group_gets_every_message<P: SubscriptionProbe>(probe: &Arc<P>) -> Ran {
    let mut one = Drive::open(&**probe).await;
    let mut other = Drive { probe: &**probe, source: probe.open_other_group().await? };
    one.expect_nothing().await;
    other.expect_nothing().await;
    probe.commit_all(&lanes(5)).await;
    assert_eq!(ids(&one.drain(5).await), ids(&other.drain(5).await));
    Ok(())
}

/// While both are there, a message comes to one of two members, and its lane keeps its order,
/// whichever of them its events come to.
pub async fn members_share_the_work_and_nothing_comes_twice<P: SubscriptionProbe>(
    probe: &Arc<P>,
) -> Ran {
    probe.shares()?;
    let mut members = [Drive::open(&**probe).await, Drive::open(&**probe).await];
    // Until both take part; meanwhile a message may come twice.
    let both = eventually::<P, _>(async || {
        let done = work_through(&**probe, &mut members, 30).await;
        (0..2).all(|member| done.iter().any(|(who, _)| *who == member)).then_some(())
    });
    both.await.expect("both take part");
    let ordered = members[0].guarantees().lane_order;
    for _ in 0..3 {
        let done = work_through(&**probe, &mut members, 20).await;
        let done: Vec<_> = done.into_iter().map(|(_, got)| got).collect();
        let unique: BTreeSet<_> = ids(&done).into_iter().collect();
        assert_eq!(unique.len(), done.len(), "something came twice");
        for (lane, numbers) in by_lane(&done) {
            assert_eq!(numbers.len(), IN_A_LANE, "{lane}: {numbers:?}");
            assert!(!ordered || numbers.is_sorted(), "out of order, {lane}: {numbers:?}");
        }
    }
    Ok(())
}

/// What was handed out to a member that closes comes to another, long before a lease would end.
pub async fn what_a_member_gives_back_comes_to_another_soon<P: SubscriptionProbe>(
    probe: &Arc<P>,
) -> Ran {
    probe.shares()?;
    probe.commit_all(&lanes(20)).await;
    let mut leaving = Drive::open(&**probe).await;
    let taken = leaving.take(20).await;
    leaving.deliver(&taken[..5]).await;
    let mut staying = Drive::open(&**probe).await;
    let began = Instant::now();
    timeout(P::HANDOVER, leaving.source.close()).await.expect("close is quick");
    drop(leaving);
    let again = staying.deliver_next(15).await;
    assert!(began.elapsed() <= P::HANDOVER, "it took {:?}", began.elapsed());
    assert_eq!(ids(&again), ids(&taken[5..]));
    staying.expect_nothing().await;
    Ok(())
}

/// Nothing waits for a lease or a poll when there is nothing to give back.
pub async fn closing_with_nothing_handed_out_is_quick<P: SubscriptionProbe>(probe: &Arc<P>) -> Ran {
    let mut drive = Drive::open(&**probe).await;
    probe.commit_all(&lanes(3)).await;
    drive.drain(3).await;
    timeout(P::HANDOVER, drive.source.close()).await.expect("close is quick");
    drop(drive);
    let mut next = Drive::open(&**probe).await;
    next.expect_nothing().await;
    Ok(())
}

/// However much waits in the broker, a subscription hands out only so much before it is settled.
pub async fn what_is_unsettled_is_bounded<P: SubscriptionProbe>(probe: &Arc<P>) -> Ran {
    let bound = probe.most_unsettled()?;
    let count = bound * 2 + 10;
    probe.commit_all(&lanes(count as u64)).await;
    let mut drive = Drive::open(&**probe).await;
    let mut taken = Vec::new();
    loop {
        let batch = drive.next_unless_quiet(Limit::default()).await;
        if batch.is_empty() {
            break;
        }
        taken.extend(batch);
    }
    assert!(!taken.is_empty() && taken.len() <= bound, "{} of {bound}", taken.len());
    drive.deliver(&taken).await;
    taken.extend(drive.drain(count - taken.len()).await);
    let unique: BTreeSet<_> = ids(&taken).into_iter().collect();
    assert_eq!(unique.len(), count);
    Ok(())
}

/// What waits is bounded in bytes as well: whoever stopped to read for that goes on.
pub async fn what_is_larger_than_may_wait_comes_in_the_end<P: SubscriptionProbe>(
    probe: &Arc<P>,
) -> Ran {
    const COUNT: u64 = 95;
    const SIZE: usize = 190_000;
    let large = |event: Event| event.with_bytes("text/plain", vec![b'x'; SIZE]);
    let written: Vec<_> = lanes(COUNT).into_iter().map(large).collect();
    for some in written.chunks(10) {
        probe.commit_all(some).await;
    }
    let mut drive = Drive::open(&**probe).await;
    let first = drive.take(1).await;
    // Meanwhile as much comes as may wait.
    tokio::time::sleep(P::QUIET * 2).await;
    drive.deliver(&first).await;
    let mut missing: BTreeSet<EventId> = written.iter().map(|event| event.id).collect();
    for got in first.iter().chain(&drive.drain(written.len() - 1).await) {
        assert!(missing.remove(&got.message.event.id), "something came twice");
        assert_eq!(got.message.event.payload.bytes().len(), SIZE);
    }
    Ok(())
}

/// While the broker cannot be reached that is said; afterwards nothing is missing.
pub async fn an_outage_is_unavailable_and_passes<P: SubscriptionProbe>(probe: &Arc<P>) -> Ran {
    probe.commit_all(&events("before", 0..5)).await;
    let mut drive = Drive::open(&**probe).await;
    let mut taken = drive.take(1).await;
    probe.interrupt().await?;
    let failure = eventually::<P, _>(async || {
        let batch = drive.source.next_batch(Limit::default()).await;
        batch.map(|batch| taken.extend(batch.deliveries)).err()
    });
    let failure = failure.await.expect("an outage is noticed");
    assert_eq!(failure.fault(), Fault::Unavailable, "{failure:?}");
    probe.restore().await;
    // Whether the receipts are still good or not: what is settled in vain comes again.
    let outcomes = taken.iter().map(|got| (got.receipt, Outcome::Delivered));
    let outcomes = settlements(outcomes);
    let recorded = eventually::<P, _>(async || drive.source.settle(&outcomes).await.ok());
    assert!(recorded.await.is_some(), "it can be settled again");
    let mut seen: BTreeSet<u64> = delivered_numbers(&taken).into_iter().collect();
    probe.commit_all(&events("after", 5..8)).await;
    let all = eventually::<P, _>(async || {
        if let Ok(batch) = drive.source.next_batch(Limit::default()).await {
            seen.extend(delivered_numbers(&batch.deliveries));
            drive.deliver(&batch.deliveries).await;
        }
        (seen.len() == 8).then_some(())
    });
    assert!(all.await.is_some(), "only {seen:?} came of 0..8");
    Ok(())
}

/// How many events of a lane are published at a time, so that they can come out of order.
const IN_A_LANE: usize = 5;

/// Publishes events in each of so many lanes, in turn, and lets both members work until each came to
/// somebody. Says what came to whom, in the order it came.
async fn work_through<P: SubscriptionProbe>(
    probe: &P,
    members: &mut [Drive<'_, P>; 2],
    count: u64,
) -> Vec<(usize, Delivery)> {
    let lane = |number: u64| event(&format!("lane-{}", number % count), number);
    let published: Vec<_> = (0..count * IN_A_LANE as u64).map(lane).collect();
    let all: BTreeSet<EventId> = published.iter().map(|event| event.id).collect();
    let mut missing = all.clone();
    probe.commit_all(&published).await;
    let mut done = Vec::new();
    // So few, and no divisor of the lanes, that lanes go from one to the other where they can.
    let limit = Limit { events: 7, ..Limit::default() };
    let each = eventually::<P, _>(async || {
        for (who, member) in members.iter_mut().enumerate() {
            let mut batch = member.ask(limit).await.deliveries;
            member.deliver(&batch).await;
            // What came twice, while not both took part, may come late.
            batch.retain(|got| all.contains(&got.message.event.id));
            for got in batch {
                missing.remove(&got.message.event.id);
                done.push((who, got));
            }
        }
        missing.is_empty().then_some(())
    });
    assert!(each.await.is_some(), "{} of {} came to nobody", missing.len(), all.len());
    done
}

async fn letters<P: SubscriptionProbe>(probe: &P, count: usize) -> Result<Vec<DeadLetter>, Skip> {
    probe.dead_letters().await?;
    let found = eventually::<P, _>(async || {
        let letters = probe.dead_letters().await.ok()?;
        (letters.len() >= count).then_some(letters)
    });
    Ok(found.await.unwrap_or_else(|| panic!("{count} dead letters")))
}
