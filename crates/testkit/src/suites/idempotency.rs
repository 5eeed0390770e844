//! What every [`IdempotencyStore`] must do.

mod admin;
mod lease;
mod restart;
mod results;

use std::sync::Arc;
use std::time::Duration;

use semel_core::idempotency::{Claim, Fingerprint, KeyAdmin, Record, ScopedKey, Token};
use semel_core::{EventId, Holding, IdempotencyStore};

use crate::probe::{Probe, Ran};

pub use admin::*;
pub use lease::*;
pub use restart::outlives_crashes;
pub use results::*;

/// How the suite gets at a store of idempotency keys.
pub trait IdempotencyProbe: Probe {
    /// The store.
    type Store: IdempotencyStore + 'static;

    /// The store.
    fn store(&self) -> &Self::Store;

    /// What operators use, if it has that.
    fn admin(&self) -> Option<&dyn KeyAdmin> {
        None
    }

    /// Whether expired results stay until [`IdempotencyStore::forget_expired`] deletes them.
    ///
    /// # Errors
    /// Why not.
    fn keeps_expired(&self) -> Ran {
        Ok(())
    }
}

/// One test per scenario of the [`IdempotencyStore`](semel_core::IdempotencyStore) contract, for an
/// [`IdempotencyProbe`](crate::suites::idempotency::IdempotencyProbe).
#[macro_export]
macro_rules! idempotency_suite {
    ($probe:ty) => {
        $crate::stamp_suite! { idempotency, $probe,
            a_free_key_is_claimed
            a_running_key_is_in_flight
            of_concurrent_claims_one_is_fresh
            a_lease_that_ran_out_is_claimed_again
            of_concurrent_claims_of_an_abandoned_key_one_is_fresh
            an_owner_that_was_replaced_is_fenced_off
            an_owner_whose_lease_ran_out_is_fenced_off
            a_token_that_was_never_given_is_fenced_off
            a_lease_ends_at_its_time
            a_renewed_lease_lasts
            a_lease_can_be_ended_as_abandoned
            a_released_key_is_free
            a_done_key_returns_its_result
            a_done_key_cannot_be_changed
            another_request_under_a_running_key_is_a_mismatch
            another_request_under_a_done_key_is_a_mismatch
            another_request_under_an_abandoned_key_is_a_mismatch
            a_result_expires
            a_result_ends_at_its_time
            expired_results_are_purged_in_bounded_steps
            live_keys_are_never_purged
            an_abandoned_claim_is_not_purged_at_once
            keys_are_listed_page_by_page
            keys_are_surveyed
            keys_are_looked_at_without_their_results
            a_key_is_freed_by_hand
        }
    };
}

/// Longer than any test.
const LONG: Duration = Duration::from_secs(3_600);

/// One key, one request, and the store they are for.
struct Subject<'p, P: IdempotencyProbe> {
    probe: &'p P,
    key: ScopedKey,
    print: Fingerprint,
}

impl<'p, P: IdempotencyProbe> Subject<'p, P> {
    /// A key that nobody has used.
    fn new(probe: &'p Arc<P>) -> Self {
        let key = ScopedKey::new(&["suite", &EventId::now().to_string()]);
        Self { probe, key, print: Fingerprint::new(&[b"POST", b"/orders"]) }
    }

    async fn claim(&self, lease: Duration) -> Claim {
        self.probe.store().claim(&self.key, &self.print, lease).await.expect("claim")
    }

    async fn claim_as(&self, request: &[u8]) -> Claim {
        let print = Fingerprint::new(&[request]);
        self.probe.store().claim(&self.key, &print, LONG).await.expect("claim")
    }

    /// Claims a key that must be free.
    async fn fresh(&self, lease: Duration) -> (Token, u32) {
        match self.claim(lease).await {
            Claim::Fresh { token, attempt } => (token, attempt),
            other => panic!("expected a fresh claim, got {other:?}"),
        }
    }

    async fn expect_in_flight(&self) {
        let claim = self.claim(LONG).await;
        assert!(matches!(claim, Claim::InFlight { .. }), "expected in flight, got {claim:?}");
    }

    async fn complete(&self, token: Token, result: &str, keep: Duration) -> Holding {
        let record = record(result);
        self.probe.store().complete(&self.key, token, record, keep).await.expect("complete")
    }

    async fn renew(&self, token: Token, lease: Duration) -> Holding {
        self.probe.store().renew(&self.key, token, lease).await.expect("renew")
    }

    async fn release(&self, token: Token) -> Holding {
        self.probe.store().release(&self.key, token).await.expect("release")
    }

    /// Checks that nothing can be done with this token.
    async fn expect_lost(&self, token: Token) {
        assert_eq!(self.renew(token, LONG).await, Holding::Lost, "renew");
        assert_eq!(self.complete(token, "late", LONG).await, Holding::Lost, "complete");
        assert_eq!(self.release(token).await, Holding::Lost, "release");
    }
}

/// Asks again and again while time passes that `begin` lets begin, and lasts for a tick: `is_there`
/// must say yes of every answer that came before its end, and no of the first that was asked for
/// after it.
///
/// A store may count in milliseconds, so that nothing is said of those around the end.
async fn expect_to_last_a_tick<P: IdempotencyProbe>(
    subject: &Subject<'_, P>,
    begin: impl Future<Output = ()>,
    is_there: impl Fn(&Claim) -> bool,
) {
    const GRAIN: Duration = Duration::from_millis(10);
    let probe = subject.probe;
    let earliest = probe.now() + P::TICK;
    begin.await;
    let latest = probe.now() + P::TICK;
    let mut asked = probe.now();
    while asked < latest + GRAIN {
        let claim = subject.claim(LONG).await;
        if probe.now() + GRAIN < earliest {
            assert!(is_there(&claim), "it ended early: {claim:?}");
        } else if !is_there(&claim) {
            return;
        }
        probe.pass(P::TICK / 16).await;
        asked = probe.now();
    }
    let claim = subject.claim(LONG).await;
    assert!(!is_there(&claim), "it ended late: {claim:?}");
}

fn record(result: &str) -> Record {
    Record { version: 1, body: result.to_owned().into() }
}
