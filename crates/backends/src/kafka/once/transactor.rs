//! One transactional producer of librdkafka, until the first transaction that is not committed.
//!
//! A producer is never used after that. Whoever comes next fences it off, which aborts what it left
//! open, and learns from the journal what became of it. librdkafka can abort and go on, but where
//! the fate of a message was unknown it gives its number to the next one, and the broker takes that
//! one for a repetition: it is confirmed and never written.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{
    BaseRecord, NoCustomPartitioner, Producer, ProducerContext, ThreadedProducer,
};
use rdkafka::types::RDKafkaErrorCode as Code;
use semel_core::{Failure, Message};
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::super::error;
use super::super::flight::{Flight, Ticket};
use super::super::record::Record;
use super::super::session::lock;
use super::journal::Line;

/// A transactional producer.
pub(in crate::kafka) struct Transactor {
    /// Taken when it is dropped.
    producer: Option<Arc<TransactionalProducer>>,
    id: String,
    patience: Duration,
}

type TransactionalProducer = ThreadedProducer<Reports>;

/// What became of a transaction.
pub(in crate::kafka) enum Ended {
    Committed,
    /// Nothing of it will be there; these places of it are why.
    Aborted(Vec<(usize, KafkaError)>),
    /// Nothing is known, or nothing can be sent.
    Failed(Failure),
}

/// What a transaction consists of. Its places are those of the messages, then those of the lines.
pub(in crate::kafka) struct Load {
    pub(in crate::kafka) messages: Vec<(Message, Record)>,
    pub(in crate::kafka) topic: String,
    pub(in crate::kafka) lines: Vec<Line>,
}

impl Transactor {
    /// Starts a producer, which fences off the one before it with this id.
    ///
    /// # Errors
    /// `Unavailable` when nobody answers, `Misconfigured` when it may not have this id.
    pub(in crate::kafka) async fn open(
        client: &ClientConfig,
        id: &str,
        patience: Duration,
    ) -> Result<Self, Failure> {
        let producer = ThreadedProducer::from_config_and_context(client, Reports::default())
            .map_err(|error| error::failure("start a producer", error))?;
        let producer = Some(Arc::new(producer));
        let opened = Self { producer, id: id.to_owned(), patience };
        opened
            .blocking(move |producer| producer.init_transactions(patience))
            .await
            .map_err(|error| opened.cannot_begin(error))?;
        Ok(opened)
    }

    /// Asks any broker for anything.
    pub(super) async fn ask(&self, patience: Duration) -> Result<(), Failure> {
        /// Whether it exists does not matter.
        const ANY_TOPIC: &str = "__consumer_offsets";
        let asking = self.blocking(move |producer| {
            producer.client().fetch_metadata(Some(ANY_TOPIC), patience).map(drop)
        });
        asking.await.map_err(|_| self.no_answer())
    }

    /// One transaction from beginning to end; the last one, unless it is committed.
    pub(in crate::kafka) async fn transact(&self, load: Load) -> Ended {
        let Some(producer) = self.producer.clone() else {
            return Ended::Failed(self.no_answer());
        };
        if let Err(error) = producer.begin_transaction() {
            return Ended::Failed(error::transaction_ended(&self.id, error));
        }
        let flight = Flight::new(load.messages.len() + load.lines.len(), None);
        send_all(&producer, load, &flight);
        let mut in_time = true;
        tokio::select! {
            biased;
            () = flight.landed() => {}
            () = flight.in_trouble() => {}
            () = producer.context().trouble.notified() => self.hear_who_it_was(&flight).await,
            () = tokio::time::sleep(self.patience) => in_time = false,
        }
        let lost = flight.lost();
        if flight.has_landed() && lost.is_empty() {
            return self.commit().await;
        }
        if let Some((code, reason)) = producer.client().fatal_error() {
            let error = error::transaction_ended(&self.id, KafkaError::Global(code));
            tracing::debug!(target: "semel::kafka", "{reason}");
            return Ended::Failed(error);
        }
        match producer.context().forbidden() {
            Some(failure) => Ended::Failed(failure),
            None if !in_time => Ended::Failed(self.no_answer()),
            None => Ended::Aborted(lost),
        }
    }

    /// librdkafka complains of a transaction a moment before it says which message was to blame.
    async fn hear_who_it_was(&self, flight: &Flight) {
        const A_MOMENT: Duration = Duration::from_secs(1);
        let Some(producer) = &self.producer else { return };
        if producer.client().fatal_error().is_none() && producer.context().forbidden().is_none() {
            // If it is not said at all, the messages are tried again.
            let _ = timeout(A_MOMENT, flight.in_trouble()).await;
        }
    }

    async fn commit(&self) -> Ended {
        let patience = self.patience;
        let committed = self.blocking(move |producer| {
            // It would wait a tenth of a second for reports that are being told right now.
            let deadline = Instant::now() + patience;
            while producer.in_flight_count() > 0 && Instant::now() < deadline {
                std::thread::sleep(Duration::from_micros(50));
            }
            producer.commit_transaction(patience)
        });
        match committed.await {
            Ok(()) => Ended::Committed,
            Err(KafkaError::Transaction(error)) if error.is_retriable() => {
                Ended::Failed(self.no_answer())
            }
            Err(error) => Ended::Failed(error::transaction_ended(&self.id, error)),
        }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&TransactionalProducer) -> KafkaResult<T> + Send + 'static,
    ) -> KafkaResult<T> {
        let Some(producer) = self.producer.clone() else { return Err(KafkaError::Canceled) };
        spawn_blocking(move || work(&producer)).await.unwrap_or(Err(KafkaError::Canceled))
    }

    fn cannot_begin(&self, error: KafkaError) -> Failure {
        match error.rdkafka_error_code() {
            Some(Code::TransactionalIdAuthorizationFailed) => {
                error::transaction_forbidden(&self.id)
            }
            Some(Code::OperationTimedOut) | None => self.no_answer(),
            Some(_) => error::failure("begin with transactions", error),
        }
    }

    fn no_answer(&self) -> Failure {
        let producer = self.producer.as_ref();
        let complaint = producer.map(|producer| lock(&producer.context().complaint).clone());
        error::no_answer(&complaint.unwrap_or_default())
    }
}

impl Drop for Transactor {
    /// A producer waits for its threads when it is dropped: not here, where nobody may wait.
    fn drop(&mut self) {
        let producer = self.producer.take();
        std::thread::spawn(move || drop(producer));
    }
}

fn send_all(producer: &TransactionalProducer, load: Load, flight: &Arc<Flight>) {
    let send = |record: BaseRecord<'_, str, [u8], Box<Ticket>>| {
        if let Err((error, record)) = producer.send(record) {
            record.delivery_opaque.land(Some(error));
        }
    };
    let Load { messages, topic, lines } = load;
    let count = messages.len();
    for (place, (message, record)) in messages.into_iter().enumerate() {
        let ticket = Ticket::new(flight, place);
        send(
            BaseRecord::with_opaque_to(message.topic.as_str(), ticket)
                .key(message.key())
                .payload(&record.value[..])
                .headers(record.headers),
        );
    }
    for (number, line) in lines.iter().enumerate() {
        let record = BaseRecord::with_opaque_to(&topic, Ticket::new(flight, count + number));
        let record = record.key(line.key.as_str()).partition(line.partition);
        send(match &line.value {
            Some(value) => record.payload(value.as_slice()),
            None => record,
        });
    }
}

/// What librdkafka tells, on its own threads.
#[derive(Default)]
struct Reports {
    /// The transaction cannot be committed any more.
    trouble: Notify,
    /// What it said last: the reason, when nothing else comes.
    complaint: Mutex<String>,
}

impl Reports {
    /// librdkafka says only in its log that a topic may not be part of a transaction.
    fn forbidden(&self) -> Option<Failure> {
        let complaint = lock(&self.complaint);
        complaint.contains("AUTHORIZATION_FAILED").then(|| error::topic_forbidden(&complaint))
    }

    fn complain(&self, reason: &str) {
        reason.clone_into(&mut lock(&self.complaint));
    }
}

impl ClientContext for Reports {
    fn log(&self, _level: RDKafkaLogLevel, facility: &str, line: &str) {
        tracing::debug!(target: "semel::kafka", facility, "{line}");
        if facility == "TXNERR" {
            self.complain(line);
            self.trouble.notify_one();
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        match error.rdkafka_error_code() {
            // What was wrong with the last of them says more.
            Some(Code::AllBrokersDown) => {}
            Some(Code::Fatal) => {
                self.complain(reason);
                self.trouble.notify_one();
            }
            _ => self.complain(reason),
        }
    }
}

impl ProducerContext<NoCustomPartitioner> for Reports {
    type DeliveryOpaque = Box<Ticket>;

    fn delivery(&self, result: &DeliveryResult<'_>, ticket: Self::DeliveryOpaque) {
        ticket.land(result.as_ref().err().map(|(error, _)| error.clone()));
    }
}

#[cfg(test)]
mod tests {
    use semel_core::Fault;

    use super::*;

    #[test]
    fn who_may_not_have_an_id_is_told_so_when_it_begins() {
        let id = "shop-1-of-1".to_owned();
        let transactor = Transactor { producer: None, id, patience: Duration::ZERO };
        let cases = [
            (Code::TransactionalIdAuthorizationFailed, Fault::Misconfigured, "E-KAFKA-ACL"),
            (Code::ClusterAuthorizationFailed, Fault::Misconfigured, "E-KAFKA-ACL"),
            (Code::OperationTimedOut, Fault::Unavailable, "E-KAFKA-DOWN"),
        ];
        for (code, fault, name) in cases {
            let failure = transactor.cannot_begin(KafkaError::Global(code));
            assert_eq!((failure.fault(), failure.code()), (fault, name), "{code}");
            assert!(failure.fix().is_some(), "{code}");
        }
    }

    #[test]
    fn a_topic_that_may_not_be_in_a_transaction_is_known_by_the_log() {
        let reports = Reports::default();
        assert!(reports.forbidden().is_none());
        let log = |reason: &str| {
            let line =
                "Current transaction failed in state InTransaction: Failed to add partition(s)";
            reports.log(RDKafkaLogLevel::Error, "TXNERR", &format!("{line} ({reason})"));
        };
        log("NOT_COORDINATOR");
        assert!(reports.forbidden().is_none());
        log("TOPIC_AUTHORIZATION_FAILED");
        let failure = reports.forbidden().unwrap();
        assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-KAFKA-ACL"));
        assert!(failure.fix().is_some_and(|fix| fix.contains("Write")), "{failure}");
    }
}
