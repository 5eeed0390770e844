//! What goes by its position stays in its place: until it took effect, or is a letter.

use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use semel_core::{Failure, InboxStore, LaneKey, Message, Publication, Published, Verdict};
use tokio::time::timeout;

use super::positions::Claims;
use super::{Handler, Parts};

impl<S: InboxStore, H> Parts<S, H> {
    /// By position all messages of a log are one lane, for one mark speaks of all of them.
    pub(super) fn lane(&self, message: &Message) -> LaneKey {
        match &message.position {
            Some(position) if self.options.positions.is_some() => {
                LaneKey::of_log(position.log.name())
            }
            _ => message.event.lane_key(),
        }
    }

    /// The transaction is committed.
    pub(super) fn note(&self, claims: Claims) {
        if let Some(positions) = &self.options.positions {
            positions.note(claims);
        }
    }
}

impl<S, H> Parts<S, H>
where
    S: InboxStore,
    H: Handler<S::Tx<'static>>,
{
    /// Claims those that go by their positions, before anything is done for them.
    pub(super) async fn claim(
        &self,
        tx: &mut S::Tx<'static>,
        batch: &[&Message],
    ) -> Result<Claims, Failure> {
        let Some(positions) = &self.options.positions else { return Ok(Claims::default()) };
        let wanted = batch.iter().copied().filter(|message| self.handler.wants(message));
        positions.claim(tx, &self.name, wanted).await
    }

    /// Nobody knows whether a replayed event took effect: no id is remembered.
    pub(super) fn refuse_replayed(&self, message: &Message) -> Result<(), Failure> {
        if message.publication != Publication::Again || self.options.takes_old {
            return Ok(());
        }
        let what = "published again by an operator, and this consumer goes by positions: it may \
                    have taken effect";
        Err(Failure::refused("E-EVENT-REPLAYED", what).with_fix(
            "if it has not, retry the dead letter; a consumer that is new, or a replay on purpose, \
             takes such events with `take_old_events`",
        ))
    }

    /// The engine gives up what fails for good, and goes on with what follows; then the mark would
    /// pass by what nobody has. So what it would give up counts as an outage, until it is a letter.
    pub(super) async fn hold_on(
        &self,
        batch: &[Message],
        taking: impl Future<Output = Published>,
    ) -> Published {
        let limit = self.options.handler_timeout.saturating_mul(calls_for(batch.len()));
        let taken = timeout(limit, AssertUnwindSafe(taking).catch_unwind()).await;
        let held = |failure: Failure, message: &Message| {
            if self.is_final(&failure, message) { outage(&failure.to_string()) } else { failure }
        };
        match taken {
            Ok(Ok(Published::All)) => Published::All,
            Ok(Ok(Published::Each(mut verdicts))) => {
                for (verdict, message) in verdicts.iter_mut().zip(batch) {
                    if let Verdict::Failed(failure) = verdict {
                        *failure = held(failure.clone(), message);
                    }
                }
                Published::Each(verdicts)
            }
            Ok(Ok(Published::None(failure))) => Published::None(match batch {
                [] => failure,
                batch => batch.iter().fold(failure, held),
            }),
            Ok(Err(_)) => Published::None(outage("a panic outside of the handler")),
            Err(_) => Published::None(outage("the database did not answer in time")),
        }
    }
}

/// How often a handler may be called for so many messages, each of them three times: with all the
/// others, with those before one that failed, and alone.
pub(super) fn calls_for(messages: usize) -> u32 {
    u32::try_from(messages).unwrap_or(u32::MAX).saturating_mul(3)
}

fn outage(why: &str) -> Failure {
    let what = format!("a message can neither take effect nor be put among the letters: {why}");
    Failure::unavailable("E-CONSUMER-STUCK", what)
        .with_fix("see to the database of the consumer; all of the partition waits for it")
}
