//! One pipeline to several sinks.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use futures_util::future::join_all;
use semel_core::{EventId, Failure, Fault, Message, Publication, Published, Sink, Verdict};

use crate::publish::send;
use crate::verdict::stop_lanes_at_failures;

/// Several sinks as one: a message is confirmed when all of them have confirmed it.
///
/// When one fails, the message is tried again. Those who have it already do not get it a second
/// time, as long as this process lives; after a crash they may, like with any sink. While one of
/// them is down the others wait with it: pipelines of their own keep them apart.
///
/// ```
/// use semel_core::memory::MemoryBroker;
/// use semel_core::{Event, Message, Sink};
/// use semel_relay::Fanout;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let (broker, audit) = (MemoryBroker::new(), MemoryBroker::new());
/// let both = Fanout::new().with("broker", broker.clone()).with("audit", audit.clone());
/// let message = Message::first("order.events", Event::new("order", "42", "OrderPlaced"));
/// assert!(both.publish(&[message]).await.all_confirmed());
/// assert_eq!((broker.messages().len(), audit.messages().len()), (1, 1));
/// # });
/// ```
#[derive(Default)]
pub struct Fanout {
    branches: Vec<Branch>,
}

struct Branch {
    name: String,
    sink: Arc<dyn Sink>,
    /// What it has and another sink has not.
    ahead: Mutex<Ahead>,
}

/// What a branch says of each message of a batch, or of all of them.
type Answer = Result<Vec<Verdict>, Failure>;

/// What one branch does in a call. When the call is given up, the branch remembers what it has: its
/// answer would be lost with those of the others.
struct Part<'a> {
    branch: &'a Branch,
    batch: &'a [Message],
    answer: Option<Answer>,
}

impl Fanout {
    /// No sink yet: everything is confirmed.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a sink. Failures say its name.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, sink: impl Sink + 'static) -> Self {
        let (name, sink) = (name.into(), Arc::new(sink));
        self.branches.push(Branch { name, sink, ahead: Mutex::default() });
        self
    }
}

#[async_trait]
impl Sink for Fanout {
    async fn publish(&self, batch: &[Message]) -> Published {
        let part = |branch| Part { branch, batch, answer: None };
        let mut parts: Vec<_> = self.branches.iter().map(part).collect();
        join_all(parts.iter_mut().map(Part::publish)).await;
        let answers: Vec<_> = parts.iter_mut().filter_map(|part| part.answer.take()).collect();
        let failed_wholly = answers.iter().filter_map(|answer| answer.as_ref().err());
        let whole = failed_wholly.max_by_key(|failure| urgency(failure)).cloned();
        let mut verdicts = vec![Verdict::Confirmed; batch.len()];
        for answer in answers.iter().flatten() {
            for (verdict, other) in verdicts.iter_mut().zip(answer) {
                worsen(verdict, other);
            }
        }
        stop_lanes_at_failures(batch, &mut verdicts);
        for (branch, answer) in self.branches.iter().zip(&answers) {
            branch.remember(batch, answer, whole.is_none().then_some(&verdicts));
        }
        match whole {
            Some(failure) => Published::None(failure),
            None if verdicts.iter().all(|verdict| *verdict == Verdict::Confirmed) => Published::All,
            None => Published::Each(verdicts),
        }
    }

    async fn check(&self) -> Result<(), Failure> {
        let answers = join_all(self.branches.iter().map(Branch::check)).await;
        answers.into_iter().collect()
    }

    fn remembers(&self) -> bool {
        self.branches.iter().any(|branch| branch.sink.remembers())
    }

    fn settled(&self, events: &[EventId]) {
        self.branches.iter().for_each(|branch| branch.sink.settled(events));
    }

    fn caught_up(&self) {
        self.branches.iter().for_each(|branch| branch.sink.caught_up());
    }

    /// The sinks behind it send.
    fn system(&self) -> Option<&'static str> {
        None
    }
}

impl fmt::Debug for Fanout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.branches.iter().map(|branch| &branch.name)).finish()
    }
}

impl Part<'_> {
    async fn publish(&mut self) {
        self.answer = Some(self.branch.publish(self.batch).await);
    }
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        if let Some(answer) = &self.answer {
            self.branch.remember(self.batch, answer, None);
        }
    }
}

impl Branch {
    /// Publishes what the sink does not have yet.
    async fn publish(&self, batch: &[Message]) -> Answer {
        let (missing, is_there) = self.missing(batch);
        let published = match &missing {
            None => send(&*self.sink, batch).await,
            Some(missing) if missing.is_empty() => Published::All,
            Some(missing) => send(&*self.sink, missing).await,
        };
        let sent = missing.as_ref().map_or(batch.len(), Vec::len);
        let verdicts = match published {
            Published::All => vec![Verdict::Confirmed; sent],
            Published::Each(verdicts) => verdicts,
            Published::None(failure) => return Err(self.blame(failure)),
        };
        let mut verdicts = verdicts.into_iter().map(|verdict| match verdict {
            Verdict::Failed(failure) => Verdict::Failed(self.blame(failure)),
            verdict => verdict,
        });
        let verdict = |is_there: bool| {
            if is_there { Verdict::Confirmed } else { verdicts.next().unwrap_or(Verdict::Behind) }
        };
        Ok(is_there.into_iter().map(verdict).collect())
    }

    /// The messages it lacks, if those are not all; and for each message, whether it is there.
    fn missing(&self, batch: &[Message]) -> (Option<Vec<Message>>, Vec<bool>) {
        let ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        if ahead.is_empty() {
            return (None, vec![false; batch.len()]);
        }
        let is_there: Vec<_> = batch.iter().map(|message| ahead.holds(message)).collect();
        let missing = batch.iter().zip(&is_there).filter(|(_, is_there)| !**is_there);
        (Some(missing.map(|(message, _)| message.clone()).collect()), is_there)
    }

    /// Remembers what only this branch has. `verdicts` are those of all branches together.
    fn remember(&self, batch: &[Message], answer: &Answer, verdicts: Option<&Vec<Verdict>>) {
        let Ok(own) = answer else { return };
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        for (place, message) in batch.iter().enumerate() {
            let has_it = own.get(place) == Some(&Verdict::Confirmed);
            let all_have_it = verdicts.is_some_and(|all| all[place] == Verdict::Confirmed);
            if all_have_it {
                ahead.remove(message.event.id);
            } else if has_it {
                ahead.insert(message);
            }
        }
    }

    async fn check(&self) -> Result<(), Failure> {
        self.sink.check().await.map_err(|failure| self.blame(failure))
    }

    fn blame(&self, failure: Failure) -> Failure {
        failure.at(&format!("sink {}", self.name))
    }
}

/// Messages that a sink has, the latest of them.
#[derive(Default)]
struct Ahead {
    /// As what each was published, and its turn. What an operator wants published again is another
    /// message: another relay may have seen to the first one.
    known: HashMap<EventId, (Publication, u64)>,
    by_turn: BTreeMap<u64, EventId>,
    turns: u64,
}

impl Ahead {
    /// More than any relay has in flight; beyond it, a sink may get a message again.
    const REMEMBERED: usize = 100_000;

    fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    fn holds(&self, message: &Message) -> bool {
        let known = self.known.get(&message.event.id);
        known.is_some_and(|(publication, _)| *publication == message.publication)
    }

    /// Remembers a message, and forgets the oldest if there are too many.
    fn insert(&mut self, message: &Message) {
        if self.holds(message) {
            return;
        }
        self.remove(message.event.id);
        if self.known.len() >= Self::REMEMBERED
            && let Some((_, oldest)) = self.by_turn.pop_first()
        {
            self.known.remove(&oldest);
        }
        self.turns += 1;
        self.known.insert(message.event.id, (message.publication, self.turns));
        self.by_turn.insert(self.turns, message.event.id);
    }

    fn remove(&mut self, event: EventId) {
        if let Some((_, turn)) = self.known.remove(&event) {
            self.by_turn.remove(&turn);
        }
    }
}

/// Which of several failures decides: a message that one sink refuses and another has not got yet
/// is tried again, so that it is not given up half-way.
fn urgency(failure: &Failure) -> u8 {
    match failure.fault() {
        Fault::Misconfigured => 3,
        Fault::Unavailable => 2,
        Fault::Transient => 1,
        Fault::Refused => 0,
    }
}

fn worsen(verdict: &mut Verdict, other: &Verdict) {
    let is_worse = match (&*verdict, other) {
        (_, Verdict::Confirmed) => false,
        (Verdict::Confirmed, _) => true,
        (Verdict::Failed(one), Verdict::Failed(other)) => urgency(other) > urgency(one),
        (Verdict::Behind | Verdict::Buried(_), Verdict::Failed(_)) => true,
        (_, Verdict::Behind | Verdict::Buried(_)) => false,
    };
    if is_worse {
        *verdict = other.clone();
    }
}
