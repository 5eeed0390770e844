//! A batch in runs: how messages of one lane travel together, and none overtakes one that failed.
//!
//! A run is what follows each other in a lane. Every message of it but the first names the one that
//! must be the last of the stream (`Nats-Expected-Last-Msg-Id`). So the stream itself turns down
//! whatever comes behind a message that it did not take, whyever that was. A run breaks as well
//! where somebody else wrote to the stream in between; the rest of it is sent again.
//!
//! A stream with replicas notes an id before it looks at the condition, and then knows messages that
//! it has turned down (`error::stored`). So nothing is made to be turned down there:
//! a run to it has one message.

use std::sync::atomic::{AtomicUsize, Ordering};

use semel_core::{Failure, Message, Published};

use crate::lanes::Lanes;

/// No round has more messages.
const MOST_MESSAGES: usize = 1_024;

/// A batch on its way, round after round.
pub(super) struct Runs {
    lanes: Lanes,
    /// The place in the batch at which each lane stands, until it is done.
    at: Vec<Option<usize>>,
    broken: bool,
}

/// A message of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    lane: usize,
    pub(super) place: usize,
    /// The place of the message that it follows in its run.
    pub(super) behind: Option<usize>,
}

/// What became of a step.
#[derive(Debug)]
pub(super) enum Answer {
    Taken,
    /// Something else was the last of the stream.
    Broken,
    Failed(Failure),
}

impl Runs {
    /// Nothing is sent yet.
    pub(super) fn new(batch: &[Message]) -> Self {
        let lanes = Lanes::new(batch);
        let at = lanes.first().iter().copied().map(Some).collect();
        Self { lanes, at, broken: false }
    }

    /// Whether every lane is at its end.
    pub(super) fn is_over(&self) -> bool {
        self.at.iter().all(Option::is_none)
    }

    /// What to send now, each run in one piece; nothing when all is done. Only what `may_follow` is
    /// sent before the one in front of it is answered.
    pub(super) fn next_round(
        &mut self,
        pace: &Pace,
        may_follow: impl Fn(usize) -> bool,
    ) -> Vec<Step> {
        pace.learn(std::mem::take(&mut self.broken));
        let longest = pace.longest();
        let mut round = Vec::new();
        for (lane, at) in self.at.iter().enumerate() {
            let (mut next, mut behind) = (*at, None);
            for _ in 0..longest.min(MOST_MESSAGES - round.len()) {
                let Some(place) = next.filter(|place| behind.is_none() || may_follow(*place))
                else {
                    break;
                };
                round.push(Step { lane, place, behind });
                (next, behind) = (self.lanes.after(place), Some(place));
            }
        }
        round
    }

    /// Whether the answer to this step tells anything: not when its run ended before it.
    pub(super) fn waits_for(&self, step: Step) -> bool {
        self.at[step.lane] == Some(step.place)
    }

    /// Notes what became of a step that is waited for.
    pub(super) fn note(&mut self, step: Step, answer: Answer) {
        let result = match answer {
            Answer::Taken => Ok(()),
            Answer::Failed(failure) => Err(failure),
            Answer::Broken => {
                self.broken = true;
                return;
            }
        };
        self.at[step.lane] = self.lanes.settle(step.place, result);
    }

    /// Ends here: what was to be sent or answered next has failed.
    pub(super) fn give_up(self, failure: &Failure) -> Published {
        self.lanes.give_up(failure)
    }

    /// What became of the batch.
    pub(super) fn finish(self) -> Published {
        self.lanes.finish()
    }
}

/// How long runs may be. The more others write to the stream, the shorter: what breaks was sent in
/// vain.
pub(super) struct Pace(AtomicUsize);

impl Pace {
    pub(super) const fn new() -> Self {
        Self(AtomicUsize::new(MOST_MESSAGES))
    }

    fn longest(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// It is a guess: what is lost when two calls change it at once does not matter.
    fn learn(&self, broken: bool) {
        let longest = self.longest();
        let next = if broken { (longest / 2).max(1) } else { (longest * 2).min(MOST_MESSAGES) };
        self.0.store(next, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use semel_core::{Event, Verdict};

    use super::*;

    fn runs(lanes: &[&str]) -> Runs {
        let message = |lane: &&str| Message::first("t", Event::new("order", *lane, "T"));
        Runs::new(&lanes.iter().map(message).collect::<Vec<_>>())
    }

    fn refused() -> Failure {
        Failure::refused("E-TEST", "no")
    }

    /// Place, and place of what it follows.
    fn shape(round: &[Step]) -> Vec<(usize, Option<usize>)> {
        round.iter().map(|step| (step.place, step.behind)).collect()
    }

    fn answer(runs: &mut Runs, round: &[Step], mut says: impl FnMut(usize) -> Answer) {
        for step in round {
            if runs.waits_for(*step) {
                runs.note(*step, says(step.place));
            }
        }
    }

    #[test]
    fn a_lane_travels_in_one_piece() {
        let (mut runs, pace) = (runs(&["a", "b", "a", "b", "a"]), Pace::new());
        let round = runs.next_round(&pace, |_| true);
        let expected = [(0, None), (2, Some(0)), (4, Some(2)), (1, None), (3, Some(1))];
        assert_eq!(shape(&round), expected);
        answer(&mut runs, &round, |_| Answer::Taken);
        assert!(runs.next_round(&pace, |_| true).is_empty());
        assert_eq!(runs.finish(), Published::All);
    }

    #[test]
    fn what_may_not_follow_waits_for_the_one_in_front() {
        let (mut runs, pace) = (runs(&["a", "b", "a", "a", "a"]), Pace::new());
        let may_follow = |place: usize| place != 3;
        let expected = [vec![(0, None), (2, Some(0)), (1, None)], vec![(3, None), (4, Some(3))]];
        for expected in expected {
            assert!(!runs.is_over());
            let round = runs.next_round(&pace, may_follow);
            assert_eq!(shape(&round), expected);
            answer(&mut runs, &round, |_| Answer::Taken);
        }
        assert!(runs.is_over());
    }

    #[test]
    fn what_is_behind_a_failure_was_not_sent_whatever_the_stream_says() {
        let (mut runs, pace) = (runs(&["a", "a", "a", "b"]), Pace::new());
        let round = runs.next_round(&pace, |_| true);
        answer(&mut runs, &round, |place| match place {
            1 => Answer::Failed(refused()),
            _ => Answer::Taken,
        });
        assert!(runs.next_round(&pace, |_| true).is_empty());
        let expected =
            [Verdict::Confirmed, Verdict::Failed(refused()), Verdict::Behind, Verdict::Confirmed];
        assert_eq!(runs.finish(), Published::Each(expected.to_vec()));
    }

    #[test]
    fn a_broken_run_goes_on_where_it_broke_and_runs_become_shorter() {
        let (mut runs, pace) = (runs(&["a"; 1_024]), Pace::new());
        let round = runs.next_round(&pace, |_| true);
        assert_eq!(round.len(), 1_024);
        answer(&mut runs, &round, |place| if place < 10 { Answer::Taken } else { Answer::Broken });
        let round = runs.next_round(&pace, |_| true);
        assert_eq!((round.len(), round[0].place, round[0].behind), (512, 10, None));
        answer(&mut runs, &round, |_| Answer::Taken);
        assert_eq!(runs.next_round(&pace, |_| true).len(), 1_024 - 522);
        for _ in 0..20 {
            pace.learn(true);
        }
        assert_eq!(pace.longest(), 1);
    }

    #[test]
    fn a_round_is_bounded() {
        let (mut runs, pace) = (runs(&["a"; 3_000]), Pace::new());
        for expected in [1_024, 1_024, 952, 0] {
            let round = runs.next_round(&pace, |_| true);
            assert_eq!(round.len(), expected);
            answer(&mut runs, &round, |_| Answer::Taken);
        }
    }

    #[test]
    fn giving_up_keeps_what_was_taken() {
        let (mut runs, pace) = (runs(&["a", "a", "a", "b"]), Pace::new());
        let round = runs.next_round(&pace, |_| true);
        runs.note(round[0], Answer::Taken);
        let down = Failure::unavailable("E-TEST", "gone");
        let expected = [
            Verdict::Confirmed,
            Verdict::Failed(down.clone()),
            Verdict::Behind,
            Verdict::Failed(down.clone()),
        ];
        assert_eq!(runs.give_up(&down), Published::Each(expected.to_vec()));
    }
}
