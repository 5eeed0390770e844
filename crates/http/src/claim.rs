//! A claim that its handler completes itself, in the transaction of its own database.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::{Extensions, Response};
use semel_core::idempotency::TransactionalKeys;
use semel_core::{Failure, Holding};

use crate::attempt::Attempt;
use crate::body::Body;
use crate::capture;
use crate::policy::Policy;

/// The key of the request that is being handled, to be completed by the handler.
///
/// The handler stores its response under the key, in the transaction that changes its data and
/// appends its events. All of it is committed, or nothing: a process that dies before the commit
/// has done nothing and the retry runs; one that dies after it has done everything and the retry
/// gets the response. Without this, a crash between the commit and the storing of the response
/// makes the retry run a second time.
///
/// It is an extractor with feature `axum`; elsewhere [`IdempotencyClaim::of`] finds it in the
/// extensions of the request.
///
/// ```
/// use axum::Json;
/// use axum::response::{IntoResponse, Response};
/// use semel_core::Failure;
/// use semel_core::idempotency::TransactionalKeys;
/// use semel_http::IdempotencyClaim;
///
/// async fn transfer<K: TransactionalKeys>(
///     claim: IdempotencyClaim,
///     keys: &K,
///     mut tx: K::Tx<'_>,
/// ) -> Result<Response, Failure> {
///     // … move the money and append the events, in `tx` …
///     let response = Json("moved").into_response();
///     let response = claim.complete_in(keys, &mut tx, response).await?;
///     // … commit `tx` …
///     Ok(response.into_response())
/// }
/// ```
#[derive(Clone)]
pub struct IdempotencyClaim {
    attempt: Attempt,
    policy: Arc<Policy>,
}

/// Marks the response that was stored in a transaction. It does not reach the client.
#[derive(Clone, Copy)]
pub(crate) struct Recorded;

impl IdempotencyClaim {
    /// The claim of a request, if it has a key and runs under its protection.
    #[must_use]
    pub fn of(extensions: &Extensions) -> Option<Self> {
        let attempt = extensions.get::<Attempt>()?.clone();
        let policy = attempt.policy()?;
        Some(Self { attempt, policy })
    }

    /// Which attempt it is.
    #[must_use]
    pub fn attempt(&self) -> &Attempt {
        &self.attempt
    }

    /// Stores this response under the key when `tx` is committed. Do it last, commit, and return
    /// the response that this gives back.
    ///
    /// `keys` must be the store that the layer has, in the database that `tx` is of. The status
    /// does not matter: what is stored here is final. A response that is too large to be kept, or
    /// streamed, is stored as "not retained".
    ///
    /// If the handler returns something else after the commit, an error say, the client gets the
    /// stored response all the same. If it rolls back, the key is as if this had not been called,
    /// and what it returns is judged as usual: a 5xx frees the key. If it returns this response
    /// without a commit, the client gets 500 and the key is free.
    ///
    /// A transaction that failed to serialise can be tried again, from its beginning, with the
    /// same claim.
    ///
    /// # Errors
    /// `E-KEY-LOST` if the lease was lost: somebody else runs the operation, or has. Roll back, as
    /// after every failure of a statement.
    pub async fn complete_in<K, B>(
        &self,
        keys: &K,
        tx: &mut K::Tx<'_>,
        response: Response<B>,
    ) -> Result<Response<Body<B>>, Failure>
    where
        K: TransactionalKeys,
        B: http_body::Body<Data = Bytes>,
    {
        let (mut parts, body) = response.into_parts();
        let (body, kept) =
            capture::kept(&self.policy, self.attempt.trace(), &mut parts, body).await;
        let (key, token) = (self.attempt.key(), self.attempt.token());
        match keys.complete_in(tx, key, token, &kept.record, kept.keep).await? {
            Holding::Held => self.attempt.mark_written(kept.record),
            Holding::Lost => return Err(lost()),
        }
        parts.extensions.insert(Recorded);
        Ok(Response::from_parts(parts, body.into()))
    }
}

fn lost() -> Failure {
    Failure::transient("E-KEY-LOST", "the lease of the operation was lost while it ran").with_fix(
        "roll the transaction back; the next request with this key gets the result of whoever took over",
    )
}

impl fmt::Debug for IdempotencyClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("IdempotencyClaim").field(&self.attempt).finish()
    }
}
