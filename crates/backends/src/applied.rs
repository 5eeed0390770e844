//! What an inbox says of one event, and what may be left out of what is said of consumers.

use semel_core::inbox::Applied;
use semel_core::insight::EffectView;
use semel_core::{EventId, Failure, Fault};

/// That a consumer took effect for an event, if it is among what was found.
pub(crate) fn effect(consumer: String, found: &[Applied], id: EventId) -> Option<EffectView> {
    let ours = found.iter().find(|one| one.id == id)?;
    Some(EffectView { consumer, at: ours.at })
}

/// Nothing, where this user may not look: the tables of consumers are not the relay's.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn if_allowed<T: Default>(found: Result<T, Failure>) -> Result<T, Failure> {
    match found {
        Err(failure) if failure.fault() == Fault::Misconfigured => Ok(T::default()),
        found => found,
    }
}
