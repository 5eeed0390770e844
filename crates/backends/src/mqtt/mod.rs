//! MQTT as a sink.
//!
//! A message counts as delivered when the broker has acknowledged it (QoS 1). The topic is the topic;
//! in MQTT 5 the headers are user properties and a refusal has a reason, in MQTT 3.1.1 there is
//! neither.
//!
//! | file | role |
//! |---|---|
//! | `config` | where the broker is, and how to speak to it |
//! | `message` | an event as a message, and what MQTT cannot carry |
//! | `packet` | both versions of the protocol behind one face |
//! | `wire` | bytes to and from the broker, plain or encrypted |
//! | `link` | the connection: what is under way on it, and its end |
//! | `sink` | [`Sink`](semel_core::Sink), one message per lane at a time |
//! | `error` | which error is which [`Fault`](semel_core::Fault) |
//!
//! The packets are those of `rumqttc`. Its event loop is not used: after a lost connection it sends
//! again by itself, beside a relay that does the same; and it cannot read every refusal.
//!
//! ```no_run
//! use semel_backends::mqtt::MqttConfig;
//! use semel_core::{Event, Message, Sink};
//!
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let sink = MqttConfig::new("mqtt://localhost:1883")?.connect().await?;
//! let message = Message::first("shop/order/placed", Event::new("order", "42", "OrderPlaced"));
//! assert!(sink.publish(&[message]).await.all_confirmed());
//! # Ok::<(), semel_core::Failure>(()) }).unwrap();
//! ```

mod config;
mod error;
mod link;
mod message;
mod packet;
mod sink;
mod wire;

pub use config::{MqttConfig, MqttVersion};
pub use sink::MqttSink;

/// What OpenTelemetry calls it.
const SYSTEM: &str = "mqtt";
