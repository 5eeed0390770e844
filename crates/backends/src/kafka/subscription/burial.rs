//! Dead letters on their way to their topics.
//!
//! A letter is its message and what is said of it, for which the topic may have no room: then less is
//! said. Which one of a request is too large the broker does not say, so it is sent alone first.

use std::time::Duration;

use semel_core::wire::Epitaph;
use semel_core::{Failure, Fault, Message, Published, Topic, Verdict};
use tokio::time::Instant;

use super::arrived::{Arrived, Why};
use crate::brevity::{in_brief, less_and_less};
use crate::kafka::dispatch::{self, Carrier};
use crate::kafka::error;
use crate::kafka::record::Record;
use crate::kafka::session::Landing;
use crate::kafka::sink::KafkaSink;

/// What became of letters that were sent together.
#[derive(Default)]
pub(super) struct Burial {
    /// The places of those that the brokers have.
    pub(super) buried: Vec<usize>,
    /// Why they do not have all.
    pub(super) wrong: Option<Failure>,
}

/// Sends letters, and waits until the brokers have them.
pub(super) async fn bury<'a>(
    sink: &KafkaSink,
    letters: impl Iterator<Item = (&'a Arrived, Why<'a>)>,
    grave_of: impl Fn(&Topic) -> Topic,
) -> Burial {
    let letters: Vec<_> = letters.map(|(arrived, why)| Letter::new(arrived, why)).collect();
    let message =
        |letter: &Letter<'_>| letter.arrived.bound_for(grave_of(&letter.arrived.partition.topic));
    let messages: Vec<_> = letters.iter().map(message).collect();
    let (all, places) = (messages.len(), 0..messages.len());
    let verdicts = match dispatch::publish(&Bearer { sink, letters }, &messages).await {
        Published::All => return Burial { buried: places.collect(), wrong: None },
        Published::None(failure) => return Burial { buried: Vec::new(), wrong: Some(failure) },
        Published::Each(verdicts) => verdicts,
    };
    let buried: Vec<_> = places.filter(|place| verdicts[*place] == Verdict::Confirmed).collect();
    let mut failed = verdicts.into_iter().zip(&messages).filter_map(|(verdict, message)| {
        let Verdict::Failed(failure) = verdict else { return None };
        Some(match failure.fault() {
            Fault::Refused => error::not_buried(message.topic.as_str(), failure),
            _ => failure,
        })
    });
    let unsaid = || (buried.len() < all).then(|| error::no_answer("a dead letter"));
    let wrong = failed.next().or_else(unsaid);
    Burial { buried, wrong }
}

/// A message and why it is dead.
struct Letter<'a> {
    arrived: &'a Arrived,
    why: Why<'a>,
    origin: String,
}

impl<'a> Letter<'a> {
    fn new(arrived: &'a Arrived, why: Why<'a>) -> Self {
        Self { arrived, why, origin: arrived.origin() }
    }

    fn epitaph(&self) -> Epitaph<'_> {
        let Why { failure, attempts, group } = self.why;
        Epitaph { failure, attempts, consumer: group, origin: &self.origin }
    }
}

/// Carries letters as its sink carries messages.
struct Bearer<'a> {
    sink: &'a KafkaSink,
    letters: Vec<Letter<'a>>,
}

impl Carrier for Bearer<'_> {
    fn room(&self) -> usize {
        self.sink.room()
    }

    fn patience(&self) -> Duration {
        self.sink.patience()
    }

    fn record(&self, place: usize, _: &Message) -> Result<Record, Failure> {
        let letter = &self.letters[place];
        Ok(letter.arrived.letter(place, Some(letter.epitaph())))
    }

    async fn carry(
        &self,
        batch: &[Message],
        wave: Vec<Record>,
        deadline: Instant,
    ) -> Result<Landing, Failure> {
        self.sink.carry(batch, wave, deadline).await
    }

    /// With as much of what is said of it as there is room for.
    async fn carry_alone(
        &self,
        batch: &[Message],
        record: Record,
        deadline: Instant,
    ) -> Result<Landing, Failure> {
        let (place, letter) = (record.place, &self.letters[record.place]);
        let brief = in_brief(letter.why.failure);
        let mut landing = self.sink.carry_alone(batch, record, deadline).await?;
        for less in less_and_less(letter.epitaph(), &brief).into_iter().skip(1) {
            if !landing.lost.iter().any(|(_, error)| error::is_about_size(error)) {
                break;
            }
            let record = letter.arrived.letter(place, less);
            landing = self.sink.carry_alone(batch, record, deadline).await?;
        }
        Ok(landing)
    }
}
