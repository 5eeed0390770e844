//! What one call brings, in as few transactions as will do, because the commit is the cost.
//!
//! All messages share one. When it is undone, it is known as a rule which message failed: those
//! before it share another one, it has one of its own, and the rest goes on together, without its
//! lane if it failed again. When it is not known, they are taken one by one.

use std::collections::VecDeque;
use std::ops::Range;

use semel_core::{Failure, HandlerError, InboxStore, LaneKey, Message, Published, Verdict};

use super::{Handler, Origin, Parts, Trouble, Undone};

impl<S, H> Parts<S, H>
where
    S: InboxStore,
    H: Handler<S::Tx<'static>>,
{
    pub(super) async fn take(&self, batch: &[Message], origin: Origin) -> Published {
        if origin == Origin::Broker && !batch.iter().any(|message| self.is_concerned(message)) {
            return Published::All;
        }
        let (mut left, mut sharing) = (Left::of(batch), Sharing::default());
        while let Some(first) = left.first() {
            let undone = match self.apply_together(&left.next(&sharing), origin).await {
                Ok(0) => Undone::of_one(not_taken_up()),
                Ok(count) => {
                    sharing.went_well(&left);
                    left.confirm(count);
                    continue;
                }
                Err(undone) if undone.reach > 1 => {
                    sharing.part(&left, &undone);
                    continue;
                }
                Err(undone) => undone,
            };
            sharing.went_wrong(&left);
            match self.judge(first, undone.trouble, origin).await {
                Ok(verdict) => left.judge(verdict, |message| self.lane(message)),
                Err(failure) if left.is_untouched() => return Published::None(failure),
                Err(failure) => left.fail(&failure),
            }
        }
        left.published()
    }

    /// Whether anything is done for a message of the broker. What nobody wants moves no mark either.
    pub(super) fn is_concerned(&self, message: &Message) -> bool {
        self.handler.wants(message) || self.is_waited_for(message)
    }

    /// What becomes of a message that failed in a transaction of its own, or as the first.
    ///
    /// # Errors
    /// When there is no transaction to be had, for nobody, or the store is silent: to wait so for
    /// each of many would take hours.
    async fn judge(
        &self,
        message: &Message,
        trouble: Trouble,
        origin: Origin,
    ) -> Result<Verdict, Failure> {
        let error = match trouble {
            Trouble::Store(failure) | Trouble::Silence(failure) => return Err(failure),
            Trouble::Message(error) => error,
        };
        if matches!(error, HandlerError::AlreadyApplied) {
            return Ok(self.note_applied(message, origin).await.into());
        }
        let failure = self.failure(error);
        Ok(if self.is_final(&failure, message) {
            self.bury(message, failure).await
        } else {
            Verdict::Failed(failure)
        })
    }
}

/// A transaction was committed without the message that it was for: never a confirmation.
fn not_taken_up() -> Failure {
    Failure::transient("E-SINK-CONTRACT", "the consumer committed nothing for its message")
}

/// What is left of a batch, and what became of the rest.
struct Left<'b> {
    /// In the order of the batch, with their places in it.
    messages: VecDeque<(usize, &'b Message)>,
    /// Of those that are not simply confirmed.
    verdicts: Vec<(usize, Verdict)>,
    /// How many messages the batch has.
    all: usize,
}

impl<'b> Left<'b> {
    fn of(batch: &'b [Message]) -> Self {
        let messages = batch.iter().enumerate().collect();
        Self { messages, verdicts: Vec::new(), all: batch.len() }
    }

    fn first(&self) -> Option<&'b Message> {
        self.messages.front().map(|(_, message)| *message)
    }

    /// Those that share the next transaction.
    fn next(&self, sharing: &Sharing) -> Vec<&'b Message> {
        let count = sharing.count(self);
        self.messages.iter().take(count).map(|(_, message)| *message).collect()
    }

    /// Where in the batch the message is that is `ahead` of the first; behind all if there is none.
    fn place(&self, ahead: usize) -> usize {
        self.messages.get(ahead).map_or(self.all, |(place, _)| *place)
    }

    fn is_untouched(&self) -> bool {
        self.messages.len() == self.all
    }

    /// So many took effect.
    fn confirm(&mut self, count: usize) {
        self.messages.drain(..count.min(self.messages.len()));
    }

    /// This became of the first. A lane stops at its first failure.
    fn judge(&mut self, verdict: Verdict, lane: impl Fn(&Message) -> LaneKey) {
        let Some((place, first)) = self.messages.pop_front() else { return };
        if matches!(verdict, Verdict::Failed(_)) {
            let (failed, verdicts) = (lane(first), &mut self.verdicts);
            self.messages.retain(|(place, message)| {
                let is_behind = lane(message) == failed;
                if is_behind {
                    verdicts.push((*place, Verdict::Behind));
                }
                !is_behind
            });
        }
        self.verdicts.push((place, verdict));
    }

    fn fail(&mut self, failure: &Failure) {
        let failed = |(place, _)| (place, Verdict::Failed(failure.clone()));
        self.verdicts.extend(self.messages.drain(..).map(failed));
    }

    fn published(self) -> Published {
        if self.verdicts.is_empty() {
            return Published::All;
        }
        let mut all = vec![Verdict::Confirmed; self.all];
        for (place, verdict) in self.verdicts {
            all[place] = verdict;
        }
        Published::Each(all)
    }
}

/// How many messages share a transaction.
struct Sharing {
    /// Places of the batch: what is there is taken one by one, once all before it is taken.
    apart: Range<usize>,
    /// How many otherwise: fewer and fewer while one after the other fails, for what is done for all
    /// of them before the handler is undone each time.
    most: usize,
}

impl Default for Sharing {
    fn default() -> Self {
        Self { apart: 0..0, most: usize::MAX }
    }
}

impl Sharing {
    const STEP: usize = 8;

    fn count(&self, left: &Left<'_>) -> usize {
        let first = left.place(0);
        if self.apart.contains(&first) {
            1
        } else if first < self.apart.start {
            left.messages.iter().take_while(|(place, _)| *place < self.apart.start).count()
        } else {
            self.most
        }
    }

    fn went_well(&mut self, left: &Left<'_>) {
        if left.place(0) >= self.apart.end {
            self.most = self.most.saturating_mul(Self::STEP);
        }
    }

    /// The first failed by itself.
    fn went_wrong(&mut self, left: &Left<'_>) {
        self.most = (self.most.min(left.messages.len()) / Self::STEP).max(1);
    }

    /// A transaction of several was undone.
    fn part(&mut self, left: &Left<'_>, undone: &Undone) {
        let (first, last) = (left.place(0), left.place(undone.reach - 1));
        let is_again = first < self.apart.end;
        self.apart = match undone.by_last {
            true if !is_again => last..last + 1,
            _ => first..self.apart.end.max(last + 1),
        };
    }
}
