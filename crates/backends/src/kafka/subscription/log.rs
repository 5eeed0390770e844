//! A partition as a log that a consumer may go by.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use rdkafka::consumer::Consumer;
use semel_core::Failure;
use semel_core::delivery::Log;
use tokio::task::spawn_blocking;

use super::arrived::Partition;
use super::member::Client;
use crate::kafka::error;
use crate::kafka::stamp::Stamps;

/// A partition of a cluster.
pub(in crate::kafka) struct PartitionLog {
    name: String,
    pub(super) stamps: Stamps,
    partition: Partition,
    client: Weak<Client>,
}

impl PartitionLog {
    pub(super) fn new(cluster: &str, partition: &Partition, client: &Arc<Client>) -> Self {
        let Partition { topic, number } = partition;
        Self {
            name: format!("{cluster}/{topic}/{number}"),
            stamps: Stamps::new(cluster, topic.as_str()),
            partition: partition.clone(),
            client: Arc::downgrade(client),
        }
    }
}

#[async_trait]
impl Log for PartitionLog {
    fn name(&self) -> &str {
        &self.name
    }

    async fn end(&self) -> Result<u64, Failure> {
        const PATIENCE: Duration = Duration::from_secs(5);
        let Some(client) = self.client.upgrade() else {
            return Err(error::no_answer("the group was left"));
        };
        let Partition { topic, number } = self.partition.clone();
        let asking =
            spawn_blocking(move || client.fetch_watermarks(topic.as_str(), number, PATIENCE));
        match asking.await {
            Ok(Ok((_, end))) => Ok(end.unsigned_abs()),
            Ok(Err(error)) => Err(error::no_answer(&error.to_string())),
            Err(_) => Err(error::no_answer("the end of a partition")),
        }
    }
}

impl fmt::Debug for PartitionLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PartitionLog").field(&self.name).finish()
    }
}
