//! How far a source has come: the windows it reads, the rows that are out, and up to where all are
//! settled.
//!
//! A window is the difference of two snapshots: the events of the transactions that were over at
//! its end and not at its beginning. It never changes, however long it takes to read, so it is
//! read page by page in the order of `seq`, and windows follow each other without a gap. Rows are
//! settled in any order; what has to be stored is the first window that is not settled, how far
//! its beginning is, and which rows behind that are settled already.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use semel_core::EventId;

use super::types::Snapshot;

/// What must be stored to go on after a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Position {
    /// Everything visible in it is settled.
    pub(super) passed: Arc<Snapshot>,
    /// The number and end of the window that begins there, if it is not settled.
    pub(super) window: Option<(i64, Arc<Snapshot>)>,
    /// Everything in that window up to this row is settled.
    pub(super) progress: i64,
    /// So is everything in these spans: the first row, the row after the last, and so on.
    pub(super) ahead: Vec<i64>,
    /// The highest row that was ever settled.
    pub(super) top: i64,
    /// How many windows there were.
    pub(super) windows: i64,
}

/// What to read next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A new window that begins here.
    Window { from: Arc<Snapshot> },
    /// More of the last one: rows after the one and up to the other.
    Page { from: Arc<Snapshot>, end: Arc<Snapshot>, after: i64, last: i64 },
}

/// The windows that are not settled, and their rows that were read.
#[derive(Clone, Debug)]
pub(super) struct Ledger {
    passed: Arc<Snapshot>,
    progress: i64,
    top: i64,
    count: i64,
    /// Oldest first. Only the last one may have rows that were not read.
    windows: VecDeque<Window>,
    /// From the first unsettled row on, in the order they were read.
    slots: VecDeque<Slot>,
    /// The receipt of the first slot.
    first: u64,
    /// Spans that were settled before they were read: before a restart, or by a call that ended
    /// half-way. Kept until all of that was read, which is once the first new window has passed.
    known: Vec<i64>,
    known_until: Option<i64>,
    /// Rows that were out when the position was read anew, and were not read since. Kept as long.
    airborne: HashMap<(i64, EventId), Flight>,
    /// Receipts from before that of rows that are out, and the present ones.
    aliases: HashMap<u64, u64>,
}

/// A row that the engine has, as far as this server goes.
#[derive(Clone, Copy, Debug)]
struct Flight {
    receipt: u64,
    landed: bool,
}

#[derive(Clone, Debug)]
struct Window {
    number: i64,
    end: Arc<Snapshot>,
    /// The last row that was read.
    read: i64,
    /// There is none after this one.
    last: i64,
    complete: bool,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    seq: i64,
    id: EventId,
    window: i64,
    state: Standing,
}

/// Where a row that was read is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Handed out.
    Out,
    /// To be handed out again.
    Again,
    /// Nothing more to do in the log.
    Settled,
}

impl Ledger {
    /// Goes on where a stored position left off.
    pub(super) fn resume(position: Position) -> Self {
        let windows = position.window.into_iter().map(|(number, end)| Window {
            number,
            end,
            read: position.progress,
            last: i64::MAX,
            complete: false,
        });
        Self {
            passed: position.passed,
            progress: position.progress,
            top: position.top,
            count: position.windows,
            windows: windows.collect(),
            slots: VecDeque::new(),
            first: 1,
            known: position.ahead,
            known_until: None,
            airborne: HashMap::new(),
            aliases: HashMap::new(),
        }
    }

    /// The same on a server that may have gone back in time. Nothing that was read counts, but the
    /// engine still has what is out: those rows are known by their ids when they are read again.
    pub(super) fn reopened(&self, position: Position) -> Self {
        let former: HashMap<u64, u64> =
            self.aliases.iter().map(|(old, new)| (*new, *old)).collect();
        let mut airborne = self.airborne.clone();
        for (receipt, slot) in (self.first..).zip(&self.slots) {
            if slot.state == Standing::Out {
                let receipt = former.get(&receipt).copied().unwrap_or(receipt);
                airborne.insert((slot.seq, slot.id), Flight { receipt, landed: false });
            }
        }
        let first = self.first + self.slots.len() as u64;
        Self { first, airborne, ..Self::resume(position) }
    }

    /// Whoever had what is out has dropped it: nothing of it is recognised any more.
    pub(super) fn let_go(&mut self) {
        self.airborne.clear();
        for slot in self.slots.iter_mut().filter(|slot| slot.state == Standing::Out) {
            slot.state = Standing::Again;
        }
    }

    /// Everything visible in it was read.
    pub(super) fn end(&self) -> &Arc<Snapshot> {
        let complete = self.windows.iter().rev().find(|window| window.complete);
        complete.map_or(&self.passed, |window| &window.end)
    }

    /// What to read next.
    pub(super) fn next(&self) -> Next {
        match self.windows.back() {
            Some(window) if !window.complete => {
                let before = self.windows.iter().rev().nth(1);
                Next::Page {
                    from: Arc::clone(before.map_or(&self.passed, |window| &window.end)),
                    end: Arc::clone(&window.end),
                    after: window.read,
                    last: window.last,
                }
            }
            Some(window) => Next::Window { from: Arc::clone(&window.end) },
            None => Next::Window { from: Arc::clone(&self.passed) },
        }
    }

    /// A new window ends here; its rows are `first..=last`.
    pub(super) fn open_window(&mut self, end: Snapshot, first: i64, last: i64) {
        self.count += 1;
        self.known_until.get_or_insert(self.count);
        let window = Window {
            number: self.count,
            end: Arc::new(end),
            read: first - 1,
            last,
            complete: false,
        };
        self.windows.push_back(window);
    }

    /// The next row of the last window was read; its receipt, unless the engine has it.
    pub(super) fn push(&mut self, seq: i64, id: EventId) -> Option<u64> {
        let window = self.windows.back_mut().map_or(0, |window| {
            window.read = seq;
            window.number
        });
        let receipt = self.first + self.slots.len() as u64;
        let flight = self.airborne.remove(&(seq, id)).filter(|_| !self.is_known(seq));
        let landed = flight.is_some_and(|flight| flight.landed);
        let state = if landed { Standing::Settled } else { Standing::Out };
        self.slots.push_back(Slot { seq, id, window, state });
        if let Some(flight) = flight {
            self.aliases.insert(flight.receipt, receipt);
        }
        flight.is_none().then_some(receipt)
    }

    /// A row was delivered that was not read again yet.
    pub(super) fn land(&mut self, receipt: u64) {
        let flights = self.airborne.values_mut();
        flights.filter(|flight| flight.receipt == receipt).for_each(|flight| flight.landed = true);
    }

    /// A row came back undelivered that was not read again yet: nobody has it, and it is handed out once
    /// more when it is read.
    pub(super) fn give_back(&mut self, receipt: u64) {
        self.airborne.retain(|_, flight| flight.receipt != receipt);
    }

    /// All rows of the last window were read.
    pub(super) fn complete_window(&mut self) {
        let count = self.windows.len();
        if let Some(window) = self.windows.back_mut() {
            window.complete = true;
        }
        let empty = self.slots.back().map(|slot| slot.window)
            != self.windows.back().map(|window| window.number);
        // An empty window becomes the end of the one before: a quiet table costs no memory.
        if empty
            && count > 1
            && let Some(window) = self.windows.pop_back()
        {
            if let Some(before) = self.windows.back_mut() {
                before.end = window.end;
            }
            if self.known_until == Some(window.number) {
                self.known_until = self.windows.back().map(|before| before.number);
            }
        }
        self.trim();
    }

    /// The first window with rows that were not read, open or not.
    pub(super) fn unread_window(&self) -> i64 {
        let open = self.windows.back().filter(|window| !window.complete);
        open.map_or(self.count + 1, |window| window.number)
    }

    /// These rows are settled, whether they were read or not.
    pub(super) fn learn(&mut self, rows: &[i64]) {
        self.known = merged(spans(&self.known).chain(rows.iter().map(|seq| (*seq, seq + 1))));
        self.known_until = Some(self.count + 1);
    }

    /// Whether a row was settled before it was read.
    pub(super) fn is_known(&self, seq: i64) -> bool {
        self.known.partition_point(|bound| *bound <= seq) % 2 == 1
    }

    /// The row of a receipt that is out, and the number of its window.
    pub(super) fn out(&self, receipt: u64) -> Option<(i64, i64)> {
        let slot = self.slots.get(self.index(receipt)?)?;
        (slot.state == Standing::Out).then_some((slot.seq, slot.window))
    }

    /// Whether any row is out.
    pub(super) fn is_something_out(&self) -> bool {
        self.slots.iter().any(|slot| slot.state == Standing::Out)
    }

    /// Whether all that was read is settled.
    pub(super) fn is_settled(&self) -> bool {
        self.windows.is_empty()
    }

    /// At most `limit` rows to be handed out again, with their receipts, in order.
    pub(super) fn again(&self, limit: usize) -> Vec<(u64, i64)> {
        let slots = (self.first..).zip(&self.slots);
        let again = slots.filter(|(_, slot)| slot.state == Standing::Again);
        again.map(|(receipt, slot)| (receipt, slot.seq)).take(limit).collect()
    }

    /// Something happened to a row that was read.
    pub(super) fn set(&mut self, receipt: u64, state: Standing) {
        if let Some(index) = self.index(receipt)
            && let Some(slot) = self.slots.get_mut(index)
        {
            slot.state = state;
            match state {
                Standing::Settled => self.top = self.top.max(slot.seq),
                Standing::Again => drop(self.aliases.remove(&receipt)),
                Standing::Out => {}
            }
        }
    }

    /// How many windows there were; the number of the next is higher.
    pub(super) fn count(&self) -> i64 {
        self.count
    }

    /// Numbers were given to events that took their place in their lanes.
    pub(super) fn skip_numbers(&mut self, count: i64) {
        self.count += count;
    }

    /// Forgets what is settled from the beginning on.
    pub(super) fn trim(&mut self) {
        while let Some(window) = self.windows.front() {
            let number = window.number;
            while let Some(slot) = self.slots.front()
                && slot.window == number
                && slot.state == Standing::Settled
            {
                self.progress = slot.seq;
                self.top = self.top.max(slot.seq);
                self.slots.pop_front();
                self.first += 1;
            }
            let unsettled = self.slots.front().is_some_and(|slot| slot.window == number);
            if unsettled || !window.complete {
                return;
            }
            self.passed = Arc::clone(&window.end);
            self.progress = 0;
            self.windows.pop_front();
            if self.known_until.is_some_and(|until| until <= number) {
                self.known.clear();
                self.airborne.clear();
            }
            self.aliases.retain(|_, receipt| *receipt >= self.first);
        }
    }

    /// What must be stored to go on from here.
    pub(super) fn position(&self) -> Position {
        let window = self.windows.front();
        Position {
            passed: Arc::clone(&self.passed),
            window: window.map(|window| (window.number, Arc::clone(&window.end))),
            progress: self.progress,
            ahead: self.ahead(),
            top: self.top,
            windows: self.count,
        }
    }

    /// The last row that was read of the last window: all before it is out or settled.
    pub(super) fn read(&self) -> i64 {
        self.windows.back().map_or(0, |window| window.read)
    }

    /// Where the last window begins and ends, if any is open.
    pub(super) fn last_window(&self) -> Option<(Arc<Snapshot>, Arc<Snapshot>)> {
        let window = self.windows.back()?;
        let before = self.windows.iter().rev().nth(1);
        let from = before.map_or(&self.passed, |window| &window.end);
        Some((Arc::clone(from), Arc::clone(&window.end)))
    }

    /// Settled rows behind the first unsettled one. A span holds only numbers whose rows are
    /// settled, never a gap: its row may be written by a transaction that is not over yet.
    fn ahead(&self) -> Vec<i64> {
        let settled = self.slots.iter().filter(|slot| slot.state == Standing::Settled);
        merged(settled.map(|slot| (slot.seq, slot.seq + 1)).chain(spans(&self.known)))
    }

    fn index(&self, receipt: u64) -> Option<usize> {
        let receipt = self.aliases.get(&receipt).copied().unwrap_or(receipt);
        usize::try_from(receipt.checked_sub(self.first)?).ok()
    }
}

/// Bounds as spans.
fn spans(bounds: &[i64]) -> impl Iterator<Item = (i64, i64)> {
    bounds.chunks_exact(2).map(|span| (span[0], span[1]))
}

/// Spans as bounds, with those that touch made one.
fn merged(spans: impl Iterator<Item = (i64, i64)>) -> Vec<i64> {
    let mut spans: Vec<_> = spans.collect();
    spans.sort_unstable();
    let mut bounds: Vec<i64> = Vec::new();
    for (first, after) in spans {
        match bounds.last_mut() {
            Some(end) if first <= *end => *end = after.max(*end),
            _ => bounds.extend([first, after]),
        }
    }
    bounds
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(xmax: u64) -> Snapshot {
        format!("{xmax}:{xmax}:").parse().unwrap()
    }

    fn start() -> Ledger {
        Ledger::resume(Position {
            passed: Arc::new(snapshot(1)),
            window: None,
            progress: 0,
            ahead: vec![],
            top: 0,
            windows: 0,
        })
    }

    fn id(seq: i64) -> EventId {
        EventId::from_uuid(uuid::Uuid::from_u128(seq.unsigned_abs().into()))
    }

    fn read(ledger: &mut Ledger, seq: i64) -> u64 {
        ledger.push(seq, id(seq)).unwrap()
    }

    fn read_settled(ledger: &mut Ledger, seq: i64) {
        let receipt = read(ledger, seq);
        ledger.set(receipt, Standing::Settled);
    }

    fn window(ledger: &mut Ledger, end: u64, rows: &[i64]) -> Vec<u64> {
        ledger.open_window(snapshot(end), 1, i64::MAX);
        let receipts = rows.iter().map(|seq| read(ledger, *seq)).collect();
        ledger.complete_window();
        receipts
    }

    fn settle(ledger: &mut Ledger, receipts: &[u64]) -> Position {
        receipts.iter().for_each(|receipt| ledger.set(*receipt, Standing::Settled));
        ledger.trim();
        ledger.position()
    }

    #[test]
    fn a_settled_window_is_passed() {
        let mut ledger = start();
        let receipts = window(&mut ledger, 10, &[3, 5, 6]);
        let position = settle(&mut ledger, &receipts[..1]);
        assert_eq!((*position.passed).clone(), snapshot(1));
        assert_eq!((position.progress, position.window.unwrap().0), (3, 1));
        let position = settle(&mut ledger, &receipts);
        assert_eq!((*position.passed).clone(), snapshot(10));
        assert_eq!((position.progress, position.window, position.top), (0, None, 6));
        assert_eq!(ledger.next(), Next::Window { from: Arc::new(snapshot(10)) });
    }

    #[test]
    fn what_is_settled_behind_an_open_row_is_kept_in_spans_without_gaps() {
        let mut ledger = start();
        let first = window(&mut ledger, 10, &[1, 2, 3, 5, 6]);
        let second = window(&mut ledger, 20, &[4, 7, 8]);
        let position = settle(&mut ledger, &[&first[1..], &second[..1]].concat());
        assert_eq!(position.ahead, [2, 7], "4 came with the second window");
        let position = settle(&mut ledger, &second[2..]);
        assert_eq!((position.progress, position.ahead), (0, vec![2, 7, 8, 9]));
        let position = settle(&mut ledger, &first);
        assert_eq!((*position.passed).clone(), snapshot(10));
        assert_eq!((position.progress, position.ahead), (4, vec![8, 9]), "in the second window");
    }

    #[test]
    fn a_gap_is_never_counted_as_settled() {
        let mut ledger = start();
        let receipts = window(&mut ledger, 10, &[1, 2, 4]);
        assert_eq!(settle(&mut ledger, &receipts[1..]).ahead, [2, 3, 4, 5], "3 may come yet");
    }

    #[test]
    fn a_large_window_is_read_in_pages_and_resumed() {
        let mut ledger = start();
        ledger.open_window(snapshot(10), 3, 9);
        let receipts: Vec<_> = [3, 4].map(|seq| read(&mut ledger, seq)).to_vec();
        let page = |after, last| Next::Page {
            from: Arc::new(snapshot(1)),
            end: Arc::new(snapshot(10)),
            after,
            last,
        };
        assert_eq!(ledger.next(), page(4, 9));
        let position = settle(&mut ledger, &receipts);
        assert_eq!(position.progress, 4, "the window is not passed while it is not read");
        let resumed = Ledger::resume(position);
        assert_eq!(resumed.next(), page(4, i64::MAX));
    }

    #[test]
    fn what_was_settled_before_a_restart_is_known_until_it_was_read_again() {
        let mut ledger = start();
        let first = window(&mut ledger, 10, &[1, 2]);
        let second = window(&mut ledger, 20, &[3, 4]);
        let position = settle(&mut ledger, &[first[1], second[1]]);
        let mut ledger = Ledger::resume(position.clone());
        assert_eq!([1, 2, 3, 4].map(|seq| ledger.is_known(seq)), [false, true, false, true]);
        assert_eq!(ledger.position(), position);
        let one = read(&mut ledger, 1);
        read_settled(&mut ledger, 2);
        ledger.complete_window();
        ledger.open_window(snapshot(30), 3, i64::MAX);
        let three = read(&mut ledger, 3);
        read_settled(&mut ledger, 4);
        ledger.complete_window();
        assert_eq!(settle(&mut ledger, &[one]).ahead, [2, 3, 4, 5], "still kept");
        let position = settle(&mut ledger, &[three]);
        assert_eq!((*position.passed).clone(), snapshot(30));
        assert!(position.ahead.is_empty());
    }

    #[test]
    fn what_a_dropped_call_put_aside_is_passed_when_it_is_read() {
        let mut ledger = start();
        window(&mut ledger, 10, &[1]);
        assert_eq!(ledger.unread_window(), 2, "the one that will be opened next");
        ledger.learn(&[3]);
        ledger.open_window(snapshot(20), 2, 4);
        read(&mut ledger, 2);
        assert_eq!(ledger.unread_window(), 2);
        ledger.learn(&[4]);
        assert_eq!([2, 3, 4].map(|seq| ledger.is_known(seq)), [false, true, true]);
        assert_eq!(ledger.position().ahead, [3, 5], "it is stored, too");
    }

    #[test]
    fn empty_windows_cost_nothing() {
        let mut ledger = start();
        let receipts = window(&mut ledger, 10, &[1]);
        for end in 11..1_000 {
            window(&mut ledger, end, &[]);
        }
        assert_eq!(ledger.windows.len(), 1);
        let position = settle(&mut ledger, &receipts);
        assert_eq!((*position.passed).clone(), snapshot(999));
        window(&mut ledger, 1_000, &[]);
        assert_eq!(*ledger.position().passed, snapshot(1_000));
    }

    #[test]
    fn what_is_out_is_known_again_on_a_server_that_went_back() {
        let mut ledger = start();
        let stored = ledger.position();
        let receipts = window(&mut ledger, 10, &[1, 2, 3, 4, 5]);
        ledger.set(receipts[3], Standing::Again);
        let mut ledger = ledger.reopened(stored.clone());
        assert_eq!(ledger.out(receipts[0]), None, "not before it was read again");
        ledger.land(receipts[1]);
        ledger.give_back(receipts[4]);
        ledger.open_window(snapshot(7), 1, i64::MAX);
        assert_eq!([1, 2].map(|seq| ledger.push(seq, id(seq))), [None, None]);
        let another = ledger.push(3, id(30)).expect("the number was given anew");
        let released = ledger.push(4, id(4)).expect("the engine does not have it");
        let given_back = ledger.push(5, id(5)).expect("nor that one any more");
        ledger.complete_window();
        assert_eq!(ledger.out(receipts[0]), Some((1, 1)));
        assert_eq!(ledger.out(receipts[2]), None, "it is gone");
        let mut ledger = ledger.reopened(stored);
        ledger.open_window(snapshot(8), 1, i64::MAX);
        assert_eq!(ledger.push(1, id(1)), None, "known by its first receipt still");
        read_settled(&mut ledger, 2);
        assert_eq!([(3, 30), (4, 4), (5, 5)].map(|(seq, of)| ledger.push(seq, id(of))), [None; 3]);
        ledger.complete_window();
        let position = settle(&mut ledger, &[receipts[0], another, released, given_back]);
        assert_eq!((*position.passed).clone(), snapshot(8));
        assert!(ledger.airborne.is_empty() && ledger.aliases.is_empty());
    }

    #[test]
    fn what_was_let_go_is_handed_out_again() {
        let mut ledger = start();
        let stored = ledger.position();
        window(&mut ledger, 10, &[1]);
        ledger = ledger.reopened(stored.clone());
        let receipts = window(&mut ledger, 10, &[2]);
        ledger.let_go();
        let mut ledger = ledger.reopened(stored);
        ledger.open_window(snapshot(10), 1, i64::MAX);
        let again = [1, 2].map(|seq| ledger.push(seq, id(seq)).expect("nobody has it"));
        assert!(again.iter().all(|receipt| !receipts.contains(receipt)), "old receipts are void");
    }

    #[test]
    fn receipts_that_are_not_out_are_unknown() {
        let mut ledger = start();
        let receipts = window(&mut ledger, 10, &[5, 6]);
        assert_eq!(ledger.out(receipts[1]), Some((6, 1)));
        ledger.set(receipts[1], Standing::Again);
        assert_eq!(ledger.again(9), [(receipts[1], 6)]);
        settle(&mut ledger, &receipts[..1]);
        for receipt in [0, receipts[0], receipts[1], 99, u64::MAX] {
            assert_eq!(ledger.out(receipt), None, "{receipt}");
        }
    }
}
