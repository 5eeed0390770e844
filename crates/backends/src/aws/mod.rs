//! Amazon SQS, SNS and EventBridge as sinks, and SQS as a subscription.
//!
//! A message counts as delivered when the service has answered that it has it. The topic names the
//! queue, the topic or the bus; where that is FIFO, the lane is the message group and the event id is
//! the deduplication id.
//!
//! | file | role |
//! |---|---|
//! | `config` | region, endpoint, credentials; connects all three |
//! | `entry` | an event as body and attributes, and what AWS cannot carry |
//! | `sink` | [`Sink`](semel_core::Sink): waves of one message per lane, in batches of ten |
//! | `sqs`, `sns`, `eventbridge` | what is particular to each service |
//! | `subscription` | [`Source`](semel_core::Source) over a queue of SQS |
//! | `incoming` | a message of SQS as an event, and as a dead letter |
//! | `queue` | what a subscription says to SQS |
//! | `error` | which error is which [`Fault`](semel_core::Fault) |
//!
//! ```no_run
//! use semel_backends::aws::AwsConfig;
//! use semel_core::{Event, Message, Sink};
//!
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let sink = AwsConfig::new().region("eu-central-1").connect_sqs().await?;
//! let message = Message::first("orders.fifo", Event::new("order", "42", "OrderPlaced"));
//! assert!(sink.publish(&[message]).await.all_confirmed());
//! # Ok::<(), semel_core::Failure>(()) }).unwrap();
//! ```

mod config;
mod dead_queue;
mod entry;
mod error;
mod eventbridge;
mod hold;
mod incoming;
mod queue;
mod sink;
mod sns;
mod sqs;
mod subscription;

pub use config::AwsConfig;
pub use sink::AwsSink;
pub use subscription::{SqsSubscription, SqsSubscriptionConfig};

/// What OpenTelemetry calls its queues.
const SYSTEM: &str = "aws_sqs";
