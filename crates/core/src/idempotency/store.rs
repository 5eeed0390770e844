//! The [`IdempotencyStore`] contract.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::{Fingerprint, Record, ScopedKey};
use crate::delivery::Holding;
use crate::failure::Failure;

/// Holds keys: who is running the operation, and what it returned.
///
/// **Atomicity.** Each method is one step and one round trip. Of any number of concurrent claims of
/// a free key exactly one is [`Claim::Fresh`].
///
/// **Time.** Leases and expiry are measured by the store's clock alone.
///
/// **Ownership.** `complete`, `renew` and `release` change nothing and answer
/// [`Holding::Lost`] once the lease was taken over or the key was completed or released, also when
/// the lease ran out and *nobody* has claimed it since: the owner cannot know.
///
/// ```
/// use semel_core::idempotency::{Claim, Fingerprint, IdempotencyStore, Record, ScopedKey};
/// use semel_core::memory::MemoryKeys;
/// use std::time::Duration;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let (store, key) = (MemoryKeys::new(), ScopedKey::new(&["acme", "charge", "k1"]));
/// let (print, lease) = (Fingerprint::new(&[b"99"]), Duration::from_secs(30));
/// let Claim::Fresh { token, attempt: 1 } = store.claim(&key, &print, lease).await? else {
///     unreachable!()
/// };
/// assert!(matches!(store.claim(&key, &print, lease).await?, Claim::InFlight { .. }));
///
/// let record = Record { version: 1, body: "paid".into() };
/// let day = Duration::from_secs(86_400);
/// assert!(store.complete(&key, token, record.clone(), day).await?.is_held());
/// assert_eq!(store.claim(&key, &print, lease).await?, Claim::Done(record));
/// # Ok::<(), semel_core::Failure>(()) }).unwrap();
/// ```
#[async_trait]
pub trait IdempotencyStore: Send + Sync {
    /// Claims the key for `lease`, unless somebody holds it or it is done.
    ///
    /// A key whose fingerprint differs is a [`Claim::Mismatch`], whether running or done. A lease
    /// that ran out is claimed again with the next attempt number.
    ///
    /// # Errors
    /// `Unavailable`: it is unknown whether the claim was made; its lease frees it.
    async fn claim(
        &self,
        key: &ScopedKey,
        fingerprint: &Fingerprint,
        lease: Duration,
    ) -> Result<Claim, Failure>;

    /// The same as [`IdempotencyStore::claim`], from stores that need not wait for anything. `None`
    /// means that nothing was done: ask by `claim`.
    fn claim_at_once(
        &self,
        _key: &ScopedKey,
        _fingerprint: &Fingerprint,
        _lease: Duration,
    ) -> Option<Result<Claim, Failure>> {
        None
    }

    /// Stores the result for `keep`, and ends the claim.
    ///
    /// # Errors
    /// `Unavailable`: it is unknown whether the result was stored.
    async fn complete(
        &self,
        key: &ScopedKey,
        token: Token,
        record: Record,
        keep: Duration,
    ) -> Result<Holding, Failure>;

    /// The same as [`IdempotencyStore::complete`], from stores that need not wait for anything.
    /// `None` means that nothing was done: ask by `complete`.
    fn complete_at_once(
        &self,
        _key: &ScopedKey,
        _token: Token,
        _record: &Record,
        _keep: Duration,
    ) -> Option<Result<Holding, Failure>> {
        None
    }

    /// Extends the lease to `lease` from now. Zero ends it: the claim counts as abandoned, and the
    /// next one is fresh, with the next attempt number.
    ///
    /// # Errors
    /// `Unavailable`: it is unknown whether the lease was extended.
    async fn renew(
        &self,
        key: &ScopedKey,
        token: Token,
        lease: Duration,
    ) -> Result<Holding, Failure>;

    /// Gives the key up without a result: the next claim is fresh.
    ///
    /// # Errors
    /// `Unavailable`: it is unknown whether it was given up; its lease frees it.
    async fn release(&self, key: &ScopedKey, token: Token) -> Result<Holding, Failure>;

    /// Deletes at most `limit` keys whose time is over; says how many. Expired keys are never
    /// *returned*, purged or not.
    ///
    /// # Errors
    /// `Unavailable` when the store cannot be reached.
    async fn forget_expired(&self, limit: usize) -> Result<usize, Failure>;
}

#[async_trait]
impl<S: IdempotencyStore + ?Sized> IdempotencyStore for Arc<S> {
    async fn claim(
        &self,
        key: &ScopedKey,
        fingerprint: &Fingerprint,
        lease: Duration,
    ) -> Result<Claim, Failure> {
        (**self).claim(key, fingerprint, lease).await
    }

    fn claim_at_once(
        &self,
        key: &ScopedKey,
        fingerprint: &Fingerprint,
        lease: Duration,
    ) -> Option<Result<Claim, Failure>> {
        (**self).claim_at_once(key, fingerprint, lease)
    }

    async fn complete(
        &self,
        key: &ScopedKey,
        token: Token,
        record: Record,
        keep: Duration,
    ) -> Result<Holding, Failure> {
        (**self).complete(key, token, record, keep).await
    }

    fn complete_at_once(
        &self,
        key: &ScopedKey,
        token: Token,
        record: &Record,
        keep: Duration,
    ) -> Option<Result<Holding, Failure>> {
        (**self).complete_at_once(key, token, record, keep)
    }

    async fn renew(
        &self,
        key: &ScopedKey,
        token: Token,
        lease: Duration,
    ) -> Result<Holding, Failure> {
        (**self).renew(key, token, lease).await
    }

    async fn release(&self, key: &ScopedKey, token: Token) -> Result<Holding, Failure> {
        (**self).release(key, token).await
    }

    async fn forget_expired(&self, limit: usize) -> Result<usize, Failure> {
        (**self).forget_expired(limit).await
    }
}

/// The answer to a claim.
///
/// ```
/// # use semel_core::idempotency::{Claim, Token};
/// assert_ne!(Claim::Fresh { token: Token(1), attempt: 1 }, Claim::Mismatch);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The key is the caller's: run the operation.
    Fresh {
        /// What every later change must show.
        token: Token,
        /// 1, or more when earlier owners let their lease run out.
        attempt: u32,
    },
    /// Somebody else is running it.
    InFlight {
        /// How long their lease still lasts.
        remaining: Duration,
    },
    /// It is done; this is the result.
    Done(Record),
    /// The key belongs to another request.
    Mismatch,
}

/// Proof of a claim. A later claim of the same key has a greater one.
///
/// ```
/// # use semel_core::idempotency::Token;
/// assert!(Token(2) > Token(1));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);
