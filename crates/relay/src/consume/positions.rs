//! Taking effect once by position: one mark for each log, instead of an id for each message.
//!
//! A log that holds every event once shows it twice only to those who begin to read again. So one
//! number says what took effect: everything below it. It is moved first, in the transaction of the
//! effects, and so it is the lock too: whoever lost the log to another reader, and is late, finds it
//! moved.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use semel_core::delivery::Log;
use semel_core::marks::Step;
use semel_core::{Failure, Marks, Message, Position, Publication};

/// How far each log was read.
pub(super) struct Positions<Tx> {
    marks: Arc<dyn Marks<Tx>>,
    /// Where this process left the marks, by log. Others may have moved them since.
    left: Mutex<HashMap<String, u64>>,
}

/// What a transaction has claimed, by log.
#[derive(Debug, Default)]
pub(super) struct Claims(BTreeMap<String, Claim>);

/// All offsets of a log below `to`. Those below `next` took effect: before, or in this transaction.
#[derive(Debug)]
struct Claim {
    scope: String,
    next: u64,
    to: u64,
}

/// What a batch has of one log.
struct Span<'m> {
    log: &'m dyn Log,
    scope: String,
    first: u64,
    end: u64,
}

impl<Tx: Send> Positions<Tx> {
    pub(super) fn new(marks: Arc<dyn Marks<Tx>>) -> Self {
        Self { marks, left: Mutex::default() }
    }

    /// Moves the marks beyond these messages, as far as they go by positions.
    ///
    /// # Errors
    /// `Misconfigured` when a log is not the one that its mark speaks of. What the store returned.
    pub(super) async fn claim<'m>(
        &self,
        tx: &mut Tx,
        consumer: &str,
        messages: impl Iterator<Item = &'m Message> + Send,
    ) -> Result<Claims, Failure> {
        let mut claims = Claims::default();
        let spans = spans(messages);
        if spans.is_empty() {
            return Ok(claims);
        }
        let mut steps = Vec::with_capacity(spans.len());
        for (name, span) in &spans {
            let left = self.left().remove(name);
            if let Some(from) = left.filter(|from| *from <= span.first) {
                steps.push((name, Step { scope: &span.scope, from, to: span.end }));
            }
        }
        if !steps.is_empty() {
            let known: Vec<_> = steps.iter().map(|(_, step)| *step).collect();
            let moved = self.marks.step_all(tx, consumer, &known).await?;
            for ((name, step), _) in steps.iter().zip(moved).filter(|(_, moved)| *moved) {
                let scope = step.scope.to_owned();
                claims.0.insert((*name).clone(), Claim { scope, next: step.from, to: step.to });
            }
        }
        for (name, span) in &spans {
            if !claims.0.contains_key(name) {
                let claim = self.look_and_claim(tx, consumer, span).await?;
                claims.0.insert(name.clone(), claim);
            }
        }
        Ok(claims)
    }

    /// What these messages would claim, if this process knows where all marks are, as it left them,
    /// and the inbox can move them.
    pub(super) fn expected<'m>(
        &self,
        messages: impl Iterator<Item = &'m Message>,
    ) -> Option<Claims> {
        if !self.marks.is_beside_inbox() {
            return None;
        }
        let left = self.left();
        let claim = |(name, Span { scope, first, end, .. }): (String, Span<'_>)| {
            let next = left.get(&name).copied().filter(|from| *from <= first)?;
            Some((name, Claim { scope, next, to: end }))
        };
        spans(messages).into_iter().map(claim).collect::<Option<_>>().map(Claims)
    }

    /// The marks moved, and until that is committed nobody knows where they are.
    pub(super) fn forget(&self, claims: &Claims) {
        let mut left = self.left();
        for name in claims.0.keys() {
            left.remove(name);
        }
    }

    /// The same as [`claim`](Self::claim) when it is not known where the mark is.
    async fn look_and_claim(
        &self,
        tx: &mut Tx,
        consumer: &str,
        span: &Span<'_>,
    ) -> Result<Claim, Failure> {
        let Span { log, scope, first, end } = span;
        let was = match self.marks.mark(tx, consumer, scope).await? {
            Some(mark) => mark,
            None => {
                // Somebody else may begin at the same time: whoever is second waits here.
                self.marks.advance(tx, consumer, scope, 0).await?;
                self.marks.mark(tx, consumer, scope).await?.unwrap_or(0)
            }
        };
        if was > *first && was > log.end().await? {
            return Err(another_log(log.name(), was));
        }
        let (scope, to) = (scope.clone(), was.max(*end));
        if to > was {
            let step = Step { scope: &scope, from: was, to };
            if self.marks.step_all(tx, consumer, &[step]).await? != [true] {
                let what = format!("the mark of {} moved while it was locked", log.name());
                return Err(Failure::transient("E-CONSUMER-MARK", what));
            }
        }
        Ok(Claim { scope, next: was, to })
    }

    /// No more takes effect in this transaction: the marks go back to behind what did.
    ///
    /// # Errors
    /// What the store returned.
    pub(super) async fn give_back(
        &self,
        tx: &mut Tx,
        consumer: &str,
        claims: &mut Claims,
    ) -> Result<(), Failure> {
        for claim in claims.0.values_mut().filter(|claim| claim.next < claim.to) {
            let step = Step { scope: &claim.scope, from: claim.to, to: claim.next };
            self.marks.step_all(tx, consumer, &[step]).await?;
            claim.to = claim.next;
        }
        Ok(())
    }

    /// The transaction is committed.
    pub(super) fn note(&self, claims: Claims) {
        let mut left = self.left();
        left.extend(claims.0.into_iter().map(|(name, claim)| (name, claim.to)));
    }

    fn left(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Claims {
    /// Whether messages like this one are claimed.
    pub(super) fn concern(message: &Message) -> bool {
        sound(message).is_some()
    }

    /// How the marks move.
    pub(super) fn steps(&self) -> Vec<Step<'_>> {
        let mut steps = Vec::with_capacity(self.0.len());
        for Claim { scope, next, to } in self.0.values() {
            steps.push(Step { scope, from: *next, to: *to });
        }
        steps
    }

    /// Whether the message goes by its position.
    pub(super) fn cover(&self, message: &Message) -> bool {
        !self.0.is_empty()
            && sound(message).is_some_and(|position| self.0.contains_key(position.log.name()))
    }

    /// Passes by a message; says whether it was passed by before.
    pub(super) fn pass(&mut self, message: &Message) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let Some(Position { log, offset }) = sound(message) else { return false };
        let Some(claim) = self.0.get_mut(log.name()) else { return false };
        let is_past = *offset < claim.next;
        claim.next = claim.next.max(offset + 1);
        is_past
    }
}

/// The position of a message, if its publisher says that it is in its log once.
fn sound(message: &Message) -> Option<&Position> {
    message.position.as_ref().filter(|_| message.publication != Publication::Unknown)
}

fn spans<'m>(messages: impl Iterator<Item = &'m Message>) -> BTreeMap<String, Span<'m>> {
    let mut spans: BTreeMap<String, Span<'m>> = BTreeMap::new();
    for position in messages.filter_map(sound) {
        let (name, offset) = (position.log.name(), position.offset);
        match spans.get_mut(name) {
            Some(span) => {
                span.first = span.first.min(offset);
                span.end = span.end.max(offset + 1);
            }
            None => {
                let (log, scope) = (&*position.log, position.scope());
                let span = Span { log, scope, first: offset, end: offset + 1 };
                spans.insert(name.to_owned(), span);
            }
        }
    }
    spans
}

fn another_log(name: &str, mark: u64) -> Failure {
    let what = format!(
        "everything of {name} below {mark} took effect, and the log ends before that: it was \
         deleted and made anew, or its end was lost"
    );
    Failure::misconfigured("E-CONSUMER-LOG", what).with_fix(
        "give the consumer another name, or delete its mark of that log from the table of marks: \
         what the log holds now takes effect then",
    )
}

impl<Tx> fmt::Debug for Positions<Tx> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Positions").finish_non_exhaustive()
    }
}
