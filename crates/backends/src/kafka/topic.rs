//! Topics that we keep something in ourselves: whether they are there, and how large.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::admin::AdminClient;
use rdkafka::client::DefaultClientContext;
use rdkafka::error::KafkaError;
use semel_core::Failure;
use tokio::task::spawn_blocking;

use super::error;

pub(super) type Admin = AdminClient<DefaultClientContext>;

/// How many partitions a topic has; none, if it does not exist.
pub(super) async fn count_partitions(
    admin: &Arc<Admin>,
    topic: &str,
    patience: Duration,
) -> Result<i32, Failure> {
    let (admin, name) = (Arc::clone(admin), topic.to_owned());
    let asking = spawn_blocking(move || admin.inner().fetch_metadata(Some(&name), patience));
    let metadata = asking.await.unwrap_or(Err(KafkaError::Canceled));
    let looking = format!("look for the topic {topic:?}");
    let metadata = metadata.map_err(|error| error::failure(&looking, error))?;
    let found = metadata.topics().iter().find(|found| found.name() == topic);
    let partitions = found.filter(|found| found.error().is_none()).map(|it| it.partitions().len());
    Ok(i32::try_from(partitions.unwrap_or(0)).unwrap_or(i32::MAX))
}

/// The same of a topic that was just made: the controller answers before the brokers know.
pub(super) async fn until_it_appears(
    admin: &Arc<Admin>,
    topic: &str,
    patience: Duration,
) -> Result<i32, Failure> {
    let deadline = Instant::now() + patience;
    while Instant::now() < deadline {
        let partitions = count_partitions(admin, topic, patience).await?;
        if partitions > 0 {
            return Ok(partitions);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Err(error::no_answer(&format!("the topic {topic:?} does not appear")))
}
