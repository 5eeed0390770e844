//! What librdkafka tells of a producer, on its own threads.

use std::sync::{Mutex, MutexGuard};

use rdkafka::Message as _;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::message::DeliveryResult;
use rdkafka::producer::{NoCustomPartitioner, ProducerContext};
use rdkafka::types::RDKafkaErrorCode as Code;
use tokio::sync::watch;

use super::error;
use super::flight::Ticket;
use super::session::{End, lock, stop};

/// Delivers reports to tickets, and errors to whoever waits for the producer.
pub(super) struct Reports {
    ended: watch::Sender<Option<End>>,
    /// What it said last: the reason, when nothing else comes.
    complaint: Mutex<String>,
}

impl Reports {
    pub(super) fn new(ended: watch::Sender<Option<End>>) -> Self {
        Self { ended, complaint: Mutex::default() }
    }

    pub(super) fn complaint(&self) -> MutexGuard<'_, String> {
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
        match result {
            Ok(message) => ticket.arrive(message.partition()),
            Err((error, _)) => ticket.land(Some(error.clone())),
        }
    }
}
