//! Whether an event is older than what is remembered.

use semel_core::retry::later;
use semel_core::{Failure, InboxStore, Message, Timestamp};

use super::builder::Options;
use super::{Origin, Parts};

impl<S: InboxStore, H> Parts<S, H> {
    /// Nobody knows whether an event took effect that is older than what is remembered.
    pub(super) fn refuse_old(&self, message: &Message, origin: Origin) -> Result<(), Failure> {
        let Options { retention: Some(retention), takes_old: false, .. } = self.options else {
            return Ok(());
        };
        let created_at = message.event.created_at;
        // One that was scheduled cannot have come before its time.
        let at_first = message.event.available_at.map_or(created_at, |due| due.max(created_at));
        // Of a foreign event that does not say when it was made, nobody knows that it is old.
        let is_undated = created_at == Timestamp::UNIX_EPOCH;
        if origin == Origin::Letters
            || is_undated
            || later(at_first, retention) >= self.options.clock.now()
        {
            return Ok(());
        }
        let days = retention.as_secs_f64() / 86_400.0;
        let what = format!(
            "made at {created_at}, and ids are remembered for {days} days: it may have taken effect"
        );
        Err(Failure::refused("E-EVENT-OLD", what).with_fix(
            "if it has not, retry the dead letter; a consumer that is new, or a replay on purpose, \
             takes such events with `take_old_events`",
        ))
    }
}
