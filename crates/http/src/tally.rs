//! Counts what became of every keyed request, once each, so that the outcomes add up.

use metrics::{Gauge, Key, Label, Level, Metadata, with_recorder};
use semel_core::telemetry::{IDEMPOTENCY_REQUESTS, IDEMPOTENCY_RUNNING};

macro_rules! outcomes {
    ($($name:ident, $label:literal, $doc:literal;)*) => {
        /// What became of a keyed request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Outcome {
            $(#[doc = $doc] $name),*
        }

        impl Outcome {
            /// Made once, so that counting allocates nothing.
            fn key(self) -> &'static Key {
                match self {
                    $(Self::$name => {
                        static LABELS: [Label; 1] = [Label::from_static_parts("outcome", $label)];
                        static KEY: Key =
                            Key::from_static_parts(IDEMPOTENCY_REQUESTS.name, &LABELS);
                        &KEY
                    })*
                }
            }
        }
    };
}

outcomes! {
    Executed, "executed", "It ran, and its result was stored.";
    Released, "released", "It ran, and the key was released.";
    NotRetained, "not_retained", "It ran, and only the fact that it did was stored.";
    Unknown, "unknown", "It ran, and nobody knows whether it took effect.";
    NotStored, "not_stored", "It ran, and the store failed; the result is still being stored.";
    Fenced, "fenced", "It ran, lost its lease, and its late result was refused.";
    Panicked, "panicked", "It panicked.";
    Replayed, "replayed", "It was answered with a stored result.";
    InProgress, "in_progress", "It was refused: the first is still running.";
    Mismatch, "mismatch", "It was refused: the key belongs to another request.";
    Gone, "gone", "It was refused: the first ran, but its result was not retained.";
    Uncertain, "uncertain", "It was refused: whether the first took effect is unknown.";
    StoreError, "store_error", "It was refused: the store could not be reached.";
    Unprotected, "unprotected", "It ran without protection, because the store could not be reached.";
    Rejected, "rejected", "It was refused before the store was asked.";
    HungUp, "hung_up", "Its client went away before there was an answer, and it had not been run.";
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
        let counter = with_recorder(|it| it.register_counter(self.0.key(), &metadata()));
        counter.increment(1);
    }
}

/// An operation that is running now.
pub(crate) struct Running(Gauge);

impl Running {
    pub(crate) fn new() -> Self {
        static KEY: Key = Key::from_static_name(IDEMPOTENCY_RUNNING.name);
        let gauge = with_recorder(|it| it.register_gauge(&KEY, &metadata()));
        gauge.increment(1);
        Self(gauge)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}

fn metadata() -> Metadata<'static> {
    Metadata::new(module_path!(), Level::INFO, Some(module_path!()))
}
