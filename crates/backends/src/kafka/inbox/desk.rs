//! Who has which message in hand, and which took effect: what all transactions of an inbox share.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use semel_core::inbox::Seen;
use semel_core::{Clock, Failure, SystemClock};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::super::error;
use super::super::session::lock;
use super::memory::{BYTES_PER_ID, Key, Memory, Second, cost};

/// What all transactions of an inbox share.
#[derive(Debug)]
pub(super) struct Desk {
    books: Mutex<Books>,
    /// Something may be free, or known.
    changed: Notify,
}

#[derive(Debug)]
struct Books {
    memory: Memory,
    in_hand: HashSet<Key>,
    /// What the results of those will take.
    promised: usize,
    state: State,
}

/// Whether the memory can be believed.
#[derive(Clone, Debug)]
pub(super) enum State {
    Ready,
    /// A transaction may be committed, and nobody knows: the log must be read first.
    Unsure,
    /// Another process goes on from here.
    Over(Failure),
}

/// What came of reaching for messages.
pub(super) enum Taking {
    Done(Vec<Seen>),
    /// Another transaction has one of them in hand; none is taken.
    Busy,
    /// Nobody knows yet.
    Unsure,
}

impl Desk {
    /// Nothing is known before the log was read.
    pub(super) fn new(memory: Memory) -> Arc<Self> {
        let books = Books { memory, in_hand: HashSet::new(), promised: 0, state: State::Unsure };
        Arc::new(Self { books: Mutex::new(books), changed: Notify::new() })
    }

    pub(super) fn state(&self) -> State {
        lock(&self.books).state.clone()
    }

    pub(super) fn set(&self, state: State) {
        lock(&self.books).state = state;
        self.changed.notify_waiters();
    }

    /// Ends when something changed after it was enabled.
    pub(super) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Takes those of the messages that are new into these hands, which have none of them yet; all
    /// or none, so that nobody waits in a circle for a part.
    pub(super) fn take(&self, hands: &mut Hands, keys: &[Key]) -> Result<Taking, Failure> {
        let mut books = lock(&self.books);
        match &books.state {
            State::Ready => {}
            State::Unsure => return Ok(Taking::Unsure),
            State::Over(failure) => return Err(failure.clone()),
        }
        if keys.iter().any(|key| books.in_hand.contains(key)) {
            return Ok(Taking::Busy);
        }
        books.memory.expire(now());
        let known: Vec<_> = keys.iter().map(|key| books.memory.find(key)).collect();
        let new = known.iter().filter(|known| known.is_none()).count();
        if new > 0 {
            books.expect_room_for(new * BYTES_PER_ID)?;
        }
        let seen = keys.iter().zip(known).map(|(key, known)| match known {
            Some(result) => Seen::Duplicate { result },
            None => {
                books.in_hand.insert(key.clone());
                hands.results.insert(key.clone(), None);
                Seen::First
            }
        });
        Ok(Taking::Done(seen.collect()))
    }

    /// A message in these hands returned something, for which there must be room too.
    pub(super) fn promise(
        &self,
        hands: &mut Hands,
        key: &Key,
        result: Bytes,
    ) -> Result<(), Failure> {
        let Some(held) = hands.results.get_mut(key) else { return Ok(()) };
        let mut books = lock(&self.books);
        let (size, before) = (cost(&result), held.as_ref().map_or(0, cost));
        books.expect_room_for(size.saturating_sub(before))?;
        books.promised = books.promised + size - before;
        *held = Some(result);
        Ok(())
    }

    /// What is in these hands took effect.
    pub(super) fn keep(&self, mut hands: Hands) {
        let mut books = lock(&self.books);
        let at = now();
        for (key, result) in &mut hands.results {
            books.promised -= result.as_ref().map_or(0, cost);
            books.memory.learn(key, at, result.take());
        }
        // The hands need it too, when they go.
        drop(books);
    }

    /// The log says so. Fails when there is more than is to be remembered.
    pub(super) fn learn(
        &self,
        key: &Key,
        at: Second,
        result: Option<Bytes>,
    ) -> Result<(), Failure> {
        let mut books = lock(&self.books);
        let before = books.memory.bytes();
        books.memory.learn(key, at, result);
        if books.memory.bytes() > before && books.memory.lacks_room_for(0) {
            // What was kept in other partitions may be older than all of it.
            books.memory.put_in_order();
            books.memory.expire(now());
            return books.expect_room_for(0);
        }
        Ok(())
    }

    pub(super) fn unlearn(&self, keys: &[Key]) {
        let mut books = lock(&self.books);
        keys.iter().for_each(|key| books.memory.unlearn(key));
    }

    /// The log was read: from here on the memory is in the order of time.
    pub(super) fn put_in_order(&self) {
        lock(&self.books).memory.put_in_order();
    }

    /// At most so many messages that took effect before that time.
    pub(super) fn before(&self, time: Second, limit: usize) -> Vec<Key> {
        lock(&self.books).memory.before(time, limit)
    }

    fn release(&self, results: &HashMap<Key, Option<Bytes>>) {
        let mut books = lock(&self.books);
        for (key, result) in results {
            books.in_hand.remove(key);
            books.promised -= result.as_ref().map_or(0, cost);
        }
        drop(books);
        self.changed.notify_waiters();
    }
}

impl Books {
    /// Beside what is known, and what is in hand.
    fn expect_room_for(&self, bytes: usize) -> Result<(), Failure> {
        let in_hand = self.in_hand.len() * BYTES_PER_ID + self.promised;
        if self.memory.lacks_room_for(in_hand.saturating_add(bytes)) {
            return Err(error::inbox_full(self.memory.bytes()));
        }
        Ok(())
    }
}

/// Messages that one transaction has in hand, with what their handlers returned. They are free when
/// this is dropped.
#[derive(Debug)]
pub(super) struct Hands {
    desk: Arc<Desk>,
    pub(super) results: HashMap<Key, Option<Bytes>>,
}

impl Hands {
    pub(super) fn empty(desk: &Arc<Desk>) -> Self {
        Self { desk: Arc::clone(desk), results: HashMap::new() }
    }
}

impl Drop for Hands {
    fn drop(&mut self) {
        if !self.results.is_empty() {
            self.desk.release(&self.results);
        }
    }
}

/// This moment, or up to a second later: nothing is forgotten too early.
pub(super) fn now() -> Second {
    seconds(SystemClock.now().as_millisecond())
}

/// Milliseconds since 1970, rounded up.
pub(super) fn seconds(millis: i64) -> Second {
    Second::try_from(millis.max(0).unsigned_abs().div_ceil(1000)).unwrap_or(Second::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use semel_core::EventId;

    use super::*;

    fn desk(room: usize) -> Arc<Desk> {
        let desk = Desk::new(Memory::new(Duration::from_secs(100), room));
        desk.set(State::Ready);
        desk
    }

    fn keys<const N: usize>() -> [Key; N] {
        [(); N].map(|()| Key { consumer: "payments".into(), id: EventId::now() })
    }

    fn seen(taking: Taking) -> Vec<Seen> {
        match taking {
            Taking::Done(seen) => seen,
            Taking::Busy | Taking::Unsure => Vec::new(),
        }
    }

    #[test]
    fn a_message_in_hand_is_nobody_elses_until_it_is_decided() {
        let (desk, [one, two]) = (desk(usize::MAX), keys());
        let (mut first, mut second) = (Hands::empty(&desk), Hands::empty(&desk));
        assert_eq!(seen(desk.take(&mut first, std::slice::from_ref(&one)).unwrap()), [Seen::First]);
        let both = [two.clone(), one.clone()];
        assert!(matches!(desk.take(&mut second, &both).unwrap(), Taking::Busy));
        assert!(second.results.is_empty(), "all or none");
        desk.keep(first);
        let duplicate = Seen::Duplicate { result: None };
        assert_eq!(seen(desk.take(&mut second, &both).unwrap()), [Seen::First, duplicate]);
        drop(second);
        let mut third = Hands::empty(&desk);
        assert_eq!(seen(desk.take(&mut third, &[two]).unwrap()), [Seen::First]);
    }

    #[test]
    fn who_does_not_know_says_so() {
        let (desk, [one]) = (desk(usize::MAX), keys());
        let mut hands = Hands::empty(&desk);
        desk.set(State::Unsure);
        assert!(matches!(desk.take(&mut hands, std::slice::from_ref(&one)), Ok(Taking::Unsure)));
        desk.set(State::Over(error::inbox_taken("billing")));
        assert!(desk.take(&mut hands, &[one]).is_err());
    }

    #[test]
    fn what_is_in_hand_needs_room_too() {
        let (desk, [one, two, three]) = (desk(2 * BYTES_PER_ID), keys());
        let mut hands = Hands::empty(&desk);
        let more = [two.clone(), three];
        assert_eq!(seen(desk.take(&mut hands, std::slice::from_ref(&one)).unwrap()), [Seen::First]);
        assert_eq!(desk.take(&mut hands, &more).err().unwrap().code(), "E-KAFKA-INBOX-FULL");
        assert_eq!(seen(desk.take(&mut hands, &[two]).unwrap()), [Seen::First]);
    }

    /// Whatever took effect can be read from the log again.
    #[test]
    fn what_is_returned_needs_room_too() {
        let (desk, [one, two]) = (desk(4 * BYTES_PER_ID), keys());
        let mut hands = Hands::empty(&desk);
        assert_eq!(seen(desk.take(&mut hands, std::slice::from_ref(&one)).unwrap()), [Seen::First]);
        let large = Bytes::from(vec![0; 3 * BYTES_PER_ID]);
        let refused = desk.promise(&mut hands, &one, large).unwrap_err();
        assert_eq!(refused.code(), "E-KAFKA-INBOX-FULL");
        let fitting = Bytes::from(vec![0; 2 * BYTES_PER_ID]);
        desk.promise(&mut hands, &one, fitting.clone()).unwrap();
        assert!(desk.take(&mut hands, std::slice::from_ref(&two)).is_err());
        desk.keep(hands);
        // It is full, and what is known is no news.
        desk.learn(&one, 1, Some(fitting)).unwrap();
        assert!(desk.learn(&two, now(), None).is_err());
    }

    #[test]
    fn a_part_of_a_second_counts_as_a_whole_one() {
        assert_eq!([0, 1, 1000, 1001, -5].map(seconds), [0, 1, 1, 2, 0]);
    }
}
