//! A batch in waves: how a sink keeps order when its protocol cannot un-send.
//!
//! A broker may turn down one message and take the next. So a wave holds one message per lane, all
//! of it is sent at once, and a lane's next message leaves only when the one before is confirmed.

use semel_core::{Failure, Message, Published};

use crate::lanes::Lanes;

/// A batch on its way: which messages are to be sent now, and what became of the others.
pub(crate) struct Waves {
    lanes: Lanes,
    current: Vec<usize>,
    next: Vec<usize>,
}

impl Waves {
    /// Nothing is sent yet; the first wave is the first message of every lane.
    pub(crate) fn new(batch: &[Message]) -> Self {
        let lanes = Lanes::new(batch);
        let current = lanes.first().to_vec();
        Self { lanes, current, next: Vec::new() }
    }

    /// The places in the batch of the messages to send now; none when all is done.
    pub(crate) fn current(&self) -> &[usize] {
        &self.current
    }

    /// Notes what became of a message of this wave. A lane that failed stops here.
    pub(crate) fn settle(&mut self, place: usize, result: Result<(), Failure>) {
        self.next.extend(self.lanes.settle(place, result));
    }

    /// All of this wave is settled: goes on to what is behind it.
    pub(crate) fn advance(&mut self) {
        self.current = std::mem::take(&mut self.next);
    }

    /// Ends here: what was to be sent or answered next has failed, what is behind it was not sent.
    pub(crate) fn give_up(self, failure: &Failure) -> Published {
        self.lanes.give_up(failure)
    }

    /// What became of the batch.
    pub(crate) fn finish(self) -> Published {
        self.lanes.finish()
    }
}

#[cfg(test)]
mod tests {
    use semel_core::{Event, Verdict};

    use super::*;

    fn batch(lanes: &[&str]) -> Vec<Message> {
        lanes.iter().map(|lane| Message::first("t", Event::new("order", *lane, "T"))).collect()
    }

    fn refused() -> Failure {
        Failure::refused("E-TEST", "no")
    }

    fn settle(waves: &mut Waves, results: impl IntoIterator<Item = (usize, Result<(), Failure>)>) {
        for (place, result) in results {
            waves.settle(place, result);
        }
        waves.advance();
    }

    #[test]
    fn a_wave_has_one_message_of_each_lane() {
        let mut waves = Waves::new(&batch(&["a", "a", "b", "a", "c", "b"]));
        assert_eq!(waves.current(), [0, 2, 4]);
        settle(&mut waves, [(0, Ok(())), (2, Ok(())), (4, Ok(()))]);
        assert_eq!(waves.current(), [1, 5]);
        settle(&mut waves, [(1, Ok(())), (5, Ok(()))]);
        assert_eq!(waves.current(), [3]);
        settle(&mut waves, [(3, Ok(()))]);
        assert!(waves.current().is_empty());
        assert_eq!(waves.finish(), Published::All);
    }

    #[test]
    fn a_failure_stops_its_lane_alone() {
        let mut waves = Waves::new(&batch(&["a", "a", "b", "b"]));
        settle(&mut waves, [(0, Err(refused())), (2, Ok(()))]);
        assert_eq!(waves.current(), [3]);
        settle(&mut waves, [(3, Ok(()))]);
        let expected =
            [Verdict::Failed(refused()), Verdict::Behind, Verdict::Confirmed, Verdict::Confirmed];
        assert_eq!(waves.finish(), Published::Each(expected.to_vec()));
    }

    #[test]
    fn giving_up_keeps_what_was_confirmed() {
        let mut waves = Waves::new(&batch(&["a", "a", "a", "b", "b", "b", "c", "c"]));
        settle(&mut waves, [(0, Ok(())), (3, Ok(())), (6, Ok(()))]);
        waves.settle(4, Ok(()));
        waves.settle(7, Err(refused()));
        let down = Failure::unavailable("E-TEST", "gone");
        let expected = [
            Verdict::Confirmed,
            Verdict::Failed(down.clone()),
            Verdict::Behind,
            Verdict::Confirmed,
            Verdict::Confirmed,
            Verdict::Failed(down.clone()),
            Verdict::Confirmed,
            Verdict::Failed(refused()),
        ];
        assert_eq!(waves.give_up(&down), Published::Each(expected.to_vec()));
    }

    #[test]
    fn nothing_to_send_is_all_confirmed() {
        assert_eq!(Waves::new(&[]).finish(), Published::All);
    }
}
