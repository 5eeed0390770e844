//! In which order the messages of a batch leave, and what became of them.
//!
//! Kafka keeps order within a partition, and a key has one partition of each topic. So all messages
//! of a lane that have one topic and one key may be under way at once. Where a lane changes topics,
//! or keys (a pipeline may take them from elsewhere than the aggregate id), the next message waits
//! until the ones before are confirmed.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use semel_core::{Failure, LaneKey, Message, Published, Verdict};

use super::record::Record;

/// What of a batch is still to be sent, and the verdicts so far. A message is known by its place.
pub(super) struct Plan<'a> {
    batch: &'a [Message],
    lanes: Vec<LaneKey>,
    pending: Vec<usize>,
    failed: HashSet<LaneKey>,
    verdicts: Vec<Verdict>,
}

impl<'a> Plan<'a> {
    /// Everything is still to be sent.
    pub(super) fn new(batch: &'a [Message]) -> Self {
        Self {
            batch,
            lanes: batch.iter().map(|message| message.event.lane_key()).collect(),
            pending: (0..batch.len()).collect(),
            failed: HashSet::new(),
            verdicts: vec![Verdict::Behind; batch.len()],
        }
    }

    /// Takes the messages that may be under way together, up to `room` bytes; none when all is
    /// done. What `make` refuses fails here.
    pub(super) fn next_wave(
        &mut self,
        room: usize,
        make: impl Fn(usize, &Message) -> Result<Record, Failure>,
    ) -> Vec<Record> {
        let pending = std::mem::take(&mut self.pending);
        let mut routes = HashMap::with_capacity(pending.len());
        let mut wave: Vec<Record> = Vec::with_capacity(pending.len());
        let mut taken = 0;
        for place in pending {
            let (lane, message) = (self.lanes[place], &self.batch[place]);
            if self.failed.contains(&lane) {
                continue;
            }
            if taken > room || !goes_along(routes.entry(lane), message) {
                self.pending.push(place);
                continue;
            }
            match make(place, message) {
                Err(failure) => self.fail(place, failure),
                Ok(record) => {
                    taken += record.size;
                    if taken <= room || wave.is_empty() {
                        wave.push(record);
                    } else {
                        self.pending.push(place);
                    }
                }
            }
        }
        wave
    }

    /// This one is with the broker.
    pub(super) fn confirm(&mut self, place: usize) {
        self.verdicts[place] = Verdict::Confirmed;
    }

    /// This one failed, and with it the rest of its lane.
    pub(super) fn fail(&mut self, place: usize, failure: Failure) {
        if self.failed.insert(self.lanes[place]) {
            self.verdicts[place] = Verdict::Failed(failure);
        }
    }

    /// These are to be sent again.
    pub(super) fn put_back(&mut self, places: impl IntoIterator<Item = usize>) {
        self.pending.extend(places);
        self.pending.sort_unstable();
    }

    /// The lane of a message.
    pub(super) fn lane(&self, place: usize) -> LaneKey {
        self.lanes[place]
    }

    /// Whether the lane of a message has failed.
    pub(super) fn has_failed(&self, place: usize) -> bool {
        self.failed.contains(&self.lanes[place])
    }

    /// Ends here: nothing more can be sent.
    pub(super) fn give_up(mut self, failure: &Failure) -> Published {
        for place in std::mem::take(&mut self.pending) {
            self.fail(place, failure.clone());
        }
        self.finish()
    }

    /// What became of the batch. Nothing counts as confirmed behind a failure.
    pub(super) fn finish(mut self) -> Published {
        if self.verdicts.iter().all(|verdict| *verdict == Verdict::Confirmed) {
            return Published::All;
        }
        let mut stopped = HashSet::new();
        for (lane, verdict) in self.lanes.iter().zip(&mut self.verdicts) {
            if stopped.contains(lane) {
                *verdict = Verdict::Behind;
            } else if *verdict != Verdict::Confirmed {
                stopped.insert(*lane);
            }
        }
        Published::Each(self.verdicts)
    }
}

/// Topic and key: what goes the same way has the same partition.
type Route<'a> = (&'a str, &'a str);

/// Whether a message may be under way together with those of its lane that are.
fn goes_along<'a>(entry: Entry<'_, LaneKey, Option<Route<'a>>>, message: &'a Message) -> bool {
    let route = (message.topic.as_str(), message.key());
    match entry {
        Entry::Vacant(entry) => {
            entry.insert(Some(route));
            true
        }
        Entry::Occupied(mut entry) if *entry.get() != Some(route) => {
            entry.insert(None);
            false
        }
        Entry::Occupied(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use semel_core::Event;
    use semel_core::wire::Format;

    use super::*;

    fn batch(messages: &[(&str, &str)]) -> Vec<Message> {
        let made = |(lane, topic): &(&str, &str)| {
            Message::first(*topic, Event::new("order", *lane, "Changed"))
        };
        messages.iter().map(made).collect()
    }

    fn make(place: usize, message: &Message) -> Result<Record, Failure> {
        Record::new(place, message, Format::Plain, 1000, None)
    }

    fn places(wave: &[Record]) -> Vec<usize> {
        wave.iter().map(|record| record.place).collect()
    }

    fn down() -> Failure {
        Failure::unavailable("E-TEST", "gone")
    }

    #[test]
    fn a_lane_that_changes_topics_waits() {
        let batch = batch(&[("a", "x"), ("a", "x"), ("b", "y"), ("a", "y"), ("a", "x")]);
        let mut plan = Plan::new(&batch);
        for expected in [vec![0, 1, 2], vec![3], vec![4], vec![]] {
            let wave = places(&plan.next_wave(usize::MAX, make));
            assert_eq!(wave, expected);
            wave.into_iter().for_each(|place| plan.confirm(place));
        }
        assert_eq!(plan.finish(), Published::All);
    }

    #[test]
    fn a_lane_that_changes_keys_waits() {
        let mut batch = batch(&[("a", "x"), ("a", "x"), ("b", "x"), ("a", "x"), ("a", "x")]);
        for (message, key) in batch.iter_mut().zip(["eu", "eu", "us", "us", "eu"]) {
            message.key = Some(key.into());
        }
        let mut plan = Plan::new(&batch);
        for expected in [vec![0, 1, 2], vec![3], vec![4], vec![]] {
            let wave = places(&plan.next_wave(usize::MAX, make));
            assert_eq!(wave, expected);
            wave.into_iter().for_each(|place| plan.confirm(place));
        }
        assert_eq!(plan.finish(), Published::All);
    }

    #[test]
    fn a_wave_is_no_larger_than_the_room_and_never_empty() {
        let batch = batch(&[("a", "x"), ("b", "x"), ("c", "x")]);
        let size = make(0, &batch[0]).unwrap().size;
        let mut plan = Plan::new(&batch);
        assert_eq!(places(&plan.next_wave(2 * size, make)), [0, 1]);
        assert_eq!(places(&plan.next_wave(1, make)), [2]);
        assert!(plan.next_wave(1, make).is_empty());
    }

    #[test]
    fn a_failure_stops_its_lane_alone() {
        let batch = batch(&[("a", "x"), ("a", "not legal"), ("b", "x"), ("a", "x"), ("b", "x")]);
        let mut plan = Plan::new(&batch);
        let mut sent = Vec::new();
        loop {
            let wave = places(&plan.next_wave(usize::MAX, make));
            if wave.is_empty() {
                break;
            }
            wave.iter().for_each(|place| plan.confirm(*place));
            sent.extend(wave);
        }
        assert_eq!(sent, [0, 2, 4], "what is behind the refusal never leaves");
        let Published::Each(verdicts) = plan.finish() else { panic!("one is refused") };
        assert!(matches!(verdicts[1], Verdict::Failed(_)));
        assert_eq!(verdicts[3], Verdict::Behind);
        assert_eq!(verdicts[4], Verdict::Confirmed);
    }

    #[test]
    fn nothing_is_confirmed_behind_a_failure() {
        let batch = batch(&[("a", "x"), ("a", "x"), ("a", "x")]);
        let mut plan = Plan::new(&batch);
        plan.next_wave(usize::MAX, make);
        plan.confirm(0);
        plan.fail(1, down());
        plan.confirm(2);
        let expected = [Verdict::Confirmed, Verdict::Failed(down()), Verdict::Behind];
        assert_eq!(plan.finish(), Published::Each(expected.to_vec()));
    }

    #[test]
    fn giving_up_keeps_what_was_confirmed() {
        let batch = batch(&[("a", "x"), ("a", "y"), ("b", "x")]);
        let mut plan = Plan::new(&batch);
        plan.next_wave(usize::MAX, make);
        plan.confirm(0);
        plan.put_back([2]);
        let failed = Verdict::Failed(down());
        let expected = [Verdict::Confirmed, failed.clone(), failed];
        assert_eq!(plan.give_up(&down()), Published::Each(expected.to_vec()));
    }
}
