//! Another number of shares, in the middle of the work.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use semel_core::admin::{Filter, Selection, State};
use semel_core::coordination::Share;
use semel_core::{AdminStore, Delivery, Outcome, Source, Timestamp};
use semel_testkit::workload::{by_lane, dead, event, events, ids, lanes, retry};

use super::{Outbox, Relay, deliver_all, settlement};

/// A pipeline in the middle of its work, in lanes named by what should come of them.
pub(crate) async fn in_the_middle_of_its_work(
    database: &impl Outbox,
    of: u32,
    round: u64,
) -> Vec<Delivery> {
    let mut relays = database.all_shares(of).await;
    let lane = |kind: &str, number: u64| format!("{kind}-{}", round * 100 + number);
    let of_kind = |kind: &'static str| (0..8).map(move |number| event(&lane(kind, number), 1));
    let mut delivered = Vec::new();
    database.commit(&of_kind("done").collect::<Vec<_>>()).await;
    delivered.extend(deliver_all(&mut relays).await);
    let failing: Vec<_> = of_kind("failed").chain(of_kind("dead")).collect();
    database.commit(&failing).await;
    for relay in &mut relays {
        let (failed, died): (Vec<_>, Vec<_>) = (relay.take(100).await.into_iter())
            .partition(|got| got.message.event.aggregate_id.starts_with("failed"));
        relay.settle(&failed, |_| retry(Timestamp::now(), 3)).await;
        relay.settle(&died, |_| dead(true)).await;
    }
    let later = Timestamp::now() + Duration::from_secs(86_400);
    let scheduled = of_kind("scheduled").map(|event| event.available_at(later));
    let followers =
        (0..8).flat_map(|number| ["failed", "dead"].map(|kind| event(&lane(kind, number), 2)));
    let open: Vec<_> = of_kind("open").chain(of_kind("ahead")).chain(scheduled).collect();
    database.commit(&[open, followers.collect()].concat()).await;
    for relay in &mut relays {
        let taken = relay.take(100).await.into_iter();
        let ahead = taken.filter(|got| got.message.event.aggregate_id.starts_with("ahead"));
        let ahead: Vec<_> = ahead.collect();
        relay.settle(&ahead, |_| Outcome::Delivered).await;
        delivered.extend(ahead);
    }
    let unread = (0..8).flat_map(|number| events(&lane("unread", number), 1..3));
    database.commit(&unread.collect::<Vec<_>>()).await;
    delivered
}

/// The numbers of each lane, by the kind of lane; all lanes of a kind must have the same.
fn by_kind(delivered: &[Delivery]) -> BTreeMap<String, Vec<u64>> {
    let mut kinds = BTreeMap::new();
    for (lane, numbers) in by_lane(delivered) {
        let kind = lane.split('-').next().unwrap().to_owned();
        assert_eq!(kinds.entry(kind).or_insert_with(|| numbers.clone()), &numbers, "{lane}");
    }
    kinds
}

pub(crate) async fn another_number_of_shares_loses_and_doubles_nothing(database: &impl Outbox) {
    let mut late = database.begin().await;
    let late_events: Vec<_> = (0..8).map(|number| event(&format!("late-{number}"), 1)).collect();
    database.append(&mut late, &late_events).await;
    let mut delivered = in_the_middle_of_its_work(database, 1, 0).await;
    delivered.extend(in_the_middle_of_its_work(database, 4, 1).await);
    delivered.extend(in_the_middle_of_its_work(database, 2, 2).await);
    late.commit().await.unwrap();
    let mut relays = database.all_shares(3).await;
    let dead_lanes = (0..3).flat_map(|round| (0..8).map(move |number| round * 100 + number));
    let last = dead_lanes.map(|number| event(&format!("dead-{number}"), 3));
    database.commit(&last.collect::<Vec<_>>()).await;
    delivered.extend(deliver_all(&mut relays).await);
    let all = Selection::Matching(Filter::default());
    let admin = database.admin();
    assert_eq!(admin.retry(&all).await.unwrap(), 24, "the dead of all rounds");
    delivered.extend(deliver_all(&mut relays).await);

    let expected = [
        ("order/ahead", vec![1]),
        ("order/dead", vec![1, 2, 3]),
        ("order/done", vec![1]),
        ("order/failed", vec![1, 2]),
        ("order/late", vec![1]),
        ("order/open", vec![1]),
        ("order/unread", vec![1, 2]),
    ];
    assert_eq!(by_kind(&delivered), expected.map(|(kind, numbers)| (kind.into(), numbers)).into());
    let distinct: HashSet<_> = ids(&delivered).into_iter().collect();
    assert_eq!((delivered.len(), distinct.len()), (248, 248));
    let failed =
        delivered.iter().filter(|got| got.message.event.aggregate_id.starts_with("failed"));
    assert_eq!(failed.filter(|got| got.message.attempt == 4).count(), 24, "attempts are kept");
    let stats = admin.stats().await.unwrap();
    assert_eq!((stats.count(State::Pending), stats.count(State::Published)), (24, 248));
}

pub(crate) async fn owners_of_former_shares_are_fenced_off_from_the_new_ones(
    database: &impl Outbox,
) {
    database.commit(&lanes(40)).await;
    let mut owners = Vec::new();
    for of in [1, 4, 2, 4, 1] {
        for number in 0..of {
            let mut relay = database.share(number, of).await;
            let taken = relay.take(1).await;
            owners.push((relay, taken));
        }
    }
    let (mut last, taken) = owners.pop().unwrap();
    for (mut former, taken) in owners {
        let stale = settlement(&taken[0], Outcome::Delivered);
        assert!(!former.source.settle(&stale).await.unwrap().is_held());
        assert!(former.take(10).await.is_empty());
    }
    last.settle(&taken, |_| Outcome::Delivered).await;
    // Nobody has the first of two shares yet, least of all who had the only one.
    let taken = last.take(1).await;
    let mut relays = vec![database.share(1, 2).await];
    let stale = settlement(&taken[0], Outcome::Delivered);
    assert!(!last.source.settle(&stale).await.unwrap().is_held());
    relays.push(database.share(0, 2).await);
    assert_eq!(deliver_all(&mut relays).await.len(), 39);
}

/// Many processes with the same configuration start at once: the first one divides the pipeline.
/// The query counts the cursors of eight shares.
pub(crate) async fn of_many_that_divide_at_once_one_does_it(database: &impl Outbox, cursors: &str) {
    let before = in_the_middle_of_its_work(database, 1, 0).await;
    let opening: Vec<_> =
        (0..8).map(|number| database.open(Share::new(number, 8).unwrap())).collect();
    let mut delivered = before;
    for source in opening {
        let mut relay = Relay { source: source.await.unwrap().unwrap() };
        delivered.extend(relay.deliver_all(20).await);
    }
    let distinct: HashSet<_> = ids(&delivered).into_iter().collect();
    assert_eq!((delivered.len(), distinct.len()), (56, 56), "all but the dead and the scheduled");
    assert_eq!(database.number(cursors).await, 8);
}
