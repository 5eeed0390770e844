//! [`Source`] over the outbox of a [`MemoryDatabase`].

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use jiff::Timestamp;

use super::MemoryDatabase;
use super::changes::Changes;
use super::database::{Committed, Fate, Parked, Place, owned_lane};
use crate::delivery::{Delivery, Holding, Message, Outcome, Receipt, Settlement, Topic};
use crate::event::Event;
use crate::failure::Failure;
use crate::source::{Batch, Guarantees, Limit, Source};

/// The outbox of a [`MemoryDatabase`] as a source. Made by [`MemoryDatabase::source`].
///
/// What was handed out and not settled when it is dropped is handed out again by the next one.
///
/// ```
/// # use semel_core::{Source, memory::MemoryDatabase};
/// let source = MemoryDatabase::new().source();
/// assert!(source.guarantees().lane_order && source.guarantees().parking);
/// ```
#[derive(Debug)]
pub struct MemoryOutbox {
    database: MemoryDatabase,
    changes: Arc<Changes>,
    seen_changes: u64,
    epoch: u64,
    topic: Topic,
    /// The next row to look at.
    cursor: u64,
    /// Rows the cursor passed that were written before their time.
    scheduled: BTreeSet<(Timestamp, u64)>,
}

impl MemoryOutbox {
    pub(super) fn open(database: MemoryDatabase, changes: Arc<Changes>) -> Self {
        let (epoch, cursor) = {
            let mut committed = database.committed();
            committed.epoch += 1;
            (committed.epoch, committed.log.first_open)
        };
        let topic = Topic::from("outbox");
        let (seen_changes, scheduled) = (0, BTreeSet::new());
        Self { database, changes, seen_changes, epoch, topic, cursor, scheduled }
    }

    /// Parked lanes first: their events are the oldest.
    fn offer_parked(&self, committed: &mut Committed, take: &mut Take) {
        let Committed { parked, log, .. } = committed;
        for queue in parked.values() {
            for (&Place { number, .. }, waiting) in queue {
                let Some(row) = log.get_mut(number) else {
                    continue;
                };
                if row.out == Some(self.epoch) {
                    continue;
                }
                if waiting.dead {
                    break;
                }
                if waiting.due > take.now {
                    take.waits_until(waiting);
                    break;
                }
                if !take.has_room_for(&row.event) {
                    return;
                }
                row.out = Some(self.epoch);
                take.add(self.delivery(&row.event, number, waiting.attempts));
            }
        }
    }

    /// What was held back and falls due takes its place here: behind every row passed so far.
    fn offer_scheduled(&mut self, committed: &mut Committed, take: &mut Take) {
        while let Some(&(due, number)) = self.scheduled.first() {
            if due > take.now {
                return;
            }
            if let Some(row) = committed.log.get_mut(number)
                && row.is_free(self.epoch)
            {
                row.behind = self.cursor;
                if !self.offer_row(committed, number, take) {
                    return;
                }
            }
            self.scheduled.pop_first();
        }
    }

    fn offer_new(&mut self, committed: &mut Committed, take: &mut Take) {
        while self.cursor < committed.log.end() {
            let number = self.cursor;
            if let Some(row) = committed.log.get(number)
                && row.is_free(self.epoch)
            {
                match row.event.available_at {
                    Some(due) if row.scheduled => {
                        self.scheduled.insert((due, number));
                    }
                    _ => {
                        if !self.offer_row(committed, number, take) {
                            return;
                        }
                    }
                }
            }
            self.cursor += 1;
        }
    }

    /// Hands a row out, unless its lane waits: then it waits behind it. Says whether there was room.
    fn offer_row(&self, committed: &mut Committed, number: u64, take: &mut Take) -> bool {
        let Some(row) = committed.log.get(number) else {
            return true;
        };
        if !committed.parked.is_empty() && committed.parked.contains_key(&owned_lane(&row.event)) {
            committed.park(number, Parked::untried(take.now));
            take.parked_some = true;
            return true;
        }
        if !take.has_room_for(&row.event) {
            return false;
        }
        if let Some(row) = committed.log.get_mut(number) {
            row.out = Some(self.epoch);
            take.add(self.delivery(&row.event, number, 0));
        }
        true
    }

    fn delivery(&self, event: &Arc<Event>, number: u64, attempts: u32) -> Delivery {
        let (topic, event) = (self.topic.clone(), Arc::clone(event));
        Delivery {
            message: Message { attempt: attempts + 1, ..Message::first(topic, event) },
            receipt: Receipt(number),
        }
    }
}

#[async_trait]
impl Source for MemoryOutbox {
    fn guarantees(&self) -> Guarantees {
        Guarantees { lane_order: true, parking: true }
    }

    async fn next_batch(&mut self, limit: Limit) -> Result<Batch, Failure> {
        self.seen_changes = self.changes.count();
        let database = self.database.clone();
        let mut committed = database.committed();
        if committed.epoch != self.epoch {
            return Ok(Batch::default());
        }
        let mut take = Take::new(limit, self.database.now());
        self.offer_parked(&mut committed, &mut take);
        self.offer_scheduled(&mut committed, &mut take);
        self.offer_new(&mut committed, &mut take);
        self.offer_scheduled(&mut committed, &mut take);
        // What was parked just now may be behind a lane that is in flight and need not wait.
        if take.parked_some {
            self.offer_parked(&mut committed, &mut take);
        }
        let Take { deliveries, more, next_due, .. } = take;
        Ok(Batch { deliveries, more, next_due })
    }

    fn wakeup(&mut self) -> BoxFuture<'static, ()> {
        Arc::clone(&self.changes).after(self.seen_changes)
    }

    async fn settle(&mut self, settlements: &[Settlement]) -> Result<Holding, Failure> {
        let now = self.database.now();
        let mut committed = self.database.committed();
        if committed.epoch != self.epoch {
            return Ok(Holding::Lost);
        }
        for &Settlement { receipt: Receipt(number), ref outcome } in settlements {
            let in_flight =
                committed.log.get(number).is_some_and(|row| row.out == Some(self.epoch));
            if in_flight {
                record(&mut committed, number, outcome, now);
            }
        }
        committed.log.advance_first_open();
        Ok(Holding::Held)
    }

    fn is_lost(&self) -> bool {
        self.database.committed().epoch != self.epoch
    }
}

fn record(committed: &mut Committed, number: u64, outcome: &Outcome, now: Timestamp) {
    let was_parked = committed.log.get(number).is_some_and(|row| matches!(row.fate, Fate::Parked));
    let waited = if was_parked { committed.unpark(number) } else { None };
    let fate = match outcome {
        Outcome::Delivered => Fate::Published(now),
        Outcome::Dead { attempts, failure, parks_lane: false } => {
            Fate::Dead { attempts: *attempts, error: failure.to_string() }
        }
        Outcome::Dead { attempts, failure, parks_lane: true } => {
            let error = Some(failure.to_string());
            return committed
                .park(number, Parked { due: now, attempts: *attempts, error, dead: true });
        }
        Outcome::Retry { at, attempts, failure } => {
            let error = Some(failure.to_string());
            return committed
                .park(number, Parked { due: *at, attempts: *attempts, error, dead: false });
        }
        Outcome::Released => {
            return committed.park(number, waited.unwrap_or_else(|| Parked::untried(now)));
        }
    };
    if let Some(row) = committed.log.get_mut(number) {
        row.fate = fate;
        row.out = None;
    }
}

impl Parked {
    pub(super) fn untried(now: Timestamp) -> Self {
        Self { due: now, attempts: 0, error: None, dead: false }
    }
}

/// A batch in the making.
struct Take {
    limit: Limit,
    now: Timestamp,
    bytes: usize,
    deliveries: Vec<Delivery>,
    /// Something was ready for which there was no room.
    more: bool,
    /// A row was put aside, behind its lane.
    parked_some: bool,
    next_due: Option<Timestamp>,
}

impl Take {
    fn new(limit: Limit, now: Timestamp) -> Self {
        let (more, parked_some) = (false, false);
        Self { limit, now, bytes: 0, deliveries: Vec::new(), more, parked_some, next_due: None }
    }

    fn has_room_for(&mut self, event: &Event) -> bool {
        let room = self.deliveries.is_empty()
            || (self.deliveries.len() < self.limit.events
                && self.bytes.saturating_add(event.size()) <= self.limit.bytes);
        self.more |= !room;
        room
    }

    fn add(&mut self, delivery: Delivery) {
        if self.deliveries.is_empty() {
            self.deliveries.reserve(self.limit.events.min(1024));
        }
        self.bytes += delivery.message.event.size();
        self.deliveries.push(delivery);
    }

    fn waits_until(&mut self, waiting: &Parked) {
        let earlier = self.next_due.is_none_or(|due| waiting.due < due);
        if earlier {
            self.next_due = Some(waiting.due);
        }
    }
}
