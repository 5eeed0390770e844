//! A message as it came from a queue, and as a dead letter.

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use semel_core::wire::{Binding, Epitaph, decode};
use semel_core::{Event, Failure, Message};

use crate::brevity::{in_brief, less_and_less};
use crate::rabbitmq::message::frame_size;

/// A message as it came.
pub(in crate::rabbitmq) struct Arrived {
    /// What the channel recognises it by.
    pub(in crate::rabbitmq) tag: u64,
    routing_key: String,
    properties: BasicProperties,
    pub(in crate::rabbitmq) body: Bytes,
}

impl Arrived {
    pub(in crate::rabbitmq) fn new(delivery: Delivery) -> Self {
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
        let topic = if self.routing_key.is_empty() { queue } else { &self.routing_key };
        Ok(Message::first(topic, self.event()?))
    }

    /// The event that it carries.
    ///
    /// # Errors
    /// `Refused` when it carries none.
    pub(in crate::rabbitmq) fn event(&self) -> Result<Event, Failure> {
        let content_type = self.properties.content_type().as_ref().map(ShortString::as_str);
        decode(Binding::Amqp, content_type, self.headers(), self.body.clone())
    }

    /// Its headers. The broker adds numbers of its own; what is not text is no header of an event.
    pub(in crate::rabbitmq) fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.table().filter_map(|(name, value)| {
            let AMQPValue::LongString(value) = value else { return None };
            Some((name.as_str(), std::str::from_utf8(value.as_bytes()).ok()?))
        })
    }

    /// How often a quorum queue has given it out before.
    pub(in crate::rabbitmq) fn deliveries(&self) -> u64 {
        let count = self.table().find(|(name, _)| name.as_str() == COUNTERS[0]);
        count.and_then(|(_, value)| number(value)).unwrap_or(0)
    }

    /// The properties of the message as a dead letter, with as much of what is said of it as there is
    /// room for in a frame of this size.
    pub(super) fn properties_with(&self, epitaph: Epitaph<'_>, frame: usize) -> BasicProperties {
        let brief = in_brief(epitaph.failure);
        let letter = |epitaph| self.rewritten(epitaph, Epitaph::has);
        less_and_less(epitaph, &brief)
            .into_iter()
            .map(letter)
            .find(|properties| frame_size(properties) <= frame)
            .unwrap_or_else(|| letter(None))
    }

    /// The properties that the message had before it was a dead letter.
    pub(in crate::rabbitmq) fn own_properties(&self) -> BasicProperties {
        let own = self.rewritten(None, Epitaph::has);
        match self.properties.expiration().clone() {
            Some(expiration) => own.with_expiration(expiration),
            None => own,
        }
    }

    /// The properties of the same letter once more.
    pub(in crate::rabbitmq) fn same_properties(&self) -> BasicProperties {
        self.rewritten(None, |_| false)
    }

    fn rewritten(
        &self,
        epitaph: Option<Epitaph<'_>>,
        drops: impl Fn(&str) -> bool,
    ) -> BasicProperties {
        const PERSISTENT: u8 = 2;
        let mut headers = FieldTable::default();
        for (name, value) in self.table() {
            if !drops(name.as_str()) && !is_of_the_way(name.as_str()) {
                headers.insert(name.clone(), value.clone());
            }
        }
        if let Some(epitaph) = epitaph {
            epitaph.headers(Binding::Amqp, &mut |name, value| {
                headers.insert(name.into(), AMQPValue::LongString(LongString::from(value)));
            });
        }
        lasting(&self.properties).with_headers(headers).with_delivery_mode(PERSISTENT)
    }

    fn table(&self) -> impl Iterator<Item = (&ShortString, &AMQPValue)> {
        self.properties.headers().iter().flat_map(FieldTable::inner)
    }
}

/// What a quorum queue counts of a message, and says in its headers: nothing of another queue.
const COUNTERS: [&str; 2] = ["x-delivery-count", "x-acquired-count"];

/// Where else the broker puts a message: it has been there.
const COPIES: [&str; 2] = ["CC", "BCC"];

/// Whether a header is about the way that the message came.
fn is_of_the_way(name: &str) -> bool {
    COUNTERS.contains(&name) || COPIES.contains(&name)
}

/// The properties that a message has wherever it is: not who published it, for the broker takes it from
/// nobody else, and not how long it lasts, for then a letter would be gone.
fn lasting(properties: &BasicProperties) -> BasicProperties {
    let mut lasting = BasicProperties::default();
    macro_rules! keep {
        ($($property:ident by $set:ident,)*) => {$(
            if let Some(value) = properties.$property().clone() {
                lasting = lasting.$set(value);
            }
        )*};
    }
    keep! {
        content_type by with_content_type,
        content_encoding by with_content_encoding,
        priority by with_priority,
        correlation_id by with_correlation_id,
        reply_to by with_reply_to,
        message_id by with_message_id,
        timestamp by with_timestamp,
        kind by with_type,
        app_id by with_app_id,
        cluster_id by with_cluster_id,
    }
    lasting
}

fn number(value: &AMQPValue) -> Option<u64> {
    match value {
        AMQPValue::LongLongInt(number) => u64::try_from(*number).ok(),
        AMQPValue::LongInt(number) => u64::try_from(*number).ok(),
        AMQPValue::LongUInt(number) => Some(u64::from(*number)),
        AMQPValue::ShortInt(number) => u64::try_from(*number).ok(),
        AMQPValue::ShortUInt(number) => Some(u64::from(*number)),
        AMQPValue::ShortShortInt(number) => u64::try_from(*number).ok(),
        AMQPValue::ShortShortUInt(number) => Some(u64::from(*number)),
        _ => None,
    }
}
