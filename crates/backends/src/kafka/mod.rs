//! Apache Kafka, and what speaks its protocol, through librdkafka.
//!
//! [`KafkaSink`] publishes with an idempotent producer and `acks=all`: a message is confirmed when
//! all replicas in sync have it. Its key is the aggregate id, so a lane has one partition, and a
//! message that fails ends the producer before any later one of its partition can be written; in a
//! partition that the producer is new to, the first message goes alone.
//! [`ExactlyOnceSink`] does the same in transactions, and recognises what it has sent before.
//! [`KafkaSubscription`] reads topics as a member of a consumer group. [`KafkaInbox`] remembers which
//! messages took effect, where the effect is messages that a handler sends.
//!
//! | error | fault | code |
//! |---|---|---|
//! | no broker can be reached, nothing is confirmed in time, too few replicas | unavailable | `E-KAFKA-DOWN` |
//! | user or password is wrong | misconfigured | `E-KAFKA-AUTH` |
//! | the certificate of the broker, or ours, is not trusted | misconfigured | `E-KAFKA-TLS` |
//! | the user may not write to the topic, delete dead letters, use the transactional id or its journal | misconfigured | `E-KAFKA-ACL` |
//! | the topic does not exist | misconfigured | `E-KAFKA-TOPIC-MISSING` |
//! | the name of the topic is not legal | refused | `E-KAFKA-TOPIC-NAME` |
//! | the message is too large | refused | `E-KAFKA-TOO-LARGE` |
//! | the broker does not take the record for another reason | refused | `E-KAFKA-RECORD` |
//! | librdkafka does not take a setting | misconfigured | `E-KAFKA-CONFIG` |
//! | another relay has taken over this transactional id | unavailable, then refused by `check` | `E-KAFKA-FENCED` |
//! | another process has opened this inbox | misconfigured | `E-KAFKA-FENCED` |
//! | the transactional producer ended for another reason | unavailable | `E-KAFKA-TRANSACTION` |
//! | a topic does not take a dead letter of a subscription, or does not let it go | misconfigured | `E-KAFKA-DEAD-LETTER` |
//! | the topic of an inbox does not keep ids as it must | misconfigured | `E-KAFKA-INBOX-TOPIC` |
//! | an inbox has more to remember than it may | unavailable | `E-KAFKA-INBOX-FULL` |
//! | another transaction takes long with the same message | transient | `E-KAFKA-INBOX-BUSY` |
//! | anything else | transient | `E-KAFKA` |
//!
//! ```no_run
//! use semel_backends::kafka::{Compression, KafkaConfig};
//! use semel_core::{Event, Message, Sink};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let sink = KafkaConfig::new("kafka-1:9092,kafka-2:9092")?
//!     .compression(Compression::Lz4)
//!     .connect()
//!     .await?;
//! let message = Message::first("order.events", Event::new("order", "42", "OrderPlaced"));
//! assert!(sink.publish(&[message]).await.all_confirmed());
//! # Ok::<(), semel_core::Failure>(()) }).unwrap();
//! ```

mod arrivals;
mod config;
mod dead_queue;
mod dispatch;
mod error;
mod flight;
mod inbox;
mod known;
mod once;
mod plan;
mod reading;
mod record;
mod reports;
mod session;
mod sink;
mod stamp;
mod subscription;
mod topic;

pub use config::{Compression, KafkaConfig, Mechanism, Sasl, Tls};
pub use inbox::{KafkaInbox, KafkaInboxConfig, KafkaTx};
pub use once::ExactlyOnceSink;
pub use sink::KafkaSink;
pub use subscription::{KafkaSubscription, KafkaSubscriptionConfig, Start};

/// What OpenTelemetry calls it.
const SYSTEM: &str = "kafka";
