//! Emptying a queue of dead letters, back to where they came from or for good.

use std::collections::HashSet;

use futures_util::future::join_all;
use semel_core::{Failure, Fault, LaneKey, Receipt};

use crate::dead_queue::{DeadLetter, DeadQueue};

/// Goes through all letters of a queue, and closes it. `told` hears from time to time how many are
/// done.
///
/// A letter is taken out after it has arrived, so that a crash in between repeats it and loses
/// nothing. Within a lane nothing is sent before what is in front of it has arrived: when a letter
/// has to stay, those of its lane behind it stay too. An outage ends it, and leaves what is left.
///
/// ```
/// use semel_backends::{DeadQueue, Fate, sweep};
///
/// async fn try_again(letters: &mut dyn DeadQueue) {
///     let swept = sweep(letters, Fate::Back { otherwise: None }, &mut |_| {}).await;
///     println!("{} went back, {} stay: {:?}", swept.done, swept.left, swept.reasons);
/// }
/// # let _ = try_again;
/// ```
pub async fn sweep(
    queue: &mut dyn DeadQueue,
    fate: Fate<'_>,
    told: &mut (dyn FnMut(usize) + Send),
) -> Sweep {
    let (mut swept, mut stuck) = (Sweep::default(), HashSet::new());
    // Before anything is sent that could then not be taken out.
    swept.ended_by = queue.remove(&[]).await.err();
    while swept.ended_by.is_none() {
        match queue.next(AT_ONCE).await {
            Ok(letters) if letters.is_empty() => break,
            Ok(letters) => pass(queue, letters, fate, &mut stuck, &mut swept).await,
            Err(failure) => swept.ended_by = Some(failure),
        }
        told(swept.done);
    }
    queue.close().await;
    swept
}

/// How many letters are asked for, and under way, together.
const AT_ONCE: usize = 100;

/// What becomes of letters.
///
/// ```
/// # use semel_backends::Fate;
/// let fate = Fate::Back { otherwise: Some("order.events") };
/// assert_ne!(fate, Fate::Gone);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate<'a> {
    /// They go back to where they came from; those that do not say where, `otherwise` there.
    Back {
        /// A topic, queue, stream or subject.
        otherwise: Option<&'a str>,
    },
    /// They are given up. What no consumer of semel put there is left alone.
    Gone,
}

/// What came of it.
///
/// ```
/// # use semel_backends::Sweep;
/// let swept = Sweep::default();
/// assert!(swept.left == 0 && swept.ended_by.is_none());
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sweep {
    /// Letters that were sent back, or given up.
    pub done: usize,
    /// Letters that stay, because of themselves or of one in front of them.
    pub left: usize,
    /// Why, each reason once and ten at most.
    pub reasons: Vec<Failure>,
    /// Why it ended before the end of the queue.
    pub ended_by: Option<Failure>,
}

impl Sweep {
    fn leave(&mut self, why: Failure) {
        const MOST: usize = 10;
        self.left += 1;
        if self.reasons.len() < MOST && !self.reasons.contains(&why) {
            self.reasons.push(why);
        }
    }
}

/// Sends some letters, in waves of one per lane, and takes out what has arrived.
async fn pass(
    queue: &mut dyn DeadQueue,
    mut waiting: Vec<DeadLetter>,
    fate: Fate<'_>,
    stuck: &mut HashSet<LaneKey>,
    swept: &mut Sweep,
) {
    let mut arrived = Vec::new();
    while !waiting.is_empty() && swept.ended_by.is_none() {
        let mut lanes = HashSet::new();
        let (mut wave, rest): (Vec<_>, Vec<_>) = waiting
            .into_iter()
            .partition(|letter| lanes.len() < AT_ONCE && lanes.insert(letter.lane));
        waiting = rest;
        let all = wave.len();
        wave.retain(|letter| !stuck.contains(&letter.lane));
        swept.left += all - wave.len();
        let sent = join_all(wave.iter().map(|letter| meet(&*queue, letter, fate))).await;
        for (letter, sent) in wave.iter().zip(sent) {
            match sent {
                Ok(()) => arrived.push(letter.receipt),
                Err(failure) if failure.fault() == Fault::Unavailable => {
                    swept.ended_by = Some(failure);
                }
                Err(failure) => {
                    stuck.insert(letter.lane);
                    swept.leave(failure);
                }
            }
        }
    }
    take_out(queue, &arrived, swept).await;
}

/// Brings a letter where it belongs, but does not take it out.
async fn meet(queue: &dyn DeadQueue, letter: &DeadLetter, fate: Fate<'_>) -> Result<(), Failure> {
    match fate {
        Fate::Gone if letter.said.is_some() => Ok(()),
        Fate::Gone => Err(not_ours()),
        Fate::Back { otherwise } => match letter.home.as_deref().or(otherwise) {
            Some(home) => queue.send(letter, home).await,
            None => Err(not_ours()),
        },
    }
}

async fn take_out(queue: &mut dyn DeadQueue, arrived: &[Receipt], swept: &mut Sweep) {
    match queue.remove(arrived).await {
        Ok(()) => swept.done += arrived.len(),
        // The first reason says more.
        Err(failure) => {
            swept.ended_by.get_or_insert(failure);
        }
    }
}

fn not_ours() -> Failure {
    let what = "a message does not say where it came from: no consumer of this semel put it there";
    Failure::refused("E-DEAD-ORIGIN", what).with_fix(
        "semel dead retry --to TOPIC, which sends such messages there; or take them out with the \
         tools of the broker",
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;
    use semel_core::Event;
    use semel_core::wire::Inscription;

    use super::*;

    /// Letters in memory; what is sent to `full` is refused, and to `away` nobody comes.
    #[derive(Default)]
    struct Memory {
        waiting: Vec<DeadLetter>,
        sent: Mutex<Vec<(u64, String)>>,
        removed: Vec<u64>,
    }

    #[async_trait]
    impl DeadQueue for Memory {
        fn count(&self) -> usize {
            self.waiting.len()
        }

        async fn next(&mut self, most: usize) -> Result<Vec<DeadLetter>, Failure> {
            let some = most.min(self.waiting.len());
            Ok(self.waiting.drain(..some).collect())
        }

        async fn send(&self, letter: &DeadLetter, to: &str) -> Result<(), Failure> {
            match to {
                "full" => Err(Failure::refused("E-TEST", "too large")),
                "away" => Err(Failure::unavailable("E-TEST", "away")),
                _ => {
                    self.sent.lock().unwrap().push((letter.receipt.0, to.to_owned()));
                    Ok(())
                }
            }
        }

        async fn remove(&mut self, letters: &[Receipt]) -> Result<(), Failure> {
            self.removed.extend(letters.iter().map(|receipt| receipt.0));
            Ok(())
        }

        async fn close(&mut self) {}
    }

    /// Letters of these aggregates, from these homes; from no home at all, if it is empty.
    fn letters(of: &[(&str, &str)]) -> Memory {
        let letter = |(number, (aggregate, home)): (u64, &(&str, &str))| {
            let home = Some((*home).to_owned()).filter(|home| !home.is_empty());
            let said = home.clone().map(|origin| Inscription { origin, ..Default::default() });
            let event = Event::new("order", *aggregate, "Placed");
            DeadLetter::new(Receipt(number), Some(event), said, home)
        };
        Memory { waiting: (1..).zip(of).map(letter).collect(), ..Memory::default() }
    }

    const BACK: Fate<'_> = Fate::Back { otherwise: None };

    #[tokio::test]
    async fn all_go_back_in_the_order_of_their_lanes() {
        let of: Vec<_> = (0..250).map(|number| (["a", "b", "c"][number % 3], "orders")).collect();
        let mut queue = letters(&of);
        let swept = sweep(&mut queue, BACK, &mut |_| {}).await;
        assert_eq!((swept.done, swept.left, swept.ended_by), (250, 0, None));
        assert_eq!(queue.removed.len(), 250);
        for lane in 0..3 {
            let sent = queue.sent.lock().unwrap();
            let of_lane = sent.iter().map(|(number, _)| *number).filter(|it| it % 3 == lane);
            assert!(of_lane.is_sorted(), "{sent:?}");
        }
    }

    #[tokio::test]
    async fn a_letter_that_stays_keeps_its_lane_and_no_other() {
        let mut queue = letters(&[("a", "full"), ("b", "orders"), ("a", "orders"), ("c", "")]);
        let swept = sweep(&mut queue, BACK, &mut |_| {}).await;
        assert_eq!((swept.done, swept.left, queue.removed), (1, 3, vec![2]));
        let codes: Vec<_> = swept.reasons.iter().map(Failure::code).collect();
        assert_eq!(codes, ["E-TEST", "E-DEAD-ORIGIN"]);

        let mut queue = letters(&[("a", "orders"), ("c", "")]);
        sweep(&mut queue, Fate::Back { otherwise: Some("found") }, &mut |_| {}).await;
        let sent = queue.sent.into_inner().unwrap();
        assert_eq!(sent, [(1, "orders".to_owned()), (2, "found".to_owned())]);
    }

    #[tokio::test]
    async fn an_outage_ends_it_and_what_has_arrived_is_taken_out() {
        let mut queue = letters(&[("a", "orders"), ("b", "away"), ("a", "orders"), ("b", "x")]);
        let swept = sweep(&mut queue, BACK, &mut |_| {}).await;
        assert_eq!((swept.done, queue.removed), (1, vec![1]));
        assert_eq!(swept.ended_by.unwrap().to_string(), "away");
    }

    #[tokio::test]
    async fn nobody_gives_up_what_is_not_a_letter() {
        let mut queue = letters(&[("a", "full"), ("b", ""), ("a", "away")]);
        let swept = sweep(&mut queue, Fate::Gone, &mut |_| {}).await;
        assert_eq!((swept.done, swept.left, queue.removed), (2, 1, vec![1, 3]));
    }
}
