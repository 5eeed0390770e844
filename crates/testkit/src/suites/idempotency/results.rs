//! What is kept: results, fingerprints, expiry.

use std::sync::Arc;

use semel_core::idempotency::{Claim, Record};
use semel_core::{Holding, IdempotencyStore};

use super::{IdempotencyProbe, LONG, Subject, expect_to_last_a_tick, record};
use crate::probe::Ran;

/// A result is returned ever after, byte for byte.
pub async fn a_done_key_returns_its_result<P: IdempotencyProbe>(probe: &Arc<P>) -> Ran {
    let bodies = [(0..=255).collect::<Vec<u8>>(), Vec::new(), vec![0xa5; 200_000]];
    for (version, body) in [0, 1, 255].into_iter().zip(bodies) {
        let subject = Subject::new(probe);
        let (token, _) = subject.fresh(LONG).await;
        let record = Record { version, body: body.into() };
        let stored = probe.store().complete(&subject.key, token, record.clone(), LONG).await;
        assert_eq!(stored.expect("complete"), Holding::Held);
        for _ in 0..2 {
            assert_eq!(subject.claim(LONG).await, Claim::Done(record.clone()));
        }
    }
    Ok(())
}

/// Once completed, a claim is over for its owner too.
pub async fn a_done_key_cannot_be_changed<P: IdempotencyProbe>(probe: &Arc<P>) -> Ran {
    let subject = Subject::new(probe);
    let (token, _) = subject.fresh(LONG).await;
    assert_eq!(subject.complete(token, "paid", LONG).await, Holding::Held);
    subject.expect_lost(token).await;
    assert_eq!(subject.claim(LONG).await, Claim::Done(record("paid")));
    Ok(())
}

/// Another request under a running key is a mismatch, not in flight; the claim stands.
pub async fn another_request_under_a_running_key_is_a_mismatch<P: IdempotencyProbe>(
    probe: &Arc<P>,
) -> Ran {
    let subject = Subject::new(probe);
    let (token, _) = subject.fresh(LONG).await;
    assert_eq!(subject.claim_as(b"another").await, Claim::Mismatch);
    subject.expect_in_flight().await;
    assert_eq!(subject.complete(token, "paid", LONG).await, Holding::Held);
    Ok(())
}

/// Another request under a done key is a mismatch; the result stays.
pub async fn another_request_under_a_done_key_is_a_mismatch<P: IdempotencyProbe>(
    probe: &Arc<P>,
) -> Ran {
    let subject = Subject::new(probe);
    let (token, _) = subject.fresh(LONG).await;
    assert_eq!(subject.complete(token, "paid", LONG).await, Holding::Held);
    assert_eq!(subject.claim_as(b"another").await, Claim::Mismatch);
    assert_eq!(subject.claim(LONG).await, Claim::Done(record("paid")));
    Ok(())
}

/// An abandoned claim still belongs to its request: whoever takes it over must know that it was
/// tried, and with what.
pub async fn another_request_under_an_abandoned_key_is_a_mismatch<P: IdempotencyProbe>(
    probe: &Arc<P>,
) -> Ran {
    let subject = Subject::new(probe);
    subject.fresh(P::TICK).await;
    probe.pass(P::TICK * 3 / 2).await;
    assert_eq!(subject.claim_as(b"another").await, Claim::Mismatch);
    assert_eq!(subject.fresh(LONG).await.1, 2);
    Ok(())
}

/// A result is kept for as long as it was asked to be; then the key is as new, for any request.
pub async fn a_result_expires<P: IdempotencyProbe>(probe: &Arc<P>) -> Ran {
    let subject = Subject::new(probe);
    let (first, _) = subject.fresh(LONG).await;
    assert_eq!(subject.complete(first, "paid", P::TICK).await, Holding::Held);
    probe.pass(P::TICK * 3 / 2).await;
    let Claim::Fresh { token, attempt } = subject.claim_as(b"another").await else {
        panic!("an expired key belongs to nobody");
    };
    assert_eq!(attempt, 1);
    assert!(token > first, "{token:?} follows {first:?}");
    subject.expect_lost(first).await;
    Ok(())
}

/// Neither sooner nor later.
pub async fn a_result_ends_at_its_time<P: IdempotencyProbe>(probe: &Arc<P>) -> Ran {
    let subject = Subject::new(probe);
    let (token, _) = subject.fresh(LONG).await;
    let begin = async {
        assert_eq!(subject.complete(token, "paid", P::TICK).await, Holding::Held);
    };
    let is_there = |claim: &Claim| *claim == Claim::Done(record("paid"));
    expect_to_last_a_tick(&subject, begin, is_there).await;
    Ok(())
}

/// One call deletes at most `limit`, and says how many.
pub async fn expired_results_are_purged_in_bounded_steps<P: IdempotencyProbe>(
    probe: &Arc<P>,
) -> Ran {
    probe.keeps_expired()?;
    for _ in 0..7 {
        let subject = Subject::new(probe);
        let (token, _) = subject.fresh(LONG).await;
        assert_eq!(subject.complete(token, "paid", P::TICK).await, Holding::Held);
    }
    probe.pass(P::TICK * 3 / 2).await;
    for expected in [3, 3, 1, 0] {
        assert_eq!(purge(&**probe, 3).await, expected);
    }
    Ok(())
}

/// What runs or is done and not expired is never deleted.
pub async fn live_keys_are_never_purged<P: IdempotencyProbe>(probe: &Arc<P>) -> Ran {
    let (running, done, expired) = (Subject::new(probe), Subject::new(probe), Subject::new(probe));
    let (owner, _) = running.fresh(LONG).await;
    let (token, _) = done.fresh(LONG).await;
    assert_eq!(done.complete(token, "paid", LONG).await, Holding::Held);
    let (token, _) = expired.fresh(LONG).await;
    assert_eq!(expired.complete(token, "paid", P::TICK).await, Holding::Held);
    probe.pass(P::TICK * 3 / 2).await;
    assert!(purge(&**probe, 100).await <= 1, "only one is expired");
    running.expect_in_flight().await;
    assert_eq!(done.claim(LONG).await, Claim::Done(record("paid")));
    assert_eq!(running.complete(owner, "paid", LONG).await, Holding::Held);
    Ok(())
}

/// That an operation was tried and abandoned is remembered beyond its lease.
pub async fn an_abandoned_claim_is_not_purged_at_once<P: IdempotencyProbe>(probe: &Arc<P>) -> Ran {
    let subject = Subject::new(probe);
    subject.fresh(P::TICK).await;
    probe.pass(P::TICK * 3 / 2).await;
    assert_eq!(purge(&**probe, 100).await, 0);
    assert_eq!(subject.fresh(LONG).await.1, 2);
    Ok(())
}

async fn purge<P: IdempotencyProbe>(probe: &P, limit: usize) -> usize {
    probe.store().forget_expired(limit).await.expect("forget_expired")
}
