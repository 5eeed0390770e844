//! From a batch to verdicts, whoever carries the messages.
//!
//! The broker answers for a whole request, not for a record. When it turns a request down, every
//! record of it is sent once more, alone, so that exactly those are refused that deserve it.
//!
//! Many waves, or many records alone, can take longer than a call may. What does not fit waits for
//! the next call, so that what was confirmed counts.

use std::collections::HashSet;
use std::time::Duration;

use rdkafka::error::KafkaError;
use semel_core::{Failure, Message, Published};
use tokio::time::Instant;

use super::error::{self, Blame};
use super::plan::Plan;
use super::record::Record;
use super::session::{End, Landing};

/// Takes messages to the brokers.
pub(super) trait Carrier: Sync {
    /// How many bytes may be under way together.
    fn room(&self) -> usize;

    /// How long a call may take in all.
    fn patience(&self) -> Duration;

    /// A message as a record, if it can be one.
    fn record(&self, place: usize, message: &Message) -> Result<Record, Failure>;

    /// Sends a wave and waits until `deadline` for what comes of it.
    fn carry(
        &self,
        batch: &[Message],
        wave: Vec<Record>,
        deadline: Instant,
    ) -> impl Future<Output = Result<Landing, Failure>> + Send;

    /// Sends a record with nothing beside it, so that an answer is about it and nothing else.
    fn carry_alone(
        &self,
        batch: &[Message],
        record: Record,
        deadline: Instant,
    ) -> impl Future<Output = Result<Landing, Failure>> + Send;
}

/// Sends a batch, wave by wave.
pub(super) async fn publish(carrier: &impl Carrier, batch: &[Message]) -> Published {
    /// A message of any call can end the producer or the transaction of all of them.
    const ROUNDS: usize = 8;
    let time = Time::from_now(carrier.patience());
    let mut plan = Plan::new(batch);
    let mut rounds = 0;
    while rounds < ROUNDS {
        let wave = plan.next_wave(carrier.room(), |place, message| carrier.record(place, message));
        if wave.is_empty() {
            return plan.finish();
        }
        match send(carrier, batch, &mut plan, wave, time).await {
            Ok(again) => rounds += usize::from(again),
            Err(failure) => return plan.give_up(&failure),
        }
    }
    plan.give_up(&error::no_answer("one producer after the other ended"))
}

/// How long a call goes on.
#[derive(Clone, Copy)]
struct Time {
    /// From here on nothing is begun: it would have too little time for its answer.
    late: Instant,
    deadline: Instant,
}

impl Time {
    fn from_now(patience: Duration) -> Self {
        let now = Instant::now();
        Self { late: now + patience / 2, deadline: now + patience }
    }

    fn is_late(self) -> bool {
        Instant::now() >= self.late
    }
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
    time: Time,
) -> Result<bool, Failure> {
    let places: Vec<_> = wave.iter().map(|record| record.place).collect();
    let landing = if time.is_late() {
        Err(error::too_slow())
    } else {
        carrier.carry(batch, wave, time.deadline).await
    };
    let Landing { lost, end } = landing.inspect_err(|_| plan.put_back(places.iter().copied()))?;
    let missing: HashSet<_> = lost.iter().map(|(place, _)| *place).collect();
    for place in places.into_iter().filter(|place| !missing.contains(place)) {
        plan.confirm(place);
    }
    if let Some(End::Failed(failure)) = end {
        plan.put_back(missing);
        return Err(failure);
    }
    let Unclear { suspects, again } = sort_out(batch, plan, lost);
    let mut suspects = suspects.into_iter();
    // One of them is sent however late it is, so that every call gets somewhere.
    let mut is_late = false;
    while !is_late && let Some(place) = suspects.next() {
        if plan.has_failed(place) {
            continue;
        }
        match send_alone(carrier, batch, place, time.deadline).await {
            Ok(()) => plan.confirm(place),
            Err(failure) => plan.fail(place, failure),
        }
        is_late = time.is_late();
    }
    let (is_cut_short, some) = (suspects.len() > 0, !again.is_empty());
    plan.put_back(suspects.chain(again));
    if is_cut_short { Err(error::too_slow()) } else { Ok(some) }
}

async fn send_alone(
    carrier: &impl Carrier,
    batch: &[Message],
    place: usize,
    deadline: Instant,
) -> Result<(), Failure> {
    /// After a transaction that failed the next one may fail too, until the producer is in step.
    const TRIES: usize = 3;
    for _ in 0..TRIES {
        let record = carrier.record(place, &batch[place])?;
        let mut landing = carrier.carry_alone(batch, record, deadline).await?;
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

#[cfg(test)]
mod tests {
    use rdkafka::types::RDKafkaErrorCode as Code;
    use semel_core::wire::Format;
    use semel_core::{Event, Fault, Verdict};
    use tokio::time::sleep;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(25);

    /// Brokers that take their time.
    struct Slow {
        answer: Duration,
        /// Whether they turn down every record that is not alone.
        picky: bool,
    }

    impl Carrier for Slow {
        fn room(&self) -> usize {
            usize::MAX
        }

        fn patience(&self) -> Duration {
            PATIENCE
        }

        fn record(&self, place: usize, message: &Message) -> Result<Record, Failure> {
            Record::new(place, message, Format::Plain, 1000, None)
        }

        async fn carry(
            &self,
            _: &[Message],
            wave: Vec<Record>,
            _: Instant,
        ) -> Result<Landing, Failure> {
            sleep(self.answer).await;
            let too_large = KafkaError::MessageProduction(Code::MessageSizeTooLarge);
            let lost = wave.iter().filter(|_| self.picky);
            let lost = lost.map(|record| (record.place, too_large.clone())).collect();
            Ok(Landing { lost, end: None })
        }

        async fn carry_alone(
            &self,
            _: &[Message],
            _: Record,
            _: Instant,
        ) -> Result<Landing, Failure> {
            sleep(self.answer).await;
            Ok(Landing { lost: Vec::new(), end: None })
        }
    }

    /// Nothing can be sent with them at all.
    struct Broken;

    impl Carrier for Broken {
        fn room(&self) -> usize {
            usize::MAX
        }

        fn patience(&self) -> Duration {
            PATIENCE
        }

        fn record(&self, place: usize, message: &Message) -> Result<Record, Failure> {
            Record::new(place, message, Format::Plain, 1000, None)
        }

        async fn carry(
            &self,
            _: &[Message],
            _: Vec<Record>,
            _: Instant,
        ) -> Result<Landing, Failure> {
            Err(Failure::misconfigured("E-TEST", "no producer"))
        }

        async fn carry_alone(
            &self,
            _: &[Message],
            _: Record,
            _: Instant,
        ) -> Result<Landing, Failure> {
            Err(Failure::misconfigured("E-TEST", "no producer"))
        }
    }

    /// A lane of so many messages whose topics take turns.
    fn lane(topics: &[&str], count: usize) -> Vec<Message> {
        let topics = topics.iter().cycle().take(count);
        topics.map(|topic| Message::first(*topic, Event::new("order", "a", "T"))).collect()
    }

    /// Publishes until all is confirmed; how often that took a call. No attempt may be counted, and
    /// no call may take longer than it should.
    async fn calls_for(carrier: &Slow, mut batch: Vec<Message>) -> usize {
        for calls in 1.. {
            let began = Instant::now();
            let published = publish(carrier, &batch).await;
            assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
            let Published::Each(verdicts) = published else {
                assert_eq!(published, Published::All);
                return calls;
            };
            let confirmed = verdicts.iter().take_while(|it| **it == Verdict::Confirmed).count();
            assert!(confirmed > 0, "a call gets somewhere");
            let Verdict::Failed(failure) = &verdicts[confirmed] else { panic!("{verdicts:?}") };
            assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, "E-KAFKA-SLOW"));
            assert!(verdicts[confirmed + 1..].iter().all(|it| *it == Verdict::Behind));
            batch.drain(..confirmed);
        }
        0
    }

    #[tokio::test(start_paused = true)]
    async fn many_waves_take_several_calls_and_no_attempt() {
        let slow = Slow { answer: Duration::from_millis(100), picky: false };
        assert_eq!(calls_for(&slow, lane(&["x", "y"], 500)).await, 4);
        assert_eq!(calls_for(&slow, lane(&["x"], 500)).await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn many_records_alone_take_several_calls_and_no_attempt() {
        let quick = Slow { answer: Duration::from_millis(100), picky: true };
        assert!(calls_for(&quick, lane(&["x"], 500)).await > 1);
        let slow = Slow { answer: PATIENCE * 9 / 20, picky: true };
        assert_eq!(calls_for(&slow, lane(&["x"], 3)).await, 3, "one each time");
    }

    #[tokio::test]
    async fn what_could_not_be_sent_is_never_confirmed() {
        for count in [1, 2] {
            let batch = lane(&["x", "y"], count);
            let Published::Each(verdicts) = publish(&Broken, &batch).await else {
                panic!("nothing was sent")
            };
            assert!(matches!(&verdicts[0], Verdict::Failed(failure) if failure.code() == "E-TEST"));
            assert_eq!(verdicts[1..], vec![Verdict::Behind; count - 1]);
        }
    }
}
