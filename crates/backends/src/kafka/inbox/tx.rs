//! A transaction of a consumer: messages that its handlers want to send.

use std::fmt;
use std::sync::Arc;

use semel_core::{Failure, Message};

use super::super::record::Record;
use super::desk::Hands;
use crate::kafka::KafkaConfig;

/// Messages that are sent together with the memory of what they are for, or not at all.
///
/// Nothing is sent before the commit, and then all in one transaction of Kafka: whoever reads only
/// what is committed (`isolation.level=read_committed`) sees all of it or nothing.
///
/// ```
/// # use semel_backends::kafka::KafkaTx;
/// # use semel_core::{Event, Failure, Message};
/// fn bill(tx: &mut KafkaTx, order: &Message) -> Result<(), Failure> {
///     let bill = Event::new("bill", &*order.event.aggregate_id, "BillMade");
///     tx.send(Message::first("bill.events", bill))
/// }
/// ```
pub struct KafkaTx {
    pub(super) config: Arc<KafkaConfig>,
    pub(super) hands: Hands,
    pub(super) messages: Vec<(Message, Record)>,
}

impl KafkaTx {
    /// Adds a message to what the commit sends, in this order.
    ///
    /// # Errors
    /// `Refused` when no topic can have the name of its topic, or it is larger than
    /// [`max_message_bytes`](KafkaConfig::max_message_bytes).
    pub fn send(&mut self, message: Message) -> Result<(), Failure> {
        let record = self.config.record(self.messages.len(), &message, None)?;
        self.messages.push((message, record));
        Ok(())
    }
}

impl fmt::Debug for KafkaTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaTx").field("messages", &self.messages.len()).finish_non_exhaustive()
    }
}
