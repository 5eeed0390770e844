//! What the tests of several sinks need.

use semel_core::{EventId, Failure, Published, Verdict};

/// The failure of the whole call, or that of its first message.
pub(crate) fn failure_of(published: Published) -> Failure {
    let first = match published {
        Published::None(failure) => Verdict::Failed(failure),
        Published::Each(mut verdicts) => verdicts.swap_remove(0),
        Published::All => Verdict::Confirmed,
    };
    let failure = if let Verdict::Failed(failure) = first { Some(failure) } else { None };
    failure.expect("the first message failed")
}

pub(crate) fn random_name(kind: &str) -> String {
    format!("semel-test-{kind}-{}", EventId::now())
}
