//! A batch lane by lane: how a sink keeps order when its protocol cannot un-send.
//!
//! A broker may turn down one message and take the next. So a lane's next message leaves only when
//! the one before is confirmed, while all lanes go on side by side.

use std::collections::HashMap;

use semel_core::{Failure, LaneKey, Message, Published, Verdict};

/// A batch on its way: which message follows which, and what became of them.
pub(crate) struct Lanes {
    /// The places of the first message of every lane.
    first: Vec<usize>,
    /// The place of the next message of the same lane.
    next: Vec<Option<usize>>,
    verdicts: Vec<Verdict>,
}

impl Lanes {
    /// Nothing is sent yet.
    pub(crate) fn new(batch: &[Message]) -> Self {
        let mut next = vec![None; batch.len()];
        let mut first = Vec::new();
        let mut last: HashMap<LaneKey, usize> = HashMap::with_capacity(batch.len());
        for (place, message) in batch.iter().enumerate() {
            match last.insert(message.event.lane_key(), place) {
                Some(before) => next[before] = Some(place),
                None => first.push(place),
            }
        }
        Self { first, next, verdicts: vec![Verdict::Behind; batch.len()] }
    }

    /// The places in the batch of the messages to begin with.
    pub(crate) fn first(&self) -> &[usize] {
        &self.first
    }

    /// The place of the message that follows in its lane.
    #[cfg(feature = "nats")]
    pub(crate) fn after(&self, place: usize) -> Option<usize> {
        self.next[place]
    }

    /// The place of a message and those of all that follow in its lane.
    #[cfg(feature = "mqtt")]
    pub(crate) fn from(&self, place: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(place), |place| self.next[*place])
    }

    /// Notes what became of a message, and says which one may be sent now. A lane that failed stops
    /// here.
    pub(crate) fn settle(&mut self, place: usize, result: Result<(), Failure>) -> Option<usize> {
        let next = if result.is_ok() { self.next[place] } else { None };
        self.verdicts[place] = result.into();
        next
    }

    /// Ends here: whatever was to be sent or answered next has failed, what is behind it was not sent.
    pub(crate) fn give_up(mut self, failure: &Failure) -> Published {
        for place in std::mem::take(&mut self.first) {
            let mut at = Some(place);
            while let Some(place) = at.filter(|place| self.verdicts[*place] == Verdict::Confirmed) {
                at = self.next[place];
            }
            if let Some(place) = at.filter(|place| self.verdicts[*place] == Verdict::Behind) {
                self.verdicts[place] = Verdict::Failed(failure.clone());
            }
        }
        self.finish()
    }

    /// What became of the batch.
    pub(crate) fn finish(self) -> Published {
        if self.verdicts.iter().all(|verdict| *verdict == Verdict::Confirmed) {
            Published::All
        } else {
            Published::Each(self.verdicts)
        }
    }
}

#[cfg(test)]
mod tests {
    use semel_core::Event;

    use super::*;

    fn batch(lanes: &[&str]) -> Vec<Message> {
        lanes.iter().map(|lane| Message::first("t", Event::new("order", *lane, "T"))).collect()
    }

    #[test]
    fn a_lane_goes_on_when_its_message_is_confirmed() {
        let mut lanes = Lanes::new(&batch(&["a", "a", "b", "a"]));
        assert_eq!(lanes.first(), [0, 2]);
        assert_eq!(lanes.settle(0, Ok(())), Some(1));
        assert_eq!(lanes.settle(1, Ok(())), Some(3));
        assert_eq!(lanes.settle(2, Ok(())), None);
        assert_eq!(lanes.settle(3, Ok(())), None);
        assert_eq!(lanes.finish(), Published::All);
    }

    #[test]
    fn giving_up_keeps_what_is_known() {
        let refused = Failure::refused("E-TEST", "no");
        let mut lanes = Lanes::new(&batch(&["a", "a", "a", "b", "b", "c"]));
        lanes.settle(0, Ok(()));
        assert_eq!(lanes.settle(3, Err(refused.clone())), None);
        let down = Failure::unavailable("E-TEST", "gone");
        let expected = [
            Verdict::Confirmed,
            Verdict::Failed(down.clone()),
            Verdict::Behind,
            Verdict::Failed(refused),
            Verdict::Behind,
            Verdict::Failed(down.clone()),
        ];
        assert_eq!(lanes.give_up(&down), Published::Each(expected.to_vec()));
    }
}
