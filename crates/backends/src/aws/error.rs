//! Which error of AWS is which [`Fault`](semel_core::Fault).
//!
//! | what the service or the SDK says | fault | code |
//! |---|---|---|
//! | no connection; 500, 502, 503, 504; an answer that cannot be read | unavailable | `E-AWS-DOWN` |
//! | no answer in time | unavailable | `E-AWS-TIMEOUT` |
//! | throttling, of a request or of one message | unavailable, with `Retry-After` | `E-AWS-THROTTLED` |
//! | the session has expired, and a new one can be had | unavailable | `E-AWS-EXPIRED` |
//! | the session has expired, and the credentials are fixed | misconfigured | `E-AWS-EXPIRED` |
//! | too large | refused | `E-AWS-TOO-LARGE` |
//! | characters that AWS does not take | refused | `E-AWS-CONTENT` |
//! | EventBridge: no JSON object | refused | `E-AWS-DETAIL` |
//! | a message or request that the service does not take | refused | `E-AWS-REJECTED` |
//! | a message that the service failed to take | transient | `E-AWS-FAILED` |
//! | no such queue, topic or bus; an ARN of another region | misconfigured | `E-AWS-MISSING` |
//! | key, signature or rights are wrong | misconfigured | `E-AWS-ACCESS` |
//! | the KMS key of the target is disabled, missing, or cannot be used | misconfigured | `E-AWS-ACCESS` |
//! | no credentials | misconfigured | `E-AWS-CREDENTIALS` |

use std::error::Error;
use std::fmt::Display;
use std::time::Duration;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use semel_core::{Failure, Fault};

/// Whether credentials that have expired are renewed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Expiry {
    UntilRenewed,
    ForGood,
}

/// Turns an error of the SDK into a failure. `what` says what was being done.
pub(super) fn failure<E>(what: &str, expiry: Expiry, error: SdkError<E>) -> Failure
where
    E: ProvideErrorMetadata + Error + Send + Sync + 'static,
{
    let what = format!("AWS: cannot {what}");
    if let Some(credentials) = credentials_error(&error) {
        return unloaded(what, credentials).with_source(error);
    }
    let SdkError::ServiceError(said) = &error else {
        let code = if matches!(error, SdkError::TimeoutError(_)) { TIMEOUT } else { DOWN };
        return Failure::unavailable(code, what).with_fix(REACH).with_source(error);
    };
    let status = said.raw().status().as_u16();
    let wait = said.raw().headers().get("retry-after").and_then(|wait| wait.parse().ok());
    let code = said.err().code().unwrap_or_default().to_owned();
    let why = said.err().message().unwrap_or("no reason given").to_owned();
    let what = format!("{what}: {why} ({code}, HTTP {status})");
    by_code(&what, &code, status, expiry, wait.map(Duration::from_secs))
}

/// What a service says about one message of a batch.
pub(super) fn refused_entry(
    to: &str,
    code: &str,
    why: &str,
    sender_fault: bool,
    expiry: Expiry,
) -> Failure {
    let what = format!("AWS: {to:?} did not take a message: {why} ({code})");
    match about_no_message(&what, code, expiry, None) {
        Some(failure) => failure,
        None if sender_fault => rejected(what),
        None => failed(what),
    }
}

/// A queue that did not carry out what it was told of one message.
pub(super) fn not_done(what: &str, code: &str, why: &str) -> Failure {
    let what = format!("AWS: cannot {what}: {why} ({code})");
    Failure::unavailable(DOWN, what).with_fix(REACH)
}

/// What EventBridge says about one event: it has no word for whose fault it is.
pub(super) fn refused_event(bus: &str, code: &str, why: &str, expiry: Expiry) -> Failure {
    let what = format!("AWS: the bus {bus:?} did not take an event: {why} ({code})");
    if code.starts_with("Internal") || code.starts_with("ServiceUnavailable") {
        return failed(what);
    }
    by_code(&what, code, 400, expiry, None)
}

/// A probe asks for what is not there: that, and a missing right to ask, is a good answer.
pub(super) fn only_about_the_probe<T, E>(
    asked: Result<T, SdkError<E>>,
    expiry: Expiry,
) -> Result<(), Failure>
where
    E: ProvideErrorMetadata + Error + Send + Sync + 'static,
{
    let Err(error) = asked else { return Ok(()) };
    let code = code_of(&error);
    if is_missing(code) || is_denied(code) || code.starts_with("InvalidParameter") {
        return Ok(());
    }
    Err(failure("ask the service", expiry, error))
}

/// Whether the user is known, and may not do what it asked for.
pub(super) fn is_forbidden<E: ProvideErrorMetadata>(error: &SdkError<E>) -> bool {
    is_denied(code_of(error))
}

fn code_of<E: ProvideErrorMetadata>(error: &SdkError<E>) -> &str {
    error.as_service_error().and_then(ProvideErrorMetadata::code).unwrap_or_default()
}

const DOWN: &str = "E-AWS-DOWN";
const TIMEOUT: &str = "E-AWS-TIMEOUT";
const REACH: &str = "check the network, region and endpoint_url, and the health of the service";

fn by_code(what: &str, code: &str, status: u16, expiry: Expiry, wait: Option<Duration>) -> Failure {
    match about_no_message(what, code, expiry, wait) {
        Some(failure) => failure,
        None if status == 429 => throttled(what, wait),
        None if status >= 500 => Failure::unavailable(DOWN, what).with_fix(REACH),
        None => rejected(what.to_owned()),
    }
}

/// What would be said of any message, whoever is called at fault.
fn about_no_message(
    what: &str,
    code: &str,
    expiry: Expiry,
    wait: Option<Duration>,
) -> Option<Failure> {
    let (fault, name, fix) = match code {
        _ if is_throttling(code) => return Some(throttled(what, wait)),
        "ExpiredToken" | "ExpiredTokenException" | "RequestExpired" => match expiry {
            Expiry::UntilRenewed => {
                (Fault::Unavailable, "E-AWS-EXPIRED", "renew the session of the profile")
            }
            Expiry::ForGood => {
                (Fault::Misconfigured, "E-AWS-EXPIRED", "set a new session_token, or a role")
            }
        },
        _ if is_about_encryption(code) => (
            Fault::Misconfigured,
            "E-AWS-ACCESS",
            "check that the KMS key of the target is enabled, and that the role may use it",
        ),
        _ if is_missing(code) || is_about_the_topic(code, what) => (
            Fault::Misconfigured,
            "E-AWS-MISSING",
            "create it in this region and account, or correct the topic",
        ),
        _ if is_denied(code) || is_bad_login(code) => (
            Fault::Misconfigured,
            "E-AWS-ACCESS",
            "check the keys, the clock of this machine, and the policies of role and target",
        ),
        _ => return None,
    };
    Some(Failure::new(fault, name, what).with_fix(fix))
}

fn is_throttling(code: &str) -> bool {
    code.contains("Throttl")
        || ["TooManyRequestsException", "RequestLimitExceeded", "OverLimit", "SlowDown"]
            .contains(&code)
}

fn is_missing(code: &str) -> bool {
    code.contains("NonExistentQueue")
        || code.contains("QueueDoesNotExist")
        || ["NotFound", "NotFoundException", "ResourceNotFoundException"].contains(&code)
}

/// SNS does not call a topic of another region missing: it does not take its ARN.
fn is_about_the_topic(code: &str, what: &str) -> bool {
    code.starts_with("InvalidParameter") && what.contains("parameter: TopicArn")
}

/// The target is encrypted, and its key cannot be used. SQS says `KMS.DisabledException` or
/// `KmsDisabled`, SNS says `KMSDisabled`.
fn is_about_encryption(code: &str) -> bool {
    const TROUBLES: [&str; 6] = [
        "AccessDenied",
        "Disabled",
        "InvalidKeyUsage",
        "InvalidState",
        "NotFound",
        "OptInRequired",
    ];
    let Some((service, trouble)) = code.split_at_checked(3) else { return false };
    let trouble = trouble.trim_start_matches('.');
    service.eq_ignore_ascii_case("kms") && TROUBLES.iter().any(|known| trouble.starts_with(*known))
}

/// The user is known, and may not.
fn is_denied(code: &str) -> bool {
    code.contains("AccessDenied")
        || code.contains("NotAuthorized")
        || code.starts_with("AuthorizationError")
}

/// The user is not known.
fn is_bad_login(code: &str) -> bool {
    const CODES: [&str; 10] = [
        "InvalidClientTokenId",
        "UnrecognizedClientException",
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "InvalidSignatureException",
        "IncompleteSignature",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "InvalidSecurity",
        "OptInRequired",
    ];
    CODES.contains(&code)
}

fn throttled(what: &str, wait: Option<Duration>) -> Failure {
    Failure::unavailable("E-AWS-THROTTLED", what)
        .with_retry_after(wait.unwrap_or(Duration::from_secs(1)))
        .with_fix("ask for a higher quota, or send less")
}

fn rejected(what: String) -> Failure {
    Failure::refused("E-AWS-REJECTED", what)
        .with_fix("correct what the event puts into the message, or where it goes")
}

fn failed(what: String) -> Failure {
    Failure::transient("E-AWS-FAILED", what).with_fix("see the health of the service")
}

/// The SDK reports credentials that it could not load as a request that could not be sent.
fn credentials_error<E: Error + 'static>(error: &SdkError<E>) -> Option<&CredentialsError> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        cause = error.source();
    }
    None
}

pub(super) fn no_credentials(error: Option<CredentialsError>) -> Failure {
    let what = "AWS: cannot load credentials".to_owned();
    match error {
        Some(error) => unloaded(what, &error).with_source(error),
        None => Failure::misconfigured("E-AWS-CREDENTIALS", what).with_fix(GIVE_KEYS),
    }
}

const GIVE_KEYS: &str = "set access_key_id and secret_access_key, AWS_PROFILE, or a role";

fn unloaded(what: String, error: &CredentialsError) -> Failure {
    let fault = match error {
        CredentialsError::ProviderTimedOut(_) | CredentialsError::ProviderError(_) => {
            Fault::Unavailable
        }
        _ => Fault::Misconfigured,
    };
    Failure::new(fault, "E-AWS-CREDENTIALS", what).with_fix(GIVE_KEYS)
}

pub(super) fn timed_out(limit: Duration) -> Failure {
    Failure::unavailable(TIMEOUT, format!("AWS: no answer within {limit:?}")).with_fix(REACH)
}

pub(super) fn too_large(size: usize, limit: usize) -> Failure {
    let what = format!("AWS: a message of {size} bytes, the limit is {limit}");
    Failure::refused("E-AWS-TOO-LARGE", what).with_fix(
        "store the content elsewhere, or raise the limit of the target and max_message_bytes",
    )
}

pub(super) fn no_text(name: &str) -> Failure {
    let what = format!("AWS: {name} is empty or has a control character, which AWS does not take");
    Failure::refused("E-AWS-CONTENT", what).with_fix("use cloudevents-structured, or other names")
}

pub(super) fn bad_detail(why: &str) -> Failure {
    Failure::refused("E-AWS-DETAIL", format!("AWS: EventBridge cannot carry the event: {why}"))
        .with_fix("use cloudevents-structured, which has everything in one JSON object")
}

pub(super) fn no_arn(topic: &str) -> Failure {
    let what = format!("AWS: {topic:?} is no ARN of an SNS topic");
    Failure::misconfigured("E-AWS-MISSING", what)
        .with_fix("set arn_prefix = \"arn:aws:sns:REGION:ACCOUNT:\", or make the topic a whole ARN")
}

/// What the SDK or the service must never say.
pub(super) fn impossible(what: impl Display) -> Failure {
    Failure::unavailable(DOWN, format!("AWS: {what}")).with_fix(REACH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_can_be_renewed_is_an_outage() {
        let told = |expiry| by_code("x", "ExpiredToken", 400, expiry, None);
        for (expiry, fault) in
            [(Expiry::UntilRenewed, Fault::Unavailable), (Expiry::ForGood, Fault::Misconfigured)]
        {
            let failure = told(expiry);
            assert_eq!((failure.fault(), failure.code()), (fault, "E-AWS-EXPIRED"));
        }
    }

    /// Whether the service says it of a request or of one message of a batch, and whose fault it
    /// calls it: no event may die of it.
    fn told(code: &str) -> [Failure; 3] {
        [
            by_code("x", code, 400, Expiry::ForGood, None),
            refused_entry("orders", code, "no", true, Expiry::ForGood),
            refused_entry("orders", code, "no", false, Expiry::ForGood),
        ]
    }

    #[test]
    fn a_key_that_cannot_be_used_is_a_mistake_in_the_set_up() {
        let sqs = [
            "KMS.AccessDeniedException",
            "KMS.DisabledException",
            "KMS.InvalidKeyUsageException",
            "KMS.InvalidStateException",
            "KMS.NotFoundException",
            "KMS.OptInRequired",
            "KmsAccessDenied",
            "KmsDisabled",
            "KmsInvalidKeyUsage",
            "KmsInvalidState",
            "KmsNotFound",
            "KmsOptInRequired",
        ];
        let sns = [
            "KMSAccessDenied",
            "KMSDisabled",
            "KMSInvalidState",
            "KMSNotFound",
            "KMSOptInRequired",
        ];
        for code in sqs.into_iter().chain(sns) {
            for failure in told(code) {
                let verdict = (failure.fault(), failure.code());
                assert_eq!(verdict, (Fault::Misconfigured, "E-AWS-ACCESS"), "{code}");
                assert!(failure.fix().unwrap().contains("KMS"), "{failure:?}");
            }
        }
        for code in ["KMS.ThrottlingException", "KmsThrottled", "KMSThrottling"] {
            for failure in told(code) {
                let verdict = (failure.fault(), failure.code());
                assert_eq!(verdict, (Fault::Unavailable, "E-AWS-THROTTLED"), "{code}");
            }
        }
    }

    #[test]
    fn what_is_wrong_for_every_message_is_not_put_down_to_one() {
        let cases = [
            ("AccessDenied", "E-AWS-ACCESS"),
            ("AuthorizationError", "E-AWS-ACCESS"),
            ("SignatureDoesNotMatch", "E-AWS-ACCESS"),
            ("AWS.SimpleQueueService.NonExistentQueue", "E-AWS-MISSING"),
            ("NotFound", "E-AWS-MISSING"),
            ("ExpiredToken", "E-AWS-EXPIRED"),
        ];
        for (code, name) in cases {
            for failure in told(code) {
                let verdict = (failure.fault(), failure.code());
                assert_eq!(verdict, (Fault::Misconfigured, name), "{code}");
            }
        }
        let faults = told("InvalidMessageContents").map(|failure| failure.fault());
        assert_eq!(faults, [Fault::Refused, Fault::Refused, Fault::Transient]);
    }

    #[test]
    fn the_arn_of_another_region_is_a_mistake_in_the_set_up() {
        let (code, why) = ("InvalidParameter", "Invalid parameter: TopicArn");
        let told = [
            by_code(why, code, 400, Expiry::ForGood, None),
            refused_entry("orders", code, why, true, Expiry::ForGood),
        ];
        for failure in told {
            let verdict = (failure.fault(), failure.code());
            assert_eq!(verdict, (Fault::Misconfigured, "E-AWS-MISSING"), "{failure:?}");
            assert!(failure.fix().unwrap().contains("region"), "{failure:?}");
        }
        let message = by_code("Invalid parameter: Message", code, 400, Expiry::ForGood, None);
        assert_eq!(message.fault(), Fault::Refused);
    }

    #[test]
    fn credentials_that_cannot_be_had_have_their_line() {
        let cases = [
            (CredentialsError::not_loaded("nowhere"), Fault::Misconfigured),
            (CredentialsError::invalid_configuration("a loop"), Fault::Misconfigured),
            (CredentialsError::provider_timed_out(Duration::from_secs(5)), Fault::Unavailable),
            (CredentialsError::provider_error("STS says 503"), Fault::Unavailable),
        ];
        for (error, fault) in cases {
            let failure = no_credentials(Some(error));
            assert_eq!((failure.fault(), failure.code()), (fault, "E-AWS-CREDENTIALS"));
            assert!(failure.fix().is_some());
        }
    }
}
