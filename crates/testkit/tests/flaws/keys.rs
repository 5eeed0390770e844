//! Stores of idempotency keys that are wrong on purpose.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use semel_core::idempotency::{Claim, Fingerprint, Record, ScopedKey, Token};
use semel_core::memory::MemoryKeys;
use semel_core::{Failure, Holding, IdempotencyStore, Timestamp};
use semel_testkit::probe::Probe;
use semel_testkit::suites::idempotency::IdempotencyProbe;

use super::caught;
use crate::Keys;

const NO_TOKEN_CHECK: u8 = 1;
const CHECKS_THEN_ACTS: u8 = 2;
const IN_FLIGHT_BEATS_MISMATCH: u8 = 3;
const FORGETS_ATTEMPTS: u8 = 4;
const NEVER_RENEWS: u8 = 5;
const NEVER_RELEASES: u8 = 6;
const PURGES_WITHOUT_LIMIT: u8 = 7;
const SAME_TOKEN_FOR_ALL: u8 = 8;
const FORGETS_VERSIONS: u8 = 9;
const KEEPS_FOR_EVER: u8 = 10;
const ENDS_EARLY: u8 = 11;
const ENDS_LATE: u8 = 12;

#[test]
fn a_late_owner_that_may_complete() {
    caught!(
        Flawed<NO_TOKEN_CHECK>,
        idempotency::an_owner_that_was_replaced_is_fenced_off,
        "right: Lost"
    );
}

#[test]
fn claims_that_are_not_atomic() {
    caught!(Flawed<CHECKS_THEN_ACTS>, idempotency::of_concurrent_claims_one_is_fresh, "right: [1]");
}

#[test]
fn a_mismatch_that_is_hidden_while_running() {
    caught!(
        Flawed<IN_FLIGHT_BEATS_MISMATCH>,
        idempotency::another_request_under_a_running_key_is_a_mismatch,
        "right: Mismatch"
    );
}

#[test]
fn attempts_that_are_not_counted() {
    caught!(
        Flawed<FORGETS_ATTEMPTS>,
        idempotency::a_lease_that_ran_out_is_claimed_again,
        "right: 2"
    );
    caught!(
        Flawed<FORGETS_ATTEMPTS>,
        idempotency::an_abandoned_claim_is_not_purged_at_once,
        "right: 2"
    );
}

#[test]
fn a_lease_that_is_not_renewed() {
    caught!(Flawed<NEVER_RENEWS>, idempotency::a_renewed_lease_lasts, "expected in flight");
}

#[test]
fn a_key_that_is_not_released() {
    caught!(Flawed<NEVER_RELEASES>, idempotency::a_released_key_is_free, "right: Lost");
}

#[test]
fn a_purge_without_limit() {
    caught!(
        Flawed<PURGES_WITHOUT_LIMIT>,
        idempotency::expired_results_are_purged_in_bounded_steps,
        "right: 3"
    );
}

#[test]
fn tokens_that_do_not_grow() {
    caught!(
        Flawed<SAME_TOKEN_FOR_ALL>,
        idempotency::a_lease_that_ran_out_is_claimed_again,
        "follows"
    );
}

#[test]
fn results_that_change() {
    caught!(Flawed<FORGETS_VERSIONS>, idempotency::a_done_key_returns_its_result, "version: 1");
}

#[test]
fn results_that_never_expire() {
    caught!(Flawed<KEEPS_FOR_EVER>, idempotency::a_result_expires, "belongs to nobody");
}

#[test]
fn times_that_are_not_kept() {
    caught!(Flawed<ENDS_EARLY>, idempotency::a_result_ends_at_its_time, "it ended early");
    caught!(Flawed<ENDS_EARLY>, idempotency::a_lease_ends_at_its_time, "it ended early");
    caught!(Flawed<ENDS_LATE>, idempotency::a_result_ends_at_its_time, "it ended late");
    caught!(Flawed<ENDS_LATE>, idempotency::a_lease_ends_at_its_time, "it ended late");
}

struct Flawed<const FLAW: u8> {
    keys: Keys,
    store: FlawedKeys<FLAW>,
}

impl<const FLAW: u8> Probe for Flawed<FLAW> {
    const BACKEND: &'static str = "flawed keys";

    async fn fresh() -> Option<Self> {
        let keys = Keys::fresh().await?;
        let store = FlawedKeys { inner: keys.keys.clone(), tokens: Mutex::default() };
        Some(Self { keys, store })
    }

    fn now(&self) -> Timestamp {
        self.keys.now()
    }

    async fn pass(&self, time: Duration) {
        self.keys.pass(time).await;
    }
}

impl<const FLAW: u8> IdempotencyProbe for Flawed<FLAW> {
    type Store = FlawedKeys<FLAW>;

    fn store(&self) -> &FlawedKeys<FLAW> {
        &self.store
    }
}

struct FlawedKeys<const FLAW: u8> {
    inner: Arc<MemoryKeys>,
    /// The token of the last claim of each key.
    tokens: Mutex<HashMap<ScopedKey, Token>>,
}

impl<const FLAW: u8> FlawedKeys<FLAW> {
    /// The token that is shown to the store below.
    fn token(&self, key: &ScopedKey, shown: Token) -> Token {
        match FLAW {
            NO_TOKEN_CHECK | SAME_TOKEN_FOR_ALL => {
                self.tokens.lock().unwrap().get(key).copied().unwrap_or(shown)
            }
            _ => shown,
        }
    }
}

fn flawed_span<const FLAW: u8>(span: Duration) -> Duration {
    match FLAW {
        ENDS_EARLY => span * 9 / 10,
        ENDS_LATE => span * 11 / 10,
        _ => span,
    }
}

#[async_trait]
impl<const FLAW: u8> IdempotencyStore for FlawedKeys<FLAW> {
    async fn claim(
        &self,
        key: &ScopedKey,
        fingerprint: &Fingerprint,
        lease: Duration,
    ) -> Result<Claim, Failure> {
        if FLAW == CHECKS_THEN_ACTS && !self.tokens.lock().unwrap().contains_key(key) {
            tokio::task::yield_now().await;
            self.tokens.lock().unwrap().insert(*key, Token(1));
            return Ok(Claim::Fresh { token: Token(1), attempt: 1 });
        }
        let lease = flawed_span::<FLAW>(lease);
        let mut claim = self.inner.claim(key, fingerprint, lease).await?;
        if let Claim::Fresh { token, attempt } = &mut claim {
            self.tokens.lock().unwrap().insert(*key, *token);
            match FLAW {
                FORGETS_ATTEMPTS => *attempt = 1,
                SAME_TOKEN_FOR_ALL => *token = Token(7),
                _ => {}
            }
        }
        if FLAW == IN_FLIGHT_BEATS_MISMATCH && claim == Claim::Mismatch {
            return Ok(Claim::InFlight { remaining: lease });
        }
        Ok(claim)
    }

    async fn complete(
        &self,
        key: &ScopedKey,
        token: Token,
        mut record: Record,
        mut keep: Duration,
    ) -> Result<Holding, Failure> {
        match FLAW {
            FORGETS_VERSIONS => record.version = 0,
            KEEPS_FOR_EVER => keep *= 1_000,
            _ => keep = flawed_span::<FLAW>(keep),
        }
        self.inner.complete(key, self.token(key, token), record, keep).await
    }

    async fn renew(
        &self,
        key: &ScopedKey,
        token: Token,
        lease: Duration,
    ) -> Result<Holding, Failure> {
        match FLAW {
            NEVER_RENEWS => Ok(Holding::Held),
            _ => self.inner.renew(key, self.token(key, token), lease).await,
        }
    }

    async fn release(&self, key: &ScopedKey, token: Token) -> Result<Holding, Failure> {
        match FLAW {
            NEVER_RELEASES => Ok(Holding::Held),
            _ => self.inner.release(key, self.token(key, token)).await,
        }
    }

    async fn forget_expired(&self, limit: usize) -> Result<usize, Failure> {
        let limit = if FLAW == PURGES_WITHOUT_LIMIT { usize::MAX } else { limit };
        self.inner.forget_expired(limit).await
    }
}
