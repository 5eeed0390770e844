//! How an inbox is called, and how much it remembers.

use std::time::Duration;

use semel_core::Failure;

use super::KafkaInbox;
use crate::kafka::KafkaConfig;
use crate::kafka::error;
use crate::kafka::record::is_legal_topic;

/// How an inbox is called, and how much it remembers. Made by [`KafkaConfig::inbox`].
///
/// ```
/// use semel_backends::kafka::KafkaConfig;
/// use std::time::Duration;
///
/// let config = KafkaConfig::new("kafka-1:9092")?
///     .inbox("billing")?
///     .keep(Duration::from_secs(24 * 60 * 60))
///     .max_bytes(1 << 30);
/// # let _ = config;
/// assert!(KafkaConfig::new("kafka-1:9092")?.inbox("no topic").is_err());
/// # Ok::<(), semel_core::Failure>(())
/// ```
#[derive(Clone, Debug)]
pub struct KafkaInboxConfig {
    pub(super) connection: KafkaConfig,
    pub(super) name: String,
    pub(super) keep: Duration,
    pub(super) max_bytes: usize,
}

impl KafkaConfig {
    /// An inbox, for effects that are messages in the same Kafka. Its ids are in the topic
    /// `<name>-inbox`, and its transactions have the same name: **one process at a time has it**.
    /// Where the brokers are, user, encryption, [`format`](Self::format),
    /// [`patience`](Self::patience) and what messages may be like are as for a sink.
    ///
    /// # Errors
    /// `Misconfigured` when no topic can have that name.
    pub fn inbox(self, name: &str) -> Result<KafkaInboxConfig, Failure> {
        const A_WEEK: Duration = Duration::from_secs(7 * 24 * 60 * 60);
        let (name, keep, max_bytes) = (name.to_owned(), A_WEEK, 256 * 1024 * 1024);
        let config = KafkaInboxConfig { connection: self, name, keep, max_bytes };
        if config.name.is_empty() || !is_legal_topic(&config.topic()) {
            return Err(error::topic_setting(&config.topic()));
        }
        Ok(config)
    }
}

impl KafkaInboxConfig {
    /// How long a message is remembered after it took effect; 7 days unless set. One that comes
    /// again later than that takes effect again. It must be longer than the broker can repeat.
    #[must_use]
    pub fn keep(mut self, time: Duration) -> Self {
        self.keep = time;
        self
    }

    /// How much memory the ids and the results may take; 256 MiB unless set. An id takes 64 bytes,
    /// so that is for 4 million messages. When there is no room, no message is taken until old ones
    /// are forgotten.
    #[must_use]
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Takes the inbox over from the process that has it, makes its topic if that is missing, and
    /// reads the ids.
    ///
    /// # Errors
    /// `Unavailable` when no broker can be reached or there are more ids than fit; `Misconfigured`
    /// when they refuse the user, the topic does not keep ids as it must, or yet another process
    /// opens the inbox.
    pub async fn connect(&self) -> Result<KafkaInbox, Failure> {
        KafkaInbox::connect(self.clone()).await
    }

    /// Of its ids, of its transactions, and of the group that reads the ids.
    pub(super) fn topic(&self) -> String {
        format!("{}-inbox", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_that_of_a_topic() {
        let inbox = |name: &str| KafkaConfig::new("localhost:9092").unwrap().inbox(name);
        assert_eq!(inbox("billing").unwrap().topic(), "billing-inbox");
        for name in ["", "a b", "grün", &"x".repeat(244)] {
            assert_eq!(inbox(name).err().unwrap().code(), "E-KAFKA-CONFIG", "{name}");
        }
    }
}
