//! Messages that are under way together, and what is reported of them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode as Code;
use semel_core::Message;
use tokio::sync::{Notify, OwnedMutexGuard, OwnedSemaphorePermit};

use super::session::lock;

/// Messages that are under way together. They hold their room until the last one has landed, even
/// if nobody waits for them any more.
pub(super) struct Flight {
    aloft: AtomicUsize,
    /// How many of those have not left yet.
    on_the_ground: AtomicUsize,
    landed: Notify,
    trouble: Notify,
    lost: Mutex<Vec<(usize, KafkaError)>>,
    met: Mutex<Vec<(usize, i32)>>,
    _room: Option<OwnedSemaphorePermit>,
}

impl Flight {
    pub(super) fn new(count: usize, room: Option<OwnedSemaphorePermit>) -> Arc<Self> {
        Arc::new(Self {
            aloft: AtomicUsize::new(count),
            on_the_ground: AtomicUsize::new(0),
            landed: Notify::new(),
            trouble: Notify::new(),
            lost: Mutex::default(),
            met: Mutex::default(),
            _room: room,
        })
    }

    /// So many are not to be waited for: they leave later.
    pub(super) fn keep_on_the_ground(&self, count: usize) {
        self.on_the_ground.store(count, Ordering::Release);
    }

    /// Waits until the first is lost.
    pub(super) async fn in_trouble(&self) {
        self.trouble.notified().await;
    }

    pub(super) fn has_landed(&self) -> bool {
        self.aloft.load(Ordering::Acquire) <= self.on_the_ground.load(Ordering::Acquire)
    }

    /// Waits until all that have left have landed.
    pub(super) async fn landed(&self) {
        while !self.has_landed() {
            self.landed.notified().await;
        }
    }

    /// Whether an earlier message of the same lane is lost already, while this one still is here.
    pub(super) fn has_lost_before(&self, batch: &[Message], message: &Message) -> bool {
        let lane = message.event.lane();
        lock(&self.lost).iter().any(|(place, _)| batch[*place].event.lane() == lane)
    }

    /// These never leave.
    pub(super) fn leave_behind(&self, places: impl IntoIterator<Item = usize>) {
        let never_sent = |place| (place, KafkaError::MessageProduction(Code::PurgeQueue));
        lock(&self.lost).extend(places.into_iter().map(never_sent));
    }

    pub(super) fn lost(&self) -> Vec<(usize, KafkaError)> {
        let mut lost = std::mem::take(&mut *lock(&self.lost));
        lost.sort_unstable_by_key(|(place, _)| *place);
        lost
    }

    /// Places of messages that were the first in their partitions, with these; each is told once.
    pub(super) fn met(&self) -> Vec<(usize, i32)> {
        std::mem::take(&mut *lock(&self.met))
    }
}

/// The right to send to partitions where no broker knows the producer. Nobody else has it until all
/// tickets with it have landed.
pub(super) type Introduction = Arc<OwnedMutexGuard<()>>;

/// One message of a flight.
pub(super) struct Ticket {
    flight: Arc<Flight>,
    place: usize,
    introduction: Option<Introduction>,
}

impl Ticket {
    pub(super) fn new(flight: &Arc<Flight>, place: usize) -> Box<Self> {
        Box::new(Self { flight: Arc::clone(flight), place, introduction: None })
    }

    /// The same for a message that is to be the first in its partition.
    pub(super) fn introducing(
        mut self: Box<Self>,
        introduction: Option<Introduction>,
    ) -> Box<Self> {
        self.introduction = introduction;
        self
    }

    /// It is in this partition.
    pub(super) fn arrive(&self, partition: i32) {
        if self.introduction.is_some() {
            lock(&self.flight.met).push((self.place, partition));
        }
        self.land(None);
    }

    pub(super) fn land(&self, error: Option<KafkaError>) {
        if let Some(error) = error {
            lock(&self.flight.lost).push((self.place, error));
            self.flight.trouble.notify_one();
        }
        self.flight.aloft.fetch_sub(1, Ordering::AcqRel);
        if self.flight.has_landed() {
            self.flight.landed.notify_one();
        }
    }
}
