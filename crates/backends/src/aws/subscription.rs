//! [`Source`] for SQS.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use semel_core::{
    Batch, Failure, Guarantees, Holding, Limit, Outcome, Receipt, Settlement, Source,
};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::config::AwsConfig;
use super::error::timed_out;
use super::hold::Hold;
use super::queue::{Queue, care, receive};
use super::sqs::Sqs;

/// Which queue is read, and how. Made by [`AwsConfig::subscribe_sqs`].
///
/// ```no_run
/// use semel_backends::aws::AwsConfig;
/// use std::time::Duration;
///
/// # async fn run() -> Result<(), semel_core::Failure> {
/// let subscription = AwsConfig::new()
///     .region("eu-central-1")
///     .subscribe_sqs("orders.fifo")
///     .visibility(Duration::from_secs(60))
///     .open()
///     .await?;
/// # drop(subscription); Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct SqsSubscriptionConfig {
    config: AwsConfig,
    queue: String,
    dead_letters: Option<String>,
    visibility: Duration,
    wait: Duration,
    max_unsettled: usize,
}

impl SqsSubscriptionConfig {
    pub(super) fn new(config: AwsConfig, queue: String) -> Self {
        let (visibility, wait) = (Duration::from_secs(30), Duration::from_secs(20));
        Self { config, queue, dead_letters: None, visibility, wait, max_unsettled: 500 }
    }

    /// The queue of dead letters, by its name or URL; the name of the queue and `-dead` unless set
    /// (`orders-dead`, `orders-dead.fifo`). It must be there.
    #[must_use]
    pub fn dead_letters(mut self, queue: impl Into<String>) -> Self {
        self.dead_letters = Some(queue.into());
        self
    }

    /// For how long a message in hand is hidden from others, in whole seconds. A subscription that
    /// lives renews it three times in that time; when it is gone, others get the message after that.
    /// 30 seconds unless set.
    #[must_use]
    pub fn visibility(mut self, time: Duration) -> Self {
        self.visibility = time;
        self
    }

    /// How long one question may wait for messages to come, in whole seconds: 20 unless set, which is
    /// the longest, and never longer than half of the timeout.
    #[must_use]
    pub fn wait(mut self, time: Duration) -> Self {
        self.wait = time;
        self
    }

    /// How many messages may be in hand before one is settled; 500 unless set.
    #[must_use]
    pub fn max_unsettled(mut self, messages: usize) -> Self {
        self.max_unsettled = messages.max(1);
        self
    }

    /// Finds the queues, and begins to receive.
    ///
    /// # Errors
    /// `Unavailable` when the service cannot be reached, `Misconfigured` when there is no region, no
    /// such queue, or the credentials are wrong.
    pub async fn open(self) -> Result<SqsSubscription, Failure> {
        const LONGEST_WAIT: u64 = 20;
        const LONGEST_VISIBILITY: u64 = 12 * 60 * 60;
        let (sdk, expiry) = self.config.load_in_time().await?;
        let (sqs, limit) = (Sqs::new(&sdk, expiry), self.config.timeout);
        let dead = self.dead_letters.unwrap_or_else(|| dead_name(&self.queue));
        let find = async { Ok((sqs.url(&self.queue).await?, sqs.url(&dead).await?)) };
        let (url, dead_url) =
            timeout(limit, find).await.unwrap_or_else(|_| Err(timed_out(limit)))?;
        let seconds = |time: Duration, most| i32::try_from(time.as_secs().clamp(1, most));
        // An answer must come before the call is given up.
        let wait = seconds(self.wait.min(limit / 2), LONGEST_WAIT).unwrap_or(1);
        let visibility = seconds(self.visibility, LONGEST_VISIBILITY).unwrap_or(1);
        let hold = Hold::new(sqs, self.queue, url, (visibility, wait));
        let queue = Arc::new(Queue::new(hold, dead_url));
        let mut tasks = JoinSet::new();
        tasks.spawn(receive(Arc::clone(&queue), self.max_unsettled));
        tasks.spawn(care(Arc::clone(&queue)));
        Ok(SqsSubscription { queue, tasks, limit })
    }
}

fn dead_name(queue: &str) -> String {
    match queue.strip_suffix(".fifo") {
        Some(name) => format!("{name}-dead.fifo"),
        None => format!("{queue}-dead"),
    }
}

/// A reader of a queue. Made by [`SqsSubscriptionConfig::open`].
pub struct SqsSubscription {
    queue: Arc<Queue>,
    tasks: JoinSet<()>,
    limit: Duration,
}

impl SqsSubscription {
    async fn record(&self, settlements: &[Settlement]) -> Result<(), Failure> {
        let (mut done, mut dead) = (Vec::new(), Vec::new());
        self.queue.intake.with(|window| {
            for Settlement { receipt, outcome } in settlements {
                let Some(kept) = window.get(*receipt) else { continue };
                match outcome {
                    Outcome::Delivered => done.push(kept.place.id.clone()),
                    Outcome::Dead { attempts, failure, .. } => {
                        dead.push((*receipt, kept.place.clone(), *attempts, failure));
                    }
                    Outcome::Retry { .. } | Outcome::Released => {}
                }
            }
        });
        for (receipt, incoming, attempts, failure) in &dead {
            self.queue.bury(incoming, failure, *attempts).await?;
            // What is buried is not buried again when the rest takes too long.
            self.forget(*receipt);
        }
        self.queue.hold.delete(&done).await
    }

    fn forget(&self, receipt: Receipt) {
        if let Some(kept) = self.queue.intake.with(|window| window.settle(receipt)) {
            self.queue.hold.forget(&kept.place.id);
        }
    }
}

#[async_trait]
impl Source for SqsSubscription {
    fn guarantees(&self) -> Guarantees {
        // The group of a message is its lane, and nobody gets of a group while some is in hand.
        Guarantees { lane_order: self.queue.is_fifo(), parking: false }
    }

    async fn next_batch(&mut self, limit: Limit) -> Result<Batch, Failure> {
        self.queue.intake.hand_out(limit)
    }

    fn wakeup(&mut self) -> BoxFuture<'static, ()> {
        self.queue.intake.arrival()
    }

    async fn settle(&mut self, settlements: &[Settlement]) -> Result<Holding, Failure> {
        let recorded = timeout(self.limit, self.record(settlements)).await;
        recorded.unwrap_or_else(|_| Err(timed_out(self.limit)))?;
        for Settlement { receipt, outcome } in settlements {
            match outcome.is_final() {
                true => self.forget(*receipt),
                false => self.queue.intake.with(|window| window.release(*receipt)),
            }
        }
        Ok(Holding::Held)
    }

    /// Shows what is in hand to others again: at once, or when the question that waits for messages
    /// has ended. SQS goes on with one nobody listens to, and would give it what is shown.
    async fn close(&mut self) {
        const LIMIT: Duration = Duration::from_secs(5);
        let (hold, limit) = (&self.queue.hold, LIMIT.min(self.limit));
        let quiet = timeout(limit, hold.asking.lock()).await;
        self.tasks.shutdown().await;
        let seconds = if quiet.is_ok() { 0 } else { hold.wait };
        timeout(limit, hold.hide(&hold.held(), seconds)).await.ok();
    }
}

impl fmt::Debug for SqsSubscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsSubscription")
            .field("queue", &self.queue.hold.name)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifo_queue_has_dead_letters_in_a_fifo_queue() {
        assert_eq!(dead_name("orders.fifo"), "orders-dead.fifo");
        assert_eq!(dead_name("https://sqs/1/orders"), "https://sqs/1/orders-dead");
    }
}
