//! An in-process broker: one log of messages, any number of consumer groups.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;

use super::changes::Changes;
use super::{MemorySubscription, lock};
use crate::delivery::{Message, Topic};
use crate::failure::Failure;
use crate::sink::{Published, Sink};

/// A broker in memory. Clones share the same messages.
///
/// ```
/// use semel_core::memory::MemoryBroker;
/// use semel_core::{Event, Limit, Message, Sink, Source};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let broker = MemoryBroker::new();
/// let mut payments = broker.subscribe("payments", &["order.events"]);
/// broker.publish(&[Message::first("order.events", Event::new("order", "42", "Placed"))]).await;
/// assert_eq!(payments.next_batch(Limit::default()).await?.deliveries.len(), 1);
/// # Ok::<(), semel_core::Failure>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct MemoryBroker {
    shared: Arc<Shared>,
}

struct Shared {
    log: Mutex<Log>,
    changes: Arc<Changes>,
}

#[derive(Default)]
pub(super) struct Log {
    pub(super) messages: Vec<Message>,
    pub(super) groups: BTreeMap<String, Group>,
    dead: Vec<DeadMessage>,
}

/// What a consumer group has acknowledged. The subscription opened last owns it.
#[derive(Default)]
pub(super) struct Group {
    pub(super) epoch: u64,
    /// Everything before this is acknowledged or not for this group.
    pub(super) done_before: usize,
    /// Acknowledged ahead of that.
    pub(super) done: BTreeSet<usize>,
}

pub(super) struct DeadMessage {
    pub(super) group: String,
    pub(super) message: Message,
    pub(super) failure: Failure,
}

impl MemoryBroker {
    /// What traces call it.
    pub(super) const SYSTEM: &str = "memory";

    /// A broker without messages.
    #[must_use]
    pub fn new() -> Self {
        let shared = Shared { log: Mutex::default(), changes: Arc::default() };
        Self { shared: Arc::new(shared) }
    }

    /// A subscription of a consumer group to topics; to all of them when none is named.
    ///
    /// The group's progress stays in the broker. The subscription opened last owns the group, and
    /// gets everything again that was not acknowledged.
    #[must_use]
    pub fn subscribe(&self, group: &str, topics: &[&str]) -> MemorySubscription {
        let topics = topics.iter().copied().map(Topic::from).collect();
        MemorySubscription::open(self.clone(), Arc::clone(&self.shared.changes), group, topics)
    }

    /// All messages, in the order they were published, duplicates included.
    #[must_use]
    pub fn messages(&self) -> Vec<Message> {
        self.log().messages.clone()
    }

    /// How many messages were published, duplicates included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.log().messages.len()
    }

    /// Whether nothing was published yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The dead letters of a group, and why they died.
    #[must_use]
    pub fn dead_letters(&self, group: &str) -> Vec<(Message, Failure)> {
        let log = self.log();
        let dead = log.dead.iter().filter(|dead| dead.group == group);
        dead.map(|dead| (dead.message.clone(), dead.failure.clone())).collect()
    }

    pub(super) fn log(&self) -> MutexGuard<'_, Log> {
        lock(&self.shared.log)
    }
}

impl Log {
    pub(super) fn bury(&mut self, dead: DeadMessage) {
        self.dead.push(dead);
    }
}

#[async_trait]
impl Sink for MemoryBroker {
    async fn publish(&self, batch: &[Message]) -> Published {
        self.log().messages.extend_from_slice(batch);
        self.shared.changes.announce();
        Published::All
    }

    async fn check(&self) -> Result<(), Failure> {
        Ok(())
    }

    fn system(&self) -> Option<&'static str> {
        Some(Self::SYSTEM)
    }
}

impl Default for MemoryBroker {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBroker").field("messages", &self.len()).finish_non_exhaustive()
    }
}
