//! Everything at once: many lanes, random batches, failures and crashes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use semel_core::{Delivery, Limit, Outcome, Receipt, Timestamp};

use super::SourceProbe;
use crate::probe::Ran;
use crate::workload::{Drive, event, number, retry, time_in};

const LANES: u64 = 50;
const PER_LANE: u64 = 20;

/// 1,000 events in 50 lanes, settled in random order, some failing, with crashes in between: nothing
/// is lost, nothing settled comes again, and every lane keeps its order.
pub async fn a_storm_of_crashes_and_retries_loses_and_reorders_nothing<P: SourceProbe>(
    probe: &Arc<P>,
) -> Ran {
    for numbers in [0..5, 5..6, 6..20] {
        let events = numbers.flat_map(|number| (0..LANES).map(move |lane| (lane, number)));
        let events: Vec<_> = events.map(|(lane, number)| event(&lane_name(lane), number)).collect();
        probe.commit_all(&events).await;
    }
    let mut drive = Drive::open(&**probe).await;
    let mut storm = Storm {
        dice: Dice(0x5eed),
        ordered: drive.guarantees().lane_order,
        parking: drive.guarantees().parking,
        lanes: BTreeMap::new(),
    };
    let mut crashes = 0;
    while storm.delivered() < LANES * PER_LANE {
        let events = storm.dice.below(120) + 1;
        let limit = Limit { events, ..Limit::default() };
        let batch = if storm.in_flight() == 0 {
            drive.batch_of(limit).await
        } else {
            drive.ask(limit).await
        };
        storm.take(batch.deliveries);
        let outcomes = storm.settle_some(time_in(&**probe, Duration::ZERO));
        drive.settle(outcomes).await;
        if crashes < 10 && storm.dice.below(8) == 0 {
            crashes += 1;
            drive = drive.reopen().await;
            storm.crash(P::CUMULATIVE);
        }
    }
    // What a cumulative source forgot comes once more.
    while P::CUMULATIVE {
        let batch = drive.next_unless_quiet(Limit::default()).await;
        if batch.is_empty() && storm.in_flight() == 0 {
            break;
        }
        storm.take(batch);
        let outcomes = storm.settle_some(time_in(&**probe, Duration::ZERO));
        drive.settle(outcomes).await;
    }
    drive.expect_nothing().await;
    drive.reopen().await.expect_nothing().await;
    Ok(())
}

fn lane_name(lane: u64) -> String {
    format!("storm-{lane}")
}

/// What the suite knows of the source: for each lane, what is delivered and what is in flight.
struct Storm {
    dice: Dice,
    ordered: bool,
    parking: bool,
    lanes: BTreeMap<String, LaneState>,
}

struct LaneState {
    /// Which numbers are delivered.
    delivered: Vec<bool>,
    /// Numbers delivered before a crash that the source may not remember.
    uncertain: Vec<bool>,
    /// Failed attempts of each number.
    attempts: Vec<u32>,
    flight: VecDeque<Delivery>,
}

impl Storm {
    fn delivered(&self) -> u64 {
        let delivered = |lane: &LaneState| lane.delivered.iter().filter(|done| **done).count();
        self.lanes.values().map(delivered).sum::<usize>() as u64
    }

    fn in_flight(&self) -> usize {
        self.lanes.values().map(|lane| lane.flight.len()).sum()
    }

    /// Checks that each delivery is the next of its lane.
    fn take(&mut self, deliveries: Vec<Delivery>) {
        for got in deliveries {
            let name = got.message.event.aggregate_id.clone();
            let number = index(&got);
            let lane = self.lanes.entry(name.clone()).or_insert_with(LaneState::new);
            assert!(
                !lane.delivered[number] || lane.uncertain[number],
                "{name}: {number} was settled, and is handed out again"
            );
            assert!(
                lane.flight.iter().all(|other| index(other) != number),
                "{name}: {number} is in flight, and is handed out again"
            );
            let missing = (0..number).find(|earlier| {
                !lane.delivered[*earlier] && lane.flight.iter().all(|got| index(got) != *earlier)
            });
            assert!(
                !self.ordered || missing.is_none(),
                "{name}: {number} is handed out before {missing:?}"
            );
            assert_eq!(
                got.message.attempt,
                lane.attempts[number] + 1,
                "attempt of {name}: {number}"
            );
            lane.flight.push_back(got);
        }
    }

    /// Settles the front of some lanes; a failing front releases all that is behind it.
    fn settle_some(&mut self, now: Timestamp) -> Vec<(Receipt, Outcome)> {
        let Self { dice, lanes, .. } = self;
        let mut outcomes = Vec::new();
        for lane in lanes.values_mut() {
            let fails = self.parking && dice.below(15) == 0;
            if fails && let Some(head) = lane.flight.pop_front() {
                lane.attempts[index(&head)] += 1;
                outcomes.push((head.receipt, retry(now, head.message.attempt)));
                let behind = lane.flight.drain(..);
                outcomes.extend(behind.map(|got| (got.receipt, Outcome::Released)));
                continue;
            }
            for _ in 0..dice.below(5) {
                if let Some(got) = lane.flight.pop_front() {
                    lane.delivered[index(&got)] = true;
                    outcomes.push((got.receipt, Outcome::Delivered));
                }
            }
        }
        dice.shuffle(outcomes)
    }

    /// What was in flight is open again.
    fn crash(&mut self, cumulative: bool) {
        for lane in self.lanes.values_mut() {
            lane.flight.clear();
            if cumulative {
                lane.uncertain.clone_from(&lane.delivered);
            }
        }
    }
}

impl LaneState {
    fn new() -> Self {
        let count = usize::try_from(PER_LANE).expect("a small number");
        let none = vec![false; count];
        let attempts = vec![0; count];
        Self { delivered: none.clone(), uncertain: none, attempts, flight: VecDeque::new() }
    }
}

fn index(got: &Delivery) -> usize {
    usize::try_from(number(&got.message.event)).expect("a small number")
}

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % end as u64).expect("below an usize")
    }

    fn shuffle<T>(&mut self, mut items: Vec<T>) -> Vec<T> {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
        items
    }
}
