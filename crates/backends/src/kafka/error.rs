//! Which error of librdkafka is which [`Fault`](semel_core::Fault). The table is in the
//! [module](super).

use std::time::Duration;

use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode as Code;
use semel_core::{Failure, Fault};

/// Whose fault it is that a message was not confirmed.
#[derive(Debug)]
pub(super) enum Blame {
    /// This record's, or that of another one in the same request: the broker does not say which.
    Record(Failure),
    /// The producer ended because of something else; it is to be sent again.
    Session,
    /// This, for certain.
    Clear(Failure),
}

/// Whose fault it is that a message to `topic` was not confirmed.
pub(super) fn blame(topic: &str, error: KafkaError) -> Blame {
    let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
    match code {
        code if SIZES.contains(&code) => Blame::Record(refused(
            "E-KAFKA-TOO-LARGE",
            format!("Kafka: the broker takes no message of this size for topic {topic:?}"),
            error,
            "raise max.message.bytes of the topic, or put a reference into the event",
        )),
        Code::InvalidRecord
        | Code::InvalidDifferentRecord
        | Code::InvalidTimestamp
        | Code::UnsupportedForMessageFormat
        | Code::InvalidMessage => Blame::Record(refused(
            "E-KAFKA-RECORD",
            format!("Kafka: the broker does not take this record for topic {topic:?}"),
            error,
            "look at the settings of the topic; the broker's log says more",
        )),
        Code::Fatal
        | Code::GaplessGuarantee
        | Code::PurgeQueue
        | Code::PurgeInflight
        | Code::OutOfOrderSequenceNumber
        | Code::DuplicateSequenceNumber
        | Code::UnknownProducerId
        | Code::InvalidProducerEpoch => Blame::Session,
        code => Blame::Clear(of_code(code, &format!("Kafka: cannot publish to {topic:?}"), error)),
    }
}

/// What is said of a request with a record that is too large.
const SIZES: [Code; 3] =
    [Code::MessageSizeTooLarge, Code::MessageBatchTooLarge, Code::InvalidMessageSize];

/// Whether a record that was sent alone was too large.
pub(super) fn is_about_size(error: &KafkaError) -> bool {
    error.rdkafka_error_code().is_some_and(|code| SIZES.contains(&code))
}

/// An error that has nothing to do with a single record.
pub(super) fn failure(what: &str, error: KafkaError) -> Failure {
    let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
    let what = format!("Kafka: cannot {what}");
    match error {
        KafkaError::ClientConfig(..) | KafkaError::ClientCreation(_) => config(what, error),
        error => of_code(code, &what, error),
    }
}

fn of_code(code: Code, what: &str, error: KafkaError) -> Failure {
    let (fault, name, fix) = verdict(code);
    let failure = Failure::new(fault, name, what).with_source(error);
    if fix.is_empty() { failure } else { failure.with_fix(fix) }
}

/// What an error means to a consumer, as far as it means more than that it should go on asking.
pub(super) fn of_consumer(code: Code, reason: &str) -> Option<Failure> {
    let certificate = code == Code::SSL && reason.contains("certificate");
    let (fault, name, fix) = match code {
        Code::Authentication => AUTH,
        _ if certificate || is_about_our_certificate(reason) => TLS,
        Code::GroupAuthorizationFailed | Code::TopicAuthorizationFailed => READ_ACL,
        Code::UnsupportedVersion => OLD,
        _ => return None,
    };
    Some(Failure::new(fault, name, format!("Kafka: {reason}")).with_fix(fix))
}

/// A topic that is to be read, or to take dead letters, is not as it should be.
pub(super) fn of_topic(topic: &str, code: Code) -> Failure {
    let (fault, name, fix) = match verdict(code) {
        (_, "E-KAFKA-ACL", _) => READ_ACL,
        (Fault::Transient | Fault::Refused, ..) => DOWN,
        verdict => verdict,
    };
    let what = format!("Kafka: cannot use the topic {topic:?}");
    Failure::new(fault, name, what).with_source(KafkaError::MetadataFetch(code)).with_fix(fix)
}

/// A setting that is checked before anybody is asked.
pub(super) fn setting(what: &str, fix: &str) -> Failure {
    Failure::misconfigured("E-KAFKA-CONFIG", format!("Kafka: {what}")).with_fix(fix)
}

pub(super) fn topic_setting(topic: &str) -> Failure {
    setting(
        &format!("{topic:?} is not a legal name for a topic"),
        "1 to 249 of the characters a-z A-Z 0-9 . _ -",
    )
}

/// A dead letter that the brokers do not take: its message must not be passed by.
pub(super) fn not_buried(topic: &str, refusal: Failure) -> Failure {
    let what = format!("Kafka: the topic {topic:?} does not take a dead letter");
    Failure::misconfigured("E-KAFKA-DEAD-LETTER", what)
        .with_source(refusal)
        .with_fix("raise max.message.bytes of the topic above that of the topic it came from")
}

/// Dead letters that the brokers do not delete.
pub(super) fn not_deleted(topic: &str, error: KafkaError) -> Failure {
    let what = format!("Kafka: cannot delete letters from the topic {topic:?}");
    let code = match &error {
        KafkaError::AdminOp(code) => Some(*code),
        error => error.rdkafka_error_code(),
    };
    match code {
        Some(Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed) => {
            Failure::misconfigured("E-KAFKA-ACL", what).with_source(error).with_fix(
                "allow the user Delete on the topic: kafka-acls.sh --add --operation Delete",
            )
        }
        Some(Code::PolicyViolation) => Failure::misconfigured("E-KAFKA-DEAD-LETTER", what)
            .with_source(error)
            .with_fix("set cleanup.policy of the topic to delete: a compacted one deletes nothing"),
        _ => {
            let (fault, code, fix) = DOWN;
            Failure::new(fault, code, what).with_source(error).with_fix(fix)
        }
    }
}

fn config(what: String, error: KafkaError) -> Failure {
    Failure::misconfigured("E-KAFKA-CONFIG", what)
        .with_source(error)
        .with_fix("change the setting that is named; encryption and SCRAM need the feature `tls`")
}

/// Something that ends a producer, in librdkafka's words.
pub(super) fn ended(code: Code, reason: &str) -> Failure {
    let (fault, name, fix) = verdict(code);
    let failure = Failure::new(fault, name, format!("Kafka: {reason}"));
    if fix.is_empty() { failure } else { failure.with_fix(fix) }
}

/// Whether librdkafka speaks of an alert by which a broker says that it does not trust us.
pub(super) fn is_about_our_certificate(reason: &str) -> bool {
    reason.contains(" alert ") && (reason.contains("certificate") || reason.contains("unknown ca"))
}

/// Nothing came back in time; `complaint` is what librdkafka said last.
pub(super) fn no_answer(complaint: &str) -> Failure {
    let (fault, code, fix) = DOWN;
    let why = if complaint.is_empty() { String::new() } else { format!(": {complaint}") };
    Failure::new(fault, code, format!("Kafka: no answer in time{why}")).with_fix(fix)
}

/// The call is over before it was the turn of these.
pub(super) fn too_slow() -> Failure {
    Failure::unavailable(
        "E-KAFKA-SLOW",
        "Kafka: the brokers are too slow for a batch; the rest waits for the next",
    )
    .with_fix(
        "give all events of an aggregate the same topic and key, keep batch_bytes below \
         max.message.bytes of the topics, or lower the batch",
    )
}

/// Nothing was committed, and nobody knows why.
pub(super) fn producer_ended() -> Failure {
    no_answer("the producer ended")
}

/// A transactional producer is of no use any more. What became of its last transaction is in the
/// journal.
pub(super) fn transaction_ended(id: &str, error: KafkaError) -> Failure {
    match error.rdkafka_error_code() {
        Some(Code::ProducerFenced | Code::Fenced | Code::InvalidProducerEpoch) => {
            taken_over(id).with_source(error)
        }
        _ => {
            let what = format!("Kafka: the producer of transactional id {id:?} ended");
            Failure::unavailable("E-KAFKA-TRANSACTION", what)
                .with_source(error)
                .with_fix("nothing, if it passes; otherwise look into the logs of the brokers")
        }
    }
}

/// The code of a share that somebody else owns.
pub(super) const FENCED: &str = "E-KAFKA-FENCED";

pub(super) fn taken_over(id: &str) -> Failure {
    let what = format!("Kafka: another relay has taken over what {id:?} stands for");
    Failure::unavailable(FENCED, what).with_fix(
        "nothing, if it is a relay of the same pipeline; otherwise give each pipeline a \
         transactional_id of its own",
    )
}

/// The same of an inbox. Nothing gets better by waiting: whoever runs it has to end.
pub(super) fn inbox_taken(name: &str) -> Failure {
    let what = format!("Kafka: another process has opened the inbox {name:?}");
    Failure::misconfigured(FENCED, what).with_fix(
        "nothing, if that one is to go on from here; otherwise run one process per inbox, and \
         give each consumer an inbox of its own",
    )
}

/// The topic of an inbox is not as it must be; `wrong` is the setting.
pub(super) fn inbox_topic(topic: &str, wrong: &str, keep: u64) -> Failure {
    let what = format!("Kafka: topic {topic:?} does not keep ids as the inbox needs it: {wrong}");
    Failure::misconfigured("E-KAFKA-INBOX-TOPIC", what).with_fix(format!(
        "kafka-configs.sh --alter --topic {topic} --add-config \
         'cleanup.policy=[compact,delete],retention.ms={keep},retention.bytes=-1'; or give the \
         inbox another name"
    ))
}

/// An inbox remembers as much as it may, and nothing of it is old enough to be forgotten.
pub(super) fn inbox_full(bytes: usize) -> Failure {
    let what = format!("Kafka: the ids of the inbox take {bytes} bytes, and it may have no more");
    Failure::unavailable("E-KAFKA-INBOX-FULL", what)
        .with_fix("raise `max_bytes` of the inbox, or `keep` ids for a shorter time")
}

pub(super) fn inbox_busy(waited: Duration) -> Failure {
    let what =
        format!("Kafka: another transaction has had the same message in hand for {waited:?}");
    Failure::transient("E-KAFKA-INBOX-BUSY", what)
        .with_fix("nothing, it is tried again; see whether a handler hangs")
}

pub(super) fn inbox_forbidden(topic: &str, fix: &str) -> Failure {
    let what = format!("Kafka: the user may not make or read topic {topic:?}, the inbox");
    Failure::misconfigured("E-KAFKA-ACL", what).with_fix(fix)
}

/// A failure for good, for whoever asks whether it is worth trying again.
pub(super) fn at_its_end(over: &Failure) -> Failure {
    let failure = Failure::refused(over.code(), over.to_string());
    match over.fix() {
        Some(fix) => failure.with_fix(fix),
        None => failure,
    }
}

pub(super) fn transaction_forbidden(id: &str) -> Failure {
    let what = format!("Kafka: the user may not use the transactional id {id:?}");
    Failure::misconfigured("E-KAFKA-ACL", what).with_fix(
        "allow the user Write and Describe on it: kafka-acls.sh --add --transactional-id NAME",
    )
}

/// librdkafka's words about a topic that may not be part of a transaction.
pub(super) fn topic_forbidden(complaint: &str) -> Failure {
    let (fault, code, fix) = ACL;
    Failure::new(fault, code, format!("Kafka: {complaint}")).with_fix(fix)
}

pub(super) fn topic_name(topic: &str) -> Failure {
    let what = format!("Kafka: {topic:?} is not a legal name for a topic");
    let fix =
        "1 to 249 of the characters a-z A-Z 0-9 . _ - ; change the topic template or the event";
    Failure::refused("E-KAFKA-TOPIC-NAME", what).with_fix(fix)
}

pub(super) fn too_large(topic: &str, size: usize, limit: usize) -> Failure {
    let what =
        format!("Kafka: a message for topic {topic:?} has {size} bytes, the limit is {limit}");
    Failure::refused("E-KAFKA-TOO-LARGE", what).with_fix(
        "raise max_message_bytes here and on the brokers, or put a reference into the event",
    )
}

fn refused(code: &'static str, what: String, error: KafkaError, fix: &str) -> Failure {
    Failure::refused(code, what).with_source(error).with_fix(fix)
}

type Verdict = (Fault, &'static str, &'static str);

const DOWN: Verdict = (
    Fault::Unavailable,
    "E-KAFKA-DOWN",
    "check that the brokers run, can be reached and have enough replicas in sync",
);
const AUTH: Verdict = (
    Fault::Misconfigured,
    "E-KAFKA-AUTH",
    "check user, password and SASL mechanism, and that the listener asks for this mechanism",
);
const TLS: Verdict = (
    Fault::Misconfigured,
    "E-KAFKA-TLS",
    "check the CA file, the host name in the broker's certificate and its dates; and the certificate \
     and key of the relay, if the broker asks for them",
);
const ACL: Verdict = (
    Fault::Misconfigured,
    "E-KAFKA-ACL",
    "allow the user the operations Write and Describe on the topic: kafka-acls.sh --add --producer",
);
const READ_ACL: Verdict = (
    Fault::Misconfigured,
    "E-KAFKA-ACL",
    "allow the user Read on the group and the topics, and Write on the topic of dead letters: \
     kafka-acls.sh --add --consumer --group GROUP --topic NAME",
);
const MISSING: Verdict = (
    Fault::Misconfigured,
    "E-KAFKA-TOPIC-MISSING",
    "create the topic: kafka-topics.sh --create --topic NAME; or correct the topic template",
);
const OLD: Verdict =
    (Fault::Misconfigured, "E-KAFKA-CONFIG", "brokers of version 0.11 or later are needed");
const NAME: Verdict = (Fault::Refused, "E-KAFKA-TOPIC-NAME", "");
const OTHER: Verdict = (Fault::Transient, "E-KAFKA", "");

fn verdict(code: Code) -> Verdict {
    match code {
        Code::UnknownTopic | Code::UnknownPartition | Code::UnknownTopicOrPartition => MISSING,
        Code::InvalidTopic => NAME,
        Code::TopicAuthorizationFailed
        | Code::ClusterAuthorizationFailed
        | Code::TransactionalIdAuthorizationFailed => ACL,
        Code::Authentication
        | Code::SaslAuthenticationFailed
        | Code::UnsupportedSASLMechanism
        | Code::IllegalSASLState => AUTH,
        Code::SSL => TLS,
        Code::UnsupportedFeature | Code::UnsupportedVersion => OLD,
        Code::BrokerTransportFailure
        | Code::AllBrokersDown
        | Code::Resolve
        | Code::OperationTimedOut
        | Code::TimedOutQueue
        | Code::MessageTimedOut
        | Code::RequestTimedOut
        | Code::NetworkException
        | Code::BrokerNotAvailable
        | Code::LeaderNotAvailable
        | Code::NotLeaderForPartition
        | Code::ReplicaNotAvailable
        | Code::PreferredLeaderNotAvailable
        | Code::NotController
        | Code::CoordinatorLoadInProgress
        | Code::CoordinatorNotAvailable
        | Code::NotCoordinator
        | Code::NotEnoughReplicas
        | Code::NotEnoughReplicasAfterAppend
        | Code::KafkaStorageError
        | Code::QueueFull
        | Code::BrokerDestroy => DOWN,
        _ => OTHER,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(code: Code) -> Blame {
        blame("orders", KafkaError::MessageProduction(code))
    }

    #[test]
    fn every_line_of_the_table_holds() {
        let cases = [
            (Code::BrokerTransportFailure, Fault::Unavailable, "E-KAFKA-DOWN"),
            (Code::NotEnoughReplicas, Fault::Unavailable, "E-KAFKA-DOWN"),
            (Code::KafkaStorageError, Fault::Unavailable, "E-KAFKA-DOWN"),
            (Code::Authentication, Fault::Misconfigured, "E-KAFKA-AUTH"),
            (Code::SSL, Fault::Misconfigured, "E-KAFKA-TLS"),
            (Code::TopicAuthorizationFailed, Fault::Misconfigured, "E-KAFKA-ACL"),
            (Code::ClusterAuthorizationFailed, Fault::Misconfigured, "E-KAFKA-ACL"),
            (Code::UnknownTopic, Fault::Misconfigured, "E-KAFKA-TOPIC-MISSING"),
            (Code::UnknownTopicOrPartition, Fault::Misconfigured, "E-KAFKA-TOPIC-MISSING"),
            (Code::InvalidTopic, Fault::Refused, "E-KAFKA-TOPIC-NAME"),
            (Code::UnsupportedFeature, Fault::Misconfigured, "E-KAFKA-CONFIG"),
            (Code::PolicyViolation, Fault::Transient, "E-KAFKA"),
        ];
        for (code, fault, name) in cases {
            let Blame::Clear(failure) = lost(code) else { panic!("{code} is clear") };
            assert_eq!((failure.fault(), failure.code()), (fault, name), "{code}");
        }
    }

    #[test]
    fn what_ends_a_consumer_is_told_from_what_passes() {
        let cases = [
            (Code::Authentication, "SASL authentication error", "E-KAFKA-AUTH"),
            (Code::SSL, "certificate verify failed", "E-KAFKA-TLS"),
            (Code::GroupAuthorizationFailed, "not for you", "E-KAFKA-ACL"),
            (Code::TopicAuthorizationFailed, "not for you", "E-KAFKA-ACL"),
        ];
        for (code, reason, name) in cases {
            let failure = of_consumer(code, reason).unwrap();
            assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, name), "{code}");
            assert!(failure.fix().is_some(), "{code}");
        }
        for code in [Code::RebalanceInProgress, Code::IllegalGeneration, Code::AllBrokersDown] {
            assert!(of_consumer(code, "it passes").is_none(), "{code}");
        }
        let missing = of_topic("orders", Code::UnknownTopicOrPartition);
        assert_eq!(missing.code(), "E-KAFKA-TOPIC-MISSING");
        assert_eq!(of_topic("orders", Code::TopicAuthorizationFailed).code(), "E-KAFKA-ACL");
        assert_eq!(of_topic("orders", Code::LeaderNotAvailable).fault(), Fault::Unavailable);
    }

    #[test]
    fn a_broker_says_by_an_alert_that_it_does_not_trust_us() {
        let alerts = ["ssl/tls alert bad certificate", "tlsv13 alert certificate required"];
        for alert in alerts.into_iter().chain(["tlsv1 alert unknown ca"]) {
            let reason =
                format!("ssl://127.0.0.1:9093/1: SSL routines::{alert}: SSL alert number 1");
            assert!(is_about_our_certificate(&reason), "{reason}");
        }
        for reason in ["Connection refused", "SSL handshake failed: Disconnected", "alert"] {
            assert!(!is_about_our_certificate(reason), "{reason}");
        }
    }

    #[test]
    fn what_is_said_of_a_batch_is_not_believed_of_a_record() {
        for code in [Code::MessageSizeTooLarge, Code::InvalidRecord, Code::InvalidTimestamp] {
            assert!(matches!(lost(code), Blame::Record(_)), "{code}");
        }
        for code in [Code::PurgeQueue, Code::OutOfOrderSequenceNumber, Code::Fatal] {
            assert!(matches!(lost(code), Blame::Session), "{code}");
        }
    }

    #[test]
    fn a_producer_that_ended_is_told_from_one_that_was_replaced() {
        let told = |code| {
            let failure = transaction_ended("shop-1-of-1", KafkaError::Global(code));
            assert!(failure.fix().is_some(), "{code}");
            (failure.fault(), failure.code())
        };
        for code in [Code::ProducerFenced, Code::Fenced, Code::InvalidProducerEpoch] {
            assert_eq!(told(code), (Fault::Unavailable, FENCED), "{code}");
        }
        for code in [Code::Fatal, Code::InvalidTransactionalState, Code::UnknownProducerId] {
            assert_eq!(told(code), (Fault::Unavailable, "E-KAFKA-TRANSACTION"), "{code}");
        }
    }
}
