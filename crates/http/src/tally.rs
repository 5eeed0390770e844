//! Counts what became of every keyed request, once each, so that the outcomes add up.

use semel_core::telemetry::{IDEMPOTENCY_REQUESTS, IDEMPOTENCY_RUNNING};

/// What became of a keyed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It ran, and its result was stored.
    Executed,
    /// It ran, and the key was released.
    Released,
    /// It ran, and only the fact that it did was stored.
    NotRetained,
    /// It ran, and the store failed; the result is still being stored.
    NotStored,
    /// It ran, lost its lease, and its late result was refused.
    Fenced,
    /// It panicked.
    Panicked,
    /// It was answered with a stored result.
    Replayed,
    /// It was refused: the first is still running.
    InProgress,
    /// It was refused: the key belongs to another request.
    Mismatch,
    /// It was refused: the first ran, but its result was not retained.
    Gone,
    /// It was refused: whether the first took effect is unknown.
    Uncertain,
    /// It was refused: the store could not be reached.
    StoreError,
    /// It ran without protection, because the store could not be reached.
    Unprotected,
    /// It was refused before the store was asked.
    Rejected,
    /// Its client went away before there was an answer, and it had not been run.
    HungUp,
}

impl Outcome {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Executed => "executed",
            Self::Released => "released",
            Self::NotRetained => "not_retained",
            Self::NotStored => "not_stored",
            Self::Fenced => "fenced",
            Self::Panicked => "panicked",
            Self::Replayed => "replayed",
            Self::InProgress => "in_progress",
            Self::Mismatch => "mismatch",
            Self::Gone => "gone",
            Self::Uncertain => "uncertain",
            Self::StoreError => "store_error",
            Self::Unprotected => "unprotected",
            Self::Rejected => "rejected",
            Self::HungUp => "hung_up",
        }
    }
}

/// One keyed request that will be counted, whatever happens to it.
#[derive(Debug)]
pub(crate) struct Tally(Outcome);

impl Tally {
    /// A request of which nothing is known yet.
    pub(crate) const fn new() -> Self {
        Self(Outcome::HungUp)
    }

    /// Counts it.
    pub(crate) fn is(mut self, outcome: Outcome) {
        self.0 = outcome;
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        metrics::counter!(IDEMPOTENCY_REQUESTS.name, "outcome" => self.0.as_str()).increment(1);
    }
}

/// An operation that is running now.
#[derive(Debug)]
pub(crate) struct Running;

impl Running {
    pub(crate) fn new() -> Self {
        metrics::gauge!(IDEMPOTENCY_RUNNING.name).increment(1);
        Self
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        metrics::gauge!(IDEMPOTENCY_RUNNING.name).decrement(1);
    }
}
