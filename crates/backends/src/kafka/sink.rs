//! Topics as a sink.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;
use semel_core::{Failure, Message, Published, Sink};

use super::config::KafkaConfig;
use super::error::{self, Blame};
use super::plan::Plan;
use super::record::Record;
use super::session::{End, Landing, Session};

/// Publishes to topics. Made by [`KafkaConfig::connect`].
///
/// The broker answers for a whole request, not for a record. When it turns a request down, the
/// producer ends before anything later is written, and every record of the request is sent once
/// more, alone, by a producer of its own: so exactly those are refused that deserve it.
///
/// ```no_run
/// use semel_backends::kafka::KafkaConfig;
/// use semel_core::{Event, Message, Sink};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let sink = KafkaConfig::new("localhost:9092")?.connect().await?;
/// let message = Message::first("order.events", Event::new("order", "42", "OrderPlaced"));
/// assert!(sink.publish(&[message]).await.all_confirmed());
/// # Ok::<(), semel_core::Failure>(()) }).unwrap();
/// ```
pub struct KafkaSink {
    config: KafkaConfig,
    client: ClientConfig,
    current: Mutex<Option<Arc<Session>>>,
}

impl KafkaSink {
    pub(super) async fn connect(config: KafkaConfig) -> Result<Self, Failure> {
        let client = config.client();
        let sink = Self { config, client, current: Mutex::default() };
        sink.check().await?;
        Ok(sink)
    }

    /// The producer that is in use, or a new one.
    fn session(&self) -> Result<Arc<Session>, Failure> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(session) = current.as_ref().filter(|session| session.end().is_none()) {
            return Ok(Arc::clone(session));
        }
        let session = self.open()?;
        *current = Some(Arc::clone(&session));
        Ok(session)
    }

    fn open(&self) -> Result<Arc<Session>, Failure> {
        Session::open(&self.client, self.config.buffer_bytes)
    }

    fn record(&self, place: usize, message: &Message) -> Result<Record, Failure> {
        Record::new(place, message, self.config.format, self.config.max_message_bytes)
    }

    /// Sends a wave, and notes what became of it; whether some of it is to be sent again.
    ///
    /// # Errors
    /// Nothing more can be sent.
    async fn send(
        &self,
        batch: &[Message],
        plan: &mut Plan<'_>,
        wave: Vec<Record>,
    ) -> Result<bool, Failure> {
        let places: Vec<_> = wave.iter().map(|record| record.place).collect();
        let session = self.session()?;
        let Landing { lost, end } = session.fly(batch, wave, self.config.patience).await;
        let missing: HashSet<_> = lost.iter().map(|(place, _)| *place).collect();
        for place in places.into_iter().filter(|place| !missing.contains(place)) {
            plan.confirm(place);
        }
        if let Some(End::Failed(failure)) = end {
            plan.put_back(missing);
            return Err(failure);
        }
        let Unclear { suspects, again } = sort_out(batch, plan, lost);
        for place in suspects {
            if plan.has_failed(place) {
                continue;
            }
            match self.send_alone(batch, place).await {
                Ok(()) => plan.confirm(place),
                Err(failure) => plan.fail(place, failure),
            }
        }
        let some = !again.is_empty();
        plan.put_back(again);
        Ok(some)
    }

    /// Sends one message with nothing beside it, so that an answer is about it and nothing else.
    async fn send_alone(&self, batch: &[Message], place: usize) -> Result<(), Failure> {
        let record = self.record(place, &batch[place])?;
        let session = self.open()?;
        let mut landing = session.fly(batch, vec![record], self.config.patience).await;
        let Some((_, error)) = landing.lost.pop() else { return Ok(()) };
        Err(match (error::blame(batch[place].topic.as_str(), error), landing.end) {
            (Blame::Record(failure) | Blame::Clear(failure), _) => failure,
            (Blame::Session, Some(End::Failed(failure))) => failure,
            (Blame::Session, _) => error::no_answer("the producer ended"),
        })
    }
}

#[async_trait]
impl Sink for KafkaSink {
    async fn publish(&self, batch: &[Message]) -> Published {
        /// A message of any call can end the producer of all of them.
        const PRODUCERS: usize = 5;
        let mut plan = Plan::new(batch);
        let mut producers = 0;
        while producers < PRODUCERS {
            let room = self.config.buffer_bytes;
            let wave = plan.next_wave(room, |place, message| self.record(place, message));
            if wave.is_empty() {
                return plan.finish();
            }
            match self.send(batch, &mut plan, wave).await {
                Ok(again) => producers += usize::from(again),
                Err(failure) => return plan.give_up(&failure),
            }
        }
        plan.give_up(&error::no_answer("one producer after the other ended"))
    }

    async fn check(&self) -> Result<(), Failure> {
        const PATIENCE: Duration = Duration::from_secs(5);
        self.session()?.ask(self.config.patience.min(PATIENCE)).await
    }
}

/// Messages of which the broker has not said what is wrong with them.
struct Unclear {
    /// One of them is to blame, or they are behind one that may be.
    suspects: Vec<usize>,
    /// They only shared the producer with it.
    again: Vec<usize>,
}

fn sort_out(batch: &[Message], plan: &mut Plan<'_>, lost: Vec<(usize, KafkaError)>) -> Unclear {
    let (mut unclear, mut suspicious) = (Vec::new(), HashSet::new());
    for (place, error) in lost {
        match error::blame(batch[place].topic.as_str(), error) {
            Blame::Clear(failure) => {
                plan.fail(place, failure);
                continue;
            }
            Blame::Record(_) => {
                suspicious.insert(plan.lane(place));
            }
            Blame::Session => {}
        }
        unclear.push(place);
    }
    unclear.retain(|place| !plan.has_failed(*place));
    let is_suspect = |place: &usize| suspicious.contains(&plan.lane(*place));
    let (suspects, again) = unclear.into_iter().partition(is_suspect);
    Unclear { suspects, again }
}

impl fmt::Debug for KafkaSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaSink").field("config", &self.config).finish_non_exhaustive()
    }
}
