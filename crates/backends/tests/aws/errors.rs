//! The table of errors. Missing targets are those of moto; what moto cannot be made to say comes from
//! an impostor with the words of AWS.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use semel_backends::aws::AwsSink;
use semel_core::memory::MemoryDatabase;
use semel_core::wire::Format;
use semel_core::{Event, Failure, Fault, Message, OutboxWriter, Published, Secret, Sink, Verdict};
use semel_relay::{Relay, Stop};
use semel_testkit::workload::event;
use tokio::time::timeout;

use super::impostor::{Answer, Impostor, to_each};
use super::{ACCOUNT, Lab, PATIENCE, REGION, config, failure_of, publish};

fn assert_told(failure: &Failure, fault: Fault, code: &str) {
    assert_eq!((failure.fault(), failure.code()), (fault, code), "{failure:?}");
    assert!(failure.fix().is_some(), "{failure:?}");
}

/// A sink to an impostor, and the topic that needs no question before the first message.
async fn sqs(impostor: &Impostor) -> (AwsSink, String) {
    let sink = config(&impostor.url).connect_sqs().await.unwrap();
    (sink, format!("{}/{ACCOUNT}/orders", impostor.url))
}

fn said(lane: &str, text: &str) -> Event {
    event(lane, 0).with_bytes("text/plain", text.to_owned())
}

#[tokio::test]
async fn nobody_listening_is_an_outage() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let sink = config(&format!("http://{unused}")).connect_sqs().await.unwrap();
    let failure = failure_of(publish(&sink, "orders", [event("a", 0)]).await);
    assert_told(&failure, Fault::Unavailable, "E-AWS-DOWN");
    let failure = timeout(PATIENCE, sink.check()).await.unwrap().unwrap_err();
    assert_told(&failure, Fault::Unavailable, "E-AWS-DOWN");
}

#[tokio::test]
async fn no_answer_in_time_is_an_outage() {
    let impostor = Impostor::start(|_| None).await;
    let sink = config(&impostor.url).timeout(Duration::from_millis(300));
    let sink = sink.connect_sqs().await.unwrap();
    let failure = failure_of(publish(&sink, "orders", [event("a", 0)]).await);
    assert_told(&failure, Fault::Unavailable, "E-AWS-TIMEOUT");
    let failure = timeout(PATIENCE, sink.check()).await.unwrap().unwrap_err();
    assert_told(&failure, Fault::Unavailable, "E-AWS-TIMEOUT");
}

/// Or else it would be sent again for ever, with whatever is beside it.
#[tokio::test]
async fn what_is_answered_is_confirmed_beside_a_queue_that_hangs() {
    let impostor = Impostor::start(|request| match request {
        hanging if hanging.contains("silent") => None,
        answered => to_each(answered, |_| None),
    })
    .await;
    let sink = config(&impostor.url).timeout(Duration::from_secs(3)).connect_sqs().await.unwrap();
    let to = |queue: &str, lane: &str, number| {
        let topic = format!("{}/{ACCOUNT}/{queue}", impostor.url);
        Message::first(topic.as_str(), event(lane, number))
    };
    let batch =
        [to("healthy", "a", 0), to("silent", "b", 1), to("healthy", "a", 2), to("healthy", "b", 3)];
    let published = timeout(PATIENCE, sink.publish(&batch)).await.unwrap();
    let Published::Each(verdicts) = published else { panic!("{published:?}") };
    assert_eq!(verdicts[0], Verdict::Confirmed, "{verdicts:?}");
    for place in [1, 2] {
        let Verdict::Failed(failure) = &verdicts[place] else { panic!("{verdicts:?}") };
        assert_told(failure, Fault::Unavailable, "E-AWS-TIMEOUT");
    }
    assert_eq!(verdicts[3], Verdict::Behind);
}

#[tokio::test]
async fn a_missing_target_is_misconfigured() {
    let Some(lab) = Lab::open().await else { return };
    let sns = lab.config().connect_sns(Some(format!("arn:aws:sns:{REGION}:{ACCOUNT}:"))).await;
    let sinks = [
        ("sqs", lab.config().connect_sqs().await.unwrap()),
        ("sns", sns.unwrap()),
        ("eventbridge", lab.config().connect_eventbridge(None).await.unwrap()),
    ];
    for (name, sink) in sinks {
        let failure = failure_of(publish(&sink, "no-such-target", [event("a", 0)]).await);
        assert_told(&failure, Fault::Misconfigured, "E-AWS-MISSING");
        assert!(failure.to_string().contains("no-such-target"), "{name}: {failure}");
        timeout(PATIENCE, sink.check()).await.unwrap().expect("the service itself is there");
    }
}

/// Errors of whole requests.
#[tokio::test]
async fn every_code_of_the_service_has_its_line() {
    use Fault::{Misconfigured, Refused, Unavailable};
    let cases = [
        (500, "InternalError", Unavailable, "E-AWS-DOWN"),
        (503, "ServiceUnavailable", Unavailable, "E-AWS-DOWN"),
        (400, "ThrottlingException", Unavailable, "E-AWS-THROTTLED"),
        (403, "com.amazonaws.sqs#RequestThrottled", Unavailable, "E-AWS-THROTTLED"),
        (429, "Whatever", Unavailable, "E-AWS-THROTTLED"),
        (400, "com.amazonaws.sqs#KmsThrottled", Unavailable, "E-AWS-THROTTLED"),
        (400, "com.amazonaws.sqs#QueueDoesNotExist", Misconfigured, "E-AWS-MISSING"),
        (403, "AccessDeniedException", Misconfigured, "E-AWS-ACCESS"),
        (400, "com.amazonaws.sqs#KmsAccessDenied", Misconfigured, "E-AWS-ACCESS"),
        (400, "com.amazonaws.sqs#KmsDisabled", Misconfigured, "E-AWS-ACCESS"),
        (400, "com.amazonaws.sqs#KmsInvalidState", Misconfigured, "E-AWS-ACCESS"),
        (403, "InvalidClientTokenId", Misconfigured, "E-AWS-ACCESS"),
        (400, "UnrecognizedClientException", Misconfigured, "E-AWS-ACCESS"),
        (403, "SignatureDoesNotMatch", Misconfigured, "E-AWS-ACCESS"),
        (400, "InvalidSignatureException", Misconfigured, "E-AWS-ACCESS"),
        (400, "ExpiredTokenException", Misconfigured, "E-AWS-EXPIRED"),
        (400, "com.amazonaws.sqs#BatchRequestTooLong", Refused, "E-AWS-REJECTED"),
        (400, "InvalidParameterValue", Refused, "E-AWS-REJECTED"),
    ];
    for (status, word, fault, code) in cases {
        let impostor = Impostor::start(move |_| Impostor::error(status, word)).await;
        let (sink, topic) = sqs(&impostor).await;
        let failure = failure_of(publish(&sink, &topic, [event("a", 0)]).await);
        assert_told(&failure, fault, code);
        assert!(failure.to_string().contains("as AWS says it"), "{failure}");
    }
}

/// SNS speaks XML.
#[tokio::test]
async fn errors_of_sns_are_read_too() {
    let another_region = (400, "InvalidParameter", "Invalid parameter: TopicArn");
    for (status, code, why) in [(404, "NotFound", "Topic does not exist"), another_region] {
        let answer = move |_: &str| -> Answer {
            let body = format!(
                "<ErrorResponse xmlns=\"http://sns.amazonaws.com/doc/2010-03-31/\"><Error>\
                 <Type>Sender</Type><Code>{code}</Code><Message>{why}</Message></Error>\
                 <RequestId>1</RequestId></ErrorResponse>"
            );
            Some((status, "content-type: text/xml\r\n", body))
        };
        let impostor = Impostor::start(answer).await;
        let sink = config(&impostor.url).connect_sns(None).await.unwrap();
        let failure = failure_of(publish(&sink, "arn:aws:sns:x:1:orders", [event("a", 0)]).await);
        assert_told(&failure, Fault::Misconfigured, "E-AWS-MISSING");
        timeout(PATIENCE, sink.check()).await.unwrap().expect("it answers");
    }
}

#[tokio::test]
async fn a_throttled_request_says_how_long_to_wait() {
    let cases = [("retry-after: 7\r\n", Duration::from_secs(7)), ("", Duration::from_secs(1))];
    for (headers, wait) in cases {
        let impostor = Impostor::start(move |_| throttled(headers)).await;
        let (sink, topic) = sqs(&impostor).await;
        let failure = failure_of(publish(&sink, &topic, [event("a", 0)]).await);
        assert_told(&failure, Fault::Unavailable, "E-AWS-THROTTLED");
        assert_eq!(failure.retry_after(), Some(wait));
    }
}

/// Under the engine: the service is asked nothing at all meanwhile, not even by a probe.
#[tokio::test]
async fn a_throttled_request_waits_as_long_as_it_is_asked_to() {
    for (headers, wait) in
        [("retry-after: 2\r\n", Duration::from_secs(2)), ("", Duration::from_secs(1))]
    {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&asked);
        let impostor = Impostor::start(move |request| {
            let mut asked = noted.lock().unwrap();
            let what = match request {
                probe if probe.contains("semel-probe") => "probe",
                find if find.contains("QueueName") => "find",
                _ => "send",
            };
            let is_first = !asked.iter().any(|(other, _)| *other == what);
            asked.push((what, Instant::now()));
            match what {
                "probe" => Impostor::error(400, "com.amazonaws.sqs#QueueDoesNotExist"),
                "find" => Some((200, "", "{\"QueueUrl\":\"http://sqs/1/outbox\"}".to_owned())),
                _ if is_first => throttled(headers),
                _ => to_each(request, |_| None),
            }
        })
        .await;
        let (sink, _) = sqs(&impostor).await;
        let database = MemoryDatabase::new();
        let mut tx = database.begin().await;
        database.append(&mut tx, &[event("a", 0)]).await.unwrap();
        tx.commit();
        let draining = Relay::new("orders", database.source(), sink).drain(Stop::never());
        let report = timeout(PATIENCE, draining).await.unwrap().unwrap();
        assert_eq!((report.published, report.dead), (1, 0));
        let asked = asked.lock().unwrap();
        let what: Vec<_> = asked.iter().map(|(what, _)| *what).collect();
        assert_eq!(what, ["probe", "find", "send", "probe", "find", "send"]);
        let waited = asked[3].1 - asked[2].1;
        assert!(waited >= wait, "{waited:?}");
    }
}

fn throttled(headers: &'static str) -> Answer {
    Some((400, headers, "{\"__type\":\"ThrottlingException\"}".to_owned()))
}

/// Of one batch some are taken and some are not; what is behind a failure is not sent.
#[tokio::test]
async fn every_message_of_a_batch_has_its_own_fate() {
    let failing = |body: &str| match body {
        "bad" => Some(("InvalidMessageContents", true)),
        "unlucky" => Some(("InternalError", false)),
        "throttled" => Some(("RequestThrottled", false)),
        _ => None,
    };
    let impostor = Impostor::start(move |request| to_each(request, failing)).await;
    let (sink, topic) = sqs(&impostor).await;
    let batch = [
        said("a", "good"),
        said("b", "bad"),
        said("c", "unlucky"),
        said("d", "throttled"),
        said("a", "second of a"),
        said("b", "second of b"),
    ];
    let published = publish(&sink, &topic, batch).await;
    let Published::Each(verdicts) = published else { panic!("{published:?}") };
    assert_eq!((&verdicts[0], &verdicts[4]), (&Verdict::Confirmed, &Verdict::Confirmed));
    let failure = |place: usize| match &verdicts[place] {
        Verdict::Failed(failure) => failure,
        other => panic!("{place}: {other:?}"),
    };
    assert_told(failure(1), Fault::Refused, "E-AWS-REJECTED");
    assert_told(failure(2), Fault::Transient, "E-AWS-FAILED");
    assert_told(failure(3), Fault::Unavailable, "E-AWS-THROTTLED");
    assert_eq!(verdicts[5], Verdict::Behind);
    let requests = impostor.requests();
    assert_eq!(requests.len(), 2, "one per wave");
    assert!(!requests.concat().contains("second of b"), "what is behind was not sent");
}

/// One wrong message must not make dead letters of nine others.
#[tokio::test]
async fn a_batch_that_is_refused_as_a_whole_is_sent_one_by_one() {
    let impostor = Impostor::start(|request| {
        if request.contains("rotten") {
            return Impostor::error(400, "InvalidParameterValue");
        }
        to_each(request, |_| None)
    })
    .await;
    let (sink, topic) = sqs(&impostor).await;
    let batch = [said("a", "good"), said("b", "rotten"), said("c", "good")];
    let published = publish(&sink, &topic, batch).await;
    let Published::Each(verdicts) = published else { panic!("{published:?}") };
    assert_eq!((&verdicts[0], &verdicts[2]), (&Verdict::Confirmed, &Verdict::Confirmed));
    let Verdict::Failed(failure) = &verdicts[1] else { panic!("{verdicts:?}") };
    assert_told(failure, Fault::Refused, "E-AWS-REJECTED");
}

/// moto drops it from batches, so an impostor looks.
#[tokio::test]
async fn the_trace_travels_as_x_ray_writes_it() {
    let impostor = Impostor::start(|request| to_each(request, |_| None)).await;
    let (sink, topic) = sqs(&impostor).await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let sent = event("a", 0).with_header("traceparent", trace);
    assert!(publish(&sink, &topic, [sent]).await.all_confirmed());
    let request: serde_json::Value = serde_json::from_str(&impostor.requests()[0]).unwrap();
    assert_eq!(
        request["Entries"][0]["MessageSystemAttributes"]["AWSTraceHeader"]["StringValue"],
        "Root=1-0af76519-16cd43dd8448eb211c80319c;Parent=b7ad6b7169203331;Sampled=1"
    );
}

/// Ten at most, and no more bytes than one message may have.
#[tokio::test]
async fn batches_are_cut_by_count_and_by_size() {
    let impostor = Impostor::start(|request| to_each(request, |_| None)).await;
    let (sink, topic) = sqs(&impostor).await;
    let small = (0..25).map(|lane| said(&lane.to_string(), "small"));
    assert!(publish(&sink, &topic, small).await.all_confirmed());
    let mut counts: Vec<_> =
        impostor.requests().iter().map(|request| request.matches("small").count()).collect();
    counts.sort_unstable();
    assert_eq!(counts, [5, 10, 10]);

    let large = (0..5).map(|lane| said(&lane.to_string(), &"large".repeat(80_000)));
    assert!(publish(&sink, &topic, large).await.all_confirmed());
    let requests = impostor.requests();
    let large = |request: &String| request.matches("largelarge").count() / 40_000;
    let sizes: Vec<_> = requests[3..].iter().map(large).collect();
    assert_eq!(sizes.iter().sum::<usize>(), 5);
    assert!(sizes.iter().all(|size| *size <= 2), "{sizes:?}");
}

#[tokio::test]
async fn every_code_about_an_event_of_eventbridge_has_its_line() {
    use Fault::{Misconfigured, Refused, Transient, Unavailable};
    let cases = [
        ("ThrottlingException", Unavailable, "E-AWS-THROTTLED"),
        ("InternalFailure", Transient, "E-AWS-FAILED"),
        ("InternalException", Transient, "E-AWS-FAILED"),
        ("MalformedDetail", Refused, "E-AWS-REJECTED"),
        ("InvalidArgument", Refused, "E-AWS-REJECTED"),
        ("NotAuthorizedForSourceException", Misconfigured, "E-AWS-ACCESS"),
    ];
    for (word, fault, code) in cases {
        let answer = move |request: &str| -> Answer {
            let body = if request.contains("Entries") {
                format!("{{\"Entries\":[{{\"ErrorCode\":\"{word}\"}}],\"FailedEntryCount\":1}}")
            } else {
                "{\"Name\":\"orders\"}".to_owned()
            };
            Some((200, "content-type: application/x-amz-json-1.1\r\n", body))
        };
        let impostor = Impostor::start(answer).await;
        let sink = config(&impostor.url).connect_eventbridge(None).await.unwrap();
        let failure = failure_of(publish(&sink, "orders", [event("a", 0)]).await);
        assert_told(&failure, fault, code);
    }
}

/// A probe fails on what makes a publish fail, and not on what is only about the probe.
#[tokio::test]
async fn check_knows_what_is_only_about_the_probe() {
    for word in ["com.amazonaws.sqs#QueueDoesNotExist", "AccessDeniedException"] {
        let impostor = Impostor::start(move |_| Impostor::error(400, word)).await;
        let (sink, _) = sqs(&impostor).await;
        timeout(PATIENCE, sink.check()).await.unwrap().expect(word);
    }
    let cases = [
        ("InvalidClientTokenId", Fault::Misconfigured, "E-AWS-ACCESS"),
        ("ThrottlingException", Fault::Unavailable, "E-AWS-THROTTLED"),
    ];
    for (word, fault, code) in cases {
        let impostor = Impostor::start(move |_| Impostor::error(400, word)).await;
        let (sink, _) = sqs(&impostor).await;
        let failure = timeout(PATIENCE, sink.check()).await.unwrap().unwrap_err();
        assert_told(&failure, fault, code);
    }
}

#[tokio::test]
async fn what_aws_cannot_carry_is_refused_beforehand() {
    let impostor = Impostor::start(|request| to_each(request, |_| None)).await;
    let (sink, topic) = sqs(&impostor).await;
    let failure = failure_of(publish(&sink, &topic, [super::too_large(event("a", 0))]).await);
    assert_told(&failure, Fault::Refused, "E-AWS-TOO-LARGE");
    let broken = Event::new("order", "a\u{1}b", "T");
    let failure = failure_of(publish(&sink, &topic, [broken]).await);
    assert_told(&failure, Fault::Refused, "E-AWS-CONTENT");
    assert!(impostor.requests().is_empty());
}

#[test]
fn binary_cloud_events_are_refused_when_the_configuration_is_read() {
    let failure = config("http://x").format(Format::CloudEventsBinary).unwrap_err();
    assert_told(&failure, Fault::Misconfigured, "E-AWS-FORMAT");
}

#[test]
fn secrets_are_not_shown() {
    let config = config("http://x").credentials("id", Secret::new("hunter2"), None);
    assert!(!format!("{config:?}").contains("hunter2"));
}
