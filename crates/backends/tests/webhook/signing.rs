//! Signatures, as somebody else reads them, and the other headers.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use semel_core::memory::ManualClock;
use semel_core::{Fault, Message, Secret, Sink};
use semel_testkit::workload;

use super::endpoint::{Endpoint, Seen, message, status};

const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NEW: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

/// Standard Webhooks, written down once more in another language.
const VERIFY: &str = r#"
import base64, hashlib, hmac, sys
secret, id, timestamp, signatures, body = sys.argv[1:]
key = base64.b64decode(secret.removeprefix("whsec_"))
signed = f"{id}.{timestamp}.".encode() + bytes.fromhex(body)
expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
pairs = [signature.split(",", 1) for signature in signatures.split(" ")]
ok = any(version == "v1" and hmac.compare_digest(expected, value) for version, value in pairs)
sys.exit(0 if ok else 3)
"#;

/// Whether a receiver that has this secret accepts the request.
fn accepts(secret: &str, seen: &Seen) -> bool {
    let header = |name| seen.header(name).to_owned();
    let body: String = seen.body.iter().map(|byte| format!("{byte:02x}")).collect();
    let arguments =
        [header("webhook-id"), header("webhook-timestamp"), header("webhook-signature")];
    let mut verifier = Command::new("python3");
    verifier.args(["-c", VERIFY, secret]).args(arguments).arg(body);
    match verifier.status().expect("python3 is installed").code() {
        Some(0) => true,
        Some(3) => false,
        code => panic!("the verifier failed: {code:?}"),
    }
}

fn seen_by(endpoint: &Endpoint) -> Seen {
    endpoint.seen().pop().unwrap()
}

#[tokio::test]
async fn a_verifier_of_another_language_accepts_the_signature() {
    let endpoint = Endpoint::start(|_| status(200)).await;
    let sink = endpoint.config().secret(&Secret::new(OLD)).unwrap().connect().await.unwrap();
    let kinds = ["json", "binary", "empty", "headers"];
    let awkward = workload::awkward_events().into_iter();
    for event in awkward.filter(|event| kinds.contains(&&*event.event_type)) {
        let id = event.id.to_string();
        assert!(sink.publish(&[Message::first("t", event)]).await.all_confirmed());
        let mut seen = seen_by(&endpoint);
        assert_eq!(seen.header("webhook-id"), id);
        assert!(accepts(OLD, &seen));
        assert!(!accepts(NEW, &seen), "by another secret");
        seen.body = [&seen.body[..], b" "].concat().into();
        assert!(!accepts(OLD, &seen), "a body that was changed");
    }
}

#[tokio::test]
async fn while_secrets_change_either_is_accepted() {
    let endpoint = Endpoint::start(|_| status(200)).await;
    let config = endpoint.config().secret(&Secret::new(NEW)).unwrap();
    let sink = config.secret(&Secret::new(OLD)).unwrap().connect().await.unwrap();
    assert!(sink.publish(&[message("a", 1)]).await.all_confirmed());
    let seen = seen_by(&endpoint);
    assert_eq!(seen.header("webhook-signature").split(' ').count(), 2);
    assert!(accepts(OLD, &seen) && accepts(NEW, &seen));
}

#[tokio::test]
async fn another_attempt_has_the_same_id_and_a_time_of_its_own() {
    let endpoint = Endpoint::start(|_| status(200)).await;
    let clock = Arc::new(ManualClock::default());
    let config = endpoint.config().secret(&Secret::new(OLD)).unwrap().clock(clock.clone());
    let sink = config.connect().await.unwrap();
    let message = message("a", 1);
    let mut seen = Vec::new();
    for _ in 0..2 {
        assert!(sink.publish(std::slice::from_ref(&message)).await.all_confirmed());
        seen.push(seen_by(&endpoint));
        clock.advance(Duration::from_secs(100));
    }
    let time = |seen: &Seen| seen.header("webhook-timestamp").parse::<i64>().unwrap();
    assert_eq!(seen[0].header("webhook-id"), seen[1].header("webhook-id"));
    assert_eq!(time(&seen[1]) - time(&seen[0]), 100);
    assert!(seen.iter().all(|seen| accepts(OLD, seen)));
}

#[tokio::test]
async fn an_event_cannot_set_the_headers_of_the_request() {
    let endpoint = Endpoint::start(|_| status(200)).await;
    let config = endpoint.config().secret(&Secret::new(OLD)).unwrap();
    let sink = config.header("authorization", &Secret::new("Bearer ours")).unwrap();
    let sink = sink.connect().await.unwrap();
    let names = ["webhook-id", "webhook-signature", "authorization", "host", "content-length"];
    let event = names
        .iter()
        .fold(workload::event("a", 1), |event, name| event.with_header(*name, "forged"));
    assert!(sink.publish(&[Message::first("t", event.clone())]).await.all_confirmed());
    let seen = seen_by(&endpoint);
    for name in names {
        assert!(!seen.header(name).contains("forged"), "{name}");
    }
    assert_eq!(seen.header("authorization"), "Bearer ours");
    assert!(accepts(OLD, &seen));
    workload::assert_intact(&event, &seen.event());
}

#[tokio::test]
async fn without_a_secret_nothing_is_signed() {
    let endpoint = Endpoint::start(|_| status(200)).await;
    let sink = endpoint.config().connect().await.unwrap();
    assert!(sink.publish(&[message("a", 1)]).await.all_confirmed());
    let seen = seen_by(&endpoint);
    assert_eq!(seen.header("webhook-signature"), "");
    assert_ne!(seen.header("webhook-id"), "");
    assert!(seen.header("user-agent").starts_with("semel/"));
}

#[tokio::test]
async fn a_content_type_that_http_does_not_allow_is_refused() {
    let endpoint = Endpoint::start(|_| status(200)).await;
    let sink = endpoint.config().connect().await.unwrap();
    let bad = workload::event("a", 1).with_bytes("text/plain\r\nevil: yes", "1");
    let published = sink.publish(&[Message::first("t", bad)]).await;
    let verdicts = super::endpoint::verdicts(published, 1);
    let failure = super::endpoint::failure(&verdicts[0]);
    assert_eq!((failure.fault(), failure.code()), (Fault::Refused, "E-WEBHOOK-HEADER"));
    assert_eq!(endpoint.seen().len(), 0);
}

#[tokio::test]
async fn headers_that_are_taken_cannot_be_configured() {
    let endpoint = Endpoint::start(|_| status(200)).await;
    for name in ["webhook-id", "content-type", "host", "semel-event-id", "a b", "connection"] {
        let failure = endpoint.config().header(name, &Secret::new("hunter2")).unwrap_err();
        assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-WEBHOOK-HEADER"));
    }
    let failure = endpoint.config().header("x", &Secret::new("hunter2\n")).unwrap_err();
    assert!(!format!("{failure:?}").contains("hunter2"));
}
