//! What each verdict of the sink means for the event and for the rest of its lane.

use semel_core::retry::{Decision, decide, later};
use semel_core::{
    Failure, Fault, LaneKey, Message, Outcome, Published, Settlement, Timestamp, Verdict,
};

use crate::lanes::{Group, Held, LaneMap};
use crate::mutation::Mutation;
use crate::settings::{OnDead, Settings};

/// How to judge.
pub(crate) struct Judge<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) now: Timestamp,
    /// The source keeps what waits; otherwise the relay does.
    pub(crate) parking: bool,
}

/// What follows from a publish call.
#[derive(Debug, Default)]
pub(crate) struct Judgement {
    /// Final, or for the source to keep.
    pub(crate) settled: Vec<(Settlement, usize)>,
    /// Messages that were confirmed.
    pub(crate) confirmed: Vec<Message>,
    /// Lanes that did not get through, in the order of the group.
    pub(crate) stopped: Vec<StoppedLane>,
    /// Every failed attempt.
    pub(crate) failures: Vec<(Message, Failure, Decision)>,
}

/// A lane that stopped at a failure, with the events that did not get through.
#[derive(Debug)]
pub(crate) struct StoppedLane {
    pub(crate) lane: LaneKey,
    pub(crate) events: Vec<Held>,
    pub(crate) fate: Fate,
}

/// What becomes of a stopped lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Publish again as soon as possible.
    Again,
    /// The relay holds it until then.
    Delayed(Timestamp),
    /// Its source takes it back.
    Recalled,
}

impl Judge<'_> {
    /// Goes through the verdicts of a group in order.
    pub(crate) fn judge(&self, group: Group, published: Published) -> Judgement {
        let mut judgement = Judgement::default();
        let mut stopped: LaneMap<usize> = LaneMap::default();
        let mut verdicts = Verdicts::from(published);
        for held in group.into_held() {
            let verdict = verdicts.next();
            match (stopped.get(&held.tag.lane), verdict) {
                (_, Verdict::Confirmed) => judgement.confirm(held),
                (None, Verdict::Buried(failure)) => judgement.bury(&held, failure),
                (Some(&place), _) => judgement.stopped[place].events.push(held),
                (None, verdict) => {
                    let failure = match verdict {
                        Verdict::Failed(failure) => failure,
                        _ => not_tried(),
                    };
                    let lane = held.tag.lane;
                    let (events, fate) = self.fail(held, failure, &mut judgement);
                    stopped.insert(lane, judgement.stopped.len());
                    judgement.stopped.push(StoppedLane { lane, events, fate });
                }
            }
        }
        judgement
    }

    /// What becomes of an event that failed, and of its lane.
    fn fail(
        &self,
        mut held: Held,
        failure: Failure,
        judgement: &mut Judgement,
    ) -> (Vec<Held>, Fate) {
        let attempt = held.message.attempt;
        let salt = held.message.event.id.as_uuid().as_u64_pair().1;
        let fault = match failure.fault() {
            Fault::Unavailable if self.settings.makes(Mutation::OutageBurnsAttempt) => {
                Fault::Transient
            }
            fault => fault,
        };
        let mut decision = decide(fault, attempt, &self.settings.schedule, self.now, salt);
        // In an outage the circuit sees to it.
        if let Some(wait) = failure.retry_after() {
            decision = decision.no_earlier_than(later(self.now, wait));
        }
        judgement.failures.push((held.message.clone(), failure.clone(), decision));
        match decision {
            Decision::Outage | Decision::Stop => (vec![held], Fate::Again),
            Decision::Retry(at) if self.parking => {
                judgement.settle(&held, Outcome::Retry { at, attempts: attempt, failure });
                (Vec::new(), Fate::Recalled)
            }
            Decision::Retry(at) => {
                held.message.attempt += 1;
                (vec![held], Fate::Delayed(at))
            }
            Decision::Dead => {
                let parks_lane = self.parking && self.settings.on_dead == OnDead::ParkLane;
                judgement.settle(&held, Outcome::Dead { attempts: attempt, failure, parks_lane });
                (Vec::new(), if parks_lane { Fate::Recalled } else { Fate::Again })
            }
        }
    }
}

/// Nothing counts as confirmed behind a message of its lane that failed.
pub(crate) fn stop_lanes_at_failures(batch: &[Message], verdicts: &mut [Verdict]) {
    if verdicts.iter().all(|verdict| *verdict == Verdict::Confirmed) {
        return;
    }
    let mut stopped: LaneMap<()> = LaneMap::default();
    for (message, verdict) in batch.iter().zip(verdicts) {
        let lane = message.event.lane_key();
        if stopped.contains_key(&lane) {
            *verdict = Verdict::Behind;
        } else if *verdict != Verdict::Confirmed {
            stopped.insert(lane, ());
        }
    }
}

impl Judgement {
    pub(crate) fn settle(&mut self, held: &Held, outcome: Outcome) {
        self.settled.push((Settlement { receipt: held.tag.receipt, outcome }, held.tag.bytes));
    }

    fn confirm(&mut self, held: Held) {
        self.settle(&held, Outcome::Delivered);
        self.confirmed.push(held.message);
    }

    /// The receiver keeps it as a dead letter; the source is rid of it.
    fn bury(&mut self, held: &Held, failure: Failure) {
        self.settle(held, Outcome::Delivered);
        self.failures.push((held.message.clone(), failure, Decision::Dead));
    }
}

/// The verdicts of a group, one per message, whatever the sink returned.
enum Verdicts {
    Same(Verdict),
    Each(std::vec::IntoIter<Verdict>),
}

impl Verdicts {
    /// A verdict that is missing is never taken for a confirmation.
    fn next(&mut self) -> Verdict {
        match self {
            Self::Same(verdict) => verdict.clone(),
            Self::Each(verdicts) => verdicts.next().unwrap_or(Verdict::Behind),
        }
    }
}

impl From<Published> for Verdicts {
    fn from(published: Published) -> Self {
        match published {
            Published::All => Self::Same(Verdict::Confirmed),
            Published::Each(verdicts) => Self::Each(verdicts.into_iter()),
            Published::None(failure) => Self::Same(Verdict::Failed(failure)),
        }
    }
}

/// The sink broke its contract: it left out the first event of a lane.
fn not_tried() -> Failure {
    Failure::new(
        Fault::Transient,
        "E-SINK-CONTRACT",
        "the sink gave no verdict for the first event of a lane",
    )
}

#[cfg(test)]
mod tests {
    use semel_core::{Delivery, Event, EventId, Receipt, Schedule};

    use super::*;
    use crate::lanes::Lanes;

    fn group(events: &[&str]) -> Group {
        let mut lanes = Lanes::new(true);
        for (number, lane) in (1..).zip(events) {
            let id = EventId::numbered(Timestamp::UNIX_EPOCH, number);
            let message = Message::first("t", Event::with_id(id, "a", *lane, "T"));
            let lane = message.event.lane_key();
            lanes.admit(Held::new(Delivery { message, receipt: Receipt(number) }, lane));
        }
        lanes.next_group(events.len()).unwrap()
    }

    fn judge(parking: bool, published: Published) -> Judgement {
        let schedule = Schedule::broker().without_jitter();
        let settings = Settings { schedule, ..Settings::default() };
        let judge = Judge { settings: &settings, now: Timestamp::UNIX_EPOCH, parking };
        judge.judge(group(&["a", "b", "a"]), published)
    }

    fn receipts(events: &[Held]) -> Vec<u64> {
        events.iter().map(|held| held.tag.receipt.0).collect()
    }

    fn transient() -> Failure {
        Failure::transient("E-TEST", "busy")
    }

    #[test]
    fn the_rest_of_a_failed_lane_follows_its_head_back() {
        let verdicts = vec![Verdict::Failed(transient()), Verdict::Confirmed, Verdict::Behind];
        let judgement = judge(true, Published::Each(verdicts));
        assert_eq!(judgement.confirmed.len(), 1);
        assert_eq!(judgement.stopped[0].fate, Fate::Recalled);
        assert_eq!(receipts(&judgement.stopped[0].events), [3]);
        assert!(matches!(judgement.settled[0].0.outcome, Outcome::Retry { attempts: 1, .. }));
    }

    #[test]
    fn a_source_that_cannot_park_leaves_the_waiting_to_the_relay() {
        let verdicts = vec![Verdict::Failed(transient()), Verdict::Confirmed, Verdict::Behind];
        let judgement = judge(false, Published::Each(verdicts));
        let at = "1970-01-01T00:00:01Z".parse().unwrap();
        assert_eq!(judgement.stopped[0].fate, Fate::Delayed(at));
        assert_eq!(receipts(&judgement.stopped[0].events), [1, 3]);
        assert_eq!(judgement.stopped[0].events[0].message.attempt, 2);
        assert_eq!(judgement.stopped[0].events[1].message.attempt, 1);
    }

    #[test]
    fn a_receiver_that_asks_to_be_left_alone_is() {
        let busy = || transient().with_retry_after(std::time::Duration::from_secs(60));
        let verdicts = vec![Verdict::Failed(busy()), Verdict::Confirmed, Verdict::Behind];
        for parking in [true, false] {
            let judgement = judge(parking, Published::Each(verdicts.clone()));
            let asked = Decision::Retry("1970-01-01T00:01:00Z".parse().unwrap());
            assert_eq!(judgement.failures[0].2, asked);
        }
    }

    #[test]
    fn a_missing_verdict_is_never_a_confirmation() {
        let judgement = judge(true, Published::Each(vec![Verdict::Confirmed]));
        assert_eq!(judgement.confirmed.len(), 1);
        assert_eq!(judgement.failures.len(), 2);
        assert!(
            judgement.failures.iter().all(|(_, failure, _)| failure.code() == "E-SINK-CONTRACT")
        );
    }

    #[test]
    fn what_the_receiver_keeps_as_a_dead_letter_leaves_its_source_and_its_lane() {
        let verdicts = vec![Verdict::Buried(transient()), Verdict::Confirmed, Verdict::Confirmed];
        let judgement = judge(false, Published::Each(verdicts));
        assert_eq!((judgement.confirmed.len(), judgement.settled.len()), (2, 3));
        assert_eq!(judgement.failures[0].2, Decision::Dead);
        assert!(judgement.stopped.is_empty());
    }

    #[test]
    fn an_outage_burns_no_attempt() {
        let outage = Failure::unavailable("E-TEST", "down");
        let judgement = judge(true, Published::None(outage));
        assert!(judgement.settled.is_empty());
        let attempts: Vec<_> = judgement
            .stopped
            .iter()
            .flat_map(|lane| &lane.events)
            .map(|held| held.message.attempt)
            .collect();
        assert_eq!(attempts, [1, 1, 1]);
    }
}
