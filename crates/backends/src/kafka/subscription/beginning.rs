//! Where a group begins that is to read only what comes from now on.
//!
//! The end of a partition moves. Were every member to look for it anew, what came between the first
//! and the next would be nobody's. So it is looked for once, and the broker knows it as the group's
//! position before anything is read.

use std::collections::BTreeSet;
use std::time::Duration;

use rdkafka::consumer::{CommitMode, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka::{Offset, TopicPartitionList};

use super::arrived::Partition;
use super::member::Client;

/// With the brokers' answer; nothing is read meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);

/// Those of these partitions of which the group has no position.
pub(super) fn without_position(
    client: &Client,
    of: &BTreeSet<Partition>,
) -> KafkaResult<BTreeSet<Partition>> {
    let committed = client.committed_offsets(list(of, Offset::Invalid)?, PATIENCE)?;
    let mut without = BTreeSet::new();
    for each in committed.elements() {
        each.error()?;
        if each.offset() == Offset::Invalid {
            without.insert(Partition::new(each.topic(), each.partition()));
        }
    }
    Ok(without)
}

/// Makes the present end of these partitions the group's position.
pub(super) fn begin_at_end(client: &Client, of: &BTreeSet<Partition>) -> KafkaResult<()> {
    // Asked for by the time that stands for it, for all of them at once.
    let ends = client.offsets_for_times(list(of, Offset::End)?, PATIENCE)?;
    for each in ends.elements() {
        each.error()?;
        if !matches!(each.offset(), Offset::Offset(_)) {
            return Err(KafkaError::OffsetFetch(Code::NoOffset));
        }
    }
    // Who has them now may have begun already.
    if client.assignment_lost() {
        return Err(KafkaError::ConsumerCommit(Code::AssignmentLost));
    }
    client.commit(&ends, CommitMode::Sync)
}

pub(super) fn list(of: &BTreeSet<Partition>, offset: Offset) -> KafkaResult<TopicPartitionList> {
    let mut list = TopicPartitionList::with_capacity(of.len());
    for Partition { topic, number } in of {
        list.add_partition_offset(topic.as_str(), *number, offset)?;
    }
    Ok(list)
}
