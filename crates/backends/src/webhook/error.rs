//! Which answer of an endpoint is which [`Fault`].
//!
//! | answer | fault | code |
//! |---|---|---|
//! | 2xx | confirmed, whatever the rest of the answer is | |
//! | 429; 503 with `Retry-After` | transient, and everything else waits as long as was asked for | `E-WEBHOOK-THROTTLED` |
//! | 408, 409, 421, 425, 5xx except those below | transient, not before `Retry-After` | `E-WEBHOOK-STATUS` |
//! | 302, 303, 307 and other 3xx | transient: it is not followed | `E-WEBHOOK-REDIRECT` |
//! | 410 and the other 4xx | refused | `E-WEBHOOK-REFUSED` |
//! | 502, 503, 504 | unavailable, or transient if others are served meanwhile | `E-WEBHOOK-GATEWAY` |
//! | none in time | unavailable, or transient if others are served meanwhile | `E-WEBHOOK-TIMEOUT` |
//! | none, the connection was cut | unavailable, or transient if others are served meanwhile | `E-WEBHOOK-CUT` |
//! | no connection: name, network, TLS, an expired certificate | unavailable | `E-WEBHOOK-DOWN` |
//! | 301, 308 | misconfigured | `E-WEBHOOK-MOVED` |
//! | a certificate that is not trusted or of another name | misconfigured | `E-WEBHOOK-TLS` |
//! | an address that is not public | misconfigured | `E-WEBHOOK-ADDRESS` |
//!
//! Nothing of the answer's body is kept: it might repeat the payload.

use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use http::header::{LOCATION, RETRY_AFTER};
use http::{HeaderMap, HeaderName, StatusCode};
use hyper_util::client::legacy::Error as ClientError;
use rustls::CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
use semel_core::{Failure, Fault, Timestamp};

use super::address::Forbidden;

/// What an answer says, and about whom.
#[derive(Debug)]
pub(super) enum Answer {
    /// The endpoint has the event.
    Confirmed,
    /// About this event.
    Failed(Failure),
    /// About this event; and all others are asked to wait.
    Throttled(Failure, Duration),
    /// About the endpoint, unless others are served meanwhile.
    Suspicious(Suspicion),
    /// About the endpoint.
    Down(Failure),
}

/// An outage, or the fault of one event: what others get will tell.
#[derive(Debug)]
pub(super) struct Suspicion {
    code: &'static str,
    what: String,
}

impl Suspicion {
    /// Nobody was served.
    pub(super) fn of_the_endpoint(&self) -> Failure {
        Failure::new(Fault::Unavailable, self.code, &*self.what)
    }

    /// Others were served.
    pub(super) fn of_the_event(&self) -> Failure {
        Failure::new(Fault::Transient, self.code, &*self.what)
    }
}

/// The longest wait an endpoint can ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// The endpoint answered.
pub(super) fn answered(
    endpoint: &str,
    status: StatusCode,
    headers: &HeaderMap,
    now: Timestamp,
) -> Answer {
    if status.is_success() {
        return Answer::Confirmed;
    }
    let what = format!("webhook: {endpoint} answered {status}");
    let wait = text(headers, &RETRY_AFTER).and_then(|text| retry_after(text, now));
    let transient = |code| {
        let failure = Failure::transient(code, &*what);
        wait.map_or_else(|| failure.clone(), |wait| failure.clone().with_retry_after(wait))
    };
    match (status.as_u16(), wait) {
        (429 | 503, Some(wait)) => Answer::Throttled(transient("E-WEBHOOK-THROTTLED"), wait),
        (429, None) => Answer::Failed(transient("E-WEBHOOK-THROTTLED")),
        (502..=504, _) => Answer::Suspicious(Suspicion { code: "E-WEBHOOK-GATEWAY", what }),
        (301 | 308, _) => Answer::Down(moved(what, headers)),
        (300..=399, _) => Answer::Failed(transient("E-WEBHOOK-REDIRECT")),
        (408 | 409 | 421 | 425, _) => Answer::Failed(transient("E-WEBHOOK-STATUS")),
        (400..=499, _) => Answer::Failed(Failure::refused("E-WEBHOOK-REFUSED", what).with_fix(
            "ask the endpoint's owner why; then `semel dead retry` or `semel dead discard`",
        )),
        _ => Answer::Failed(transient("E-WEBHOOK-STATUS")),
    }
}

/// The time for an answer is over.
pub(super) fn silent(endpoint: &str, limit: Duration) -> Answer {
    let what = format!("webhook: {endpoint} did not answer within {limit:?}");
    Answer::Suspicious(Suspicion { code: "E-WEBHOOK-TIMEOUT", what })
}

/// There was no answer.
pub(super) fn unanswered(endpoint: &str, error: ClientError) -> Answer {
    if let Some(Forbidden(address)) = cause(&error) {
        return Answer::Down(forbidden(endpoint, *address));
    }
    if let Some(rustls::Error::InvalidCertificate(why)) = cause(&error)
        && !matches!(why, Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. })
    {
        let what = format!("webhook: the certificate of {endpoint} is not trusted");
        return Answer::Down(
            Failure::misconfigured("E-WEBHOOK-TLS", what)
                .with_source(error)
                .with_fix("check the host name; for an authority of your own set ca_file"),
        );
    }
    if error.is_connect() {
        let what = format!("webhook: no connection to {endpoint}");
        let failure = Failure::unavailable("E-WEBHOOK-DOWN", what);
        return Answer::Down(failure.with_source(error));
    }
    let failure = Failure::unavailable(
        "E-WEBHOOK-CUT",
        format!("webhook: the connection to {endpoint} was cut before the answer"),
    );
    let what = failure.with_source(error).to_string();
    Answer::Suspicious(Suspicion { code: "E-WEBHOOK-CUT", what })
}

/// The address is not public and not listed.
pub(super) fn forbidden(endpoint: &str, address: IpAddr) -> Failure {
    Failure::misconfigured(
        "E-WEBHOOK-ADDRESS",
        format!("webhook: {endpoint} is at {address}, which is no public address"),
    )
    .with_fix(format!("if it is meant to be reached, add \"{address}\" to allow"))
}

/// Everything waits because the endpoint asked for it.
pub(super) fn paused(endpoint: &str, left: Duration) -> Failure {
    let seconds = left.as_secs() + 1;
    let what = format!("webhook: {endpoint} asked to be left alone for another {seconds} s");
    Failure::unavailable("E-WEBHOOK-THROTTLED", what)
}

/// The call is over before it was this event's turn.
pub(super) fn too_slow(endpoint: &str) -> Failure {
    let what = format!("webhook: {endpoint} is too slow for a batch; the rest waits for the next");
    Failure::unavailable("E-WEBHOOK-SLOW", what)
        .with_fix("raise concurrency if the endpoint can bear it, or lower the batch")
}

fn moved(what: String, headers: &HeaderMap) -> Failure {
    // What follows a question mark is often a secret.
    let place = text(headers, &LOCATION).and_then(|place| place.split('?').next());
    let place = place.unwrap_or("the new address");
    Failure::misconfigured("E-WEBHOOK-MOVED", what)
        .with_fix(format!("redirects are not followed: set url to {place} if you trust it"))
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Seconds, or a date.
fn retry_after(text: &str, now: Timestamp) -> Option<Duration> {
    let wait = match text.trim().parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let date = jiff::fmt::rfc2822::parse(text.trim()).ok()?.timestamp();
            date.duration_since(now).try_into().unwrap_or(Duration::ZERO)
        }
    };
    Some(wait.min(LONGEST_WAIT))
}

/// The first cause of a kind.
fn cause<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // An I/O error that wraps another one leaves it out of the chain.
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next =
            wrapped.map_or_else(|| error.source(), |inner| Some(inner as &(dyn Error + 'static)));
    }
    None
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const NOW: Timestamp = Timestamp::constant(1_767_225_600, 0); // Thu, 01 Jan 2026 00:00:00 GMT

    fn answer(status: u16, headers: &[(HeaderName, &'static str)]) -> Answer {
        let headers = headers.iter().cloned();
        let headers = headers.map(|(name, value)| (name, HeaderValue::from_static(value)));
        answered("https://e.test", StatusCode::from_u16(status).unwrap(), &headers.collect(), NOW)
    }

    #[test]
    fn every_status_of_the_table_holds() {
        for status in 100..=599 {
            let (fault, code) = match answer(status, &[]) {
                Answer::Confirmed => {
                    assert!((200..300).contains(&status), "{status}");
                    continue;
                }
                Answer::Failed(failure) | Answer::Down(failure) => {
                    (failure.fault(), failure.code())
                }
                Answer::Suspicious(suspicion) => (Fault::Unavailable, suspicion.code),
                Answer::Throttled(..) => panic!("nobody asked for a wait"),
            };
            let expected = match status {
                301 | 308 => (Fault::Misconfigured, "E-WEBHOOK-MOVED"),
                300..=399 => (Fault::Transient, "E-WEBHOOK-REDIRECT"),
                429 => (Fault::Transient, "E-WEBHOOK-THROTTLED"),
                408 | 409 | 421 | 425 => (Fault::Transient, "E-WEBHOOK-STATUS"),
                400..=499 => (Fault::Refused, "E-WEBHOOK-REFUSED"),
                502..=504 => (Fault::Unavailable, "E-WEBHOOK-GATEWAY"),
                _ => (Fault::Transient, "E-WEBHOOK-STATUS"),
            };
            assert_eq!((fault, code), expected, "{status}");
        }
    }

    #[test]
    fn a_wait_that_is_asked_for_is_kept() {
        for status in [429, 503] {
            let Answer::Throttled(failure, wait) = answer(status, &[(RETRY_AFTER, "7")]) else {
                panic!("{status} asks everybody to wait");
            };
            assert_eq!(failure.fault(), Fault::Transient);
            assert_eq!((wait, failure.retry_after()), (Duration::from_secs(7), Some(wait)));
        }
        for status in [307, 409, 425, 500] {
            let Answer::Failed(failure) = answer(status, &[(RETRY_AFTER, "7")]) else {
                panic!("{status} is about one event");
            };
            assert_eq!(failure.retry_after(), Some(Duration::from_secs(7)), "{status}");
        }
    }

    #[test]
    fn a_wait_is_seconds_or_a_date_and_never_too_long() {
        let day = 24 * 60 * 60;
        let cases = [
            ("7", Some(7)),
            (" 0 ", Some(0)),
            ("Thu, 01 Jan 2026 00:01:00 GMT", Some(60)),
            ("Wed, 31 Dec 2025 00:00:00 GMT", Some(0)),
            ("Thu, 01 Jan 2099 00:00:00 GMT", Some(day)),
            ("18446744073709551615", Some(day)),
            ("-1", None),
            ("soon", None),
        ];
        for (text, seconds) in cases {
            assert_eq!(retry_after(text, NOW), seconds.map(Duration::from_secs), "{text}");
        }
    }

    #[test]
    fn a_new_address_is_shown_without_what_is_secret() {
        let Answer::Down(failure) = answer(301, &[(LOCATION, "https://new.test/h?token=x")]) else {
            panic!("it is for somebody to change the set-up");
        };
        let fix = failure.fix().unwrap();
        assert!(fix.contains("https://new.test/h if") && !fix.contains("token"), "{fix}");
    }
}
