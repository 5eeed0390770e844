//! Events that come out of their sequence.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use semel_core::retry::later;
use semel_core::{Event, Failure, Marks, Timestamp};

/// What becomes of an event whose [sequence](Event::sequence) is not the next of its aggregate.
///
/// ```
/// # use semel_relay::OutOfOrder;
/// assert_ne!(OutOfOrder::DropStale, OutOfOrder::Accept);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutOfOrder {
    /// It takes effect.
    Accept,
    /// One that is not above what was applied is taken for applied; one that leaves a gap takes
    /// effect. For events that say what *is*.
    DropStale,
    /// The same, but one that leaves a gap is put aside until what is missing has come, or for this
    /// long. Needs [`dead_letters`](super::ConsumerBuilder::dead_letters), where it waits.
    HoldBack(Duration),
}

/// How far each aggregate got, and what follows from it.
pub(super) struct Sequences<Tx> {
    pub(super) marks: Arc<dyn Marks<Tx>>,
    pub(super) policy: OutOfOrder,
}

/// Whether it is an event's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It is.
    Now,
    /// It was.
    Past,
    /// Something is missing before it.
    Early {
        /// How long to wait for it.
        until: Timestamp,
    },
}

impl<Tx: Send> Sequences<Tx> {
    /// Looks at the sequence of an event, and counts it as applied if it is its turn. `waited` says
    /// that it was held back before: then it is its turn, if it is not past.
    pub(super) async fn turn(
        &self,
        tx: &mut Tx,
        consumer: &str,
        event: &Event,
        waited: bool,
        now: Timestamp,
    ) -> Result<Turn, Failure> {
        let Some(sequence) = event.sequence().filter(|_| self.policy != OutOfOrder::Accept) else {
            return Ok(Turn::Now);
        };
        let scope = event.lane().scope();
        if let OutOfOrder::HoldBack(patience) = self.policy
            && !waited
        {
            // A lane begins with 0 or 1.
            let applied = self.marks.mark(tx, consumer, &scope).await?.unwrap_or(0);
            if sequence > applied.saturating_add(1) {
                return Ok(Turn::Early { until: later(now, patience) });
            }
        }
        let is_newer = self.marks.advance(tx, consumer, &scope, sequence).await?;
        Ok(if is_newer { Turn::Now } else { Turn::Past })
    }

    pub(super) fn holds_back(&self) -> bool {
        matches!(self.policy, OutOfOrder::HoldBack(_))
    }
}

impl<Tx> fmt::Debug for Sequences<Tx> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sequences").field("policy", &self.policy).finish_non_exhaustive()
    }
}
