//! What became of deliveries, for sources that remember by a [`Watermark`] what is out.

use std::collections::{BTreeSet, HashSet};

use semel_core::{Outcome, Receipt, Settlement};

use crate::watermark::Watermark;

/// Outcomes, by what has to be written for them; `A` says how an event that failed is put aside.
pub(crate) struct Outcomes<A> {
    /// Delivered straight from the log: the cursor says it all.
    pub(crate) delivered: Vec<u64>,
    /// Failed or dead.
    pub(crate) failed: Vec<(u64, A)>,
    /// Delivered from the parked table.
    pub(crate) delivered_parked: Vec<u64>,
    pub(crate) released: Vec<u64>,
    pub(crate) released_parked: Vec<u64>,
}

impl<A> Outcomes<A> {
    /// Leaves out what is not in flight; `taken` are those from the parked table that are.
    pub(crate) fn sorted(
        settlements: &[Settlement],
        watermark: &Watermark,
        taken: &HashSet<u64>,
        aside: impl Fn(&Outcome) -> Option<A>,
    ) -> Self {
        let mut sorted = Self {
            delivered: Vec::new(),
            failed: Vec::new(),
            delivered_parked: Vec::new(),
            released: Vec::new(),
            released_parked: Vec::new(),
        };
        for &Settlement { receipt: Receipt(position), ref outcome } in settlements {
            let parked = taken.contains(&position);
            if !parked && !watermark.is_out(position) {
                continue;
            }
            match (outcome, parked) {
                (Outcome::Delivered, false) => sorted.delivered.push(position),
                (Outcome::Delivered, true) => sorted.delivered_parked.push(position),
                (Outcome::Released, false) => sorted.released.push(position),
                (Outcome::Released, true) => sorted.released_parked.push(position),
                (Outcome::Retry { .. } | Outcome::Dead { .. }, _) => {
                    sorted.failed.extend(aside(outcome).map(|aside| (position, aside)));
                }
            }
        }
        sorted
    }

    /// What the log is done with, in no order.
    pub(crate) fn finished(&self, watermark: &Watermark) -> Vec<u64> {
        let mut finished = self.delivered.clone();
        let out = |position: &u64| watermark.is_out(*position);
        finished.extend(self.failed.iter().map(|(position, _)| *position).filter(out));
        finished
    }

    pub(crate) fn concern_the_cursor_only(&self) -> bool {
        self.failed.is_empty()
            && self.delivered_parked.is_empty()
            && self.released.is_empty()
            && self.released_parked.is_empty()
    }

    /// Takes all that is stored out of the memory.
    pub(crate) fn forget(
        &self,
        finished: &[u64],
        watermark: &mut Watermark,
        again: &mut BTreeSet<u64>,
        taken: &mut HashSet<u64>,
    ) {
        watermark.finish(finished);
        for position in finished {
            again.remove(position);
        }
        let failed = self.failed.iter().map(|(position, _)| position);
        for position in failed.chain(&self.delivered_parked).chain(&self.released_parked) {
            taken.remove(position);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watermark::Frontier;

    fn settled(position: u64, outcome: Outcome) -> Settlement {
        Settlement { receipt: Receipt(position), outcome }
    }

    #[test]
    fn only_what_is_in_flight_is_settled() {
        let mut watermark = Watermark::resume(Frontier { position: 0, ahead: vec![] });
        [1, 2].into_iter().for_each(|position| watermark.hand_out(position));
        let (mut taken, mut again) = (HashSet::from([7]), BTreeSet::from([1]));
        let settlements = [
            settled(1, Outcome::Delivered),
            settled(2, Outcome::Released),
            settled(3, Outcome::Delivered),
            settled(7, Outcome::Delivered),
        ];
        let outcomes = Outcomes::<()>::sorted(&settlements, &watermark, &taken, |_| Some(()));
        assert_eq!((&outcomes.delivered, &outcomes.released), (&vec![1], &vec![2]));
        assert_eq!(outcomes.delivered_parked, [7]);
        assert!(!outcomes.concern_the_cursor_only());
        let finished = outcomes.finished(&watermark);
        assert_eq!(finished, [1]);
        outcomes.forget(&finished, &mut watermark, &mut again, &mut taken);
        assert!(taken.is_empty() && again.is_empty());
        assert!(!watermark.is_out(1) && watermark.is_out(2));
    }
}
