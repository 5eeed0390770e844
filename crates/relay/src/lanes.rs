//! Order: which of the held events may be published now.
//!
//! Pure bookkeeping. An event is *ready*, or *in a group* that is being published, or *waiting* in
//! its lane behind such a group or until a retry is due. A lane is in one group at a time, so lanes
//! run in parallel and each stays in order.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use hashbrown::hash_map::Entry;
use hashbrown::{HashMap, HashSet};
use semel_core::{Delivery, LaneKey, Message, Receipt, Timestamp};

/// An event the relay holds.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) message: Message,
    pub(crate) tag: Tag,
}

/// What the relay must know of a held event while the sink has its message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tag {
    pub(crate) receipt: Receipt,
    pub(crate) lane: LaneKey,
    pub(crate) bytes: usize,
}

impl Held {
    pub(crate) fn new(delivery: Delivery, lane: LaneKey) -> Self {
        let Delivery { message, receipt } = delivery;
        let tag = Tag { receipt, lane, bytes: message.event.size() };
        Self { message, tag }
    }
}

/// Events that are published in one call.
#[derive(Debug, Default)]
pub(crate) struct Group {
    pub(crate) messages: Vec<Message>,
    pub(crate) tags: Vec<Tag>,
    occupied: Occupied,
}

/// The lanes a group keeps busy.
#[derive(Debug, Default)]
pub(crate) struct Occupied {
    group: u64,
    lanes: Vec<LaneKey>,
}

impl Group {
    pub(crate) fn take_occupied(&mut self) -> Occupied {
        std::mem::take(&mut self.occupied)
    }

    pub(crate) fn into_held(self) -> impl Iterator<Item = Held> {
        self.messages.into_iter().zip(self.tags).map(|(message, tag)| Held { message, tag })
    }
}

/// Where every held event is, outside the groups.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    ready: VecDeque<Held>,
    busy: LaneMap<Busy>,
    delayed: BinaryHeap<Reverse<(Timestamp, LaneKey)>>,
    /// How many events wait in lanes whose head is tried again, now or later.
    behind_retries: usize,
    groups: u64,
    exclusive: bool,
}

/// A lane that may not be published now, and what waits in it.
#[derive(Debug)]
struct Busy {
    why: Why,
    /// Whether its head failed before.
    is_retried: bool,
    waiting: VecDeque<Held>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Group(u64),
    Delayed,
}

impl Lanes {
    /// `exclusive` is false only to show that the tests would notice.
    pub(crate) fn new(exclusive: bool) -> Self {
        Self { exclusive, ..Self::default() }
    }

    pub(crate) fn admit(&mut self, held: Held) {
        self.ready.push_back(held);
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Takes up to `limit` ready events of lanes that are free, in order.
    pub(crate) fn next_group(&mut self, limit: usize) -> Option<Group> {
        self.groups += 1;
        let number = self.groups;
        let room = limit.min(self.ready.len());
        let mut group = Group {
            messages: Vec::with_capacity(room),
            tags: Vec::with_capacity(room),
            occupied: Occupied { group: number, lanes: Vec::new() },
        };
        while group.messages.len() < limit {
            let Some(held) = self.ready.pop_front() else { break };
            match self.busy.entry(held.tag.lane) {
                Entry::Vacant(free) => {
                    free.insert(Busy::new(Why::Group(number), held.message.attempt > 1));
                    group.occupied.lanes.push(held.tag.lane);
                }
                Entry::Occupied(mut lane) => {
                    if lane.get().why != Why::Group(number) && self.exclusive {
                        lane.get_mut().waiting.push_back(held);
                        self.behind_retries += usize::from(lane.get().is_retried);
                        continue;
                    }
                }
            }
            group.messages.push(held.message);
            group.tags.push(held.tag);
        }
        (!group.messages.is_empty()).then_some(group)
    }

    /// Frees the lanes of a group whose call has ended; what waited in them is ready, before
    /// anything newer. Lanes that were delayed meanwhile stay so.
    pub(crate) fn finish(&mut self, occupied: Occupied) {
        for lane in occupied.lanes {
            if self.busy.get(&lane).is_some_and(|busy| busy.why == Why::Group(occupied.group)) {
                self.wake(lane);
            }
        }
    }

    /// Puts events back at the front of their lane, which a group occupies.
    pub(crate) fn put_back(&mut self, lane: LaneKey, events: Vec<Held>) {
        let busy = self.busy.entry(lane).or_insert_with(|| Busy::new(Why::Delayed, false));
        self.behind_retries += if busy.is_retried { events.len() } else { 0 };
        for held in events.into_iter().rev() {
            busy.waiting.push_front(held);
        }
    }

    /// Holds a lane until `due`, with these events at its front.
    pub(crate) fn delay(&mut self, lane: LaneKey, events: Vec<Held>, due: Timestamp) {
        self.put_back(lane, events);
        self.delayed.push(Reverse((due, lane)));
        if let Some(busy) = self.busy.get_mut(&lane) {
            busy.why = Why::Delayed;
            if !std::mem::replace(&mut busy.is_retried, true) {
                self.behind_retries += busy.waiting.len();
            }
        }
    }

    /// How many events wait until the head of their lane got through that failed before.
    pub(crate) fn behind_retries(&self) -> usize {
        self.behind_retries
    }

    /// When the earliest delayed lane falls due.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        self.delayed.peek().map(|Reverse((due, _))| *due)
    }

    /// Makes delayed lanes ready that are due.
    pub(crate) fn wake_due(&mut self, now: Timestamp) {
        while let Some(&Reverse((due, lane))) = self.delayed.peek()
            && due <= now
        {
            self.delayed.pop();
            self.wake(lane);
        }
    }

    /// Takes every event of these lanes out, in order: their source wants them back.
    pub(crate) fn recall(&mut self, lanes: &LaneSet) -> Vec<Held> {
        let mut recalled = Vec::new();
        for lane in lanes {
            if let Some(busy) = self.busy.get_mut(lane) {
                self.behind_retries -= busy.behind_retries();
                recalled.extend(busy.waiting.drain(..));
            }
        }
        let (back, ready) = std::mem::take(&mut self.ready)
            .into_iter()
            .partition::<VecDeque<_>, _>(|held| lanes.contains(&held.tag.lane));
        self.ready = ready;
        recalled.extend(back);
        recalled
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.ready.clear();
        self.busy.clear();
        self.delayed.clear();
        self.behind_retries = 0;
    }

    fn wake(&mut self, lane: LaneKey) {
        if let Some(busy) = self.busy.remove(&lane) {
            self.behind_retries -= busy.behind_retries();
            for held in busy.waiting.into_iter().rev() {
                self.ready.push_front(held);
            }
        }
    }
}

impl Busy {
    fn new(why: Why, is_retried: bool) -> Self {
        Self { why, is_retried, waiting: VecDeque::new() }
    }

    fn behind_retries(&self) -> usize {
        if self.is_retried { self.waiting.len() } else { 0 }
    }
}

pub(crate) type LaneSet = HashSet<LaneKey, BuildHasherDefault<LaneHasher>>;
pub(crate) type LaneMap<V> = HashMap<LaneKey, V, BuildHasherDefault<LaneHasher>>;

/// Lane keys are hashes already.
#[derive(Debug, Default)]
pub(crate) struct LaneHasher(u64);

impl Hasher for LaneHasher {
    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use semel_core::{Event, EventId};

    use super::*;

    fn held(lane: &str, number: u64) -> Held {
        let id = EventId::numbered(Timestamp::UNIX_EPOCH, number);
        let message = Message::first("t", Event::with_id(id, "a", lane, "T"));
        let lane = message.event.lane_key();
        Held::new(Delivery { message, receipt: Receipt(number) }, lane)
    }

    fn lanes(events: &[(&str, u64)]) -> Lanes {
        let mut lanes = Lanes::new(true);
        for (lane, number) in events {
            lanes.admit(held(lane, *number));
        }
        lanes
    }

    fn numbers(group: Option<&Group>) -> Vec<u64> {
        group.map_or_else(Vec::new, |group| group.tags.iter().map(|tag| tag.receipt.0).collect())
    }

    #[test]
    fn a_lane_is_in_one_group_at_a_time() {
        let mut lanes = lanes(&[("a", 1), ("b", 2), ("a", 3), ("c", 4)]);
        let mut first = lanes.next_group(2).unwrap();
        assert_eq!(numbers(Some(&first)), [1, 2]);
        assert_eq!(numbers(lanes.next_group(2).as_ref()), [4]);
        assert!(lanes.next_group(2).is_none());
        lanes.finish(first.take_occupied());
        assert_eq!(numbers(lanes.next_group(2).as_ref()), [3]);
    }

    #[test]
    fn what_comes_back_goes_before_what_waited() {
        let mut lanes = lanes(&[("a", 1), ("a", 2)]);
        let mut group = lanes.next_group(1).unwrap();
        assert!(lanes.next_group(1).is_none());
        lanes.admit(held("a", 3));
        let (occupied, lane) = (group.take_occupied(), group.tags[0].lane);
        lanes.put_back(lane, group.into_held().collect());
        lanes.finish(occupied);
        assert_eq!(numbers(lanes.next_group(9).as_ref()), [1, 2, 3]);
    }

    #[test]
    fn a_delayed_lane_waits_with_all_that_follows() {
        let mut lanes = lanes(&[("a", 1), ("b", 2)]);
        let due = Timestamp::UNIX_EPOCH;
        let mut group = lanes.next_group(1).unwrap();
        let (occupied, lane) = (group.take_occupied(), group.tags[0].lane);
        lanes.delay(lane, group.into_held().collect(), due);
        lanes.finish(occupied);
        lanes.admit(held("a", 3));
        assert_eq!(numbers(lanes.next_group(9).as_ref()), [2]);
        assert_eq!(lanes.next_due(), Some(due));
        lanes.wake_due(due);
        assert_eq!(numbers(lanes.next_group(9).as_ref()), [1, 3]);
    }

    #[test]
    fn what_waits_behind_a_retry_is_counted_until_it_is_over() {
        let mut lanes = lanes(&[("a", 1), ("b", 2), ("a", 3)]);
        let due = Timestamp::UNIX_EPOCH;
        let mut group = lanes.next_group(1).unwrap();
        assert_eq!(numbers(lanes.next_group(9).as_ref()), [2]);
        assert_eq!(lanes.behind_retries(), 0, "3 waits behind a group, as usual");
        let (occupied, lane) = (group.take_occupied(), group.tags[0].lane);
        group.messages[0].attempt = 2;
        lanes.delay(lane, group.into_held().collect(), due);
        lanes.finish(occupied);
        lanes.admit(held("a", 4));
        assert!(lanes.next_group(9).is_none());
        assert_eq!(lanes.behind_retries(), 3);
        lanes.wake_due(due);
        let mut again = lanes.next_group(1).unwrap();
        assert!(lanes.next_group(1).is_none());
        assert_eq!(lanes.behind_retries(), 2, "1 is in a group, and what follows waits still");
        let occupied = again.take_occupied();
        lanes.put_back(lane, again.into_held().collect());
        assert_eq!(lanes.behind_retries(), 3, "an outage");
        lanes.finish(occupied);
        assert_eq!(lanes.behind_retries(), 0);
        assert_eq!(numbers(lanes.next_group(9).as_ref()), [1, 3, 4]);
        lanes.delay(lane, vec![held("a", 1)], due);
        assert_eq!(lanes.behind_retries(), 1);
        assert_eq!(lanes.recall(&[lane].into_iter().collect()).len(), 1);
        assert_eq!(lanes.behind_retries(), 0);
        lanes.delay(lane, vec![held("a", 1)], due);
        lanes.clear();
        assert_eq!(lanes.behind_retries(), 0);
    }

    #[test]
    fn a_recalled_lane_leaves_nothing_behind() {
        let mut lanes = lanes(&[("a", 1), ("b", 2), ("a", 3)]);
        let wanted = [held("a", 0).tag.lane].into_iter().collect();
        let back = lanes.recall(&wanted);
        assert_eq!(back.iter().map(|held| held.tag.receipt.0).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(numbers(lanes.next_group(9).as_ref()), [2]);
    }
}
