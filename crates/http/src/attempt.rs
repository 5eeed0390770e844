//! What an operation knows about its own run.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use semel_core::idempotency::{Record, ScopedKey, Token};

use crate::key::IdempotencyKey;
use crate::policy::Policy;
use crate::trace::FirstTrace;

/// One run of an operation under a key: which attempt it is, and the proof that it may run.
///
/// The operation of [`Idempotent::run`](crate::Idempotent::run) gets it as its argument; an HTTP
/// handler finds it in the extensions of its request.
///
/// The token only protects what is stored *under the key*. An effect elsewhere is protected from a
/// run that lost its lease if its write compares [`Attempt::token`], or carries the same
/// [`Attempt::child`] key in every attempt. An effect in the database of the keys is protected by
/// [`IdempotencyClaim`](crate::IdempotencyClaim).
///
/// ```
/// use axum::{Extension, Router, routing::post};
/// use semel_http::Attempt;
///
/// async fn charge(Extension(attempt): Extension<Attempt>) -> String {
///     format!("attempt {} asks the bank with key {}", attempt.number(), attempt.child("bank"))
/// }
/// let app: Router = Router::new().route("/charges", post(charge));
/// ```
#[derive(Clone)]
pub struct Attempt(Arc<Inner>);

struct Inner {
    key: ScopedKey,
    token: Token,
    number: u32,
    lost: AtomicBool,
    /// Of a request over HTTP.
    request: OnceLock<(Arc<Policy>, Option<FirstTrace>)>,
    /// What the operation has stored itself, if the transaction it was stored in is committed.
    written: Mutex<Option<Record>>,
    /// Most have stored nothing themselves, and need not look.
    has_written: AtomicBool,
}

impl Attempt {
    pub(crate) fn new(key: ScopedKey, token: Token, number: u32) -> Self {
        Self(Arc::new(Inner {
            key,
            token,
            number,
            lost: AtomicBool::new(false),
            request: OnceLock::new(),
            written: Mutex::new(None),
            has_written: AtomicBool::new(false),
        }))
    }

    /// The key, with everything that makes it somebody's.
    #[must_use]
    pub fn key(&self) -> &ScopedKey {
        &self.0.key
    }

    /// Greater than that of every earlier attempt under this key.
    #[must_use]
    pub fn token(&self) -> Token {
        self.0.token
    }

    /// 1, or more when earlier runs let their lease run out: they may have done part of the work.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// Whether the lease was held when it was last renewed. Once false it stays false: somebody
    /// else may be running the operation, and the result of this run will be refused.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.0.lost.load(Ordering::Relaxed)
    }

    /// A key for a call this operation makes to another service: the same in every attempt,
    /// different for every `name`, every tenant and every operation.
    #[must_use]
    pub fn child(&self, name: &str) -> IdempotencyKey {
        IdempotencyKey::derived(&self.0.key.to_string(), name)
    }

    pub(crate) fn mark_lost(&self) {
        self.0.lost.store(true, Ordering::Relaxed);
    }

    pub(crate) fn policy(&self) -> Option<Arc<Policy>> {
        self.0.request.get().map(|(policy, _)| Arc::clone(policy))
    }

    /// The trace of the request that is run.
    pub(crate) fn trace(&self) -> Option<&FirstTrace> {
        self.0.request.get().and_then(|(_, trace)| trace.as_ref())
    }

    pub(crate) fn under(self, policy: &Arc<Policy>, trace: Option<FirstTrace>) -> Self {
        self.0.request.get_or_init(|| (Arc::clone(policy), trace));
        self
    }

    pub(crate) fn written(&self) -> Option<Record> {
        if !self.0.has_written.load(Ordering::Acquire) {
            return None;
        }
        self.0.written.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn mark_written(&self, record: Record) {
        *self.0.written.lock().unwrap_or_else(PoisonError::into_inner) = Some(record);
        self.0.has_written.store(true, Ordering::Release);
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt")
            .field("number", &self.0.number)
            .field("token", &self.0.token)
            .field("held", &self.is_held())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_are_the_same_in_every_attempt_and_differ_by_name_and_key() {
        let key = ScopedKey::new(&["acme", "k1"]);
        let (first, second) = (Attempt::new(key, Token(1), 1), Attempt::new(key, Token(9), 2));
        assert_eq!(first.child("bank"), second.child("bank"));
        assert_ne!(first.child("bank"), first.child("mail"));
        let other = Attempt::new(ScopedKey::new(&["globex", "k1"]), Token(1), 1);
        assert_ne!(first.child("bank"), other.child("bank"));
    }
}
