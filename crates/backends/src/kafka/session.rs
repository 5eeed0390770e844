//! One producer of librdkafka: messages on their way, and what it reports of them.
//!
//! A producer ends at the first error that would leave a gap, at wrong credentials, and when
//! nothing is confirmed in time. Then everything that is still with it is thrown away, and the sink
//! opens another one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::producer::{BaseRecord, Producer, PurgeConfig, ThreadedProducer};
use rdkafka::types::RDKafkaErrorCode as Code;
use semel_core::{Failure, Fault, Message};
use tokio::sync::{Semaphore, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::error;
use super::flight::{Flight, Introduction, Ticket};
use super::known::{Known, Turn};
use super::record::Record;
use super::reports::Reports;

/// A producer, until it ends.
pub(super) struct Session {
    /// Taken when the session is dropped.
    producer: Option<ThreadedProducer<Reports>>,
    ended: watch::Sender<Option<End>>,
    room: Arc<Semaphore>,
    capacity: usize,
    known: Known,
    /// Held by who sends to partitions that are not known.
    introductions: Arc<tokio::sync::Mutex<()>>,
}

/// Why a producer ended.
#[derive(Clone, Debug)]
pub(super) enum End {
    /// A message failed for good. What else was under way can be sent again.
    Gap,
    /// Nothing can be sent at present, or ever.
    Failed(Failure),
}

impl End {
    fn of_fatal(code: Code, reason: &str) -> Self {
        let failure = error::ended(code, reason);
        if failure.fault() == Fault::Misconfigured { Self::Failed(failure) } else { Self::Gap }
    }
}

/// What came back of a wave of messages.
pub(super) struct Landing {
    /// Places of messages that were not confirmed.
    pub(super) lost: Vec<(usize, KafkaError)>,
    /// The producer ended meanwhile.
    pub(super) end: Option<End>,
}

impl Session {
    /// Starts a producer that holds up to `capacity` bytes. It connects by itself.
    ///
    /// # Errors
    /// `Misconfigured` when librdkafka does not take a setting.
    pub(super) fn open(config: &ClientConfig, capacity: usize) -> Result<Arc<Self>, Failure> {
        let ended = watch::Sender::new(None);
        let producer =
            ThreadedProducer::from_config_and_context(config, Reports::new(ended.clone()))
                .map_err(|error| error::failure("start a producer", error))?;
        let room = Arc::new(Semaphore::new(capacity));
        let (known, introductions) = (Known::default(), Arc::default());
        let producer = Some(producer);
        Ok(Arc::new(Self { producer, ended, room, capacity, known, introductions }))
    }

    /// Why it ended, if it did.
    pub(super) fn end(&self) -> Option<End> {
        let end = self.ended.borrow().clone();
        end.or_else(|| self.fatal().map(|(code, reason)| End::of_fatal(code, &reason)))
    }

    /// Sends a wave of the batch and waits for its confirmations.
    pub(super) async fn fly(
        self: &Arc<Self>,
        batch: &[Message],
        wave: Vec<Record>,
        patience: Duration,
    ) -> Landing {
        let deadline = Instant::now() + patience;
        let places: Vec<_> = wave.iter().map(|record| record.place).collect();
        let size = wave.iter().map(|record| record.size).sum::<usize>().min(self.capacity);
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room).acquire_many_owned(size);
        let Ok(Ok(room)) = timeout_at(deadline, room).await else {
            self.stop(End::Failed(self.no_answer()));
            return Landing::unknown(&places, self.end());
        };
        if let Some(end) = self.end() {
            return Landing::unknown(&places, Some(end));
        }
        let flight = Flight::new(wave.len(), Some(room));
        let has_landed = if self.known.covers(batch, &wave) {
            self.send_all(batch, Turn { now: wave, ..Turn::default() }, None, &flight);
            self.comes_down(&flight, deadline).await
        } else {
            self.fly_in_turns(batch, wave, &flight, deadline).await
        };
        if has_landed {
            Landing { lost: flight.lost(), end: self.end() }
        } else {
            Landing::unknown(&places, self.end())
        }
    }

    /// Sends a wave, the first of each partition that is not known before the others; whether all of
    /// it has landed.
    async fn fly_in_turns(
        self: &Arc<Self>,
        batch: &[Message],
        wave: Vec<Record>,
        flight: &Arc<Flight>,
        deadline: Instant,
    ) -> bool {
        let mut waiting = wave;
        self.count_partitions(batch, waiting.iter().map(|record| record.place), deadline).await;
        while !waiting.is_empty() {
            let mut turn = self.known.divide(batch, waiting);
            waiting = std::mem::take(&mut turn.later);
            let introduction =
                if turn.first.is_empty() { None } else { self.introduce(deadline).await };
            if Instant::now() >= deadline {
                self.stop(End::Failed(self.no_answer()));
            }
            if self.end().is_some() {
                flight.leave_behind(turn.now.iter().chain(&waiting).map(|record| record.place));
                break;
            }
            flight.keep_on_the_ground(waiting.len());
            self.send_all(batch, turn, introduction.as_ref(), flight);
            if !self.comes_down(flight, deadline).await {
                return false;
            }
            let met = flight.met();
            met.iter().for_each(|(place, partition)| self.known.meet(&batch[*place], *partition));
            self.count_partitions(batch, met.iter().map(|(place, _)| *place), deadline).await;
        }
        true
    }

    /// Waits until nobody else sends to partitions that are not known, or the producer has ended, or
    /// it is too late.
    async fn introduce(&self, deadline: Instant) -> Option<Introduction> {
        tokio::select! {
            biased;
            () = self.over() => None,
            () = sleep_until(deadline) => None,
            turn = Arc::clone(&self.introductions).lock_owned() => Some(Arc::new(turn)),
        }
    }

    /// Asks how many partitions topics have that are not counted yet. As long as nobody says it, their
    /// messages go one by one.
    async fn count_partitions(
        self: &Arc<Self>,
        batch: &[Message],
        places: impl Iterator<Item = usize>,
        deadline: Instant,
    ) {
        for topic in self.known.uncounted(places.map(|place| &batch[place])) {
            let (session, name) = (Arc::clone(self), topic.to_owned());
            let counting = spawn_blocking(move || {
                if let Ok(partitions @ 1..) = session.metadata(&name, COUNTED_WITHIN) {
                    session.known.count(&name, partitions);
                }
            });
            tokio::select! {
                biased;
                () = self.over() => return,
                // An answer that comes later is of use too.
                _ = timeout_at(deadline.min(Instant::now() + COUNTED_SOON), counting) => {}
            }
        }
    }

    /// Waits for a flight, and ends it if it takes too long; whether all of it has landed.
    async fn comes_down(self: &Arc<Self>, flight: &Flight, deadline: Instant) -> bool {
        tokio::select! {
            biased;
            () = flight.landed() => return true,
            () = self.over() => {}
            () = sleep_until(deadline) => self.stop(End::Failed(self.no_answer())),
        }
        if matches!(self.end(), Some(End::Gap)) {
            // What was sent before the gap is still answered; the rest was thrown away already.
            if timeout(ANSWERED_WITHIN, flight.landed()).await.is_ok() {
                return true;
            }
        }
        self.purge().await;
        timeout(PURGED_WITHIN, flight.landed()).await.is_ok()
    }

    /// Asks any broker for anything.
    ///
    /// # Errors
    /// Why there is no answer within `patience`.
    pub(super) async fn ask(self: &Arc<Self>, patience: Duration) -> Result<(), Failure> {
        /// Whether it exists does not matter.
        const ANY_TOPIC: &str = "__consumer_offsets";
        let session = Arc::clone(self);
        let asking = spawn_blocking(move || session.metadata(ANY_TOPIC, patience));
        tokio::select! {
            biased;
            () = self.over() => match self.end() {
                Some(End::Failed(failure)) => Err(failure),
                _ => Err(self.no_answer()),
            },
            answer = asking => match answer {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(_)) | Err(_) => Err(self.no_answer()),
            },
        }
    }

    /// The id of the cluster, if the brokers say one.
    pub(super) async fn cluster(self: &Arc<Self>, patience: Duration) -> Option<String> {
        let session = Arc::clone(self);
        let asking =
            spawn_blocking(move || session.producer.as_ref()?.client().fetch_cluster_id(patience));
        asking.await.ok().flatten()
    }

    /// Ends it, for everybody who waits for it too.
    fn stop(&self, end: End) {
        stop(&self.ended, end);
    }

    async fn over(&self) {
        // The sender lives as long as we do, so this cannot fail.
        let over = |end: &Option<End>| end.is_some() || self.fatal().is_some();
        let _ = self.ended.subscribe().wait_for(over).await;
    }

    /// An error after which the producer sends nothing any more.
    fn fatal(&self) -> Option<(Code, String)> {
        self.producer.as_ref()?.client().fatal_error()
    }

    fn send_all(
        &self,
        batch: &[Message],
        turn: Turn,
        introduction: Option<&Introduction>,
        flight: &Arc<Flight>,
    ) {
        let Some(producer) = &self.producer else { return };
        for Record { place, headers, value, .. } in turn.now {
            let message = &batch[place];
            let mut ticket = Ticket::new(flight, place);
            if flight.has_lost_before(batch, message) {
                ticket.land(Some(KafkaError::MessageProduction(Code::PurgeQueue)));
                continue;
            }
            if turn.first.contains(&place) {
                ticket = ticket.introducing(introduction.cloned());
            }
            let record = BaseRecord::with_opaque_to(message.topic.as_str(), ticket)
                .key(message.key())
                .payload(&value[..])
                .headers(headers);
            if let Err((error, record)) = producer.send(record) {
                record.delivery_opaque.land(Some(error));
            }
        }
    }

    /// Throws away what is still under way; it is reported as lost.
    async fn purge(self: &Arc<Self>) {
        let session = Arc::clone(self);
        let purging = spawn_blocking(move || {
            if let Some(producer) = &session.producer {
                producer.purge(PurgeConfig::default().queue().inflight());
            }
        });
        // If it cannot be thrown away, it does not land, and its fate is unknown.
        let _ = timeout(PURGED_WITHIN, purging).await;
    }

    /// How many partitions a topic has; none, if that is not known.
    fn metadata(&self, topic: &str, patience: Duration) -> KafkaResult<u32> {
        let Some(producer) = &self.producer else { return Ok(0) };
        let metadata = producer.client().fetch_metadata(Some(topic), patience)?;
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        let found = found.filter(|found| found.error().is_none());
        Ok(found.and_then(|found| u32::try_from(found.partitions().len()).ok()).unwrap_or(0))
    }

    fn no_answer(&self) -> Failure {
        let producer = self.producer.as_ref();
        let complaint = producer.map(|producer| producer.context().complaint().clone());
        error::no_answer(&complaint.unwrap_or_default())
    }
}

impl Drop for Session {
    /// A producer waits for its threads when it is dropped: not here, where nobody may wait.
    fn drop(&mut self) {
        let producer = self.producer.take();
        std::thread::spawn(move || drop(producer));
    }
}

const ANSWERED_WITHIN: Duration = Duration::from_secs(2);
const PURGED_WITHIN: Duration = Duration::from_secs(5);
const COUNTED_SOON: Duration = Duration::from_secs(1);
const COUNTED_WITHIN: Duration = Duration::from_secs(5);

impl Landing {
    fn unknown(places: &[usize], end: Option<End>) -> Self {
        let lost = |place: &usize| (*place, KafkaError::MessageProduction(Code::PurgeInflight));
        Self { lost: places.iter().map(lost).collect(), end }
    }
}

/// The first reason counts.
pub(super) fn stop(ended: &watch::Sender<Option<End>>, end: End) {
    ended.send_if_modified(|ended| {
        let first = ended.is_none();
        ended.get_or_insert(end);
        first
    });
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
