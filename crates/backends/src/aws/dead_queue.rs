//! Dead letters in a queue of SQS, received and shown again.

use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_sqs::types::QueueAttributeName;
use semel_core::{Clock, Failure, Receipt, SystemClock};
use tokio::time::timeout;

use super::config::AwsConfig;
use super::error::{failure, timed_out};
use super::hold::Hold;
use super::incoming::Incoming;
use super::sqs::Sqs;
use crate::dead_queue::{DeadLetter, DeadQueue};
use crate::hand::Hand;

impl AwsConfig {
    /// The dead letters in a queue of SQS, by its name or URL. They go back to queues. While they
    /// are looked at others cannot see them, and of a group of a FIFO queue ten come at a time.
    ///
    /// # Errors
    /// `Unavailable` when the service cannot be reached, `Misconfigured` when there is no region, no
    /// such queue, or the credentials are wrong.
    pub async fn dead_letters(&self, queue: &str) -> Result<Box<dyn DeadQueue>, Failure> {
        /// In seconds: for letters that stay until the end, and for an answer.
        const HIDDEN_AND_WAIT: (i32, i32) = (300, 1);
        let (sdk, expiry) = self.load_in_time().await?;
        let (sqs, limit) = (Sqs::new(&sdk, expiry), self.timeout);
        let look = async {
            let url = sqs.url(queue).await?;
            let count = count(&sqs, &url).await?;
            Ok((url, count))
        };
        let (url, count) = timeout(limit, look).await.unwrap_or_else(|_| Err(timed_out(limit)))?;
        let hold = Hold::new(sqs, queue.to_owned(), url, HIDDEN_AND_WAIT);
        let opened_at = SystemClock.now().as_millisecond();
        Ok(Box::new(SqsDeadQueue { hold, count, opened_at, hand: Hand::new(), limit }))
    }
}

/// How many messages are in a queue and in nobody's hand, about.
async fn count(sqs: &Sqs, url: &str) -> Result<usize, Failure> {
    let name = QueueAttributeName::ApproximateNumberOfMessages;
    let asked = sqs.client.get_queue_attributes().queue_url(url).attribute_names(name.clone());
    let told = asked.send().await;
    let told = told.map_err(|error| failure("look at the queue", sqs.expiry, error))?;
    let count = told.attributes.and_then(|mut all| all.remove(&name));
    Ok(count.and_then(|count| count.parse().ok()).unwrap_or(0))
}

struct SqsDeadQueue {
    hold: Hold,
    count: usize,
    /// In milliseconds. What came later died again meanwhile.
    opened_at: i64,
    hand: Hand<Incoming>,
    limit: Duration,
}

#[async_trait]
impl DeadQueue for SqsDeadQueue {
    fn count(&self) -> usize {
        self.count
    }

    async fn next(&mut self, most: usize) -> Result<Vec<DeadLetter>, Failure> {
        self.hand.clear();
        loop {
            let receiving = timeout(self.limit, self.hold.receive(most)).await;
            let mut some = receiving.unwrap_or_else(|_| Err(timed_out(self.limit)))?;
            let all = some.len();
            some.retain(|incoming| incoming.sent_at <= self.opened_at);
            if all == 0 || !some.is_empty() {
                return Ok(some.into_iter().map(|incoming| self.letter(incoming)).collect());
            }
        }
    }

    async fn send(&self, letter: &DeadLetter, to: &str) -> Result<(), Failure> {
        let (incoming, sqs) = (self.hand.get(letter.receipt)?, &self.hold.sqs);
        let sending = async {
            let url = sqs.url(to).await?;
            // Not the id that the event had: the queue may remember it, and drop the message.
            let id = format!("semel-dead-{}", incoming.id);
            sqs.send_one(&format!("send to the queue {to:?}"), incoming.letter(&url, None, &id)?)
                .await
        };
        timeout(self.limit, sending).await.unwrap_or_else(|_| Err(timed_out(self.limit)))
    }

    async fn remove(&mut self, letters: &[Receipt]) -> Result<(), Failure> {
        let ids: Vec<_> = self.hand.all(letters).map(|incoming| incoming.id.clone()).collect();
        let deleting = timeout(self.limit, self.hold.delete(&ids)).await;
        deleting.unwrap_or_else(|_| Err(timed_out(self.limit)))?;
        ids.iter().for_each(|id| self.hold.forget(id));
        self.hand.forget(letters);
        Ok(())
    }

    /// Shows what is in hand to others again, at once.
    async fn close(&mut self) {
        const LIMIT: Duration = Duration::from_secs(5);
        let held = self.hold.held();
        timeout(LIMIT.min(self.limit), self.hold.hide(&held, 0)).await.ok();
        self.hand.clear();
    }
}

impl SqsDeadQueue {
    fn letter(&mut self, incoming: Incoming) -> DeadLetter {
        let (event, said) = (incoming.event().ok(), incoming.inscription());
        let home = said.as_ref().and_then(|said| said.origin.rsplit_once('@'));
        let home = home.map(|(queue, _)| queue.to_owned());
        DeadLetter::new(self.hand.take(incoming), event, said, home)
    }
}
