//! A message as it came from a queue, and as a dead letter.

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use semel_core::wire::{Binding, Epitaph, decode};
use semel_core::{Failure, Message};

/// A message as it came.
pub(super) struct Arrived {
    /// What the channel recognises it by.
    pub(super) tag: u64,
    routing_key: String,
    properties: BasicProperties,
    pub(super) body: Bytes,
}

impl Arrived {
    pub(super) fn new(delivery: Delivery) -> Self {
        Self {
            tag: delivery.delivery_tag,
            routing_key: delivery.routing_key.to_string(),
            properties: delivery.properties,
            body: delivery.data.into(),
        }
    }

    /// The message for a consumer; its topic is the routing key, or the queue if it has none.
    ///
    /// # Errors
    /// `Refused` when it is no event.
    pub(super) fn message(&self, queue: &str) -> Result<Message, Failure> {
        let content_type = self.properties.content_type().as_ref().map(ShortString::as_str);
        let table = self.properties.headers().as_ref();
        // The broker adds numbers of its own; what is not text is no header of an event.
        let headers = table.into_iter().flat_map(FieldTable::inner).filter_map(|(name, value)| {
            let AMQPValue::LongString(value) = value else { return None };
            Some((name.as_str(), std::str::from_utf8(value.as_bytes()).ok()?))
        });
        let event = decode(Binding::Amqp, content_type, headers, self.body.clone())?;
        let topic = if self.routing_key.is_empty() { queue } else { &self.routing_key };
        Ok(Message::first(topic, event))
    }

    /// The properties of the message as a dead letter.
    pub(super) fn properties_with(&self, epitaph: Epitaph<'_>) -> BasicProperties {
        const PERSISTENT: u8 = 2;
        let mut headers = FieldTable::default();
        let own = self.properties.headers().clone().unwrap_or_default();
        for (name, value) in own.inner().iter().filter(|(name, _)| !Epitaph::has(name.as_str())) {
            headers.insert(name.clone(), value.clone());
        }
        epitaph.headers(Binding::Amqp, &mut |name, value| {
            headers.insert(name.into(), AMQPValue::LongString(LongString::from(value)));
        });
        self.properties.clone().with_headers(headers).with_delivery_mode(PERSISTENT)
    }
}
