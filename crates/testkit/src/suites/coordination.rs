//! What every [`Coordinator`] must do.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use semel_core::Fault;
use semel_core::coordination::{Coordinator, Holder};

use crate::probe::{Probe, Ran};
use crate::workload::at_once;

/// How the suite gets at a group of relays.
pub trait CoordinationProbe: Probe {
    /// A member.
    type Member: Coordinator + 'static;

    /// A new member of the group that works on `pipeline` in so many shares.
    fn join(
        &self,
        pipeline: &str,
        shares: u32,
        lease: Duration,
    ) -> impl Future<Output = Self::Member> + Send;
}

/// One test per scenario of the [`Coordinator`](semel_core::coordination::Coordinator) contract,
/// for a [`CoordinationProbe`](crate::suites::coordination::CoordinationProbe).
#[macro_export]
macro_rules! coordination_suite {
    ($probe:ty) => {
        $crate::stamp_suite! { coordination, $probe,
            a_free_share_is_claimed_and_held
            of_many_claims_at_once_one_succeeds
            a_lease_that_is_renewed_lasts
            a_lease_that_ran_out_is_free
            what_is_given_back_is_free_at_once
            members_are_counted_while_they_live
            pipelines_do_not_know_each_other
            another_division_is_refused_while_others_live
        }
    };
}

const ANSWER: &str = "the store answers";
/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

/// Claiming tells who holds a share, and nobody else can have it.
pub async fn a_free_share_is_claimed_and_held<P: CoordinationProbe>(probe: &Arc<P>) -> Ran {
    let (mut first, mut second) = (probe.join("p", 3, LONG).await, probe.join("p", 3, LONG).await);
    assert_eq!(first.beat(true).await.expect(ANSWER).shares, [Holder::Nobody; 3]);
    assert_eq!(first.claim(&[0, 2]).await.expect(ANSWER), [0, 2]);
    assert_eq!(first.claim(&[2]).await.expect(ANSWER), [2], "claiming again changes nothing");
    assert_eq!(second.claim(&[2, 1, 0]).await.expect(ANSWER), [1]);
    let shares = second.beat(true).await.expect(ANSWER).shares;
    assert_eq!(shares, [Holder::Other, Holder::Me, Holder::Other]);
    assert_eq!(second.claim(&[]).await.expect(ANSWER), [0; 0]);
    Ok(())
}

/// However many claim a share at the same time, one gets it.
pub async fn of_many_claims_at_once_one_succeeds<P: CoordinationProbe>(probe: &Arc<P>) -> Ran {
    let claims = (0..8).map(|_| {
        let probe = Arc::clone(probe);
        async move {
            let mut member = probe.join("p", 4, LONG).await;
            member.beat(true).await.expect(ANSWER);
            member.claim(&[3, 2, 1, 0]).await.expect(ANSWER)
        }
        .boxed()
    });
    let mut claimed = at_once(claims).await.concat();
    claimed.sort_unstable();
    assert_eq!(claimed, [0, 1, 2, 3]);
    Ok(())
}

/// A beat that renews keeps what is held; one that does not, only looks.
pub async fn a_lease_that_is_renewed_lasts<P: CoordinationProbe>(probe: &Arc<P>) -> Ran {
    let lease = P::TICK * 2;
    let (mut first, mut second) =
        (probe.join("p", 1, lease).await, probe.join("p", 1, lease).await);
    first.claim(&[0]).await.expect(ANSWER);
    probe.pass(P::TICK).await;
    first.beat(true).await.expect(ANSWER);
    probe.pass(P::TICK).await;
    assert_eq!(second.claim(&[0]).await.expect(ANSWER), [0; 0]);
    first.beat(false).await.expect(ANSWER);
    probe.pass(P::TICK + P::TICK / 4).await;
    assert_eq!(second.claim(&[0]).await.expect(ANSWER), [0], "looking does not renew");
    Ok(())
}

/// Whoever is gone for longer than its lease finds that another has its share.
pub async fn a_lease_that_ran_out_is_free<P: CoordinationProbe>(probe: &Arc<P>) -> Ran {
    let (mut first, mut second) =
        (probe.join("p", 1, P::TICK).await, probe.join("p", 1, LONG).await);
    first.beat(true).await.expect(ANSWER);
    first.claim(&[0]).await.expect(ANSWER);
    probe.pass(P::TICK + P::TICK / 4).await;
    assert_eq!(second.beat(true).await.expect(ANSWER).shares, [Holder::Nobody]);
    assert_eq!(second.claim(&[0]).await.expect(ANSWER), [0]);
    assert_eq!(first.beat(true).await.expect(ANSWER).shares, [Holder::Other]);
    assert_eq!(first.claim(&[0]).await.expect(ANSWER), [0; 0]);
    first.release(&[0]).await.expect(ANSWER);
    first.leave().await.expect(ANSWER);
    assert_eq!(
        second.beat(true).await.expect(ANSWER).shares,
        [Holder::Me],
        "it was not his to give"
    );
    Ok(())
}

/// What is released, or left behind, can be claimed without waiting.
pub async fn what_is_given_back_is_free_at_once<P: CoordinationProbe>(probe: &Arc<P>) -> Ran {
    let (mut first, mut second) = (probe.join("p", 3, LONG).await, probe.join("p", 3, LONG).await);
    first.claim(&[0, 1, 2]).await.expect(ANSWER);
    first.release(&[1]).await.expect(ANSWER);
    assert_eq!(second.claim(&[0, 1, 2]).await.expect(ANSWER), [1]);
    first.leave().await.expect(ANSWER);
    assert_eq!(second.claim(&[0, 2]).await.expect(ANSWER), [0, 2]);
    Ok(())
}

/// All agree on who lives, and on their order.
pub async fn members_are_counted_while_they_live<P: CoordinationProbe>(probe: &Arc<P>) -> Ran {
    let (mut short, mut one) = (probe.join("p", 2, P::TICK).await, probe.join("p", 2, LONG).await);
    let mut two = probe.join("p", 2, LONG).await;
    let mut ranks = Vec::new();
    for member in [&mut short, &mut one, &mut two] {
        member.beat(true).await.expect(ANSWER);
    }
    for member in [&mut short, &mut one, &mut two] {
        let standing = member.beat(false).await.expect(ANSWER);
        assert_eq!(standing.members, 3);
        ranks.push(standing.rank);
    }
    ranks.sort_unstable();
    assert_eq!(ranks, [0, 1, 2]);
    probe.pass(P::TICK + P::TICK / 4).await;
    assert_eq!(one.beat(true).await.expect(ANSWER).members, 2, "one has not been heard of");
    two.leave().await.expect(ANSWER);
    let alone = one.beat(true).await.expect(ANSWER);
    assert_eq!((alone.members, alone.rank), (1, 0));
    Ok(())
}

/// Members of other pipelines are of no concern.
pub async fn pipelines_do_not_know_each_other<P: CoordinationProbe>(probe: &Arc<P>) -> Ran {
    let (mut p, mut q) = (probe.join("p", 1, LONG).await, probe.join("q", 2, LONG).await);
    p.beat(true).await.expect(ANSWER);
    p.claim(&[0]).await.expect(ANSWER);
    assert_eq!(q.beat(true).await.expect(ANSWER).members, 1);
    assert_eq!(q.claim(&[0, 1]).await.expect(ANSWER), [0, 1]);
    assert_eq!(p.beat(true).await.expect(ANSWER).shares, [Holder::Me]);
    Ok(())
}

/// Two relays that divide a pipeline differently would both work on some lanes.
pub async fn another_division_is_refused_while_others_live<P: CoordinationProbe>(
    probe: &Arc<P>,
) -> Ran {
    let (mut old, mut new) = (probe.join("p", 4, P::TICK).await, probe.join("p", 2, LONG).await);
    old.beat(true).await.expect(ANSWER);
    old.claim(&[0, 3]).await.expect(ANSWER);
    let refused = new.beat(true).await.expect_err("another division");
    assert_eq!(refused.fault(), Fault::Misconfigured, "{refused:?}");
    assert_eq!(old.beat(true).await.expect(ANSWER).members, 1, "who is refused does not count");
    probe.pass(P::TICK + P::TICK / 4).await;
    assert_eq!(new.beat(true).await.expect(ANSWER).shares, [Holder::Nobody; 2]);
    assert_eq!(new.claim(&[0, 1]).await.expect(ANSWER), [0, 1]);
    Ok(())
}
