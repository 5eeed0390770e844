//! Which error of RabbitMQ is which [`Fault`](semel_core::Fault).
//!
//! | what the broker or the client says | fault | code |
//! |---|---|---|
//! | no connection, connection lost, no heartbeat; 320 forced, 541 internal, any other hard error | unavailable | `E-RABBITMQ-DOWN` |
//! | no confirmation in time | unavailable | `E-RABBITMQ-TIMEOUT` |
//! | the connection is blocked: memory or disk alarm | unavailable | `E-RABBITMQ-BLOCKED` |
//! | the message is returned: no queue takes it; by the default exchange: there is none, also if it is asked for | refused | `E-RABBITMQ-UNROUTABLE` |
//! | the template of the exchange gives an empty name | refused | `E-RABBITMQ-EXCHANGE` |
//! | too large a body or header, too long a name | refused | `E-RABBITMQ-TOO-LARGE` |
//! | nack: a queue is full and rejects, or has no leader: never about the message | unavailable | `E-RABBITMQ-NACK` |
//! | 403 access refused, 530 not allowed | misconfigured | `E-RABBITMQ-ACCESS` |
//! | 404 not found | misconfigured | `E-RABBITMQ-MISSING` |
//! | 405 locked, 406 precondition failed | misconfigured | `E-RABBITMQ-MISMATCH` |
//! | the certificate is not trusted | misconfigured | `E-RABBITMQ-TLS` |

use std::io;
use std::time::Duration;

use lapin::ErrorKind;
use semel_core::{Failure, Fault};

/// Turns an error of lapin into a failure. `what` says what was being done.
pub(super) fn failure(what: &str) -> impl FnOnce(lapin::Error) -> Failure {
    move |error| {
        let (fault, code, fix) = match error.kind() {
            ErrorKind::ProtocolError(said) => by_reply(said.get_id(), said.get_message().as_str()),
            ErrorKind::IOError(error) if error.kind() == io::ErrorKind::InvalidData => TLS,
            _ => DOWN,
        };
        Failure::new(fault, code, format!("RabbitMQ: cannot {what}"))
            .with_source(error)
            .with_fix(fix)
    }
}

pub(super) fn timed_out(what: &str, limit: Duration) -> Failure {
    let what = format!("RabbitMQ: could not {what} within {limit:?}");
    Failure::unavailable("E-RABBITMQ-TIMEOUT", what)
        .with_fix("check the load of the broker and the network, or raise the timeout")
}

pub(super) fn blocked() -> Failure {
    let what = "RabbitMQ: the broker takes no messages now (memory or disk alarm)";
    Failure::unavailable("E-RABBITMQ-BLOCKED", what)
        .with_fix("run `rabbitmq-diagnostics alarms`, and make room")
}

pub(super) fn unroutable(exchange: &str, routing_key: &str) -> Failure {
    let (what, fix) = if exchange.is_empty() {
        let what = format!("RabbitMQ: there is no queue {routing_key:?}");
        (what, format!("declare the queue {routing_key:?}, or correct the topic"))
    } else {
        let what = format!("RabbitMQ: exchange {exchange:?} routes {routing_key:?} to no queue");
        (what, format!("bind a queue to {exchange:?} by {routing_key:?}, or correct the topic"))
    };
    Failure::refused(UNROUTABLE, what).with_fix(fix)
}

pub(super) fn no_exchange() -> Failure {
    let what = "RabbitMQ: the template of the exchange gives an empty name";
    Failure::refused("E-RABBITMQ-EXCHANGE", what).with_fix(
        "write |default:NAME in the template, or set the header when the event is written",
    )
}

pub(super) fn too_large(what: &str) -> Failure {
    Failure::refused("E-RABBITMQ-TOO-LARGE", format!("RabbitMQ: {what}"))
}

/// The broker sends nothing more: the queue is gone, perhaps.
pub(super) fn cancelled(queue: &str) -> Failure {
    let (fault, code, fix) = DOWN;
    Failure::new(fault, code, format!("RabbitMQ: the broker ended the reading of {queue:?}"))
        .with_fix(fix)
}

/// A dead letter that no queue takes: its message must not be passed by.
pub(super) fn not_buried(queue: &str) -> Failure {
    let what = format!("RabbitMQ: there is no queue {queue:?} for dead letters");
    Failure::misconfigured("E-RABBITMQ-MISSING", what)
        .with_fix("start the consumer again, which makes it; or make it yourself")
}

/// A queue of dead letters cannot be looked at.
pub(super) fn no_queue(queue: &str, error: lapin::Error) -> Failure {
    let failure = failure(&format!("look at the queue {queue:?}"))(error);
    match failure.code() {
        "E-RABBITMQ-MISSING" => failure.with_fix("name one of `rabbitmqctl list_queues`"),
        _ => failure,
    }
}

pub(super) fn rejected() -> Failure {
    let what = "RabbitMQ: a queue did not take the message (nack)";
    Failure::unavailable(NACK, what).with_fix(
        "check whether a queue with overflow = reject-publish is full, or a quorum queue has no leader",
    )
}

/// A queue that took nothing is there when it is asked for.
pub(super) fn was_away(queue: &str) -> Failure {
    let (fault, code, fix) = DOWN;
    let what = format!("RabbitMQ: the queue {queue:?} was away a moment ago");
    Failure::new(fault, code, what).with_fix(fix)
}

/// A queue says no.
pub(super) const NACK: &str = "E-RABBITMQ-NACK";
/// A message was returned.
pub(super) const UNROUTABLE: &str = "E-RABBITMQ-UNROUTABLE";

type Verdict = (Fault, &'static str, &'static str);

const DOWN: Verdict = (
    Fault::Unavailable,
    "E-RABBITMQ-DOWN",
    "check that the broker runs and that host and port of the URL are right",
);
const TLS: Verdict = (
    Fault::Misconfigured,
    "E-RABBITMQ-TLS",
    "check that the port speaks TLS and that ca_file signs its certificate",
);
const ACCESS: Verdict = (
    Fault::Misconfigured,
    "E-RABBITMQ-ACCESS",
    "check user, password and vhost; `rabbitmqctl set_permissions` gives the user write access to the \
     exchange, and configure and read access for what it declares",
);
const MISSING: Verdict = (
    Fault::Misconfigured,
    "E-RABBITMQ-MISSING",
    "make it with `rabbitmqadmin declare exchange name=NAME type=topic durable=true`, or set \
     declare_exchange",
);
const MISMATCH: Verdict = (
    Fault::Misconfigured,
    "E-RABBITMQ-MISMATCH",
    "declare it as it is (kind, durability), or remove the declaration",
);
const TOO_LARGE: Verdict = (
    Fault::Misconfigured,
    "E-RABBITMQ-MISMATCH",
    "set max_message_bytes to the broker's max_message_size, so that larger events are refused",
);

fn by_reply(code: u16, text: &str) -> Verdict {
    match code {
        // A queue or vhost whose node is away is "not found" too.
        404 | 530 if text.contains("down") => DOWN,
        // A message was not acknowledged for half an hour: the broker ends the channel.
        406 if text.contains("timed out") => DOWN,
        403 | 530 => ACCESS,
        404 => MISSING,
        406 if text.contains("larger than") => TOO_LARGE,
        405 | 406 => MISMATCH,
        _ => DOWN,
    }
}

#[cfg(test)]
mod tests {
    use lapin::protocol::AMQPError;

    use super::*;

    #[test]
    fn every_reply_has_its_line() {
        let cases = [
            (320, "CONNECTION_FORCED - broker forced connection closure", DOWN),
            (541, "INTERNAL_ERROR", DOWN),
            (501, "FRAME_ERROR", DOWN),
            (404, "NOT_FOUND - home node 'x' of durable queue 'q' is down or inaccessible", DOWN),
            (404, "NOT_FOUND - no exchange 'x' in vhost '/'", MISSING),
            (403, "ACCESS_REFUSED - Login was refused", ACCESS),
            (530, "NOT_ALLOWED - vhost x not found", ACCESS),
            (406, "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out", DOWN),
            (405, "RESOURCE_LOCKED", MISMATCH),
            (406, "PRECONDITION_FAILED - inequivalent arg 'type'", MISMATCH),
            (406, "PRECONDITION_FAILED - message size 9 is larger than configured max", TOO_LARGE),
        ];
        for (code, text, expected) in cases {
            let error = AMQPError::from_id(code, text.into()).unwrap();
            let failure = failure("publish")(ErrorKind::ProtocolError(error).into());
            let got = (failure.fault(), failure.code(), failure.fix().unwrap());
            assert_eq!(got, expected, "{code} {text}");
            assert!(failure.to_string().contains(text), "{failure}");
        }
    }

    #[test]
    fn what_the_client_says_itself_has_a_line() {
        let error = |kind| lapin::Error::from(io::Error::from(kind));
        let refused = failure("connect")(error(io::ErrorKind::ConnectionRefused));
        assert_eq!(refused.fault(), Fault::Unavailable);
        let certificate = failure("connect")(error(io::ErrorKind::InvalidData));
        assert_eq!(certificate.code(), "E-RABBITMQ-TLS");
        let silent = failure("publish")(ErrorKind::MissingHeartbeatError.into());
        assert_eq!(silent.code(), "E-RABBITMQ-DOWN");
    }
}
