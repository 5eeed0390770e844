//! One producer of librdkafka: messages on their way, and what it reports of them.
//!
//! A producer ends at the first error that would leave a gap, at wrong credentials, and when
//! nothing is confirmed in time. Then everything that is still with it is thrown away, and the sink
//! opens another one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{
    BaseRecord, NoCustomPartitioner, Producer, ProducerContext, PurgeConfig, ThreadedProducer,
};
use rdkafka::types::RDKafkaErrorCode as Code;
use semel_core::{Failure, Fault, Message};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::error;
use super::record::Record;

/// A producer, until it ends.
pub(super) struct Session {
    /// Taken when the session is dropped.
    producer: Option<ThreadedProducer<Reports>>,
    ended: watch::Sender<Option<End>>,
    room: Arc<Semaphore>,
    capacity: usize,
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
        let reports = Reports { ended: ended.clone(), complaint: Mutex::default() };
        let producer = ThreadedProducer::from_config_and_context(config, reports)
            .map_err(|error| error::failure("start a producer", error))?;
        let room = Arc::new(Semaphore::new(capacity));
        Ok(Arc::new(Self { producer: Some(producer), ended, room, capacity }))
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
        let places: Vec<_> = wave.iter().map(|record| record.place).collect();
        let size = wave.iter().map(|record| record.size).sum::<usize>().min(self.capacity);
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room).acquire_many_owned(size);
        let Ok(Ok(room)) = timeout(patience, room).await else {
            self.stop(End::Failed(self.no_answer()));
            return Landing::unknown(&places, self.end());
        };
        if let Some(end) = self.end() {
            return Landing::unknown(&places, Some(end));
        }
        let flight = Flight::new(wave.len(), Some(room));
        self.send_all(batch, wave, &flight);
        if self.comes_down(&flight, patience).await {
            Landing { lost: flight.lost(), end: self.end() }
        } else {
            Landing::unknown(&places, self.end())
        }
    }

    /// Waits for a flight, and ends it if it takes too long; whether all of it has landed.
    async fn comes_down(self: &Arc<Self>, flight: &Flight, patience: Duration) -> bool {
        tokio::select! {
            biased;
            () = flight.landed() => return true,
            () = self.over() => {}
            () = tokio::time::sleep(patience) => self.stop(End::Failed(self.no_answer())),
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
        let session = Arc::clone(self);
        let asking = spawn_blocking(move || session.metadata(patience));
        tokio::select! {
            biased;
            () = self.over() => match self.end() {
                Some(End::Failed(failure)) => Err(failure),
                _ => Err(self.no_answer()),
            },
            answer = asking => match answer {
                Ok(Ok(())) => Ok(()),
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

    fn send_all(&self, batch: &[Message], wave: Vec<Record>, flight: &Arc<Flight>) {
        let Some(producer) = &self.producer else { return };
        for Record { place, headers, value, .. } in wave {
            let message = &batch[place];
            let ticket = Ticket::new(flight, place);
            if flight.has_lost_before(batch, message) {
                ticket.land(Some(KafkaError::MessageProduction(Code::PurgeQueue)));
                continue;
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

    fn metadata(&self, patience: Duration) -> KafkaResult<()> {
        /// Whether it exists does not matter.
        const ANY_TOPIC: &str = "__consumer_offsets";
        let Some(producer) = &self.producer else { return Ok(()) };
        producer.client().fetch_metadata(Some(ANY_TOPIC), patience).map(drop)
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

impl Landing {
    fn unknown(places: &[usize], end: Option<End>) -> Self {
        let lost = |place: &usize| (*place, KafkaError::MessageProduction(Code::PurgeInflight));
        Self { lost: places.iter().map(lost).collect(), end }
    }
}

/// Messages that are under way together. They hold their room until the last one has landed, even
/// if nobody waits for them any more.
pub(super) struct Flight {
    aloft: AtomicUsize,
    landed: Notify,
    trouble: Notify,
    lost: Mutex<Vec<(usize, KafkaError)>>,
    _room: Option<OwnedSemaphorePermit>,
}

impl Flight {
    pub(super) fn new(count: usize, room: Option<OwnedSemaphorePermit>) -> Arc<Self> {
        let (landed, trouble, lost) = (Notify::new(), Notify::new(), Mutex::default());
        Arc::new(Self { aloft: AtomicUsize::new(count), landed, trouble, lost, _room: room })
    }

    /// Waits until the first is lost.
    pub(super) async fn in_trouble(&self) {
        self.trouble.notified().await;
    }

    pub(super) fn has_landed(&self) -> bool {
        self.aloft.load(Ordering::Acquire) == 0
    }

    /// Waits until all have landed.
    pub(super) async fn landed(&self) {
        if !self.has_landed() {
            self.landed.notified().await;
        }
    }

    /// Whether an earlier message of the same lane is lost already, while this one still is here.
    fn has_lost_before(&self, batch: &[Message], message: &Message) -> bool {
        let lane = message.event.lane();
        lock(&self.lost).iter().any(|(place, _)| batch[*place].event.lane() == lane)
    }

    pub(super) fn lost(&self) -> Vec<(usize, KafkaError)> {
        let mut lost = std::mem::take(&mut *lock(&self.lost));
        lost.sort_unstable_by_key(|(place, _)| *place);
        lost
    }
}

/// One message of a flight.
pub(super) struct Ticket {
    flight: Arc<Flight>,
    place: usize,
}

impl Ticket {
    pub(super) fn new(flight: &Arc<Flight>, place: usize) -> Box<Self> {
        Box::new(Self { flight: Arc::clone(flight), place })
    }

    pub(super) fn land(&self, error: Option<KafkaError>) {
        if let Some(error) = error {
            lock(&self.flight.lost).push((self.place, error));
            self.flight.trouble.notify_one();
        }
        if self.flight.aloft.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.flight.landed.notify_one();
        }
    }
}

/// What librdkafka tells, on its own thread.
pub(super) struct Reports {
    ended: watch::Sender<Option<End>>,
    /// What it said last: the reason, when nothing else comes.
    complaint: Mutex<String>,
}

impl Reports {
    fn complaint(&self) -> MutexGuard<'_, String> {
        lock(&self.complaint)
    }
}

impl ClientContext for Reports {
    fn log(&self, _level: RDKafkaLogLevel, facility: &str, line: &str) {
        tracing::debug!(target: "semel::kafka", facility, "{line}");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        match error.rdkafka_error_code() {
            Some(code @ Code::Authentication) => {
                stop(&self.ended, End::Failed(error::ended(code, reason)));
            }
            // A connection that breaks during the handshake has this code too.
            Some(code @ Code::SSL) if reason.contains("certificate") => {
                stop(&self.ended, End::Failed(error::ended(code, reason)));
            }
            // With TLS 1.3 it is after the handshake that a broker turns our certificate down.
            _ if error::is_about_our_certificate(reason) => {
                stop(&self.ended, End::Failed(error::ended(Code::SSL, reason)));
            }
            // What was wrong with the last of them says more.
            Some(Code::AllBrokersDown) => {}
            _ => {
                reason.clone_into(&mut self.complaint());
                // It may have been fatal: whoever waits looks again.
                self.ended.send_modify(|_| ());
            }
        }
    }
}

impl ProducerContext<NoCustomPartitioner> for Reports {
    type DeliveryOpaque = Box<Ticket>;

    fn delivery(&self, result: &DeliveryResult<'_>, ticket: Self::DeliveryOpaque) {
        ticket.land(result.as_ref().err().map(|(error, _)| error.clone()));
    }
}

/// The first reason counts.
fn stop(ended: &watch::Sender<Option<End>>, end: End) {
    ended.send_if_modified(|ended| {
        let first = ended.is_none();
        ended.get_or_insert(end);
        first
    });
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
