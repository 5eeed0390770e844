//! How far a source has come: which positions are out, which are finished, and up to where all are.
//!
//! Positions are handed out in ascending order, with gaps or without, and finish in any order. The frontier is the highest
//! position below which everything is finished, and the spans that are finished beyond it; that is
//! all a backend has to store, however many events there are.

use std::collections::VecDeque;

/// Positions that are handed out, in ascending order, and what was finished before a restart.
#[derive(Debug)]
pub(crate) struct Watermark {
    /// The last position that was read.
    read: u64,
    /// From the first unfinished position on.
    window: VecDeque<Slot>,
    /// Finished before a restart and not read again yet.
    known: Vec<Span>,
}

#[derive(Debug)]
struct Slot {
    position: u64,
    finished: bool,
}

/// Finished positions, first to last.
pub(crate) type Span = (u64, u64);

/// What must be stored to go on after a restart.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frontier {
    /// Everything up to here is finished.
    pub(crate) position: u64,
    /// So is everything in these spans.
    pub(crate) ahead: Vec<Span>,
}

impl Watermark {
    /// Goes on where a stored frontier left off.
    pub(crate) fn resume(Frontier { position, ahead }: Frontier) -> Self {
        Self { read: position, window: VecDeque::new(), known: ahead }
    }

    /// The last position that was read: go on after it.
    pub(crate) fn read(&self) -> u64 {
        self.read
    }

    /// Whether a position was finished before the restart.
    pub(crate) fn is_known(&self, position: u64) -> bool {
        self.known.iter().any(|&(first, last)| (first..=last).contains(&position))
    }

    /// Whether a position is handed out and not finished.
    pub(crate) fn is_out(&self, position: u64) -> bool {
        self.find(position).is_some_and(|slot| !self.window[slot].finished)
    }

    /// A position after all others was read, and is handed out now.
    pub(crate) fn hand_out(&mut self, position: u64) {
        self.push(position, false);
    }

    /// A position after all others was read, and there is nothing more to do for it.
    pub(crate) fn pass(&mut self, position: u64) {
        self.push(position, true);
        self.trim();
    }

    /// The frontier once `finishing`, in ascending order, is finished. Changes nothing, so that it
    /// can be stored first.
    pub(crate) fn frontier(&self, finishing: &[u64]) -> Frontier {
        let mut frontier = Frontier { position: self.read, ahead: Vec::new() };
        let mut finishing = finishing.iter().copied().peekable();
        let mut all_so_far = true;
        let mut in_span = false;
        for slot in &self.window {
            while finishing.next_if(|&position| position < slot.position).is_some() {}
            let finished = slot.finished || finishing.peek() == Some(&slot.position);
            if all_so_far && !finished {
                all_so_far = false;
                frontier.position = slot.position - 1;
            }
            match frontier.ahead.last_mut() {
                Some(span) if in_span && finished => span.1 = slot.position,
                _ if !all_so_far && finished => {
                    frontier.ahead.push((slot.position, slot.position));
                }
                _ => {}
            }
            in_span = finished && !all_so_far;
        }
        frontier.ahead.extend(self.known.iter().filter(|span| span.1 > self.read));
        frontier
    }

    /// Finishes positions; those that are not out are ignored.
    pub(crate) fn finish(&mut self, positions: &[u64]) {
        for &position in positions {
            if let Some(slot) = self.find(position) {
                self.window[slot].finished = true;
            }
        }
        self.trim();
    }

    fn push(&mut self, position: u64, finished: bool) {
        debug_assert!(position > self.read, "{position} was read after {}", self.read);
        self.read = position;
        self.window.push_back(Slot { position, finished });
        self.known.retain(|&(_, last)| last > position);
    }

    fn trim(&mut self) {
        while self.window.front().is_some_and(|slot| slot.finished) {
            self.window.pop_front();
        }
    }

    fn find(&self, position: u64) -> Option<usize> {
        self.window.binary_search_by_key(&position, |slot| slot.position).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(position: u64, ahead: &[Span]) -> Frontier {
        Frontier { position, ahead: ahead.to_vec() }
    }

    fn handed_out(positions: &[u64]) -> Watermark {
        let mut watermark = Watermark::resume(at(0, &[]));
        positions.iter().for_each(|&position| watermark.hand_out(position));
        watermark
    }

    #[test]
    fn nothing_out_means_everything_read_is_finished() {
        let mut watermark = Watermark::resume(at(7, &[]));
        assert_eq!(watermark.frontier(&[]), at(7, &[]));
        watermark.pass(9);
        assert_eq!(watermark.frontier(&[]), at(9, &[]));
    }

    #[test]
    fn the_frontier_stops_before_the_first_that_is_out() {
        let mut watermark = handed_out(&[1, 2, 3, 4, 5, 6]);
        assert_eq!(watermark.frontier(&[1, 3, 4, 6]), at(1, &[(3, 4), (6, 6)]));
        assert_eq!(watermark.frontier(&[]), at(0, &[]), "asking changes nothing");
        watermark.finish(&[6, 4, 3, 1]);
        assert_eq!(watermark.frontier(&[2]), at(4, &[(6, 6)]));
        watermark.finish(&[2, 5]);
        assert_eq!(watermark.frontier(&[]), at(6, &[]));
        assert!(watermark.window.is_empty());
    }

    #[test]
    fn gaps_in_the_positions_do_not_matter() {
        let mut watermark = handed_out(&[10, 20, 30]);
        assert_eq!(watermark.frontier(&[20, 30]), at(9, &[(20, 30)]));
        watermark.finish(&[10]);
        assert_eq!(watermark.frontier(&[]), at(19, &[]));
        assert!(!watermark.is_out(10) && !watermark.is_out(15) && watermark.is_out(20));
    }

    #[test]
    fn spans_that_were_not_read_again_are_kept() {
        let mut watermark = Watermark::resume(at(4, &[(6, 7), (9, 9)]));
        assert!(watermark.is_known(7) && watermark.is_known(9) && !watermark.is_known(8));
        watermark.hand_out(5);
        assert_eq!(watermark.frontier(&[]), at(4, &[(6, 7), (9, 9)]));
        watermark.pass(6);
        assert_eq!(watermark.frontier(&[]), at(4, &[(6, 6), (6, 7), (9, 9)]));
        watermark.pass(7);
        watermark.hand_out(8);
        watermark.pass(9);
        assert_eq!(watermark.frontier(&[5]), at(7, &[(9, 9)]));
        assert_eq!(watermark.frontier(&[5, 8]), at(9, &[]));
    }

    /// The same answer as a model that looks at every position one by one.
    #[test]
    fn it_agrees_with_a_model() {
        for seed in 0..2_000_u64 {
            let mut random = seed;
            let mut next = |below: u64| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random >> 33) % below
            };
            let mut watermark = Watermark::resume(at(0, &[]));
            let mut model: Vec<(u64, bool)> = Vec::new();
            for _ in 0..40 {
                let last = model.last().map_or(0, |&(position, _)| position);
                match next(3) {
                    0 => {
                        let position = last + 1 + next(3);
                        watermark.hand_out(position);
                        model.push((position, false));
                    }
                    1 => {
                        watermark.pass(last + 1);
                        model.push((last + 1, true));
                    }
                    _ if model.is_empty() => {}
                    _ => {
                        let index = usize::try_from(next(model.len() as u64)).unwrap();
                        model[index].1 = true;
                        watermark.finish(&[model[index].0]);
                    }
                }
                let frontier = watermark.frontier(&[]);
                for &(position, finished) in &model {
                    let stored = position <= frontier.position
                        || frontier.ahead.iter().any(|&(a, b)| (a..=b).contains(&position));
                    assert_eq!(stored, finished, "seed {seed}, position {position}: {frontier:?}");
                }
            }
        }
    }
}
