//! Who may run the operation: claims, leases, tokens.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use semel_core::idempotency::{Claim, Token};
use semel_core::{Holding, IdempotencyStore};

use super::{IdempotencyProbe, LONG, Subject, expect_to_last_a_tick, record};
use crate::probe::Ran;
use crate::workload::at_once;

/// A free key is the caller's, for the first time; each key on its own.
pub async fn a_free_key_is_claimed<P: IdempotencyProbe>(probe: &Arc<P>) -> Ran {
    for _ in 0..3 {
        assert_eq!(Subject::new(probe).fresh(LONG).await.1, 1);
    }
    Ok(())
}

/// Somebody else is running it, and how long their lease still lasts is said.
pub async fn a_running_key_is_in_flight<P: IdempotencyProbe>(probe: &Arc<P>) -> Ran {
    let subject = Subject::new(probe);
    subject.fresh(LONG).await;
    for _ in 0..2 {
        match subject.claim(LONG).await {
            Claim::InFlight { remaining } => {
                assert!(remaining <= LONG && remaining > LONG / 2, "{remaining:?} remain");
            }
            other => panic!("expected in flight, got {other:?}"),
        }
    }
    Ok(())
}

/// Of any number of concurrent claims of a free key exactly one is fresh.
pub async fn of_concurrent_claims_one_is_fresh<P: IdempotencyProbe>(probe: &Arc<P>) -> Ran {
    let subject = Subject::new(probe);
    assert_eq!(concurrent_claims(&subject, probe).await, [1]);
    Ok(())
}

/// A lease that ran out is claimed again, with the next attempt number and a greater token.
pub async fn a_lease_that_ran_out_is_claimed_again<P: IdempotencyProbe>(probe: &Arc<P>) -> Ran {
    let subject = Subject::new(probe);
    let mut last = Token(0);
    for expected in 1..=3 {
        let (token, attempt) = subject.fresh(P::TICK).await;
        assert_eq!(attempt, expected);
        assert!(token > last || expected == 1, "{token:?} follows {last:?}");
        last = token;
        probe.pass(P::TICK * 3 / 2).await;
    }
    Ok(())
}

/// The same for a key whose owner is gone.
pub async fn of_concurrent_claims_of_an_abandoned_key_one_is_fresh<P: IdempotencyProbe>(
    probe: &Arc<P>,
) -> Ran {
    let subject = Subject::new(probe);
    subject.fresh(P::TICK).await;
    probe.pass(P::TICK * 3 / 2).await;
    assert_eq!(concurrent_claims(&subject, probe).await, [2]);
    Ok(())
}

/// An owner that was too slow changes nothing of the one who took over.
pub async fn an_owner_that_was_replaced_is_fenced_off<P: IdempotencyProbe>(probe: &Arc<P>) -> Ran {
    let subject = Subject::new(probe);
    let (late, _) = subject.fresh(P::TICK).await;
    probe.pass(P::TICK * 3 / 2).await;
    let (owner, _) = subject.fresh(LONG).await;
    subject.expect_lost(late).await;
    subject.expect_in_flight().await;
    assert_eq!(subject.complete(owner, "paid", LONG).await, Holding::Held);
    subject.expect_lost(late).await;
    assert_eq!(subject.claim(LONG).await, Claim::Done(record("paid")));
    Ok(())
}

/// The lease ran out and nobody has claimed it since: the owner cannot know, so it has lost it.
pub async fn an_owner_whose_lease_ran_out_is_fenced_off<P: IdempotencyProbe>(
    probe: &Arc<P>,
) -> Ran {
    let subject = Subject::new(probe);
    let (late, _) = subject.fresh(P::TICK).await;
    probe.pass(P::TICK * 3 / 2).await;
    subject.expect_lost(late).await;
    assert_eq!(subject.fresh(LONG).await.1, 2, "it was tried once");
    Ok(())
}

/// Neither a key that nobody claimed nor another key's token can be changed.
pub async fn a_token_that_was_never_given_is_fenced_off<P: IdempotencyProbe>(
    probe: &Arc<P>,
) -> Ran {
    let (subject, other) = (Subject::new(probe), Subject::new(probe));
    subject.expect_lost(Token(1)).await;
    let (token, _) = subject.fresh(LONG).await;
    subject.expect_lost(Token(token.0 + 1)).await;
    other.expect_lost(token).await;
    assert_eq!(other.fresh(LONG).await.1, 1, "still free");
    assert_eq!(subject.complete(token, "paid", LONG).await, Holding::Held);
    Ok(())
}

/// Neither sooner nor later.
pub async fn a_lease_ends_at_its_time<P: IdempotencyProbe>(probe: &Arc<P>) -> Ran {
    let subject = Subject::new(probe);
    let begin = async {
        subject.fresh(P::TICK).await;
    };
    let is_there = |claim: &Claim| matches!(claim, Claim::InFlight { .. });
    expect_to_last_a_tick(&subject, begin, is_there).await;
    Ok(())
}

/// `renew` extends the lease from now.
pub async fn a_renewed_lease_lasts<P: IdempotencyProbe>(probe: &Arc<P>) -> Ran {
    let subject = Subject::new(probe);
    let (token, _) = subject.fresh(P::TICK).await;
    assert_eq!(subject.renew(token, LONG).await, Holding::Held);
    probe.pass(P::TICK * 3 / 2).await;
    subject.expect_in_flight().await;
    assert_eq!(subject.renew(token, P::TICK).await, Holding::Held);
    probe.pass(P::TICK * 3 / 2).await;
    assert_eq!(subject.fresh(LONG).await.1, 2, "the renewed lease ran out too");
    Ok(())
}

/// `renew` for no time at all ends the lease; that the operation was tried is not forgotten.
pub async fn a_lease_can_be_ended_as_abandoned<P: IdempotencyProbe>(probe: &Arc<P>) -> Ran {
    let subject = Subject::new(probe);
    let (token, _) = subject.fresh(LONG).await;
    assert_eq!(subject.renew(token, Duration::ZERO).await, Holding::Held);
    subject.expect_lost(token).await;
    assert_eq!(subject.claim_as(b"another").await, Claim::Mismatch);
    assert_eq!(subject.fresh(LONG).await.1, 2);
    Ok(())
}

/// `release` gives the key up: the next claim is fresh, as if there had been none, for any request.
pub async fn a_released_key_is_free<P: IdempotencyProbe>(probe: &Arc<P>) -> Ran {
    let subject = Subject::new(probe);
    let (released, _) = subject.fresh(LONG).await;
    assert_eq!(subject.release(released).await, Holding::Held);
    subject.expect_lost(released).await;
    let Claim::Fresh { token, attempt } = subject.claim_as(b"another").await else {
        panic!("a released key belongs to nobody");
    };
    assert_eq!(attempt, 1);
    assert!(token > released, "{token:?} follows {released:?}");
    subject.expect_lost(released).await;
    Ok(())
}

/// Claims 64 times at once; the attempt numbers of the fresh ones.
async fn concurrent_claims<P: IdempotencyProbe>(
    subject: &Subject<'_, P>,
    probe: &Arc<P>,
) -> Vec<u32> {
    let claims = at_once((0..64).map(|_| {
        let (probe, key, print) = (Arc::clone(probe), subject.key, subject.print);
        async move { probe.store().claim(&key, &print, LONG).await.expect("claim") }.boxed()
    }));
    let fresh = claims.await.into_iter().filter_map(|claim| match claim {
        Claim::Fresh { attempt, .. } => Some(attempt),
        Claim::InFlight { .. } => None,
        other => panic!("expected fresh or in flight, got {other:?}"),
    });
    fresh.collect()
}
