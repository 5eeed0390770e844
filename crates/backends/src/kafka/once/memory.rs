//! Which events are in Kafka already and may be offered again.

use std::collections::HashSet;

use semel_core::EventId;

use super::journal::{Contents, Entry, Kind};

/// What was confirmed and is not known to be settled.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Confirmed by this sink.
    live: HashSet<EventId>,
    /// Confirmed by those before it.
    old: HashSet<EventId>,
    /// How many slots of each kind the journal has.
    live_slots: usize,
    old_slots: usize,
}

/// A change that a transaction is to make, with what the journal will say then.
#[derive(Debug, Default)]
pub(super) struct Draft {
    confirmed: Vec<EventId>,
    live_slots: usize,
    old_slots: usize,
    pub(super) entries: Vec<Entry>,
}

impl Memory {
    /// What those before left behind, in that many slots.
    pub(super) fn inherit(old: HashSet<EventId>, old_slots: usize) -> Self {
        Self { old, old_slots, ..Self::default() }
    }

    pub(super) fn knows(&self, event: EventId) -> bool {
        self.live.contains(&event) || self.old.contains(&event)
    }

    /// These are settled: they will not come again.
    pub(super) fn forget(&mut self, events: &[EventId]) {
        for event in events {
            if !self.live.remove(event) {
                self.old.remove(event);
            }
        }
    }

    /// Whatever those before left behind is settled.
    pub(super) fn forget_old(&mut self) {
        self.old = HashSet::new();
    }

    /// Whether the journal remembers something while there is nothing to remember.
    pub(super) fn is_untidy(&self) -> bool {
        (self.live.is_empty() && self.live_slots > 0) || (self.old.is_empty() && self.old_slots > 0)
    }

    /// What the journal has to say in the transaction that confirms these.
    pub(super) fn draft(&self, confirmed: Vec<EventId>) -> Draft {
        let live = self.live.iter().chain(&confirmed);
        let (mut entries, live_slots) = slots(Kind::Live, live, self.live_slots);
        let mut old_slots = self.old_slots;
        if self.old.is_empty() {
            let (tombstones, none) = slots(Kind::Old, &[], old_slots);
            entries.extend(tombstones);
            old_slots = none;
        }
        Draft { confirmed, live_slots, old_slots, entries }
    }

    /// The journal was read back: it has that many slots, and the draft if it has its events.
    pub(super) fn find_out(&mut self, draft: Option<Draft>, contents: &Contents) {
        let committed = |draft: &Draft| draft.confirmed.iter().all(|it| contents.own.contains(it));
        if let Some(draft) = draft.filter(committed) {
            self.keep(draft);
        }
        (self.live_slots, self.old_slots) = (contents.live_slots, contents.old_slots);
    }

    /// The transaction of this draft is committed.
    pub(super) fn keep(&mut self, draft: Draft) {
        self.live.extend(draft.confirmed);
        (self.live_slots, self.old_slots) = (draft.live_slots, draft.old_slots);
    }
}

/// Events in slots small enough for a message, and tombstones for slots that are not needed any
/// more; also how many are needed.
pub(super) fn slots<'a>(
    kind: Kind,
    events: impl IntoIterator<Item = &'a EventId>,
    before: usize,
) -> (Vec<Entry>, usize) {
    /// Half a mebibyte.
    const SLOT: usize = 32 * 1024;
    let events: Vec<_> = events.into_iter().copied().collect();
    let filled = events.chunks(SLOT).map(|chunk| Some(chunk.to_vec()));
    let needed = events.len().div_ceil(SLOT);
    let emptied = (needed..before).map(|_| None);
    let entry = |(slot, events)| Entry { kind, slot, events };
    (filled.chain(emptied).enumerate().map(entry).collect(), needed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(count: usize) -> Vec<EventId> {
        (0..count).map(|_| EventId::now()).collect()
    }

    fn written(draft: &Draft) -> Vec<(Kind, usize, Option<usize>)> {
        let shape = |entry: &Entry| (entry.kind, entry.slot, entry.events.as_ref().map(Vec::len));
        draft.entries.iter().map(shape).collect()
    }

    #[test]
    fn an_event_is_known_until_it_is_settled() {
        let (mut memory, events) = (Memory::default(), ids(3));
        let draft = memory.draft(events.clone());
        assert!(!memory.knows(events[0]), "nothing is committed yet");
        memory.keep(draft);
        assert!(events.iter().all(|event| memory.knows(*event)));
        memory.forget(&events[..2]);
        assert_eq!(events.iter().filter(|event| memory.knows(**event)).count(), 1);
        assert_eq!(written(&memory.draft(ids(4))), [(Kind::Live, 0, Some(5))]);
    }

    #[test]
    fn what_is_old_is_known_until_the_relay_has_caught_up() {
        let events = ids(2);
        let mut memory = Memory::inherit(events.iter().copied().collect(), 2);
        memory.forget(&events[..1]);
        assert!(!memory.knows(events[0]) && memory.knows(events[1]));
        assert!(memory.draft(Vec::new()).entries.is_empty(), "the journal still has it");
        memory.forget_old();
        assert!(memory.is_untidy() && !memory.knows(events[1]));
        let draft = memory.draft(Vec::new());
        assert_eq!(written(&draft), [(Kind::Old, 0, None), (Kind::Old, 1, None)]);
        memory.keep(draft);
        assert!(!memory.is_untidy());
    }

    #[test]
    fn the_journal_says_whether_a_draft_was_committed() {
        let (mut memory, events) = (Memory::default(), ids(2));
        let contents = |own: &[EventId]| Contents {
            own: own.iter().copied().collect(),
            live_slots: 1,
            ..Contents::default()
        };
        let draft = memory.draft(events.clone());
        memory.find_out(Some(draft), &contents(&[]));
        assert!(!memory.knows(events[0]) && memory.is_untidy());
        let draft = memory.draft(events.clone());
        memory.find_out(Some(draft), &contents(&events));
        assert!(memory.knows(events[0]) && memory.knows(events[1]));
    }

    #[test]
    fn many_events_take_several_slots_and_leave_none_behind() {
        let (mut memory, events) = (Memory::default(), ids(40_000));
        let draft = memory.draft(events.clone());
        assert_eq!(written(&draft), [(Kind::Live, 0, Some(32_768)), (Kind::Live, 1, Some(7_232))]);
        memory.keep(draft);
        memory.forget(&events[1..]);
        let draft = memory.draft(Vec::new());
        assert_eq!(written(&draft), [(Kind::Live, 0, Some(1)), (Kind::Live, 1, None)]);
        memory.keep(draft);
        memory.forget(&events);
        assert!(memory.is_untidy());
        memory.keep(memory.draft(Vec::new()));
        assert!(!memory.is_untidy());
    }
}
