//! Which error of NATS is which [`Fault`](semel_core::Fault).
//!
//! | what the server or the client says | fault | code |
//! |---|---|---|
//! | no connection, connection lost; JetStream out of memory or disk, no leader, offline | unavailable | `E-NATS-DOWN` |
//! | no acknowledgement in time | unavailable | `E-NATS-TIMEOUT` |
//! | the topic is no subject, or one of the server's own | refused | `E-NATS-SUBJECT` |
//! | the content type has a line break | refused | `E-NATS-HEADER` |
//! | larger than the server's `max_payload` or the stream's `max_msg_size` | refused | `E-NATS-TOO-LARGE` |
//! | the stream is full and discards what is new | unavailable | `E-NATS-STREAM-FULL` |
//! | the stream knows the id of a message that it has not stored | transient, after a while | `E-NATS-IN-DOUBT` |
//! | any other error that names the message | transient | `E-NATS-REJECTED` |
//! | no stream takes the subject | misconfigured | `E-NATS-STREAM-MISSING` |
//! | dead letters would come back | misconfigured | `E-NATS-DEAD` |
//! | the stream or consumer cannot be made; it is sealed; no JetStream | misconfigured | `E-NATS-STREAM` |
//! | user, password, token or rights are wrong | misconfigured | `E-NATS-ACCESS` |
//! | the certificate is not trusted, or a file cannot be read | misconfigured | `E-NATS-TLS` |

use std::error::Error;
use std::io;
use std::time::Duration;

use async_nats::jetstream::context::{
    ConsumerInfoError, ConsumerInfoErrorKind, CreateStreamError, CreateStreamErrorKind,
    GetStreamByNameError, GetStreamByNameErrorKind, GetStreamError, GetStreamErrorKind,
    PublishError, PublishErrorKind, RequestError, RequestErrorKind,
};
use async_nats::jetstream::publish::PublishAck;
use async_nats::jetstream::stream::{
    ConsumerError, ConsumerErrorKind, DeleteMessageError, DeleteMessageErrorKind, RawMessageError,
    RawMessageErrorKind,
};
use async_nats::jetstream::{self, ErrorCode};
use async_nats::{ConnectError, ConnectErrorKind};
use semel_core::{Failure, Fault};

/// Why no connection could be made.
pub(super) fn connecting(error: ConnectError) -> Failure {
    let verdict = match error.kind() {
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => ACCESS,
        ConnectErrorKind::Tls => TLS,
        ConnectErrorKind::Io if is_distrust(&error) => TLS,
        ConnectErrorKind::ServerParse
        | ConnectErrorKind::Dns
        | ConnectErrorKind::TimedOut
        | ConnectErrorKind::Io
        | ConnectErrorKind::MaxReconnects => DOWN,
    };
    failure(verdict, "cannot connect", error)
}

/// What rustls says of a certificate comes as an error of the connection.
fn is_distrust(error: &ConnectError) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
    cause.is_some_and(|cause| cause.kind() == io::ErrorKind::InvalidData)
}

/// Why a message was not acknowledged. A subject without a stream is looked at elsewhere.
pub(super) fn publishing(subject: &str, error: PublishError) -> Failure {
    let verdict = match error.kind() {
        PublishErrorKind::MaxPayloadExceeded => TOO_LARGE,
        PublishErrorKind::Other => code_of(&error).map_or(DOWN, by_code),
        PublishErrorKind::TimedOut => SLOW,
        PublishErrorKind::WrongLastMessageId | PublishErrorKind::WrongLastSequence => REJECTED,
        PublishErrorKind::StreamNotFound
        | PublishErrorKind::BrokenPipe
        | PublishErrorKind::MaxAckPending => DOWN,
    };
    let failure = failure(verdict, &format!("cannot publish to {subject:?}"), error);
    if verdict == IN_DOUBT { failure.with_retry_after(IN_DOUBT_FOR) } else { failure }
}

/// Whether a message was larger than the server or the stream takes.
pub(super) fn is_too_large(failure: &Failure) -> bool {
    failure.code() == TOO_LARGE.1
}

/// Whether an acknowledgement says that the message is stored. On a stream with replicas the leader
/// may know the id of a message that was turned down, or is not stored yet: some versions acknowledge
/// it all the same, as a repetition of what has no sequence; later ones have an error for it.
pub(super) fn stored(subject: &str, ack: &PublishAck) -> Result<(), Failure> {
    if ack.sequence > 0 {
        return Ok(());
    }
    let (fault, code, fix) = IN_DOUBT;
    let what =
        format!("NATS: {:?} knows a message to {subject:?}, and has not stored it", ack.stream);
    Err(Failure::new(fault, code, what).with_fix(fix).with_retry_after(IN_DOUBT_FOR))
}

/// With the schedule for brokers, five attempts then take longer than the two minutes for which a
/// stream knows an id unless it says else.
const IN_DOUBT_FOR: Duration = Duration::from_secs(30);

/// Why JetStream gave no answer to a question.
pub(super) fn asking(what: &str, error: RequestError) -> Failure {
    let verdict = if error.kind() == RequestErrorKind::NoResponders { STREAM } else { DOWN };
    failure(verdict, &format!("cannot {what}"), error)
}

/// Why JetStream said no to something else than a message.
pub(super) fn declined(what: &str, said: jetstream::Error) -> Failure {
    let verdict = by_code(said.error_code());
    let verdict = if verdict.0 == Fault::Unavailable { DOWN } else { STREAM };
    failure(verdict, &format!("cannot {what}"), said)
}

/// Why a stream could not be made.
pub(super) fn making(stream: &str, error: CreateStreamError) -> Failure {
    let what = format!("make the stream {stream:?}");
    match error.kind() {
        CreateStreamErrorKind::JetStream(said) => declined(&what, said),
        CreateStreamErrorKind::TimedOut
        | CreateStreamErrorKind::Response
        | CreateStreamErrorKind::ResponseParse => failure(DOWN, &format!("cannot {what}"), error),
        _ => failure(STREAM, &format!("cannot {what}"), error),
    }
}

/// Why a stream could not be had.
pub(super) fn finding(stream: &str, error: GetStreamError) -> Failure {
    let what = format!("find the stream {stream:?}");
    match error.kind() {
        GetStreamErrorKind::JetStream(said) => declined(&what, said),
        GetStreamErrorKind::Request => failure(DOWN, &format!("cannot {what}"), error),
        _ => failure(STREAM, &format!("cannot {what}"), error),
    }
}

/// Why nobody knows which stream takes a subject.
pub(super) fn looking(subject: &str, error: GetStreamByNameError) -> Failure {
    let what = format!("find the stream of {subject:?}");
    match error.kind() {
        GetStreamByNameErrorKind::JetStream(said) => declined(&what, said),
        GetStreamByNameErrorKind::Request => failure(DOWN, &format!("cannot {what}"), error),
        _ => failure(STREAM, &format!("cannot {what}"), error),
    }
}

/// Why a stream could not be read.
pub(super) fn reading(subject: &str, error: RawMessageError) -> Failure {
    let what = format!("read {subject:?}");
    match error.kind() {
        RawMessageErrorKind::JetStream(said) => declined(&what, said),
        _ => failure(DOWN, &format!("cannot {what}"), error),
    }
}

/// Why a message could not be deleted; nothing, if it was gone already.
pub(super) fn deleting(stream: &str, error: DeleteMessageError) -> Result<(), Failure> {
    let what = format!("delete from the stream {stream:?}");
    match error.kind() {
        DeleteMessageErrorKind::JetStream(said)
            if [ErrorCode::SEQUENCE_NOT_FOUND, ErrorCode::NO_MESSAGE_FOUND]
                .contains(&said.error_code()) =>
        {
            Ok(())
        }
        DeleteMessageErrorKind::JetStream(said) => Err(declined(&what, said)),
        _ => Err(failure(DOWN, &format!("cannot {what}"), error)),
    }
}

/// Why a consumer could not be made.
pub(super) fn joining(consumer: &str, error: ConsumerError) -> Failure {
    let what = format!("make the consumer {consumer:?}");
    match error.kind() {
        ConsumerErrorKind::JetStream(said) => declined(&what, said),
        ConsumerErrorKind::TimedOut | ConsumerErrorKind::Request | ConsumerErrorKind::Other => {
            failure(DOWN, &format!("cannot {what}"), error)
        }
        _ => failure(STREAM, &format!("cannot {what}"), error),
    }
}

/// Why nothing comes from a consumer.
pub(super) fn missing(error: ConsumerInfoError) -> Failure {
    use ConsumerInfoErrorKind::{NotFound, StreamNotFound};
    let verdict = if matches!(error.kind(), NotFound | StreamNotFound) { STREAM } else { DOWN };
    failure(verdict, "the consumer cannot be found", error)
}

/// Why an acknowledgement was not taken.
pub(super) fn acknowledging(error: async_nats::RequestError) -> Failure {
    failure(DOWN, "cannot acknowledge", error)
}

/// Dead letters would be given out again.
pub(super) fn round_trip(subject: &str, stream: &str) -> Failure {
    let what = format!("NATS: dead letters to {subject:?} would come back, from {stream:?}");
    Failure::misconfigured("E-NATS-DEAD", what)
        .with_fix("set dead_letters to a subject of another stream")
}

fn failure(
    (fault, code, fix): Verdict,
    what: &str,
    error: impl Error + Send + Sync + 'static,
) -> Failure {
    Failure::new(fault, code, format!("NATS: {what}")).with_source(error).with_fix(fix)
}

pub(super) fn down(what: &str) -> Failure {
    let (fault, code, fix) = DOWN;
    Failure::new(fault, code, format!("NATS: {what}")).with_fix(fix)
}

pub(super) fn denied(what: &str) -> Failure {
    let (fault, code, fix) = ACCESS;
    Failure::new(fault, code, format!("NATS: {what}")).with_fix(fix)
}

pub(super) fn unreadable(what: &str, error: io::Error) -> Failure {
    Failure::misconfigured("E-NATS-TLS", format!("NATS: cannot read {what}"))
        .with_source(error)
        .with_fix("give the path of a file that this user may read")
}

pub(super) fn timed_out(limit: Duration) -> Failure {
    let (fault, code, fix) = SLOW;
    Failure::new(fault, code, format!("NATS: no answer within {limit:?}")).with_fix(fix)
}

pub(super) fn stream_missing(subject: &str) -> Failure {
    let first = subject.split('.').next().unwrap_or(subject);
    Failure::misconfigured(
        "E-NATS-STREAM-MISSING",
        format!("NATS: no stream takes the subject {subject:?}"),
    )
    .with_fix(format!(
        "run `nats stream add {} --subjects '{first}.>'`, or set create_stream of the sink",
        first.to_uppercase()
    ))
}

pub(super) fn no_subject(topic: &str, why: &str) -> Failure {
    let what = format!("NATS: the topic {topic:?} is no subject: {why}");
    Failure::refused("E-NATS-SUBJECT", what).with_fix("correct the topic of the pipeline")
}

pub(super) fn bad_header(name: &str) -> Failure {
    let what = format!("NATS: the header {name:?} has a line break");
    Failure::refused("E-NATS-HEADER", what).with_fix("correct the content type of the event")
}

type Verdict = (Fault, &'static str, &'static str);

const DOWN: Verdict = (
    Fault::Unavailable,
    "E-NATS-DOWN",
    "check that the server runs, can be reached, and has memory and disk space left",
);
const SLOW: Verdict = (
    Fault::Unavailable,
    "E-NATS-TIMEOUT",
    "check the load of the server and the network, or raise the timeout",
);
const TOO_LARGE: Verdict = (
    Fault::Refused,
    "E-NATS-TOO-LARGE",
    "store the content elsewhere, or raise max_payload of the server or max_msg_size of the stream",
);
/// Never about the message: it waits, and uses up no attempt.
const FULL: Verdict = (
    Fault::Unavailable,
    "E-NATS-STREAM-FULL",
    "consume or purge, or raise the limits of the stream",
);
/// It is no outage: other messages are stored meanwhile, and need not wait.
const IN_DOUBT: Verdict = (
    Fault::Transient,
    "E-NATS-IN-DOUBT",
    "nothing, it is tried again; if it lasts, make duplicate_window of the stream shorter",
);
const REJECTED: Verdict =
    (Fault::Transient, "E-NATS-REJECTED", "look into the log of the server for this stream");
const STREAM: Verdict = (
    Fault::Misconfigured,
    "E-NATS-STREAM",
    "check that JetStream is on (`nats-server -js`) and what `nats stream info` says",
);
const ACCESS: Verdict = (
    Fault::Misconfigured,
    "E-NATS-ACCESS",
    "check user, password or token; the user needs to publish to the topics and $JS.API.>, and to \
     subscribe to _INBOX.>",
);
const TLS: Verdict =
    (Fault::Misconfigured, "E-NATS-TLS", "check that ca_file signs the server's certificate");

/// What the stream said to a message.
fn code_of(error: &PublishError) -> Option<ErrorCode> {
    error.source()?.downcast_ref::<jetstream::Error>().map(jetstream::Error::error_code)
}

fn by_code(code: ErrorCode) -> Verdict {
    match code {
        ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM | ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM => {
            TOO_LARGE
        }
        ErrorCode::STREAM_STORE_FAILED => FULL,
        ErrorCode::STREAM_DUPLICATE_MESSAGE_CONFLICT => IN_DOUBT,
        ErrorCode::ACCOUNT_RESOURCES_EXCEEDED
        | ErrorCode::INSUFFICIENT_RESOURCES
        | ErrorCode::MEMORY_RESOURCES_EXCEEDED
        | ErrorCode::STORAGE_RESOURCES_EXCEEDED
        | ErrorCode::CLUSTER_NOT_AVAILABLE
        | ErrorCode::CLUSTER_NOT_LEADER
        | ErrorCode::CLUSTER_NO_PEERS
        | ErrorCode::STREAM_OFFLINE
        | ErrorCode::STREAM_OFFLINE_REASON => DOWN,
        ErrorCode::JETSTREAM_NOT_ENABLED
        | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT
        | ErrorCode::STREAM_SEALED
        | ErrorCode::STREAM_NOT_FOUND => STREAM,
        _ => REJECTED,
    }
}

#[cfg(test)]
mod tests {
    use semel_core::Schedule;

    use super::*;

    fn said(code: u64) -> PublishError {
        let text = format!(r#"{{"code":400,"err_code":{code},"description":"said so"}}"#);
        let error: async_nats::jetstream::Error = serde_json::from_str(&text).unwrap();
        PublishError::with_source(PublishErrorKind::Other, error)
    }

    #[test]
    fn every_code_of_the_server_has_its_line() {
        let cases = [
            (10054, TOO_LARGE),
            (10097, TOO_LARGE),
            (10077, FULL),
            (10158, IN_DOUBT),
            (10023, DOWN),
            (10028, DOWN),
            (10047, DOWN),
            (10008, DOWN),
            (10118, DOWN),
            (10039, STREAM),
            (10076, STREAM),
            (10109, STREAM),
            (10001, REJECTED),
        ];
        for (code, expected) in cases {
            let failure = publishing("orders", said(code));
            let got = (failure.fault(), failure.code(), failure.fix().unwrap());
            assert_eq!(got, expected, "{code}");
            assert!(failure.to_string().contains("said so"), "{failure}");
        }
    }

    #[test]
    fn what_is_known_and_not_stored_is_tried_again_after_a_while() {
        let ack = |sequence| PublishAck { sequence, duplicate: true, ..PublishAck::default() };
        assert_eq!(stored("orders", &ack(1)), Ok(()));
        let schedule = Schedule::broker().without_jitter();
        for failure in [publishing("orders", said(10158)), stored("orders", &ack(0)).unwrap_err()] {
            assert_eq!((failure.fault(), failure.code()), (Fault::Transient, "E-NATS-IN-DOUBT"));
            let asked = failure.retry_after().unwrap();
            let waits = (1..schedule.attempts()).map_while(|one| schedule.delay_after(one, 0));
            let span: Duration = waits.map(|wait| wait.max(asked)).sum();
            assert!(span > Duration::from_secs(120), "{span:?}");
        }
    }

    #[test]
    fn what_the_client_says_itself_has_a_line() {
        let cases = [
            (PublishErrorKind::MaxPayloadExceeded, TOO_LARGE),
            (PublishErrorKind::TimedOut, SLOW),
            (PublishErrorKind::BrokenPipe, DOWN),
        ];
        for (kind, expected) in cases {
            let failure = publishing("orders", PublishError::new(kind));
            assert_eq!((failure.fault(), failure.code()), (expected.0, expected.1));
        }
        let tls = connecting(ConnectError::new(ConnectErrorKind::Tls));
        assert_eq!(tls.code(), "E-NATS-TLS");
    }
}
