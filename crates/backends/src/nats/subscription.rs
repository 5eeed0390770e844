//! [`Source`] for NATS JetStream: a durable pull consumer.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::jetstream::consumer::pull::Config as Pull;
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer};
use async_nats::jetstream::context::GetStreamByNameErrorKind::NotFound;
use async_nats::jetstream::stream::Config as Keep;
use async_trait::async_trait;
use futures_util::future::{BoxFuture, try_join_all};
use semel_core::{
    Batch, Failure, Guarantees, Holding, Limit, Outcome, Receipt, Settlement, Source,
};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::SYSTEM;
use super::config::NatsConfig;
use super::error::{down, finding, joining, making, round_trip};
use super::link::Link;
use super::pull::{Place, Puller, care, pull};
use crate::intake::Intake;

/// Which stream a consumer reads, and how. Made by [`NatsConfig::subscribe`].
///
/// ```no_run
/// use semel_backends::nats::NatsConfig;
/// use std::time::Duration;
///
/// # async fn run() -> Result<(), semel_core::Failure> {
/// let subscription = NatsConfig::new("nats://localhost:4222")?
///     .subscribe("ORDERS", "billing")
///     .subject("order.>")
///     .ack_wait(Duration::from_secs(60))
///     .open()
///     .await?;
/// # drop(subscription); Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct NatsSubscriptionConfig {
    config: NatsConfig,
    stream: String,
    consumer: String,
    subject: String,
    dead_letters: Option<String>,
    ack_wait: Duration,
    max_unsettled: usize,
}

impl NatsSubscriptionConfig {
    pub(super) fn new(config: NatsConfig, stream: String, consumer: String) -> Self {
        Self {
            config,
            stream,
            consumer,
            subject: String::new(),
            dead_letters: None,
            ack_wait: Duration::from_secs(30),
            max_unsettled: 1_000,
        }
    }

    /// Only messages of this subject, which may have wildcards; all of the stream unless set.
    #[must_use]
    pub fn subject(mut self, subject: impl Into<String>) -> Self {
        self.subject = subject.into();
        self
    }

    /// The subject of dead letters, of another stream; `dead.STREAM.CONSUMER` unless set, in the
    /// stream `STREAM-dead`, which is made where there is none.
    #[must_use]
    pub fn dead_letters(mut self, subject: impl Into<String>) -> Self {
        self.dead_letters = Some(subject.into());
        self
    }

    /// When a member counts as gone, and what it had in hand is given to others. A member that lives
    /// says three times in that time that it still works. 30 seconds unless set.
    #[must_use]
    pub fn ack_wait(mut self, time: Duration) -> Self {
        self.ack_wait = time;
        self
    }

    /// How many messages this member may have in hand before one is settled; 1,000 unless set. The
    /// consumer as a whole may have ten times as many (`max_ack_pending`).
    #[must_use]
    pub fn max_unsettled(mut self, messages: usize) -> Self {
        self.max_unsettled = messages.max(1);
        self
    }

    /// Connects, and makes the consumer (from the beginning of the stream) where there is none. One
    /// that is there stays as it is, with its subject and `ack_wait`.
    ///
    /// # Errors
    /// `Unavailable` when the server cannot be reached, `Misconfigured` when it refuses the user, or
    /// has no such stream.
    pub async fn open(self) -> Result<NatsSubscription, Failure> {
        let link = Link::open(self.config.clone()).await?;
        let limit = self.config.timeout;
        let prepare = Box::pin(async {
            let dead = self.dead_letter_subject(&link).await?;
            Ok((self.join(&link).await?, dead))
        });
        let (consumer, dead) = link.in_time(Instant::now() + limit, limit, prepare).await?;
        let (stream, name) = (self.stream, self.consumer);
        let puller = Arc::new(Puller {
            link,
            consumer,
            stream,
            name,
            dead,
            intake: Intake::new(SYSTEM),
            settled: Mutex::default(),
            newest: AtomicU64::default(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(pull(Arc::clone(&puller), self.max_unsettled));
        tasks.spawn(care(Arc::clone(&puller), self.ack_wait));
        Ok(NatsSubscription { puller, tasks })
    }

    async fn join(&self, link: &Link) -> Result<PullConsumer, Failure> {
        const MEMBERS: usize = 10;
        let found = link.context.get_stream(&self.stream).await;
        let stream = found.map_err(|error| finding(&self.stream, error))?;
        let consumer = Pull {
            durable_name: Some(self.consumer.clone()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: self.ack_wait,
            filter_subject: self.subject.clone(),
            max_ack_pending: i64::try_from(self.max_unsettled.saturating_mul(MEMBERS))
                .unwrap_or(i64::MAX),
            ..Pull::default()
        };
        // One that is there stays as it is: to update it makes older servers repeat messages.
        let joined = stream.get_or_create_consumer(&self.consumer, consumer).await;
        joined.map_err(|error| joining(&self.consumer, error))
    }

    /// Where dead letters go. What is given out again when it is dead would die for ever.
    async fn dead_letter_subject(&self, link: &Link) -> Result<String, Failure> {
        let subject = match &self.dead_letters {
            Some(subject) => subject.clone(),
            None => format!("dead.{}.{}", self.stream, self.consumer),
        };
        match link.context.stream_by_subject(&subject).await {
            Ok(stream) if stream == self.stream => Err(round_trip(&subject, &stream)),
            Ok(_) => Ok(subject),
            Err(error) if error.kind() == NotFound => {
                let name = format!("{}-dead", self.stream);
                let subjects = match &self.dead_letters {
                    Some(subject) => vec![subject.clone()],
                    None => vec![format!("dead.{}.>", self.stream)],
                };
                let keep = Keep { name: name.clone(), subjects, ..Keep::default() };
                let made = link.context.create_stream(keep).await;
                made.map(|_| subject).map_err(|error| making(&name, error))
            }
            Err(error) => Err(down("cannot ask for the stream of dead letters").with_source(error)),
        }
    }
}

/// A member of a durable consumer. Made by [`NatsSubscriptionConfig::open`].
pub struct NatsSubscription {
    puller: Arc<Puller>,
    tasks: JoinSet<()>,
}

impl NatsSubscription {
    /// What is to be told to the server, and waits for its answers.
    async fn record(&self, settlements: &[Settlement]) -> Result<(), Failure> {
        let mut dead = Vec::new();
        let mut done: Vec<Place> = Vec::new();
        self.puller.intake.with(|window| {
            for Settlement { receipt, outcome } in settlements {
                let Some(kept) = window.get(*receipt) else { continue };
                match outcome {
                    Outcome::Delivered => done.push(kept.place.clone()),
                    Outcome::Dead { attempts, failure, .. } => {
                        dead.push((*receipt, kept.place.clone(), *attempts, failure));
                    }
                    Outcome::Retry { .. } | Outcome::Released => {}
                }
            }
        });
        for (receipt, place, attempts, failure) in &dead {
            self.puller.bury(place, failure, *attempts).await?;
            // What is buried is not buried again when the rest takes too long.
            self.forget(*receipt);
        }
        let acknowledgements = done.iter().map(|place| self.puller.answer(place, b"+ACK"));
        try_join_all(acknowledgements).await.map(drop)
    }

    fn forget(&self, receipt: Receipt) {
        if let Some(kept) = self.puller.intake.with(|window| window.settle(receipt)) {
            self.puller.settle(&kept.place);
        }
    }
}

#[async_trait]
impl Source for NatsSubscription {
    fn guarantees(&self) -> Guarantees {
        // What a member had in hand when it was lost comes after what others got meanwhile.
        Guarantees { lane_order: false, parking: false }
    }

    async fn next_batch(&mut self, limit: Limit) -> Result<Batch, Failure> {
        self.puller.link.check()?;
        self.puller.intake.hand_out(limit)
    }

    fn wakeup(&mut self) -> BoxFuture<'static, ()> {
        self.puller.intake.arrival()
    }

    async fn settle(&mut self, settlements: &[Settlement]) -> Result<Holding, Failure> {
        let link = &self.puller.link;
        link.check()?;
        let limit = link.config.timeout;
        link.in_time(Instant::now() + limit, limit, self.record(settlements)).await?;
        for Settlement { receipt, outcome } in settlements {
            match outcome.is_final() {
                true => self.forget(*receipt),
                false => self.puller.intake.with(|window| window.release(*receipt)),
            }
        }
        Ok(Holding::Held)
    }

    /// Gives back what is in hand: the server offers it to others at once.
    async fn close(&mut self) {
        const LIMIT: Duration = Duration::from_secs(5);
        self.tasks.shutdown().await;
        let link = &self.puller.link;
        if link.check().is_err() {
            return;
        }
        let held = self.puller.held();
        let give_back = try_join_all(held.iter().map(|place| self.puller.answer(place, b"-NAK")));
        link.in_time(Instant::now() + LIMIT, LIMIT, give_back).await.ok();
    }
}

impl fmt::Debug for NatsSubscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsSubscription")
            .field("stream", &self.puller.stream)
            .field("consumer", &self.puller.name)
            .finish_non_exhaustive()
    }
}
