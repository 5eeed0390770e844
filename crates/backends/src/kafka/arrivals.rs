//! What is in topics, read without a group: nobody's progress changes.

use std::collections::BTreeSet;

use rdkafka::error::KafkaError;
use semel_core::{Failure, Topic};
use tokio::task::spawn_blocking;

use super::config::KafkaConfig;
use super::error;
use super::reading::Reading;
use crate::arrival::Arrival;

impl KafkaConfig {
    /// The events that are in these topics now, as whoever reads committed sees them. Nothing is
    /// consumed, and no group moves; what is no event is passed over, and so is a topic that does
    /// not exist.
    ///
    /// # Errors
    /// `Unavailable` when the brokers cannot be reached, or send nothing for the patience of this
    /// configuration; `Misconfigured` when the user may not read.
    pub async fn arrivals(&self, topics: &BTreeSet<Topic>) -> Result<Vec<Arrival>, Failure> {
        let (config, topics) = (self.clone(), topics.clone());
        let reading = spawn_blocking(move || read(&config, &topics));
        reading.await.unwrap_or_else(|_| Err(error::failure("read topics", KafkaError::Canceled)))
    }
}

fn read(config: &KafkaConfig, topics: &BTreeSet<Topic>) -> Result<Vec<Arrival>, Failure> {
    let (mut arrivals, mut first) = (Vec::new(), 0);
    for topic in topics {
        let mut reading = Reading::open(config, "semel-verify", topic.as_str())?;
        while let Some(arrived) = reading.next()? {
            let queue = first + usize::try_from(arrived.partition.number).unwrap_or(0);
            if let Ok(event) = arrived.event() {
                arrivals.push(Arrival { id: event.id, queue, place: arrived.offset });
            }
        }
        first += reading.partitions();
    }
    Ok(arrivals)
}
