//! An event as an AMQP message, and what AMQP cannot carry.

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use semel_core::wire::{Binding, Format};
use semel_core::{Event, Failure, Message};

use super::config::Exchange;
use super::error::{no_exchange, too_large};

/// A message that is ready to be sent.
pub(super) struct Outgoing {
    pub(super) address: Address,
    pub(super) properties: BasicProperties,
    pub(super) body: Bytes,
}

/// Where a message goes, and what it is recognised by when it comes back.
#[derive(Clone)]
pub(super) struct Address {
    pub(super) exchange: ShortString,
    pub(super) routing_key: ShortString,
    pub(super) id: ShortString,
}

/// What a message may measure on this connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// All properties and headers must fit into one frame: a larger one ends the connection.
    pub(super) frame_bytes: usize,
    pub(super) body_bytes: usize,
}

impl Outgoing {
    /// Encodes a message.
    ///
    /// # Errors
    /// `Refused` when AMQP or the broker cannot carry it.
    pub(super) fn encode(
        message: &Message,
        exchange: &Exchange,
        format: Format,
        limits: Limits,
    ) -> Result<Self, Failure> {
        const PERSISTENT: u8 = 2;
        let Message { topic, event, .. } = message;
        let exchange = exchange.of(event)?;
        let routing_key = short("the topic", topic.as_str())?;
        let content_type = short("the content type", format.content_type(event))?;
        let id = short("the id", &event.id.to_string())?;
        let body = format.body(event);
        if body.len() > limits.body_bytes {
            let (size, limit) = (body.len(), limits.body_bytes);
            return Err(too_large(&format!("a body of {size} bytes, the limit is {limit}"))
                .with_fix("store the content elsewhere, or raise max_message_bytes"));
        }
        let properties = BasicProperties::default()
            .with_content_type(content_type)
            .with_headers(headers(message, format)?)
            .with_delivery_mode(PERSISTENT)
            .with_message_id(id.clone());
        let size = frame_size(&properties);
        if size > limits.frame_bytes {
            let limit = limits.frame_bytes;
            return Err(too_large(&format!("headers of {size} bytes, the limit is {limit}"))
                .with_fix("put less into headers, or raise frame_max of the broker"));
        }
        Ok(Self { address: Address { exchange, routing_key, id }, properties, body })
    }
}

impl Exchange {
    fn of(&self, event: &Event) -> Result<ShortString, Failure> {
        match self {
            Self::Named(name) => Ok(name.clone()),
            Self::Of(template, _) => match template.render(event)? {
                // That would be the default exchange, where the topic is the name of a queue.
                name if name.is_empty() => Err(no_exchange()),
                name => short("the exchange", &name),
            },
        }
    }
}

fn headers(message: &Message, format: Format) -> Result<FieldTable, Failure> {
    let mut headers = FieldTable::default();
    let mut wrong = None;
    format.headers(&message.event, Binding::Amqp, &mut |name, value| match short(
        "the name of a header",
        name,
    ) {
        Ok(name) => {
            headers.insert(name, AMQPValue::LongString(LongString::from(value)));
        }
        Err(failure) => wrong = Some(failure),
    });
    wrong.map_or(Ok(headers), Err)
}

/// Bytes of the frame that carries the properties, as AMQP 0-9-1 writes it.
pub(super) fn frame_size(properties: &BasicProperties) -> usize {
    const FRAME: usize = 8;
    const CLASS_WEIGHT_BODY_SIZE_AND_FLAGS: usize = 14;
    let texts = [
        properties.content_type(),
        properties.content_encoding(),
        properties.correlation_id(),
        properties.reply_to(),
        properties.expiration(),
        properties.message_id(),
        properties.kind(),
        properties.user_id(),
        properties.app_id(),
        properties.cluster_id(),
    ];
    let texts = texts.into_iter().flatten().map(|text| 1 + text.as_str().len());
    FRAME
        + CLASS_WEIGHT_BODY_SIZE_AND_FLAGS
        + texts.sum::<usize>()
        + properties.headers().as_ref().map_or(0, table_size)
        + properties.delivery_mode().map_or(0, |_| 1)
        + properties.priority().map_or(0, |_| 1)
        + properties.timestamp().map_or(0, |_| 8)
}

fn table_size(table: &FieldTable) -> usize {
    let entry = |(name, value): (&ShortString, &AMQPValue)| 1 + name.as_str().len() + size(value);
    4 + table.inner().iter().map(entry).sum::<usize>()
}

/// Of its kind and itself.
fn size(value: &AMQPValue) -> usize {
    1 + match value {
        AMQPValue::Void => 0,
        AMQPValue::Boolean(_) | AMQPValue::ShortShortInt(_) | AMQPValue::ShortShortUInt(_) => 1,
        AMQPValue::ShortInt(_) | AMQPValue::ShortUInt(_) => 2,
        AMQPValue::LongInt(_) | AMQPValue::LongUInt(_) | AMQPValue::Float(_) => 4,
        AMQPValue::DecimalValue(_) => 5,
        AMQPValue::LongLongInt(_) | AMQPValue::Double(_) | AMQPValue::Timestamp(_) => 8,
        AMQPValue::ShortString(text) => 1 + text.as_str().len(),
        AMQPValue::LongString(text) => 4 + text.len(),
        AMQPValue::ByteArray(bytes) => 4 + bytes.as_slice().len(),
        AMQPValue::FieldArray(values) => 4 + values.as_slice().iter().map(size).sum::<usize>(),
        AMQPValue::FieldTable(table) => table_size(table),
    }
}

fn short(what: &str, text: &str) -> Result<ShortString, Failure> {
    ShortString::try_new(text)
        .map_err(|_| too_large(&format!("{what} has {} bytes, the limit is 255", text.len())))
}

#[cfg(test)]
mod tests {
    use lapin::protocol::basic::gen_properties;
    use semel_core::Fault;

    use super::*;

    const LIMITS: Limits = Limits { frame_bytes: 4096, body_bytes: 1000 };

    fn event() -> Event {
        Event::new("order", "42", "OrderPlaced")
    }

    fn encode(topic: &str, event: Event) -> Result<Outgoing, Failure> {
        to(&Exchange::Named(ShortString::default()), topic, event)
    }

    fn to(exchange: &Exchange, topic: &str, event: Event) -> Result<Outgoing, Failure> {
        Outgoing::encode(&Message::first(topic, event), exchange, Format::Plain, LIMITS)
    }

    #[test]
    fn an_exchange_may_come_from_the_event() {
        let text = "shop.{header.region|default:}{aggregate_type|upper}";
        let exchange = Exchange::Of(text.parse().unwrap(), text.to_owned());
        let address = to(&exchange, "t", event().with_header("region", "eu.")).unwrap().address;
        assert_eq!(address.exchange.as_str(), "shop.eu.ORDER");

        let text = "{header.region|default:}";
        let exchange = Exchange::Of(text.parse().unwrap(), text.to_owned());
        let failure = to(&exchange, "t", event()).err().unwrap();
        assert_eq!((failure.fault(), failure.code()), (Fault::Refused, "E-RABBITMQ-EXCHANGE"));
        let long = event().with_header("region", "x".repeat(256));
        let failure = to(&exchange, "t", long).err().unwrap();
        assert_eq!(failure.code(), "E-RABBITMQ-TOO-LARGE");
    }

    #[test]
    fn a_message_is_persistent_and_carries_its_id() {
        let event = event();
        let id = event.id.to_string();
        let outgoing = encode("orders", event).unwrap();
        assert_eq!(outgoing.properties.delivery_mode(), &Some(2));
        assert_eq!(outgoing.properties.message_id().as_ref().unwrap().as_str(), id);
        assert_eq!(outgoing.address.routing_key.as_str(), "orders");
    }

    #[test]
    fn what_amqp_cannot_carry_is_refused() {
        let long = "ü".repeat(128);
        let cases = [
            (encode(&long, event()), "the topic has 256 bytes"),
            (encode("t", event().with_bytes(long.clone(), "")), "the content type has 256 bytes"),
            (encode("t", event().with_bytes("text/plain", "x".repeat(1001))), "1001 bytes"),
            (encode("t", event().with_header("h", "x".repeat(4096))), "headers of"),
            (encode("t", event().with_header(long, "")), "the name of a header has"),
        ];
        for (outcome, expected) in cases {
            let failure = outcome.err().unwrap();
            assert_eq!(failure.fault(), Fault::Refused);
            assert!(failure.to_string().contains(expected), "{failure}");
        }
    }

    #[test]
    fn a_frame_is_as_large_as_the_client_writes_it() {
        let text = |text: &str| AMQPValue::LongString(LongString::from(text));
        let mut inner = FieldTable::default();
        inner.insert("reason".into(), text("rejected"));
        inner.insert("count".into(), AMQPValue::LongLongInt(1));
        let mut headers = FieldTable::default();
        headers.insert("tenant".into(), text("acme"));
        headers.insert("x-death".into(), AMQPValue::FieldArray(vec![inner.into()].into()));
        headers.insert("flag".into(), AMQPValue::Boolean(true));
        headers.insert("price".into(), AMQPValue::Double(0.5));
        headers.insert("bytes".into(), AMQPValue::ByteArray(vec![0; 3].into()));
        headers.insert("nothing".into(), AMQPValue::Void);
        let properties = BasicProperties::default()
            .with_content_type("text/plain".into())
            .with_correlation_id("7".into())
            .with_timestamp(1)
            .with_priority(2)
            .with_headers(headers);
        let mut buffer = [0; 1_000];
        let written =
            gen_properties(&properties)((&mut buffer[..]).into()).map(|it| it.position).unwrap();
        // Frame, class, weight and body size are around it.
        assert_eq!(frame_size(&properties), 8 + 12 + usize::try_from(written).unwrap());
    }
}
