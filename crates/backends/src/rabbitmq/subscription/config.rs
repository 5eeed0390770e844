//! Which queue is read, and how.

use lapin::types::ShortString;
use semel_core::Failure;

use super::RabbitmqSubscription;
use crate::rabbitmq::config::{RabbitmqConfig, RabbitmqQueue, short};

/// Which queue is read, and how. Made by [`RabbitmqConfig::subscription`].
///
/// ```
/// use semel_backends::rabbitmq::{RabbitmqConfig, RabbitmqQueue};
///
/// let queue = RabbitmqQueue::new("billing")?.bound_by("order.#")?.single_active_consumer();
/// let config = RabbitmqConfig::new("amqp://shop:secret@localhost:5672/%2f")?
///     .exchange("events")?
///     .declare_queue(queue)
///     .subscription("billing")?
///     .prefetch(500);
/// assert!(config.keeps_lanes_in_order());
/// # Ok::<(), semel_core::Failure>(())
/// ```
#[derive(Clone, Debug)]
pub struct RabbitmqSubscriptionConfig {
    pub(super) connection: RabbitmqConfig,
    pub(super) queue: ShortString,
    pub(super) dead_queue: RabbitmqQueue,
    pub(super) prefetch: u16,
    pub(super) consumer: String,
}

impl RabbitmqConfig {
    /// A subscription to a queue. Where the broker is and what is declared are as for a sink; the
    /// exchange matters only to what is declared.
    ///
    /// # Errors
    /// `Misconfigured` when the name of the queue is empty or too long.
    pub fn subscription(self, queue: &str) -> Result<RabbitmqSubscriptionConfig, Failure> {
        if queue.is_empty() {
            return Err(Failure::misconfigured(
                "E-RABBITMQ-NAME",
                "RabbitMQ: a subscription to a queue without a name",
            )
            .with_fix("name the queue"));
        }
        Ok(RabbitmqSubscriptionConfig {
            connection: self,
            queue: short("the queue", queue)?,
            dead_queue: RabbitmqQueue::new(&format!("{queue}.dead"))?,
            prefetch: 1_000,
            consumer: queue.to_owned(),
        })
    }
}

impl RabbitmqSubscriptionConfig {
    /// Where dead letters go: a queue that is made if it is missing; a quorum queue `<queue>.dead`
    /// unless set. Its binding means nothing here.
    #[must_use]
    pub fn dead_queue(mut self, queue: RabbitmqQueue) -> Self {
        self.dead_queue = queue;
        self
    }

    /// How many messages the broker sends before one is acknowledged; 1,000 unless set. So many are
    /// in memory at most, whatever their size: where they are large, set it lower.
    #[must_use]
    pub fn prefetch(mut self, messages: u16) -> Self {
        self.prefetch = messages.max(1);
        self
    }

    /// Who dead letters say has tried; the name of the queue unless set.
    #[must_use]
    pub fn consumer(mut self, name: impl Into<String>) -> Self {
        self.consumer = name.into();
        self
    }

    /// Whether events of one aggregate come in order: only if the queue is declared here with
    /// [`single_active_consumer`](RabbitmqQueue::single_active_consumer), so that the broker has
    /// been asked whether it is so.
    #[must_use]
    pub fn keeps_lanes_in_order(&self) -> bool {
        let declared = &self.connection.declared_queues;
        declared.iter().any(|queue| queue.name == self.queue && queue.single_active)
    }

    /// Connects, and begins to read.
    ///
    /// # Errors
    /// `Unavailable` when the broker cannot be reached, `Misconfigured` when it refuses the user, or
    /// the queue is missing or another one than was declared.
    pub async fn connect(&self) -> Result<RabbitmqSubscription, Failure> {
        RabbitmqSubscription::connect(self.clone()).await
    }
}
