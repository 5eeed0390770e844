//! Dead letters of the consumer's own, and what waits behind them.

use std::collections::HashSet;

use semel_core::letters::{Letter, Standing};
use semel_core::retry::{Decision, decide};
use semel_core::{Event, Failure, HandlerError, InboxStore, Message, Timestamp, Verdict};

use super::{Handler, Origin, Parts};
use crate::settings::OnDead;

impl<S, H> Parts<S, H>
where
    S: InboxStore,
    H: Handler<S::Tx<'static>>,
{
    /// Those of these messages that may be letters already, or behind some, by their places: only of
    /// those it is asked where they stand. `any` is whether there are letters at all, once that is known.
    pub(super) async fn near_letters(
        &self,
        tx: &mut S::Tx<'static>,
        messages: &[&Message],
        any: &mut Option<bool>,
    ) -> Result<HashSet<usize>, Failure> {
        let Some(letters) = &self.options.letters else { return Ok(HashSet::new()) };
        let (places, events): (Vec<usize>, Vec<&Event>) = (0..)
            .zip(messages)
            .filter(|(_, message)| self.is_concerned(message))
            .map(|(place, message)| (place, &*message.event))
            .unzip();
        if events.is_empty() {
            return Ok(HashSet::new());
        }
        let any = match any {
            Some(any) => *any,
            None => *any.insert(self.in_time(letters.any(tx, &self.name)).await?),
        };
        if !any {
            return Ok(HashSet::new());
        }
        let concerned = self.in_time(letters.concerned(tx, &self.name, &events)).await?;
        // What it says nothing of is asked for.
        let concerned = concerned.into_iter().chain(std::iter::repeat(true));
        let near = places.into_iter().zip(concerned).filter(|(_, is_concerned)| *is_concerned);
        Ok(near.map(|(place, _)| place).collect())
    }

    /// Whether the message is a letter already, or was put behind those of its lane.
    pub(super) async fn waits_among_letters(
        &self,
        tx: &mut S::Tx<'static>,
        message: &Message,
    ) -> Result<bool, Failure> {
        let Some(letters) = &self.options.letters else { return Ok(false) };
        match self.in_time(letters.standing(tx, &self.name, &message.event)).await? {
            Standing::Own => Ok(true),
            Standing::Behind if self.options.settings.on_dead == OnDead::ParkLane => {
                let letter = Letter::behind(message.clone());
                self.in_time(letters.put(tx, &self.name, &letter)).await?;
                Ok(true)
            }
            Standing::Behind | Standing::Free => Ok(false),
        }
    }

    pub(super) async fn hold_back(
        &self,
        tx: &mut S::Tx<'static>,
        message: &Message,
        until: Timestamp,
    ) -> Result<(), HandlerError> {
        let Some(letters) = &self.options.letters else {
            let what = "events can only be held back among the dead letters of the consumer";
            return Err(Failure::misconfigured("E-CONSUMER", what)
                .with_fix("add `dead_letters` to the consumer")
                .into());
        };
        let held = Letter::held(message.clone(), until);
        self.in_time(letters.put(tx, &self.name, &held)).await?;
        Ok(())
    }

    /// The message is done: it is no letter any more, and what was held back for it may go.
    pub(super) async fn leave_letters(
        &self,
        tx: &mut S::Tx<'static>,
        message: &Message,
        origin: Origin,
    ) -> Result<(), Failure> {
        let Some(letters) = &self.options.letters else { return Ok(()) };
        if origin == Origin::Letters {
            self.in_time(letters.remove(tx, &self.name, &message.event)).await?;
        }
        if self.is_waited_for(message) {
            self.in_time(letters.release(tx, &self.name, &message.event)).await?;
        }
        Ok(())
    }

    /// Whether no other attempt follows and the letter is ours.
    pub(super) fn is_final(&self, failure: &Failure, message: &Message) -> bool {
        let (schedule, now) = (&self.options.settings.schedule, self.options.clock.now());
        self.options.letters.is_some()
            && decide(failure.fault(), message.attempt, schedule, now, 0) == Decision::Dead
    }

    pub(super) async fn bury(&self, message: &Message, failure: Failure) -> Verdict {
        match self.put_dead(message, &failure).await {
            Ok(()) => Verdict::Buried(failure),
            Err(failure) => Verdict::Failed(failure),
        }
    }

    async fn put_dead(&self, message: &Message, failure: &Failure) -> Result<(), Failure> {
        let Some(letters) = &self.options.letters else { return Ok(()) };
        let mut tx = self.in_time(self.store.begin()).await?;
        let mut claims = self.in_time(self.claim(&mut tx, &[message])).await?;
        if claims.pass(message) {
            self.undo(tx).await;
            return Ok(());
        }
        let letter = Letter::dead(message.clone(), failure);
        self.in_time(letters.put(&mut tx, &self.name, &letter)).await?;
        self.in_time(self.store.commit(tx)).await?;
        self.note(claims);
        Ok(())
    }
}
