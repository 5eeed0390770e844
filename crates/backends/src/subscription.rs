//! What every subscription keeps in memory: messages that came from the broker and wait to be handed
//! out, and those that are handed out and not settled.

use std::collections::BTreeMap;

use semel_core::{Batch, Delivery, Limit, Message, Receipt};

/// Messages of a subscription, in the order they came from the broker.
///
/// `T` is what the broker recognises a message by: an offset, a delivery tag, the id of an entry,
/// perhaps with the message as it was on the wire.
pub(crate) struct Window<T> {
    system: &'static str,
    last: u64,
    waiting: BTreeMap<u64, Kept<T>>,
    waiting_bytes: usize,
    /// As large as messages were lately: what comes next is taken for no larger.
    usual_bytes: usize,
    out: BTreeMap<u64, Kept<T>>,
}

/// How many bytes may wait to be handed out. What is handed out the engine bounds.
pub(crate) const MOST_WAITING_BYTES: usize = 16 * MIB;

const MIB: usize = 1024 * 1024;

/// A message that came, and what the broker recognises it by.
pub(crate) struct Kept<T> {
    pub(crate) message: Message,
    pub(crate) place: T,
}

impl<T> Window<T> {
    /// Nothing came yet from this messaging system.
    pub(crate) fn new(system: &'static str) -> Self {
        let (waiting, out) = (BTreeMap::new(), BTreeMap::new());
        Self { system, last: 0, waiting, waiting_bytes: 0, usual_bytes: MIB, out }
    }

    /// A message came, after all others.
    pub(crate) fn receive(&mut self, message: Message, place: T) {
        let message = Message { system: Some(self.system), ..message };
        self.last += 1;
        let size = message.event.size();
        self.usual_bytes = size.max(self.usual_bytes - self.usual_bytes / 16);
        self.waiting_bytes += size;
        self.waiting.insert(self.last, Kept { message, place });
    }

    /// How many wait or are handed out.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len() + self.out.len()
    }

    /// Where everything is that waits or is handed out.
    pub(crate) fn places(&self) -> impl Iterator<Item = &T> {
        self.waiting.values().chain(self.out.values()).map(|kept| &kept.place)
    }

    /// The same, to change what the broker recognises it by.
    pub(crate) fn places_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.waiting.values_mut().chain(self.out.values_mut()).map(|kept| &mut kept.place)
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// How many bytes those have.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// How many more to ask the broker for, where `most` may wait or be handed out: so few that they
    /// should not be too large either. It has no more to go by than those that came.
    pub(crate) fn room(&self, most: usize) -> usize {
        let room = most.saturating_sub(self.len());
        match MOST_WAITING_BYTES.saturating_sub(self.waiting_bytes) {
            0 => 0,
            bytes => room.min((bytes / self.usual_bytes.max(1)).max(1)),
        }
    }

    /// Hands out what waits, as far as there is room; at least one.
    pub(crate) fn hand_out(&mut self, limit: Limit) -> Batch {
        let (mut deliveries, mut bytes) = (Vec::new(), 0);
        let mut more = false;
        while let Some(first) = self.waiting.first_entry() {
            let size = first.get().message.event.size();
            bytes += size;
            let full = deliveries.len() >= limit.events || bytes > limit.bytes;
            if full && !deliveries.is_empty() {
                more = true;
                break;
            }
            self.waiting_bytes -= size;
            let (number, kept) = first.remove_entry();
            deliveries.push(Delivery { message: kept.message.clone(), receipt: Receipt(number) });
            self.out.insert(number, kept);
        }
        Batch { deliveries, more, next_due: None }
    }

    /// What was handed out under this receipt, if it is not settled and was not taken away.
    pub(crate) fn get(&self, receipt: Receipt) -> Option<&Kept<T>> {
        self.out.get(&receipt.0)
    }

    /// Forgets what was handed out: it is settled.
    pub(crate) fn settle(&mut self, receipt: Receipt) -> Option<Kept<T>> {
        self.out.remove(&receipt.0)
    }

    /// Takes back what was handed out: it waits again, in its place.
    pub(crate) fn release(&mut self, receipt: Receipt) {
        if let Some(kept) = self.out.remove(&receipt.0) {
            self.waiting_bytes += kept.message.event.size();
            self.waiting.insert(receipt.0, kept);
        }
    }

    /// Drops everything whose place is not kept: it belongs to somebody else now, and its receipts
    /// are void.
    pub(crate) fn retain(&mut self, mut keeps: impl FnMut(&T) -> bool) {
        self.waiting.retain(|_, kept| keeps(&kept.place));
        self.waiting_bytes = self.waiting.values().map(|kept| kept.message.event.size()).sum();
        self.out.retain(|_, kept| keeps(&kept.place));
    }

    /// Drops everything: the broker gives it out again.
    pub(crate) fn clear(&mut self) {
        self.retain(|_| false);
    }
}

#[cfg(test)]
mod tests {
    use semel_core::Event;

    use super::*;

    fn window(count: u32) -> Window<u32> {
        let mut window = Window::new("test");
        for number in 0..count {
            window.receive(Message::first("t", Event::new("a", "1", "T")), number);
        }
        window
    }

    fn places(window: &Window<u32>, batch: &Batch) -> Vec<u32> {
        let place = |got: &Delivery| window.get(got.receipt).map(|kept| kept.place);
        batch.deliveries.iter().filter_map(place).collect()
    }

    #[test]
    fn what_is_taken_back_waits_in_its_place() {
        let mut window = window(4);
        let batch = window.hand_out(Limit { events: 3, ..Limit::default() });
        assert_eq!((places(&window, &batch), batch.more), (vec![0, 1, 2], true));
        for got in batch.deliveries[1..].iter().rev() {
            window.release(got.receipt);
        }
        let again = window.hand_out(Limit::default());
        assert_eq!((places(&window, &again), again.more), (vec![1, 2, 3], false));
        assert_eq!((window.len(), window.waiting()), (4, 0));
    }

    #[test]
    fn what_was_taken_away_is_settled_in_vain() {
        let mut window = window(3);
        let batch = window.hand_out(Limit::default());
        window.retain(|place| *place != 1);
        let settled = batch.deliveries.iter().map(|got| window.settle(got.receipt).is_some());
        assert_eq!(settled.collect::<Vec<_>>(), [true, false, true]);
        window.clear();
        assert_eq!(window.len(), 0);
    }

    fn large() -> Message {
        Message::first("t", Event::new("a", "1", "T").with_bytes("text/plain", vec![b'x'; MIB]))
    }

    #[test]
    fn what_waits_is_bounded_in_bytes_and_what_is_handed_out_is_not() {
        let mut window = Window::new("test");
        while window.room(1_000) > 0 {
            assert!(window.room(1_000) <= 16, "nothing is known of what comes");
            window.receive(large(), 0);
        }
        assert_eq!((window.waiting(), window.waiting_bytes() / MIB), (16, 16));
        let batch = window.hand_out(Limit { bytes: 2 * MIB, ..Limit::default() });
        assert_eq!((batch.deliveries.len(), window.waiting_bytes() / MIB), (1, 15));
        assert_eq!(window.room(1_000), 1, "as large as those that came");
        window.release(batch.deliveries[0].receipt);
        assert_eq!(window.room(1_000), 0);
        while !window.hand_out(Limit::default()).deliveries.is_empty() {}
        assert_eq!((window.waiting_bytes(), window.room(1_000)), (0, 15));
        assert_eq!(window.room(17), 1, "those that are out count, too");
        window.clear();
        window.receive(large(), 1);
        window.retain(|place| *place != 1);
        assert_eq!(window.waiting_bytes(), 0);
    }

    #[test]
    fn where_messages_are_small_their_number_counts() {
        let mut window = window(500);
        assert_eq!(window.room(1_000), 500);
        window.receive(large(), 0);
        assert!(window.room(1_000) <= 15, "after a large one it is careful");
        for _ in 0..200 {
            window.receive(Message::first("t", Event::new("a", "1", "T")), 0);
        }
        assert_eq!(window.room(1_000), 299, "for a while");
    }

    #[test]
    fn one_is_handed_out_whatever_its_size() {
        let mut window = window(2);
        let batch = window.hand_out(Limit { bytes: 1, ..Limit::default() });
        assert_eq!((batch.deliveries.len(), batch.more), (1, true));
    }
}
