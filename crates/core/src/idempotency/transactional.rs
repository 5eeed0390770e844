//! The [`TransactionalKeys`] contract: a result that is committed with the change that made it.

use std::time::Duration;

use async_trait::async_trait;

use super::{IdempotencyStore, Record, ScopedKey, Token};
use crate::delivery::Holding;
use crate::failure::Failure;

/// A store of keys in the database of the business data.
///
/// Completed in the transaction that changes the data, a key and its effect are committed together
/// or not at all: no crash leaves one without the other.
///
/// ```
/// use semel_core::idempotency::{Record, ScopedKey, Token, TransactionalKeys};
/// use semel_core::{Failure, Holding};
/// use std::time::Duration;
///
/// /// Completes the key; the caller commits if it held, and rolls back otherwise.
/// async fn record_transfer<K: TransactionalKeys>(
///     keys: &K,
///     tx: &mut K::Tx<'_>,
///     key: &ScopedKey,
///     token: Token,
/// ) -> Result<Holding, Failure> {
///     let record = Record { version: 1, body: "moved".into() };
///     keys.complete_in(tx, key, token, &record, Duration::from_secs(86_400)).await
/// }
/// ```
#[async_trait]
pub trait TransactionalKeys: IdempotencyStore {
    /// An open transaction of the caller.
    type Tx<'c>: Send;

    /// Like [`complete`](IdempotencyStore::complete), in the caller's transaction: it neither
    /// begins nor commits.
    ///
    /// **Order.** Complete last: from here to the end of the transaction nobody else can take the
    /// key over, nor renew its lease. **Repetition.** A transaction that was rolled back can be
    /// tried again with the same token. On [`Holding::Lost`] somebody else runs the operation, or
    /// has: roll back.
    ///
    /// # Errors
    /// A failure leaves the transaction fit only for rolling back.
    async fn complete_in(
        &self,
        tx: &mut Self::Tx<'_>,
        key: &ScopedKey,
        token: Token,
        record: &Record,
        keep: Duration,
    ) -> Result<Holding, Failure>;
}
