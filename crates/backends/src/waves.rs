//! A batch in waves: how a sink keeps order when its protocol cannot un-send.
//!
//! A broker may turn down one message and take the next. So a wave holds one message per lane, all
//! of it is sent at once, and a lane's next message leaves only when the one before is confirmed.

use std::collections::HashMap;

use semel_core::{Failure, LaneKey, Message, Published, Verdict};

/// A batch on its way: which messages are to be sent now, and what became of the others.
pub(crate) struct Waves {
    /// The place of the next message of the same lane.
    next: Vec<Option<usize>>,
    current: Vec<usize>,
    verdicts: Vec<Verdict>,
}

impl Waves {
    /// Nothing is sent yet; the first wave is the first message of every lane.
    pub(crate) fn new(batch: &[Message]) -> Self {
        let mut next = vec![None; batch.len()];
        let mut current = Vec::new();
        let mut last: HashMap<LaneKey, usize> = HashMap::with_capacity(batch.len());
        for (place, message) in batch.iter().enumerate() {
            match last.insert(message.event.lane_key(), place) {
                Some(before) => next[before] = Some(place),
                None => current.push(place),
            }
        }
        Self { next, current, verdicts: vec![Verdict::Behind; batch.len()] }
    }

    /// The places in the batch of the messages to send now; none when all is done.
    pub(crate) fn current(&self) -> &[usize] {
        &self.current
    }

    /// Notes what became of each message of this wave, in its order. Lanes that failed stop here.
    pub(crate) fn advance(&mut self, results: impl IntoIterator<Item = Result<(), Failure>>) {
        let mut following = Vec::with_capacity(self.current.len());
        for (place, result) in std::mem::take(&mut self.current).into_iter().zip(results) {
            if result.is_ok() {
                following.extend(self.next[place]);
            }
            self.verdicts[place] = result.into();
        }
        self.current = following;
    }

    /// Ends here: all that was to be sent now failed, and what is behind it was not sent.
    pub(crate) fn give_up(mut self, failure: &Failure) -> Published {
        let failed = vec![Err(failure.clone()); self.current.len()];
        self.advance(failed);
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

    fn refused() -> Failure {
        Failure::refused("E-TEST", "no")
    }

    #[test]
    fn a_wave_has_one_message_of_each_lane() {
        let mut waves = Waves::new(&batch(&["a", "a", "b", "a", "c", "b"]));
        assert_eq!(waves.current(), [0, 2, 4]);
        waves.advance([Ok(()), Ok(()), Ok(())]);
        assert_eq!(waves.current(), [1, 5]);
        waves.advance([Ok(()), Ok(())]);
        assert_eq!(waves.current(), [3]);
        waves.advance([Ok(())]);
        assert!(waves.current().is_empty());
        assert_eq!(waves.finish(), Published::All);
    }

    #[test]
    fn a_failure_stops_its_lane_alone() {
        let mut waves = Waves::new(&batch(&["a", "a", "b", "b"]));
        waves.advance([Err(refused()), Ok(())]);
        assert_eq!(waves.current(), [3]);
        waves.advance([Ok(())]);
        let expected =
            [Verdict::Failed(refused()), Verdict::Behind, Verdict::Confirmed, Verdict::Confirmed];
        assert_eq!(waves.finish(), Published::Each(expected.to_vec()));
    }

    #[test]
    fn giving_up_keeps_what_was_confirmed() {
        let mut waves = Waves::new(&batch(&["a", "a", "a", "b"]));
        waves.advance([Ok(()), Ok(())]);
        let down = Failure::unavailable("E-TEST", "gone");
        let expected = [
            Verdict::Confirmed,
            Verdict::Failed(down.clone()),
            Verdict::Behind,
            Verdict::Confirmed,
        ];
        assert_eq!(waves.give_up(&down), Published::Each(expected.to_vec()));
    }

    #[test]
    fn nothing_to_send_is_all_confirmed() {
        assert_eq!(Waves::new(&[]).finish(), Published::All);
    }
}
