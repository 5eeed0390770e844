//! What a member of a consumer group knows: its partitions, and what came of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rdkafka::{Offset, TopicPartitionList};
use semel_core::{Failure, Receipt};

use super::arrived::{Arrived, Partition};
use super::log::PartitionLog;
use super::progress::Progress;
use crate::kafka::SYSTEM;
use crate::subscription::{MOST_WAITING_BYTES, Window};

/// What is known of the group's messages.
pub(super) struct State {
    pub(super) window: Window<Arc<Arrived>>,
    /// No events: on their way to the dead letters.
    pub(super) strangers: Vec<(Arc<Arrived>, Failure)>,
    /// Those assigned to this member that are read; without progress until something came.
    pub(super) partitions: BTreeMap<Partition, Option<Progress>>,
    /// Assigned too, but not read before the group has a position of them.
    pub(super) unplaced: BTreeSet<Partition>,
    /// What was ever assigned, as logs.
    pub(super) logs: BTreeMap<Partition, Arc<PartitionLog>>,
    pub(super) paused: BTreeSet<Partition>,
    /// Nothing will get better by waiting.
    pub(super) fatal: Option<Failure>,
    /// librdkafka complained; whether it still has reason to must be asked.
    pub(super) complaint: Option<String>,
}

/// How many messages are kept beside those that are handed out.
const MOST_WAITING: usize = 2_000;

impl State {
    /// A member that has nothing yet.
    pub(super) fn new() -> Self {
        Self {
            window: Window::new(SYSTEM),
            strangers: Vec::new(),
            partitions: BTreeMap::new(),
            unplaced: BTreeSet::new(),
            logs: BTreeMap::new(),
            paused: BTreeSet::new(),
            fatal: None,
            complaint: None,
        }
    }

    /// How many partitions are this member's.
    pub(super) fn assigned(&self) -> usize {
        self.partitions.len() + self.unplaced.len()
    }

    /// Whether the broker knows how far the group is.
    pub(super) fn is_committed(&self) -> bool {
        let uncommitted = |progress: &Option<Progress>| {
            progress.as_ref().is_some_and(|progress| progress.uncommitted().is_some())
        };
        !self.partitions.values().any(uncommitted)
    }

    /// What was handed out under this receipt is settled, unless it is somebody else's by now.
    pub(super) fn settle_receipt(&mut self, receipt: Receipt) {
        if let Some(kept) = self.window.settle(receipt) {
            self.settle(&kept.place);
        }
    }

    pub(super) fn settle(&mut self, arrived: &Arrived) {
        if let Some(Some(progress)) = self.partitions.get_mut(&arrived.partition) {
            progress.settle(arrived.offset);
        }
    }

    /// The positions that the broker does not know yet.
    pub(super) fn uncommitted(&self, of: impl Fn(&Partition) -> bool) -> TopicPartitionList {
        let mut positions = TopicPartitionList::new();
        for (partition, progress) in self.partitions.iter().filter(|(partition, _)| of(partition)) {
            if let Some(offset) = progress.as_ref().and_then(Progress::uncommitted) {
                let topic = partition.topic.as_str();
                let added =
                    positions.add_partition_offset(topic, partition.number, Offset::Offset(offset));
                debug_assert!(added.is_ok(), "a position is a legal offset");
            }
        }
        positions
    }

    fn waiting(&self) -> usize {
        self.window.waiting() + self.strangers.len()
    }

    pub(super) fn is_crowded(&self) -> bool {
        self.fills(1)
    }

    /// Whether this part of what may wait does, in messages or in bytes.
    fn fills(&self, part: usize) -> bool {
        let strangers = self.strangers.iter().map(|(arrived, _)| arrived.body_size());
        let bytes = self.window.waiting_bytes() + strangers.sum::<usize>();
        self.waiting() >= MOST_WAITING / part || bytes >= MOST_WAITING_BYTES / part
    }

    /// What to pause and what to resume.
    pub(super) fn steer(
        &mut self,
        most_unsettled: usize,
    ) -> (TopicPartitionList, TopicPartitionList) {
        let crowded = self.is_crowded();
        // What was paused is resumed only when there is room again for a good deal.
        let roomy = !self.fills(2);
        let far = i64::try_from(most_unsettled).unwrap_or(i64::MAX);
        let (mut pause, mut resume) = (TopicPartitionList::new(), TopicPartitionList::new());
        for (partition, progress) in &self.partitions {
            let ahead = progress.as_ref().map_or(0, Progress::ahead);
            let (topic, number) = (partition.topic.as_str(), partition.number);
            if self.paused.contains(partition) {
                if roomy && ahead <= far / 2 {
                    self.paused.remove(partition);
                    resume.add_partition(topic, number);
                }
            } else if crowded || ahead > far {
                self.paused.insert(partition.clone());
                pause.add_partition(topic, number);
            }
        }
        (pause, resume)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use semel_core::{Event, Limit, Message};

    use super::*;

    #[test]
    fn a_few_large_messages_are_as_much_as_many_small_ones() {
        let mut state = State::new();
        state.partitions.insert(Partition::new("orders", 0), None);
        let body = Bytes::from(vec![b'x'; 1 << 20]);
        let arrived = Arc::new(Arrived::of_body(body.clone()));
        let steered = |state: &mut State| {
            let (pause, resume) = state.steer(10_000);
            (pause.count(), resume.count())
        };
        for _ in 0..8 {
            let event = Event::new("order", "1", "T").with_bytes("text/plain", body.clone());
            state.window.receive(Message::first("orders", event), Arc::clone(&arrived));
            let no_event = Failure::refused("E-WIRE", "no event");
            assert_eq!(steered(&mut state), (0, 0));
            state.strangers.push((Arc::clone(&arrived), no_event));
        }
        assert!(state.is_crowded());
        assert_eq!(steered(&mut state), (1, 0));
        state.strangers.clear();
        assert!(!state.is_crowded());
        assert_eq!(steered(&mut state), (0, 0), "half of it waits still");
        state.window.hand_out(Limit { events: 1, ..Limit::default() });
        assert_eq!(steered(&mut state), (0, 1));
    }
}
