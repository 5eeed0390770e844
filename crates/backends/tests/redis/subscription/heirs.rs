//! Several members wait for what a lost one had: it goes to one of them, in its order.

use std::time::Duration;

use redis::cmd;
use semel_backends::redis::RedisSubscription;
use semel_core::{Delivery, Limit, Outcome, Settlement, Source};
use semel_testkit::probe::{Probe, WriteProbe};
use semel_testkit::suites::source::SourceProbe;
use semel_testkit::workload::{delivered_numbers, events};
use tokio::time::{Instant, sleep};

use super::{GONE, Group, next};

/// The id, the member that has it, for how long it was not cared for, how often it was given out.
type Pending = (String, String, u64, u64);

impl Group<true> {
    /// A member that is lost with the first so many events of a lane in hand.
    async fn lose(&self, count: u64) {
        self.commit_all(&events("a", 0..count)).await;
        let mut lost = self.open().await;
        assert_eq!(next(&mut lost).await.len() as u64, count);
    }

    async fn pending(&self) -> Vec<Pending> {
        let mut ask = cmd("XPENDING");
        self.0.reader.ask(ask.arg(&self.0.name).arg("suite").arg("-").arg("+").arg(100)).await
    }

    /// As if these were given out, or last cared for, so long ago.
    async fn age(&self, entries: &[Pending], idle: Duration) {
        for (id, member, ..) in entries {
            let mut claim = cmd("XCLAIM");
            claim.arg(&self.0.name).arg("suite").arg(member).arg(0).arg(id);
            claim.arg("IDLE").arg(idle.as_millis().to_string()).arg("JUSTID");
            self.0.reader.ask::<Vec<String>>(&claim).await;
        }
    }
}

/// Asks for a while, and expects nothing.
async fn stands_by(member: &mut RedisSubscription) {
    let until = Instant::now() + GONE * 3;
    while Instant::now() < until {
        let got = member.next_batch(Limit::default()).await.unwrap().deliveries;
        assert!(got.is_empty(), "it got {:?}, and another has what is before", numbers(&got));
        sleep(Duration::from_millis(20)).await;
    }
}

async fn deliver(member: &mut RedisSubscription, got: &[Delivery]) {
    let settled = got.iter().map(|got| got.receipt);
    let settled = settled.map(|receipt| Settlement { receipt, outcome: Outcome::Delivered });
    assert!(member.settle(&settled.collect::<Vec<_>>()).await.unwrap().is_held());
}

fn numbers(got: &[Delivery]) -> Vec<u64> {
    delivered_numbers(got)
}

/// The first entry is abandoned before the second: who gets the first, and is slow with it, gets the
/// second too.
#[tokio::test]
async fn entries_of_different_ages_go_to_one_heir() {
    let Some(group) = <Group<true> as Probe>::fresh().await else { return };
    group.lose(2).await;
    let pending = group.pending().await;
    group.age(&pending[..1], GONE * 10).await;
    group.age(&pending[1..], Duration::ZERO).await;
    let (mut heir, mut other) = (group.open().await, group.open().await);
    let mut got = next(&mut heir).await;
    stands_by(&mut other).await;
    while got.len() < 2 {
        got.extend(next(&mut heir).await);
    }
    assert_eq!(numbers(&got), [0, 1]);
    deliver(&mut heir, &got).await;
    group.commit_all(&events("a", 2..3)).await;
    assert_eq!(numbers(&next(&mut other).await), [2], "nobody is in its way any more");
}

/// An heir that has room for some of it gets the rest later, and nobody else does.
#[tokio::test]
async fn what_an_heir_has_no_room_for_waits_for_it() {
    let Some(group) = <Group<true> as Probe>::fresh().await else { return };
    group.lose(10).await;
    group.age(&group.pending().await, GONE * 10).await;
    let (mut heir, mut other) = (group.open().await, group.open().await);
    let few = Limit { events: 3, ..Limit::default() };
    let mut got = heir.next_batch(few).await.unwrap().deliveries;
    assert_eq!(numbers(&got), [0, 1, 2]);
    stands_by(&mut other).await;
    while got.len() < 10 {
        got.extend(next(&mut heir).await);
    }
    assert_eq!(numbers(&got), (0..10).collect::<Vec<_>>());
}

/// What the heir had, and what it had no time to take over, goes on to the next one.
#[tokio::test]
async fn an_heir_that_is_lost_too_has_an_heir() {
    let Some(group) = <Group<true> as Probe>::fresh().await else { return };
    group.lose(10).await;
    group.age(&group.pending().await, GONE * 10).await;
    let (mut heir, mut other) = (group.open().await, group.open().await);
    let few = Limit { events: 3, ..Limit::default() };
    let got = heir.next_batch(few).await.unwrap().deliveries;
    deliver(&mut heir, &got[..1]).await;
    drop(heir);
    group.commit_all(&events("a", 10..12)).await;
    let mut seen = Vec::new();
    while seen.len() < 11 {
        let got = next(&mut other).await;
        deliver(&mut other, &got).await;
        seen.extend(numbers(&got));
    }
    assert_eq!(seen, (1..12).collect::<Vec<_>>());
}
