//! An event as an MQTT message, and what MQTT cannot carry.

use bytes::Bytes;
use rumqttc::mqttbytes::v4;
use rumqttc::v5::mqttbytes::v5;
use semel_core::wire::{Binding, Format};
use semel_core::{Event, Failure, Message};

use super::config::{MqttConfig, MqttVersion};
use super::error::{bad_header, no_topic, too_large};
use super::packet::Publish;

/// Encodes a message for a broker that takes packets of this size.
///
/// # Errors
/// `Refused` when MQTT or the broker cannot carry it.
pub(super) fn encode(
    message: &Message,
    config: &MqttConfig,
    largest: usize,
) -> Result<Publish, Failure> {
    let Message { topic, event, .. } = message;
    let topic = topic.as_str();
    check_topic(topic)?;
    let (format, payload) = (config.format, config.format.body(event));
    let publish = match config.version {
        MqttVersion::V5 => Publish::V5(v5::Publish {
            dup: false,
            qos: rumqttc::v5::mqttbytes::QoS::AtLeastOnce,
            retain: config.retain,
            topic: Bytes::copy_from_slice(topic.as_bytes()),
            pkid: 0,
            payload,
            properties: Some(properties(event, format)?),
        }),
        MqttVersion::V3 => Publish::V3(v4::Publish {
            dup: false,
            qos: rumqttc::mqttbytes::QoS::AtLeastOnce,
            retain: config.retain,
            topic: topic.to_owned(),
            pkid: 0,
            payload,
        }),
    };
    match publish.size() {
        size if size > largest => Err(too_large(size, largest)),
        _ => Ok(publish),
    }
}

fn properties(event: &Event, format: Format) -> Result<v5::PublishProperties, Failure> {
    let content_type = format.content_type(event);
    let mut properties = v5::PublishProperties {
        content_type: Some(content_type.to_owned()),
        ..v5::PublishProperties::default()
    };
    let mut wrong = (!is_text(content_type)).then(|| bad_header("content-type"));
    format.headers(event, Binding::Mqtt, &mut |name, value| {
        if is_text(name) && is_text(value) {
            properties.user_properties.push((name.to_owned(), value.to_owned()));
        } else {
            wrong = Some(bad_header(name));
        }
    });
    wrong.map_or(Ok(properties), Err)
}

/// A topic may come from the fields of an event: it must not be a filter nor one of the broker's own,
/// and must not make the broker end the connection.
fn check_topic(topic: &str) -> Result<(), Failure> {
    let why = if topic.is_empty() {
        "it is empty"
    } else if topic.contains(['+', '#']) {
        "it has a wildcard"
    } else if topic.starts_with('$') {
        "it begins with $, which is the broker's own"
    } else if !is_text(topic) {
        "it has a control character, or more than 65535 bytes"
    } else {
        return Ok(());
    };
    Err(no_topic(topic, why))
}

/// Whether brokers take it as a string: a length of two bytes, and no control characters (MQTT 5,
/// 1.5.4: a receiver may end the connection for them) nor what Unicode calls no characters.
fn is_text(text: &str) -> bool {
    let is_character = |char: char| {
        let code = u32::from(char);
        !char.is_control() && code & 0xfffe != 0xfffe && !(0xfdd0..=0xfdef).contains(&code)
    };
    text.len() <= usize::from(u16::MAX) && text.chars().all(is_character)
}

#[cfg(test)]
mod tests {
    use semel_core::Fault;

    use super::*;

    fn sent(topic: &str, event: Event) -> Result<Publish, Failure> {
        let config = MqttConfig::new("mqtt://broker").unwrap();
        encode(&Message::first(topic, event), &config, 100_000)
    }

    fn event() -> Event {
        Event::new("order", "42", "OrderPlaced")
    }

    fn assert_refused(outcome: Result<Publish, Failure>, code: &str, why: &str) {
        let failure = outcome.err().unwrap();
        assert_eq!((failure.fault(), failure.code()), (Fault::Refused, code));
        assert!(failure.to_string().contains(why), "{failure}");
    }

    #[test]
    fn what_is_no_topic_is_refused() {
        let long = "x".repeat(65_536);
        let cases = [
            ("", "empty"),
            ("shop/+/placed", "wildcard"),
            ("shop/#", "wildcard"),
            ("$SYS/broker", "broker's own"),
            ("shop\0", "control"),
            ("shop\n", "control"),
            ("shop\u{fffe}", "control"),
            (long.as_str(), "65535"),
        ];
        for (topic, why) in cases {
            assert_refused(sent(topic, event()), "E-MQTT-TOPIC", why);
        }
        assert!(sent("Bestellung-ß/日本//a b$", event()).is_ok());
    }

    #[test]
    fn what_mqtt_cannot_carry_is_refused() {
        let long = "x".repeat(65_536);
        let cases = [
            event().with_bytes("text/plain\r\nevil: two", ""),
            event().with_header("note", "a\nb"),
            event().with_header("a\0", "b"),
            event().with_header("note", long.clone()),
        ];
        for event in cases {
            assert_refused(sent("t", event), "E-MQTT-HEADER", "header");
        }
        let large = event().with_bytes("text/plain", "x".repeat(100_000));
        assert_refused(sent("t", large), "E-MQTT-TOO-LARGE", "the limit is 100000");
    }

    #[test]
    fn its_size_is_known_before_it_has_a_number() {
        let mut output = bytes::BytesMut::new();
        let publish = sent("t", event().with_header("a", "b")).unwrap();
        let size = publish.size();
        publish.write(7, &mut output).unwrap();
        assert_eq!(output.len(), size);
    }
}
