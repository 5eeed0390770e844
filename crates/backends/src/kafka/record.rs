//! A message as a record of Kafka: key, headers, value.

use bytes::Bytes;
use rdkafka::message::{Header, OwnedHeaders};
use semel_core::wire::{Binding, Format};
use semel_core::{Failure, Message};

use super::error;
use super::stamp;

/// A message, ready to be sent.
#[derive(Clone)]
pub(super) struct Record {
    /// Its place in the batch of the caller.
    pub(super) place: usize,
    pub(super) headers: OwnedHeaders,
    pub(super) value: Bytes,
    /// Bytes on the wire, if it travels alone and is not compressed.
    pub(super) size: usize,
}

impl Record {
    /// Makes a record, if it can be one, with a [stamp] if it gets one.
    ///
    /// # Errors
    /// `Refused` when the name of its topic is not legal, or it is larger than `limit`.
    pub(super) fn new(
        place: usize,
        message: &Message,
        format: Format,
        limit: usize,
        stamp: Option<&str>,
    ) -> Result<Self, Failure> {
        let topic = message.topic.as_str();
        if !is_legal_topic(topic) {
            return Err(error::topic_name(topic));
        }
        let value = format.body(&message.event);
        let mut headers = Some(OwnedHeaders::new_with_capacity(16));
        let (mut count, mut bytes) = (0, field(message.key()) + field(&value));
        let mut add = |key: &str, value: &str| {
            count += 1;
            bytes += field(key) + field(value);
            let header = Header { key, value: Some(value) };
            headers = headers.take().map(|headers| headers.insert(header));
        };
        format.headers(&message.event, Binding::Kafka, &mut add);
        if let Some(stamp) = stamp {
            add(stamp::HEADER, stamp);
        }
        let size = batch_of_one(bytes + varint(count));
        if size > limit {
            return Err(error::too_large(topic, size, limit));
        }
        Ok(Self { place, headers: headers.unwrap_or_default(), value, size })
    }
}

pub(super) fn is_legal_topic(name: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=249).contains(&name.len()) && name.bytes().all(legal) && name != "." && name != ".."
}

/// A record batch with one record: what the limit of a topic is compared with.
fn batch_of_one(content: usize) -> usize {
    const BATCH_HEADER: usize = 61;
    const ATTRIBUTES_AND_DELTAS: usize = 3;
    let record = content + ATTRIBUTES_AND_DELTAS;
    BATCH_HEADER + varint(record) + record
}

/// A field with its length before it.
fn field(content: impl AsRef<[u8]>) -> usize {
    let length = content.as_ref().len();
    varint(length) + length
}

/// Bytes of a number, seven bits each, with one bit for the sign.
fn varint(number: usize) -> usize {
    let bits = usize::BITS - (number << 1 | 1).leading_zeros();
    bits.div_ceil(7) as usize
}

#[cfg(test)]
mod tests {
    use semel_core::{Event, Fault};

    use super::*;

    #[test]
    fn a_number_takes_seven_bits_to_the_byte() {
        for (number, bytes) in [(0, 1), (63, 1), (64, 2), (8191, 2), (8192, 3), (1 << 20, 4)] {
            assert_eq!(varint(number), bytes, "{number}");
        }
    }

    #[test]
    fn names_of_topics_are_checked() {
        for name in ["", ".", "..", "a b", "grün", "a/b", "nul\0", &"x".repeat(250)] {
            let message = Message::first(name, Event::new("order", "42", "OrderPlaced"));
            let failure = Record::new(0, &message, Format::Plain, usize::MAX, None).err().unwrap();
            let verdict = (failure.fault(), failure.code());
            assert_eq!(verdict, (Fault::Refused, "E-KAFKA-TOPIC-NAME"), "{name}");
        }
        assert!(is_legal_topic("Order_events-1.v2"));
    }
}
