//! A pipeline in several shares: each event belongs to one of them, whatever happens to the others.

use std::collections::BTreeMap;
use std::time::Duration;

use semel_core::admin::{Filter, Selection, State, Stats};
use semel_core::{AdminStore, Delivery, Event, Outcome, Source, Timestamp};
use semel_testkit::workload::{by_lane, dead, delivered_numbers, event, events, lanes, retry};

use super::{Outbox, deliver_all, settlement};

/// A lane of each share.
pub(crate) async fn lane_of_each<const OF: usize>(database: &impl Outbox) -> [String; OF] {
    let of = u32::try_from(OF).unwrap();
    let mut found = BTreeMap::new();
    for number in 0.. {
        let lane = format!("lane-{number}");
        found.entry(database.share_of(&lane, of).await).or_insert(lane);
        if found.len() == OF {
            break;
        }
    }
    found.into_values().collect::<Vec<_>>().try_into().unwrap()
}

pub(crate) async fn every_event_goes_to_one_share_in_the_order_of_its_lane(database: &impl Outbox) {
    let mut relays = database.all_shares(3).await;
    let mut seen: Vec<Vec<Delivery>> = vec![Vec::new(); 3];
    for round in 0..6 {
        let written: Vec<_> = (0..200).map(|lane| event(&format!("lane-{lane}"), round)).collect();
        for some in written.chunks(60) {
            database.commit(some).await;
        }
        for (relay, seen) in relays.iter_mut().zip(&mut seen) {
            if round % 2 == 1 {
                seen.extend(relay.deliver_all(7).await);
            }
        }
    }
    let mut all = BTreeMap::new();
    for (number, seen) in seen.iter().enumerate() {
        assert!(seen.len() > 200, "share {number} has {} of 1200 events", seen.len());
        for (lane, numbers) in by_lane(seen) {
            assert_eq!(numbers, [0, 1, 2, 3, 4, 5], "{lane} in share {number}");
            assert!(all.insert(lane.clone(), number).is_none(), "{lane} is in two shares");
        }
    }
    assert_eq!(all.len(), 200);
    assert!(deliver_all(&mut relays).await.is_empty());
}

/// Whether hashes are cheap or not, they must not change: a pipeline is divided by them for good.
pub(crate) async fn a_lane_has_its_share_for_good(database: &impl Outbox, expected: [u32; 4]) {
    let mut shares = Vec::new();
    for lane in ["1", "42", "lane", "ü 🚀"] {
        shares.push(database.share_of(lane, 64).await);
        assert_eq!(database.share_of(lane, 1).await, 0);
    }
    assert_eq!(shares, expected);
}

pub(crate) async fn a_share_alone_gets_its_own_lanes_and_leaves_the_others(database: &impl Outbox) {
    database.commit(&lanes(60)).await;
    let mut second = database.share(1, 3).await;
    let delivered = second.deliver_all(4).await;
    let mut expected = Vec::new();
    for number in 0..60 {
        if database.share_of(&format!("lane-{number}"), 3).await == 1 {
            expected.push(number);
        }
    }
    assert!(!expected.is_empty());
    assert_eq!(delivered_numbers(&delivered), expected);
    let stats = database.admin().stats().await.unwrap();
    assert_eq!(stats.count(State::Published), expected.len() as u64);
    assert_eq!(stats.count(State::Pending), 60 - expected.len() as u64);
    let mut rest = vec![database.share(0, 3).await, database.share(2, 3).await];
    assert_eq!(deliver_all(&mut rest).await.len(), 60 - expected.len());
}

pub(crate) async fn a_late_commit_is_passed_by_no_share(database: &impl Outbox) {
    let mut relays = database.all_shares(4).await;
    let mut late = database.begin().await;
    database.append(&mut late, &lanes(40)).await;
    for round in 0..3 {
        let early: Vec<_> = (0..40).map(|lane| event(&format!("early-{lane}"), round)).collect();
        database.commit(&early).await;
        assert_eq!(deliver_all(&mut relays).await.len(), 40);
        if round == 1 {
            relays = database.all_shares(4).await;
        }
    }
    late.commit().await.unwrap();
    let mut numbers = delivered_numbers(&deliver_all(&mut relays).await);
    numbers.sort_unstable();
    assert_eq!(numbers, (0..40).collect::<Vec<_>>());
}

/// A backlog of which a share has only the last row, many pages behind the first.
pub(crate) async fn a_share_finds_its_rows_behind_many_of_others(database: &impl Outbox) {
    let [first, second] = lane_of_each::<2>(database).await;
    database.commit(&events(&first, 1..=3_000)).await;
    database.commit(&[event(&second, 7)]).await;
    database.commit(&events(&first, 3_001..=5_000)).await;
    let mut relays = database.all_shares(2).await;
    assert_eq!(delivered_numbers(&relays[1].deliver_all(10).await), [7]);
    let numbers = delivered_numbers(&relays[0].deliver_all(300).await);
    assert_eq!(numbers, (1..=5_000).collect::<Vec<_>>());
}

/// A share without events goes along, so that its next owner does not read what others had, and
/// stays where it is when nobody has anything. The queries: how many events the second of two shares has
/// not passed, and when it moved, in seconds.
pub(crate) async fn an_idle_share_moves_along_with_the_busy_ones(
    database: &impl Outbox,
    behind: &str,
    moves: &str,
) {
    let mut relays = database.all_shares(2).await;
    let [busy, _] = lane_of_each::<2>(database).await;
    database.commit(&events(&busy, 0..100)).await;
    assert_eq!(relays[0].deliver_all(50).await.len(), 100);
    assert!(relays[1].take(10).await.is_empty());
    assert_eq!(database.number(behind).await, 100, "it does not write at every poll");
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    assert!(relays[1].take(10).await.is_empty());
    assert_eq!(database.number(behind).await, 0);

    let moved = database.number(moves).await;
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(800)).await;
        assert!(relays[1].take(10).await.is_empty());
    }
    assert_eq!(database.number(moves).await, moved, "nothing was written, nothing is to be stored");
    let deleted = database.admin().clean(Duration::ZERO, 1_000).await.unwrap();
    assert_eq!(deleted, 100);
}

pub(crate) async fn a_share_is_taken_over_and_the_others_do_not_notice(database: &impl Outbox) {
    let [first, second] = lane_of_each::<2>(database).await;
    let mut old = database.all_shares(2).await;
    database.commit(&[events(&first, 0..4), events(&second, 0..4)].concat()).await;
    let (of_first, of_second) = (old[0].take(10).await, old[1].take(10).await);
    old[1].settle(&of_second[..1], |_| retry(Timestamp::now(), 1)).await;
    let parked = old[1].take(10).await;
    old[0].settle(&of_first[..1], |_| Outcome::Delivered).await;
    old[0].settle(&of_first[1..2], |_| retry(Timestamp::now(), 1)).await;
    let mut new = database.share(0, 2).await;
    let stale = settlement(&of_first[2], Outcome::Delivered);
    assert!(!old[0].source.settle(&stale).await.unwrap().is_held(), "somebody else has it");
    assert!(old[0].take(10).await.is_empty());
    assert_eq!(delivered_numbers(&new.deliver_all(1).await), [1, 2, 3]);
    assert!(old[1].take(10).await.is_empty(), "what it has in flight is left alone");
    old[1].settle(&[&parked, &of_second[1..]].concat(), |_| Outcome::Delivered).await;
    database.commit(&[event(&second, 4)]).await;
    assert_eq!(delivered_numbers(&old[1].deliver_all(10).await), [4]);
}

/// Failed, scheduled and dead events are those of their share.
pub(crate) async fn what_is_parked_is_offered_by_its_own_share(database: &impl Outbox) {
    let [first, second] = lane_of_each::<2>(database).await;
    let mut relays = database.all_shares(2).await;
    database.commit(&[event(&first, 1), event(&second, 2)]).await;
    for relay in &mut relays {
        let taken = relay.take(10).await;
        relay.settle(&taken, |_| retry(Timestamp::now(), 1)).await;
    }
    let soon = Timestamp::now() + Duration::from_secs(5);
    let later = [event(&first, 3).available_at(soon), event(&second, 4).available_at(soon)];
    database.commit(&later).await;
    assert_eq!(delivered_numbers(&relays[1].take(10).await), [2]);
    assert_eq!(delivered_numbers(&relays[0].take(10).await), [1]);
    while Timestamp::now() <= soon {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let publishing = database.admin().stats().await.unwrap();
    assert_eq!(publishing.count(State::Publishing), 2);
    assert_eq!(delivered_numbers(&database.share(1, 2).await.deliver_all(10).await), [2, 4]);
    assert_eq!(delivered_numbers(&database.share(0, 2).await.deliver_all(10).await), [1, 3]);
}

/// The operator sees the same, however the pipeline is divided.
pub(crate) async fn the_operator_is_not_told_the_number_of_shares<O: Outbox>(
    database: &O,
    expected: [[u64; 6]; 7],
) {
    let Some(other) = O::fresh().await else { return };
    let one = operated(database, 1).await;
    let four = operated(&other, 4).await;
    assert_eq!(one, four);
    let counts: Vec<_> = one.iter().map(|look| look.counts).collect();
    assert_eq!(counts, expected);
}

/// Failures, what an operator does about them, and what he sees after each of it.
async fn operated(database: &impl Outbox, of: u32) -> Vec<Stats> {
    let admin = database.admin();
    let mut relays = database.all_shares(of).await;
    database.commit(&lanes(30)).await;
    let later = Timestamp::now() + Duration::from_secs(86_400);
    for relay in &mut relays {
        for got in relay.take(100).await {
            let outcome = |event: &Event| match semel_testkit::workload::number(event) {
                number if number < 3 => retry(later, 1),
                number if number < 6 => dead(number == 3),
                _ => Outcome::Delivered,
            };
            relay.settle(std::slice::from_ref(&got), outcome).await;
        }
    }
    database.commit(&lanes(20)).await;
    let mut looks = vec![admin.stats().await.unwrap()];
    let mut flights = Vec::new();
    for relay in &mut relays {
        flights.push(relay.take(100).await);
    }
    looks.push(admin.stats().await.unwrap());
    for (relay, flight) in relays.iter_mut().zip(&flights) {
        relay.settle(flight, |_| Outcome::Released).await;
    }
    looks.push(admin.stats().await.unwrap());
    let lane = |lane: &str| {
        let aggregate_id = Some(lane.to_owned());
        Selection::Matching(Filter { aggregate_id, ..Filter::default() })
    };
    for number in 1..5 {
        assert_eq!(admin.retry(&lane(&format!("lane-{number}"))).await.unwrap(), 1);
    }
    looks.push(admin.stats().await.unwrap());
    assert_eq!(admin.discard(&lane("lane-0")).await.unwrap(), 1);
    assert_eq!(admin.discard(&lane("lane-5")).await.unwrap(), 1);
    looks.push(admin.stats().await.unwrap());
    assert_eq!(admin.replay(&lane("lane-25")).await.unwrap(), 1);
    looks.push(admin.stats().await.unwrap());
    deliver_all(&mut relays).await;
    looks.push(admin.stats().await.unwrap());
    assert!(looks[0].oldest_pending.is_some(), "some wait for nothing but a relay");
    for look in &mut looks {
        assert!(look.oldest_pending.take().is_none() || look.count(State::Pending) > 0);
    }
    looks
}
