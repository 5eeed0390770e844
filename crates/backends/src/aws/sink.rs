//! [`Sink`] for the services of AWS: waves of one message per lane, in batches of ten.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use semel_core::wire::Format;
use semel_core::{Failure, Fault, Message, Published, Sink};
use tokio::time::{Instant, timeout_at};

use super::config::AwsConfig;
use super::entry::Entry;
use super::error::{impossible, timed_out, too_large};
use crate::waves::Waves;

/// Publishes to SQS, SNS or EventBridge. Made by [`AwsConfig`]; clones share the connections.
///
/// A lane has one unanswered message at a time, many lanes are sent together: of a batch, a service
/// can turn down one message and take the next, also where it keeps order otherwise.
///
/// ```no_run
/// use semel_backends::aws::AwsConfig;
/// use semel_core::Sink;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let sink = AwsConfig::new().connect_eventbridge(Some("shop".into())).await?;
/// sink.check().await?;
/// # Ok::<(), semel_core::Failure>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct AwsSink {
    config: Arc<AwsConfig>,
    service: Arc<dyn Service>,
}

/// What became of each message of a batch, in its order.
pub(super) type Answers = Vec<Result<(), Failure>>;

/// What is particular to a service.
#[async_trait]
pub(super) trait Service: Send + Sync {
    /// What OpenTelemetry calls it.
    fn system(&self) -> &'static str;

    /// The format unless set, and the largest message and batch in bytes.
    fn defaults(&self) -> (Format, usize);

    /// What the service counts of an entry.
    fn size(&self, entry: &Entry<'_>) -> usize {
        entry.size()
    }

    /// What else it cannot take.
    fn check(&self, entry: &Entry<'_>) -> Result<(), Failure> {
        let _ = entry;
        Ok(())
    }

    /// Sends at most ten messages of one topic; fails as a whole, or message by message.
    async fn send(&self, topic: &str, batch: &[Entry<'_>]) -> Result<Answers, Failure>;

    /// A question that changes nothing: whether the service is there and takes the credentials.
    async fn probe(&self) -> Result<(), Failure>;
}

const LARGEST_BATCH: usize = 10;

impl AwsSink {
    pub(super) fn new(config: AwsConfig, service: Arc<dyn Service>) -> Self {
        Self { config: Arc::new(config), service }
    }

    /// Sends wave after wave. Where it ends, because it is dropped, `waves` knows.
    async fn send(&self, batch: &[Message], waves: &mut Waves) {
        while !waves.current().is_empty() {
            let mut topics: BTreeMap<&str, Vec<(usize, Entry<'_>)>> = BTreeMap::new();
            for place in waves.current().to_vec() {
                match self.encode(&batch[place]) {
                    Ok(entry) => {
                        let topic = batch[place].topic.as_str();
                        topics.entry(topic).or_default().push((place, entry));
                    }
                    Err(failure) => waves.settle(place, Err(failure)),
                }
            }
            let mut sending: Vec<BoxFuture<'_, _>> = Vec::new();
            for (topic, entries) in topics {
                let batches = self.batches(topic, entries).into_iter();
                sending.extend(batches.map(|batch| self.send_batch(batch).boxed()));
            }
            let mut sent = stream::iter(sending).buffer_unordered(self.config.concurrency);
            // At once: of the others, some may never be answered.
            while let Some((places, results)) = sent.next().await {
                for (place, result) in places.into_iter().zip(results) {
                    waves.settle(place, result);
                }
            }
            waves.advance();
        }
    }

    fn encode<'a>(&self, message: &'a Message) -> Result<Entry<'a>, Failure> {
        let (format, largest) = self.service.defaults();
        let largest = self.config.max_message_bytes.unwrap_or(largest);
        let entry = Entry::encode(message, self.config.format.unwrap_or(format))?;
        self.service.check(&entry)?;
        match self.service.size(&entry) {
            size if size > largest => Err(too_large(size, largest)),
            _ => Ok(entry),
        }
    }

    /// Cuts what goes to one topic into batches, by count and by size.
    fn batches<'a>(&self, topic: &'a str, entries: Vec<(usize, Entry<'a>)>) -> Vec<Batch<'a>> {
        let largest = self.config.max_message_bytes.unwrap_or(self.service.defaults().1);
        let mut batches: Vec<Batch<'a>> = Vec::new();
        let mut filled = 0;
        for (place, entry) in entries {
            let size = self.service.size(&entry);
            match batches.last_mut() {
                Some(batch) if batch.entries.len() < LARGEST_BATCH && filled + size <= largest => {
                    batch.places.push(place);
                    batch.entries.push(entry);
                    filled += size;
                }
                _ => {
                    batches.push(Batch { topic, places: vec![place], entries: vec![entry] });
                    filled = size;
                }
            }
        }
        batches
    }

    /// A batch that is refused as a whole is sent again one by one: only one of it may be wrong.
    async fn send_batch(&self, batch: Batch<'_>) -> (Vec<usize>, Answers) {
        let Batch { topic, places, entries } = batch;
        let mut answers = match self.service.send(topic, &entries).await {
            Ok(answers) => answers,
            Err(failure) if failure.fault() != Fault::Refused || entries.len() == 1 => {
                vec![Err(failure); entries.len()]
            }
            Err(_) => {
                let mut answers = Vec::with_capacity(entries.len());
                for entry in entries {
                    let alone = self.service.send(topic, &[entry]).await;
                    answers.extend(alone.unwrap_or_else(|failure| vec![Err(failure)]));
                }
                answers
            }
        };
        answers.resize(places.len(), Err(impossible("a message without an answer")));
        (places, answers)
    }
}

/// Messages of different lanes to one topic, and their places in the call.
struct Batch<'a> {
    topic: &'a str,
    places: Vec<usize>,
    entries: Vec<Entry<'a>>,
}

#[async_trait]
impl Sink for AwsSink {
    async fn publish(&self, batch: &[Message]) -> Published {
        let limit = self.config.timeout;
        let mut waves = Waves::new(batch);
        match timeout_at(Instant::now() + limit, self.send(batch, &mut waves)).await {
            Ok(()) => waves.finish(),
            Err(_) => waves.give_up(&timed_out(limit)),
        }
    }

    async fn check(&self) -> Result<(), Failure> {
        const LIMIT: Duration = Duration::from_secs(5);
        let probed = timeout_at(Instant::now() + LIMIT, self.service.probe()).await;
        probed.unwrap_or_else(|_| Err(timed_out(LIMIT)))
    }

    fn system(&self) -> Option<&'static str> {
        Some(self.service.system())
    }
}

impl fmt::Debug for AwsSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AwsSink").field("config", &self.config).finish_non_exhaustive()
    }
}
