//! Which messages took effect. It is in memory, because a log cannot be asked for one of them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use semel_core::EventId;

/// What an id takes, in a table that is partly empty and in the order of forgetting: 20 bytes each.
pub(super) const BYTES_PER_ID: usize = 64;

/// Seconds since 1970. An id needs no finer time, and a finer one would need more room.
pub(super) type Second = u32;

/// A message, to one consumer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) consumer: Arc<str>,
    pub(super) id: EventId,
}

/// What took effect within the time that is remembered.
#[derive(Debug)]
pub(super) struct Memory {
    keep: Second,
    room: usize,
    used: usize,
    consumers: HashMap<Arc<str>, Ids>,
}

/// The messages of one consumer.
#[derive(Debug, Default)]
struct Ids {
    known: HashMap<EventId, Second>,
    results: HashMap<EventId, Bytes>,
    /// In the order in which they are forgotten. What is not known from that time is passed over.
    order: VecDeque<(Second, EventId)>,
}

impl Memory {
    /// Remembers for a time, in so many bytes.
    pub(super) fn new(keep: Duration, room: usize) -> Self {
        let keep = Second::try_from(keep.as_millis().div_ceil(1000)).unwrap_or(Second::MAX);
        Self { keep, room, used: 0, consumers: HashMap::new() }
    }

    /// Whether it took effect, and what that returned.
    pub(super) fn find(&self, key: &Key) -> Option<Option<Bytes>> {
        let ids = self.consumers.get(&key.consumer)?;
        ids.known.get(&key.id).map(|_| ids.results.get(&key.id).cloned())
    }

    /// Whether so many bytes more are too many.
    pub(super) fn lacks_room_for(&self, bytes: usize) -> bool {
        self.used.saturating_add(bytes) > self.room
    }

    pub(super) fn bytes(&self) -> usize {
        self.used
    }

    /// It took effect at that time. What is known from a later one stays as it is.
    pub(super) fn learn(&mut self, key: &Key, at: Second, result: Option<Bytes>) {
        let ids = self.consumers.entry(Arc::clone(&key.consumer)).or_default();
        match ids.known.get(&key.id) {
            Some(known) if *known >= at => return,
            Some(_) => {}
            None => self.used += BYTES_PER_ID,
        }
        ids.known.insert(key.id, at);
        ids.order.push_back((at, key.id));
        self.used += result.as_ref().map_or(0, cost);
        let before = match result {
            Some(result) => ids.results.insert(key.id, result),
            None => ids.results.remove(&key.id),
        };
        self.used -= before.as_ref().map_or(0, cost);
    }

    /// It may take effect again.
    pub(super) fn unlearn(&mut self, key: &Key) {
        let Some(ids) = self.consumers.get_mut(&key.consumer) else { return };
        self.used -= ids.remove(key.id);
        while ids.order.front().is_some_and(|(at, id)| !ids.is_from(*id, *at)) {
            ids.order.pop_front();
        }
    }

    /// Forgets what is older than what is kept.
    pub(super) fn expire(&mut self, now: Second) {
        for ids in self.consumers.values_mut() {
            while let Some((at, id)) = ids.order.front().copied()
                && at.saturating_add(self.keep) < now
            {
                ids.order.pop_front();
                if ids.is_from(id, at) {
                    self.used -= ids.remove(id);
                }
            }
        }
    }

    /// At most so many that took effect before that time, the oldest of each consumer first.
    pub(super) fn before(&self, time: Second, limit: usize) -> Vec<Key> {
        let old = self.consumers.iter().flat_map(|(consumer, ids)| {
            let old = ids.order.iter().take_while(move |(at, _)| *at < time);
            let old = old.filter(|(at, id)| ids.is_from(*id, *at));
            old.map(|(_, id)| Key { consumer: Arc::clone(consumer), id: *id })
        });
        old.take(limit).collect()
    }

    /// Partitions are read one beside the other, and so their times are mixed.
    pub(super) fn put_in_order(&mut self) {
        for ids in self.consumers.values_mut() {
            ids.order.make_contiguous().sort_by_key(|(at, _)| *at);
        }
    }
}

impl Ids {
    fn is_from(&self, id: EventId, at: Second) -> bool {
        self.known.get(&id) == Some(&at)
    }

    /// How many bytes are free then.
    fn remove(&mut self, id: EventId) -> usize {
        let known = self.known.remove(&id).map_or(0, |_| BYTES_PER_ID);
        known + self.results.remove(&id).as_ref().map_or(0, cost)
    }
}

/// What a result takes.
pub(super) fn cost(result: &Bytes) -> usize {
    BYTES_PER_ID + result.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(room: usize) -> Memory {
        Memory::new(Duration::from_secs(100), room)
    }

    fn key(consumer: &str) -> Key {
        Key { consumer: consumer.into(), id: EventId::now() }
    }

    #[test]
    fn an_id_is_known_to_its_consumer_for_as_long_as_it_is_kept() {
        let (mut memory, one) = (memory(usize::MAX), key("payments"));
        memory.learn(&one, 1000, Some("paid".into()));
        assert_eq!(memory.find(&one), Some(Some("paid".into())));
        assert_eq!(memory.find(&Key { consumer: "stock".into(), ..one.clone() }), None);
        memory.expire(1100);
        assert!(memory.find(&one).is_some());
        memory.expire(1101);
        assert_eq!((memory.find(&one), memory.bytes()), (None, 0));
    }

    /// It was forgotten and took effect again: the log has it twice.
    #[test]
    fn the_last_time_counts() {
        let (mut memory, one) = (memory(usize::MAX), key("payments"));
        memory.learn(&one, 1000, Some("first".into()));
        memory.learn(&one, 1050, Some("second".into()));
        memory.learn(&one, 1040, None);
        memory.expire(1149);
        assert_eq!(memory.find(&one), Some(Some("second".into())));
        assert_eq!(memory.before(1051, 10), [one]);
        memory.expire(1151);
        assert_eq!((memory.bytes(), memory.before(9999, 10)), (0, Vec::new()));
    }

    #[test]
    fn what_is_unlearned_is_neither_known_nor_old() {
        let (mut memory, one, two) = (memory(usize::MAX), key("payments"), key("payments"));
        memory.learn(&two, 1001, None);
        memory.learn(&one, 1000, None);
        memory.put_in_order();
        assert_eq!(memory.before(1002, 1), std::slice::from_ref(&one));
        memory.unlearn(&one);
        memory.unlearn(&one);
        assert_eq!(memory.find(&one), None);
        assert_eq!(memory.before(1002, 10), [two]);
        assert_eq!(memory.bytes(), BYTES_PER_ID);
    }

    #[test]
    fn room_is_for_ids_and_for_results() {
        let mut memory = memory(4 * BYTES_PER_ID);
        memory.learn(&key("payments"), 1000, None);
        assert!(!memory.lacks_room_for(3 * BYTES_PER_ID));
        assert!(memory.lacks_room_for(3 * BYTES_PER_ID + 1));
        memory.learn(&key("payments"), 1000, Some(vec![0; BYTES_PER_ID].into()));
        assert!(!memory.lacks_room_for(0) && memory.lacks_room_for(1));
    }

    /// What `BYTES_PER_ID` says, with some room for tables that have just grown.
    #[test]
    fn an_id_takes_as_much_as_is_said() {
        const COUNT: usize = 100_000;
        let mut memory = memory(usize::MAX);
        (0..COUNT).for_each(|_| memory.learn(&key("payments"), 1000, None));
        let ids = memory.consumers.values().next().unwrap();
        let table = ids.known.capacity() * 8 / 7 * (size_of::<(EventId, Second)>() + 1);
        let order = ids.order.capacity() * size_of::<(Second, EventId)>();
        let each = (table + order) / COUNT;
        assert!((BYTES_PER_ID / 2..=BYTES_PER_ID * 3 / 2).contains(&each), "{each}");
    }
}
