//! Groups that begin at the end: what comes from then on is the group's, whoever reads it.

use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::topic_partition_list::TopicPartitionListElem;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use semel_backends::kafka::{KafkaSubscription, Start};
use semel_core::{Delivery, Limit, Message, Outcome, Settlement, Source};
use semel_testkit::services::{Service, service};
use semel_testkit::workload::{delivered_numbers, event, events, lanes, numbers};
use tokio::time::{sleep, timeout};

use super::positions::take;
use super::{Group, PATIENCE, topics, until_assigned};

const LATE: &str = "late";

impl Group {
    /// A member of a group that begins at the end.
    async fn late_member(&self) -> KafkaSubscription {
        let config = self.config(&self.brokers, LATE).start(Start::Latest);
        let member = timeout(PATIENCE, config.connect()).await.expect("an answer");
        let member = member.expect("connected");
        until_assigned(&member).await;
        member
    }

    /// Publishes to the lane `a`, from this number on, until something of it comes; the next number.
    async fn publish_until_it_comes(
        &self,
        member: &mut KafkaSubscription,
        first: u64,
    ) -> (Vec<Delivery>, u64) {
        let came = timeout(PATIENCE, async {
            let mut number = first;
            loop {
                self.publish(vec![event("a", number)]).await;
                number += 1;
                let batch = member.next_batch(Limit::default()).await.unwrap();
                if !batch.deliveries.is_empty() {
                    return (batch.deliveries, number);
                }
                // Far fewer than may be unsettled.
                sleep(Duration::from_millis(50)).await;
            }
        });
        came.await.expect("what comes is read")
    }

    /// The group's position in each partition; `Invalid` where it has none.
    async fn late_positions(&self) -> Vec<Offset> {
        let (brokers, group, topic) = (self.brokers.clone(), self.group(LATE), self.topic.clone());
        let asking = tokio::task::spawn_blocking(move || {
            let client: BaseConsumer = ClientConfig::new()
                .set("bootstrap.servers", brokers)
                .set("group.id", group)
                .create()
                .unwrap();
            let mut all = TopicPartitionList::new();
            all.add_partition_range(&topic, 0, topics::PARTITIONS - 1);
            let committed = client.committed_offsets(all, PATIENCE).unwrap();
            committed.elements().iter().map(TopicPartitionListElem::offset).collect()
        });
        asking.await.unwrap()
    }

    async fn until_it_has_positions(&self) {
        let told = timeout(PATIENCE, async {
            while self.late_positions().await.contains(&Offset::Invalid) {
                sleep(Duration::from_millis(20)).await;
            }
        });
        told.await.expect("the group has positions");
    }
}

fn numbers_of(messages: &[Message]) -> Vec<u64> {
    numbers(messages.iter().map(|message| &*message.event))
}

#[tokio::test]
async fn a_group_may_begin_at_the_end() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let group = Group::at(&brokers).await;
    group.publish(events("a", 0..3)).await;
    let mut member = group.late_member().await;
    let (came, _) = group.publish_until_it_comes(&mut member, 10).await;
    let numbers = delivered_numbers(&came);
    assert!(numbers.iter().all(|number| *number >= 10), "{numbers:?}");
}

/// Without a position the next member would begin where the end is by then.
#[tokio::test]
async fn what_the_first_member_has_not_settled_comes_to_the_next() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let group = Group::at(&brokers).await;
    group.publish(events("a", 0..3)).await;
    let mut first = group.late_member().await;
    let (came, next) = group.publish_until_it_comes(&mut first, 10).await;
    let began_with = delivered_numbers(&came)[0];
    group.publish(events("a", next..next + 5)).await;
    drop(first);

    let mut second = group.late_member().await;
    let expected: Vec<_> = (began_with..next + 5).collect();
    assert_eq!(numbers_of(&take(&mut second, expected.len()).await), expected);
}

/// The same when partitions move to a member that joins.
#[tokio::test]
async fn what_a_rebalance_takes_away_comes_to_the_member_that_joined() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let group = Group::at(&brokers).await;
    let mut first = group.late_member().await;
    group.publish_until_it_comes(&mut first, 1_000).await;
    group.publish(lanes(30)).await;
    let second = group.late_member().await;
    let moved = second.partitions();
    let mut readers = [first, second];
    let mut came = std::collections::BTreeSet::new();
    let all = async {
        while came.len() < 30 {
            for reader in &mut readers {
                let got = reader.next_batch(Limit::default()).await.unwrap().deliveries;
                came.extend(delivered_numbers(&got).into_iter().filter(|number| *number < 1_000));
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    let all = timeout(PATIENCE, all).await;
    all.unwrap_or_else(|_| unreachable!("{moved} partitions moved, and {came:?} came"));
}

/// A member that dies before anything came has begun for the group all the same.
#[tokio::test]
async fn what_comes_while_nobody_reads_is_the_groups() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let group = Group::at(&brokers).await;
    group.publish(events("a", 0..3)).await;
    let first = group.late_member().await;
    group.until_it_has_positions().await;
    drop(first);
    group.publish(events("a", 10..15)).await;

    let mut second = group.late_member().await;
    assert_eq!(numbers_of(&take(&mut second, 5).await), [10, 11, 12, 13, 14]);
}

/// To go back to the end would pass by what is still there.
#[tokio::test]
async fn a_group_that_retention_has_overtaken_goes_on_with_the_oldest() {
    let Some(brokers) = service(Service::Kafka) else { return };
    let group = Group::at(&brokers).await;
    let mut first = group.late_member().await;
    let (came, next) = group.publish_until_it_comes(&mut first, 10).await;
    let settled =
        came.iter().map(|got| Settlement { receipt: got.receipt, outcome: Outcome::Delivered });
    assert!(first.settle(&settled.collect::<Vec<_>>()).await.unwrap().is_held());
    let position = came[0].message.position.as_ref().expect("a position");
    first.close().await;
    group.publish(events("a", next..next + 3)).await;
    // Every message of the partition is of this lane, so that their numbers are as far apart as
    // their offsets.
    let place = i64::try_from(position.offset + next + 1 - delivered_numbers(&came)[0]).unwrap();
    let partition = position.log.name().rsplit('/').next().unwrap().parse().unwrap();
    topics::delete_before(&brokers, &group.topic, partition, place).await;

    let mut second = group.late_member().await;
    assert_eq!(numbers_of(&take(&mut second, 2).await), [next + 1, next + 2]);
}
