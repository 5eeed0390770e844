//! [`Source`] over a consumer group of a [`MemoryBroker`].

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::BoxFuture;

use super::MemoryBroker;
use super::broker::{DeadMessage, Log};
use super::changes::Changes;
use crate::delivery::{Delivery, Holding, Message, Outcome, Receipt, Settlement, Topic};
use crate::failure::Failure;
use crate::source::{Batch, Guarantees, Limit, Source};

/// A consumer group's view of a [`MemoryBroker`]. Made by [`MemoryBroker::subscribe`].
///
/// ```
/// # use semel_core::{Source, memory::MemoryBroker};
/// let subscription = MemoryBroker::new().subscribe("payments", &[]);
/// assert!(!subscription.guarantees().parking);
/// ```
#[derive(Debug)]
pub struct MemorySubscription {
    broker: MemoryBroker,
    changes: Arc<Changes>,
    seen_changes: u64,
    group: String,
    topics: Vec<Topic>,
    epoch: u64,
    /// The next message to look at.
    cursor: usize,
    /// Handed out and not settled.
    out: BTreeSet<usize>,
    /// Given back, to be handed out again before the cursor moves on.
    released: BTreeSet<usize>,
}

impl MemorySubscription {
    pub(super) fn open(
        broker: MemoryBroker,
        changes: Arc<Changes>,
        group: &str,
        topics: Vec<Topic>,
    ) -> Self {
        let (epoch, cursor) = {
            let mut log = broker.log();
            let state = log.groups.entry(group.to_owned()).or_default();
            state.epoch += 1;
            (state.epoch, state.done_before)
        };
        let (group, out, released) = (group.to_owned(), BTreeSet::new(), BTreeSet::new());
        Self { broker, changes, seen_changes: 0, group, topics, epoch, cursor, out, released }
    }

    /// The next message to hand out. It stays where it is until it is taken.
    fn next_place(&mut self, log: &Log) -> Option<usize> {
        if let Some(&place) = self.released.first() {
            return Some(place);
        }
        let group = log.groups.get(&self.group)?;
        self.cursor = self.cursor.max(group.done_before);
        while let Some(message) = log.messages.get(self.cursor) {
            if !group.done.contains(&self.cursor) && self.wants(message) {
                return Some(self.cursor);
            }
            self.cursor += 1;
        }
        None
    }

    fn take(&mut self, place: usize) {
        if !self.released.remove(&place) {
            self.cursor = place + 1;
        }
        self.out.insert(place);
    }

    fn wants(&self, message: &Message) -> bool {
        self.topics.is_empty() || self.topics.contains(&message.topic)
    }

    fn owns(&self, log: &Log) -> bool {
        log.groups.get(&self.group).is_some_and(|group| group.epoch == self.epoch)
    }

    /// Marks a message as done, and moves the group's floor over what is done without a gap.
    fn acknowledge(&self, log: &mut Log, place: usize) {
        let Log { messages, groups, .. } = log;
        let Some(group) = groups.get_mut(&self.group) else {
            return;
        };
        group.done.insert(place);
        while let Some(message) = messages.get(group.done_before) {
            if !group.done.remove(&group.done_before) && self.wants(message) {
                break;
            }
            group.done_before += 1;
        }
    }
}

#[async_trait]
impl Source for MemorySubscription {
    fn guarantees(&self) -> Guarantees {
        Guarantees { lane_order: true, parking: false }
    }

    async fn next_batch(&mut self, limit: Limit) -> Result<Batch, Failure> {
        self.seen_changes = self.changes.count();
        let broker = self.broker.clone();
        let log = broker.log();
        let (mut deliveries, mut bytes) = (Vec::new(), 0);
        if !self.owns(&log) {
            return Ok(Batch::default());
        }
        let mut more = false;
        while let Some(place) = self.next_place(&log) {
            let system = Some(MemoryBroker::SYSTEM);
            let message = Message { attempt: 1, system, ..log.messages[place].clone() };
            bytes += message.event.size();
            more =
                !deliveries.is_empty() && (deliveries.len() >= limit.events || bytes > limit.bytes);
            if more {
                break;
            }
            self.take(place);
            deliveries.push(Delivery { message, receipt: Receipt(place as u64) });
        }
        Ok(Batch { deliveries, more, next_due: None })
    }

    fn wakeup(&mut self) -> BoxFuture<'static, ()> {
        Arc::clone(&self.changes).after(self.seen_changes)
    }

    async fn settle(&mut self, settlements: &[Settlement]) -> Result<Holding, Failure> {
        let broker = self.broker.clone();
        let mut log = broker.log();
        if !self.owns(&log) {
            return Ok(Holding::Lost);
        }
        for &Settlement { receipt: Receipt(receipt), ref outcome } in settlements {
            let Ok(place) = usize::try_from(receipt) else {
                continue;
            };
            if !self.out.remove(&place) {
                continue;
            }
            match outcome {
                Outcome::Delivered => self.acknowledge(&mut log, place),
                Outcome::Dead { failure, .. } => {
                    let (group, message) = (self.group.clone(), log.messages[place].clone());
                    log.bury(DeadMessage { group, message, failure: failure.clone() });
                    self.acknowledge(&mut log, place);
                }
                Outcome::Retry { .. } | Outcome::Released => {
                    self.released.insert(place);
                }
            }
        }
        Ok(Holding::Held)
    }
}
