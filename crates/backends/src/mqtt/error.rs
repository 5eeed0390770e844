//! Which error of MQTT is which [`Fault`](semel_core::Fault).
//!
//! | what the broker says | fault | code |
//! |---|---|---|
//! | no connection, connection lost, no answer to a ping; 0x88, 0x89, 0x8b, 0x8e, 0x9c, 0x9f | unavailable | `E-MQTT-DOWN` |
//! | no answer in time | unavailable | `E-MQTT-TIMEOUT` |
//! | 0x97 quota exceeded | unavailable | `E-MQTT-QUOTA` |
//! | 0x90 topic name invalid | refused | `E-MQTT-TOPIC` |
//! | 0x95 packet too large | refused | `E-MQTT-TOO-LARGE` |
//! | 0x99 payload format invalid | refused | `E-MQTT-PAYLOAD` |
//! | 0x10 no matching subscribers, where one is required | transient | `E-MQTT-NO-SUBSCRIBER` |
//! | 0x80, 0x83, 0x91, any other refusal of a message | transient | `E-MQTT-REJECTED` |
//! | 0x86, 0x87, 0x8a, 0x8c: user, password, rights; 3.1.1: 4, 5 | misconfigured | `E-MQTT-ACCESS` |
//! | 0x84 protocol version; 3.1.1: 1 | misconfigured | `E-MQTT-VERSION` |
//! | 0x85 client identifier; 3.1.1: 2; 0x9d server moved; no QoS 1; no retained messages | misconfigured | `E-MQTT-BROKER` |
//! | the connection is ended for what was sent: 0x81, 0x82, 0x90, 0x93, 0x95, 0x99, 0x9a, 0x9b | misconfigured | `E-MQTT-BROKER` |
//! | the certificate is not trusted, a file cannot be read | misconfigured | `E-MQTT-TLS` |

use std::error::Error;
use std::io;
use std::time::Duration;

use semel_core::{Failure, Fault};

use super::config::MqttVersion;

const NO_SUBSCRIBER: u8 = 0x10;

/// Whether an acknowledgement says that the broker has the message.
pub(super) fn is_taken(reason: u8, require_subscriber: bool) -> bool {
    reason == 0 || reason == NO_SUBSCRIBER && !require_subscriber
}

/// What an acknowledgement says about a message.
pub(super) fn judge(reason: u8, topic: &str, require_subscriber: bool) -> Result<(), Failure> {
    if is_taken(reason, require_subscriber) {
        return Ok(());
    }
    let (fault, code, why, fix) = match reason {
        NO_SUBSCRIBER => (
            Fault::Transient,
            "E-MQTT-NO-SUBSCRIBER",
            "nobody subscribes to it",
            "subscribe to the topic, or remove require_subscriber",
        ),
        0x87 => (Fault::Misconfigured, "E-MQTT-ACCESS", "the user may not publish there", ACCESS),
        0x90 => (
            Fault::Refused,
            "E-MQTT-TOPIC",
            "the broker takes no such topic",
            "correct the topic, or the broker's rules for it",
        ),
        0x95 => (
            Fault::Refused,
            "E-MQTT-TOO-LARGE",
            "the message is larger than the broker takes",
            "store the content elsewhere, or raise the broker's limit",
        ),
        0x97 => (
            Fault::Unavailable,
            "E-MQTT-QUOTA",
            "a quota of the broker is used up",
            "raise the quota, or publish less",
        ),
        0x99 => (
            Fault::Refused,
            "E-MQTT-PAYLOAD",
            "the payload is not what the broker expects there",
            "correct the payload, or the broker's rules for it",
        ),
        _ => (
            Fault::Transient,
            "E-MQTT-REJECTED",
            "the broker did not take it",
            "see the log of the broker",
        ),
    };
    let what = format!("MQTT: cannot publish to {topic:?}: {why} (reason 0x{reason:02x})");
    Err(Failure::new(fault, code, what).with_fix(fix))
}

/// Why the broker takes no connection.
pub(super) fn declined(version: MqttVersion, reason: u8) -> Failure {
    let reason = match (version, reason) {
        (MqttVersion::V3, 1) => 0x84,
        (MqttVersion::V3, 2) => 0x85,
        (MqttVersion::V3, 3) => 0x88,
        (MqttVersion::V3, 4) => 0x86,
        (MqttVersion::V3, 5) => 0x87,
        // Brokers that do not know MQTT 5 answer as MQTT 3.1.1 does.
        (MqttVersion::V5, 1) => 0x84,
        (_, reason) => reason,
    };
    by_reason("the broker takes no connection", reason)
}

/// Why the broker ended the connection.
pub(super) fn ended_by_broker(reason: u8) -> Failure {
    by_reason("the broker ended the connection", reason)
}

fn by_reason(what: &str, reason: u8) -> Failure {
    let (fault, code, why, fix) = match reason {
        0x86 | 0x87 | 0x8a | 0x8c => {
            (Fault::Misconfigured, "E-MQTT-ACCESS", "it refuses the user", ACCESS)
        }
        0x84 => (
            Fault::Misconfigured,
            "E-MQTT-VERSION",
            "it does not speak this version of MQTT",
            "set version = 3, or 5",
        ),
        0x85 => (
            Fault::Misconfigured,
            "E-MQTT-BROKER",
            "it refuses the client_id",
            "set a client_id that the broker allows",
        ),
        0x9d => (
            Fault::Misconfigured,
            "E-MQTT-BROKER",
            "it has moved",
            "give the URL of the new broker",
        ),
        0x81 | 0x82 | 0x90 | 0x93 | 0x95 | 0x99 | 0x9a | 0x9b => (
            Fault::Misconfigured,
            "E-MQTT-BROKER",
            "it cannot take what was sent",
            "see the log of the broker; set max_message_bytes or max_in_flight to its limits",
        ),
        0x8e => (
            Fault::Unavailable,
            "E-MQTT-DOWN",
            "somebody else came with the same client_id",
            "give every relay a client_id of its own, or none",
        ),
        0x97 => (
            Fault::Unavailable,
            "E-MQTT-QUOTA",
            "a quota of the broker is used up",
            "raise the quota, or publish less",
        ),
        _ => (Fault::Unavailable, "E-MQTT-DOWN", "it is not ready", DOWN),
    };
    Failure::new(fault, code, format!("MQTT: {what}: {why} (reason 0x{reason:02x})")).with_fix(fix)
}

const ACCESS: &str = "check user and password, and the broker's access rules for the topic";
const DOWN: &str = "check that the broker runs and that host and port of the URL are right";

pub(super) fn down(what: &str) -> Failure {
    Failure::unavailable("E-MQTT-DOWN", format!("MQTT: {what}")).with_fix(DOWN)
}

/// An error of the connection. TLS reports what it does not trust as invalid data.
pub(super) fn lost(what: &str, error: io::Error) -> Failure {
    if error.kind() == io::ErrorKind::InvalidData {
        return tls(what, error);
    }
    down(what).with_source(error)
}

pub(super) fn tls(what: &str, error: impl Error + Send + Sync + 'static) -> Failure {
    Failure::misconfigured("E-MQTT-TLS", format!("MQTT: {what}"))
        .with_source(error)
        .with_fix("check that the port speaks TLS and that ca_file signs its certificate")
}

pub(super) fn timed_out(limit: Duration) -> Failure {
    let what = format!("MQTT: no answer within {limit:?}");
    Failure::unavailable("E-MQTT-TIMEOUT", what)
        .with_fix("check the load of the broker and the network, or raise the timeout")
}

pub(super) fn lacking(what: &str) -> Failure {
    Failure::misconfigured("E-MQTT-BROKER", format!("MQTT: the broker has no {what}"))
        .with_fix("allow it in the broker, or use another one")
}

pub(super) fn no_topic(topic: &str, why: &str) -> Failure {
    let shown: String = topic.chars().take(100).collect();
    Failure::refused("E-MQTT-TOPIC", format!("MQTT: {shown:?} is no topic: {why}"))
        .with_fix("correct the pipeline's topic, or what the event puts into it")
}

pub(super) fn bad_header(name: &str) -> Failure {
    let shown: String = name.chars().take(100).collect();
    let what =
        format!("MQTT: the header {shown:?} has a control character, or more than 65535 bytes");
    Failure::refused("E-MQTT-HEADER", what).with_fix("use cloudevents-structured, or other headers")
}

pub(super) fn too_large(size: usize, limit: usize) -> Failure {
    let what = format!("MQTT: a message of {size} bytes, the limit is {limit}");
    Failure::refused("E-MQTT-TOO-LARGE", what)
        .with_fix("store the content elsewhere, or raise the broker's limit and max_message_bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(failure: &Failure) -> (Fault, &'static str) {
        assert!(failure.fix().is_some(), "{failure}");
        (failure.fault(), failure.code())
    }

    #[test]
    fn every_reason_of_a_connection_has_its_line() {
        use Fault::{Misconfigured, Unavailable};
        let cases = [
            (Misconfigured, "E-MQTT-ACCESS", [0x86, 0x87, 0x8a, 0x8c].as_slice()),
            (Misconfigured, "E-MQTT-VERSION", &[0x84]),
            (
                Misconfigured,
                "E-MQTT-BROKER",
                &[0x81, 0x82, 0x85, 0x90, 0x93, 0x95, 0x99, 0x9a, 0x9b, 0x9d],
            ),
            (Unavailable, "E-MQTT-QUOTA", &[0x97]),
            (Unavailable, "E-MQTT-DOWN", &[0x88, 0x89, 0x8b, 0x8d, 0x8e, 0x9c, 0x9f]),
        ];
        for (fault, code, reasons) in cases {
            for reason in reasons {
                assert_eq!(told(&ended_by_broker(*reason)), (fault, code), "0x{reason:02x}");
                assert_eq!(told(&declined(MqttVersion::V5, *reason)), (fault, code));
            }
        }
        let old = [
            (1, (Misconfigured, "E-MQTT-VERSION")),
            (2, (Misconfigured, "E-MQTT-BROKER")),
            (3, (Unavailable, "E-MQTT-DOWN")),
            (4, (Misconfigured, "E-MQTT-ACCESS")),
            (5, (Misconfigured, "E-MQTT-ACCESS")),
        ];
        for (code, expected) in old {
            assert_eq!(told(&declined(MqttVersion::V3, code)), expected, "{code}");
        }
    }
}
