//! From a batch to verdicts, whoever carries the messages.
//!
//! The broker answers for a whole request, not for a record. When it turns a request down, every
//! record of it is sent once more, alone, so that exactly those are refused that deserve it.

use std::collections::HashSet;

use rdkafka::error::KafkaError;
use semel_core::{Failure, Message, Published};

use super::error::{self, Blame};
use super::plan::Plan;
use super::record::Record;
use super::session::{End, Landing};

/// Takes messages to the brokers.
pub(super) trait Carrier: Sync {
    /// How many bytes may be under way together.
    fn room(&self) -> usize;

    /// A message as a record, if it can be one.
    fn record(&self, place: usize, message: &Message) -> Result<Record, Failure>;

    /// Sends a wave and waits for what comes of it.
    fn carry(
        &self,
        batch: &[Message],
        wave: Vec<Record>,
    ) -> impl Future<Output = Result<Landing, Failure>> + Send;

    /// Sends a record with nothing beside it, so that an answer is about it and nothing else.
    fn carry_alone(
        &self,
        batch: &[Message],
        record: Record,
    ) -> impl Future<Output = Result<Landing, Failure>> + Send;
}

/// Sends a batch, wave by wave.
pub(super) async fn publish(carrier: &impl Carrier, batch: &[Message]) -> Published {
    /// A message of any call can end the producer or the transaction of all of them.
    const ROUNDS: usize = 8;
    let mut plan = Plan::new(batch);
    let mut rounds = 0;
    while rounds < ROUNDS {
        let wave = plan.next_wave(carrier.room(), |place, message| carrier.record(place, message));
        if wave.is_empty() {
            return plan.finish();
        }
        match send(carrier, batch, &mut plan, wave).await {
            Ok(again) => rounds += usize::from(again),
            Err(failure) => return plan.give_up(&failure),
        }
    }
    plan.give_up(&error::no_answer("one producer after the other ended"))
}

/// Sends a wave, and notes what became of it; whether some of it is to be sent again.
///
/// # Errors
/// Nothing more can be sent.
async fn send(
    carrier: &impl Carrier,
    batch: &[Message],
    plan: &mut Plan<'_>,
    wave: Vec<Record>,
) -> Result<bool, Failure> {
    let places: Vec<_> = wave.iter().map(|record| record.place).collect();
    let Landing { lost, end } = carrier.carry(batch, wave).await?;
    let missing: HashSet<_> = lost.iter().map(|(place, _)| *place).collect();
    for place in places.into_iter().filter(|place| !missing.contains(place)) {
        plan.confirm(place);
    }
    if let Some(End::Failed(failure)) = end {
        plan.put_back(missing);
        return Err(failure);
    }
    let Unclear { suspects, again } = sort_out(batch, plan, lost);
    for place in suspects {
        if plan.has_failed(place) {
            continue;
        }
        match send_alone(carrier, batch, place).await {
            Ok(()) => plan.confirm(place),
            Err(failure) => plan.fail(place, failure),
        }
    }
    let some = !again.is_empty();
    plan.put_back(again);
    Ok(some)
}

async fn send_alone(
    carrier: &impl Carrier,
    batch: &[Message],
    place: usize,
) -> Result<(), Failure> {
    /// After a transaction that failed the next one may fail too, until the producer is in step.
    const TRIES: usize = 3;
    for _ in 0..TRIES {
        let record = carrier.record(place, &batch[place])?;
        let mut landing = carrier.carry_alone(batch, record).await?;
        let Some((_, error)) = landing.lost.pop() else { return Ok(()) };
        match (error::blame(batch[place].topic.as_str(), error), landing.end) {
            (Blame::Record(failure) | Blame::Clear(failure), _) => return Err(failure),
            (Blame::Session, Some(End::Failed(failure))) => return Err(failure),
            (Blame::Session, _) => {}
        }
    }
    Err(error::no_answer("the producer ended"))
}

/// Messages of which the broker has not said what is wrong with them.
struct Unclear {
    /// One of them is to blame, or they are behind one that may be.
    suspects: Vec<usize>,
    /// They only shared the producer with it.
    again: Vec<usize>,
}

fn sort_out(batch: &[Message], plan: &mut Plan<'_>, lost: Vec<(usize, KafkaError)>) -> Unclear {
    let (mut unclear, mut suspicious) = (Vec::new(), HashSet::new());
    for (place, error) in lost {
        match error::blame(batch[place].topic.as_str(), error) {
            Blame::Clear(failure) => {
                plan.fail(place, failure);
                continue;
            }
            Blame::Record(_) => {
                suspicious.insert(plan.lane(place));
            }
            Blame::Session => {}
        }
        unclear.push(place);
    }
    unclear.retain(|place| !plan.has_failed(*place));
    let is_suspect = |place: &usize| suspicious.contains(&plan.lane(*place));
    let (suspects, again) = unclear.into_iter().partition(is_suspect);
    Unclear { suspects, again }
}
