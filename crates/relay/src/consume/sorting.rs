//! Which messages of a transaction are to take effect, before any does.

use std::collections::HashSet;

use semel_core::inbox::Tally;
use semel_core::{Failure, HandlerError, InboxStore, Message};

use super::order::{Sequences, Turn};
use super::positions::Claims;
use super::{Handler, Origin, Parts};

impl<S, H> Parts<S, H>
where
    S: InboxStore,
    H: Handler<S::Tx<'static>>,
{
    /// The messages that may be new. The others are no business of this consumer,
    /// wait among the letters, or are past.
    pub(super) async fn sort_out<'m>(
        &self,
        tx: &mut S::Tx<'static>,
        messages: &[&'m Message],
        origin: Origin,
        claims: &mut Claims,
        with_letters: &mut Option<bool>,
        counts: &mut Tally,
    ) -> Result<Vec<&'m Message>, HandlerError> {
        let mut taken = Vec::with_capacity(messages.len());
        let near_letters = match origin {
            Origin::Broker => self.near_letters(tx, messages, with_letters).await?,
            Origin::Letters => HashSet::new(),
        };
        for (place, message) in messages.iter().copied().enumerate() {
            let is_wanted = self.handler.wants(message);
            if is_wanted && claims.pass(message) {
                counts.duplicates += 1;
                continue;
            }
            let turn = match self.is_concerned(message) {
                true => self.place(tx, message, origin, near_letters.contains(&place)).await?,
                false => Some(Turn::Now),
            };
            match turn {
                Some(Turn::Now) if is_wanted => taken.push(message),
                Some(Turn::Now) => self.leave_letters(tx, message, origin).await?,
                Some(Turn::Past) => {
                    counts.duplicates += u64::from(is_wanted);
                    self.leave_letters(tx, message, origin).await?;
                }
                Some(Turn::Early { until }) => self.hold_back(tx, message, until).await?,
                // It is safe among the letters.
                None => {}
            }
        }
        Ok(taken)
    }

    /// Whether the next event of its aggregate is held back until this one has had its turn, also if
    /// nobody wants it.
    pub(super) fn is_waited_for(&self, message: &Message) -> bool {
        let holds_back = self.options.sequences.as_ref().is_some_and(Sequences::holds_back);
        holds_back && message.event.sequence().is_some()
    }

    /// Whether it is its turn; none if it waits among the letters.
    async fn place(
        &self,
        tx: &mut S::Tx<'static>,
        message: &Message,
        origin: Origin,
        is_near_letters: bool,
    ) -> Result<Option<Turn>, Failure> {
        if is_near_letters && self.waits_among_letters(tx, message).await? {
            return Ok(None);
        }
        self.turn(tx, message, origin).await.map(Some)
    }

    pub(super) async fn turn(
        &self,
        tx: &mut S::Tx<'static>,
        message: &Message,
        origin: Origin,
    ) -> Result<Turn, Failure> {
        let Some(sequences) = &self.options.sequences else { return Ok(Turn::Now) };
        let (waited, now) = (origin == Origin::Letters, self.options.clock.now());
        self.in_time(sequences.turn(tx, &self.name, &message.event, waited, now)).await
    }
}
