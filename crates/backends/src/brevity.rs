//! What is said of a dead letter that has no room for all of it: a message may be as large as any.

use semel_core::Failure;
use semel_core::wire::Epitaph;

/// The code of a failure, and no words.
pub(crate) fn in_brief(failure: &Failure) -> Failure {
    Failure::new(failure.fault(), failure.code(), failure.code())
}

/// What to try to say of a letter, one after the other: all; where it was, with the code alone;
/// nothing.
pub(crate) fn less_and_less<'a>(
    epitaph: Epitaph<'a>,
    brief: &'a Failure,
) -> [Option<Epitaph<'a>>; 3] {
    [Some(epitaph), Some(Epitaph { failure: brief, ..epitaph }), None]
}
