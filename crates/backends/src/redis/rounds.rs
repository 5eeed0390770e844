//! Which messages of a batch can be sent together, so that order holds whatever fails.
//!
//! A transaction is carried out as a whole or not at all, but only for one stream: another stream's
//! may succeed where this one failed. So a round takes from every lane the messages up to the first
//! that goes to another stream, and a lane goes on in the next round only if all of these are
//! confirmed. Lanes mostly keep to one stream, and a batch is one round.

use std::collections::{HashMap, HashSet};

use redis::Cmd;
use semel_core::{Failure, LaneKey, Message, Published, Verdict};

/// A transaction holds the server up for others while it lasts.
const MOST_MESSAGES: usize = 1_000;
const MOST_BYTES: usize = 8 << 20;

/// What goes to one stream in one round, in its order.
pub(super) struct Transaction<'a> {
    pub(super) topic: &'a str,
    pub(super) commands: Vec<Cmd>,
    places: Vec<usize>,
}

/// A batch on its way.
pub(super) struct Rounds<'a> {
    batch: &'a [Message],
    lanes: Vec<LaneKey>,
    /// Places without a verdict yet, those under way included.
    remaining: Vec<usize>,
    later: Vec<usize>,
    stopped: HashSet<LaneKey>,
    verdicts: Vec<Verdict>,
}

impl<'a> Rounds<'a> {
    pub(super) fn new(batch: &'a [Message]) -> Self {
        Self {
            batch,
            lanes: batch.iter().map(|message| message.event.lane_key()).collect(),
            remaining: (0..batch.len()).collect(),
            later: Vec::new(),
            stopped: HashSet::new(),
            verdicts: vec![Verdict::Behind; batch.len()],
        }
    }

    /// What to send now; nothing when all is done. A message that `encode` fails on ends its lane
    /// when its turn comes.
    pub(super) fn next(
        &mut self,
        encode: impl Fn(&Message) -> Result<Cmd, Failure>,
    ) -> Vec<Transaction<'a>> {
        let mut round = Round::default();
        let mut later = Vec::new();
        for place in std::mem::take(&mut self.remaining) {
            let (lane, message) = (self.lanes[place], &self.batch[place]);
            if self.stopped.contains(&lane) {
                continue;
            }
            if round.takes(lane, message) {
                match encode(message) {
                    Ok(command) => {
                        round.add(place, lane, message, command);
                        self.remaining.push(place);
                        continue;
                    }
                    Err(failure) if !round.lanes.contains_key(&lane) => {
                        self.verdicts[place] = Verdict::Failed(failure);
                        self.stopped.insert(lane);
                        continue;
                    }
                    Err(_) => {}
                }
            }
            round.lanes.insert(lane, None);
            later.push(place);
        }
        self.remaining.extend(&later);
        self.later = later;
        round.transactions
    }

    /// Notes what became of the transactions of this round. Lanes that failed stop here.
    pub(super) fn note(
        &mut self,
        outcomes: impl IntoIterator<Item = (Transaction<'a>, Result<(), Failure>)>,
    ) {
        for (transaction, result) in outcomes {
            for place in transaction.places {
                match &result {
                    Ok(()) => self.verdicts[place] = Verdict::Confirmed,
                    Err(failure) => self.fail(place, failure),
                }
            }
        }
        self.remaining = std::mem::take(&mut self.later);
    }

    /// Ends here: nothing is known of what is under way, and the rest was not sent.
    pub(super) fn give_up(mut self, failure: &Failure) -> Published {
        for place in std::mem::take(&mut self.remaining) {
            self.fail(place, failure);
        }
        self.finish()
    }

    /// What became of the batch.
    pub(super) fn finish(self) -> Published {
        if self.verdicts.iter().all(|verdict| *verdict == Verdict::Confirmed) {
            Published::All
        } else {
            Published::Each(self.verdicts)
        }
    }

    fn fail(&mut self, place: usize, failure: &Failure) {
        if self.stopped.insert(self.lanes[place]) {
            self.verdicts[place] = Verdict::Failed(failure.clone());
        }
    }
}

/// A round in the making.
#[derive(Default)]
struct Round<'a> {
    transactions: Vec<Transaction<'a>>,
    by_topic: HashMap<&'a str, usize>,
    /// The one topic of a lane in this round, or nothing when the lane has to wait.
    lanes: HashMap<LaneKey, Option<&'a str>>,
    messages: usize,
    bytes: usize,
}

impl<'a> Round<'a> {
    fn takes(&self, lane: LaneKey, message: &Message) -> bool {
        let full = self.messages >= MOST_MESSAGES || self.bytes >= MOST_BYTES;
        let lane = self.lanes.get(&lane);
        !full && lane.is_none_or(|topic| *topic == Some(message.topic.as_str()))
    }

    fn add(&mut self, place: usize, lane: LaneKey, message: &'a Message, command: Cmd) {
        let topic = message.topic.as_str();
        self.messages += 1;
        self.bytes += message.event.size();
        self.lanes.insert(lane, Some(topic));
        let at = *self.by_topic.entry(topic).or_insert(self.transactions.len());
        if at == self.transactions.len() {
            self.transactions.push(Transaction { topic, commands: vec![], places: vec![] });
        }
        self.transactions[at].commands.push(command);
        self.transactions[at].places.push(place);
    }
}

#[cfg(test)]
mod tests {
    use semel_core::Event;

    use super::*;

    fn batch(messages: &[(&str, &str)]) -> Vec<Message> {
        let made = |(lane, topic): &(&str, &str)| {
            Message::first(*topic, Event::new("order", *lane, "OrderPlaced"))
        };
        messages.iter().map(made).collect()
    }

    fn encode(message: &Message) -> Result<Cmd, Failure> {
        if message.topic.as_str() == "refused" { Err(no()) } else { Ok(redis::cmd("XADD")) }
    }

    fn no() -> Failure {
        Failure::refused("E-TEST", "no")
    }

    fn places(round: &[Transaction<'_>]) -> Vec<(String, Vec<usize>)> {
        round.iter().map(|part| (part.topic.to_owned(), part.places.clone())).collect()
    }

    fn all(round: Vec<Transaction<'_>>) -> Vec<(Transaction<'_>, Result<(), Failure>)> {
        round.into_iter().map(|part| (part, Ok(()))).collect()
    }

    #[test]
    fn lanes_that_keep_to_their_stream_are_one_round() {
        let batch = batch(&[("a", "s"), ("a", "s"), ("b", "t"), ("a", "s"), ("c", "s")]);
        let mut rounds = Rounds::new(&batch);
        let round = rounds.next(encode);
        assert_eq!(places(&round), [("s".into(), vec![0, 1, 3, 4]), ("t".into(), vec![2])]);
        rounds.note(all(round));
        assert!(rounds.next(encode).is_empty());
        assert_eq!(rounds.finish(), Published::All);
    }

    #[test]
    fn a_lane_waits_before_it_goes_to_another_stream() {
        let batch = batch(&[("a", "s"), ("a", "t"), ("a", "s"), ("b", "s")]);
        let mut rounds = Rounds::new(&batch);
        let mut seen = Vec::new();
        loop {
            let round = rounds.next(encode);
            if round.is_empty() {
                break;
            }
            seen.push(places(&round));
            rounds.note(all(round));
        }
        let expected = [
            vec![("s".to_owned(), vec![0, 3])],
            vec![("t".to_owned(), vec![1])],
            vec![("s".to_owned(), vec![2])],
        ];
        assert_eq!(seen, expected);
        assert_eq!(rounds.finish(), Published::All);
    }

    #[test]
    fn a_failed_stream_stops_the_lanes_that_used_it() {
        let batch = batch(&[("a", "s"), ("a", "s"), ("a", "t"), ("b", "t"), ("b", "t")]);
        let mut rounds = Rounds::new(&batch);
        let round = rounds.next(encode);
        let failed = |part: &Transaction<'_>| if part.topic == "s" { Err(no()) } else { Ok(()) };
        rounds.note(round.into_iter().map(|part| {
            let result = failed(&part);
            (part, result)
        }));
        assert!(rounds.next(encode).is_empty());
        let expected = [
            Verdict::Failed(no()),
            Verdict::Behind,
            Verdict::Behind,
            Verdict::Confirmed,
            Verdict::Confirmed,
        ];
        assert_eq!(rounds.finish(), Published::Each(expected.to_vec()));
    }

    #[test]
    fn a_refusal_comes_after_what_is_before_it() {
        let batch = batch(&[("a", "s"), ("a", "refused"), ("a", "s"), ("b", "refused")]);
        let mut rounds = Rounds::new(&batch);
        let round = rounds.next(encode);
        assert_eq!(places(&round), [("s".into(), vec![0])]);
        rounds.note(all(round));
        assert!(rounds.next(encode).is_empty());
        let expected =
            [Verdict::Confirmed, Verdict::Failed(no()), Verdict::Behind, Verdict::Failed(no())];
        assert_eq!(rounds.finish(), Published::Each(expected.to_vec()));
    }

    #[test]
    fn a_round_is_bounded() {
        let batch = batch(&vec![("a", "s"); MOST_MESSAGES + 1]);
        let mut rounds = Rounds::new(&batch);
        let round = rounds.next(encode);
        assert_eq!(round[0].places.len(), MOST_MESSAGES);
        rounds.note(all(round));
        assert_eq!(places(&rounds.next(encode)), [("s".into(), vec![MOST_MESSAGES])]);
    }

    #[test]
    fn giving_up_knows_nothing_of_what_is_under_way() {
        let batch = batch(&[("a", "s"), ("a", "t"), ("b", "s"), ("b", "s")]);
        let mut rounds = Rounds::new(&batch);
        rounds.next(encode);
        let expected =
            [Verdict::Failed(no()), Verdict::Behind, Verdict::Failed(no()), Verdict::Behind];
        assert_eq!(rounds.give_up(&no()), Published::Each(expected.to_vec()));
    }
}
