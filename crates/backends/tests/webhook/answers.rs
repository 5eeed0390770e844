//! What follows from what an endpoint says, or does not say: the table of the documentation.

use std::time::{Duration, Instant};

use semel_core::{Failure, Fault, Sink, Verdict};

use super::endpoint::{Endpoint, Reply, failure, message, plain, raw, status, verdicts, with};

/// What one event gets from an endpoint that always answers like this.
async fn answered(reply: Reply) -> Verdict {
    let endpoint = Endpoint::start(move |_| reply.clone()).await;
    let sink = endpoint.config().connect().await.unwrap();
    let published = sink.publish(&[message("a", 1)]).await;
    assert_eq!(endpoint.seen().len(), 1, "one request, whatever the answer");
    verdicts(published, 1).remove(0)
}

async fn failed(reply: Reply) -> Failure {
    failure(&answered(reply).await).clone()
}

/// What one event gets from a server that says these bytes and closes the connection after a while.
async fn said(says: &str, then: Duration) -> Verdict {
    said_within(Duration::from_secs(5), says, then).await
}

async fn said_within(limit: Duration, says: &str, then: Duration) -> Verdict {
    let address = raw(says.into(), then).await;
    let sink = plain(&format!("http://{address}/")).timeout(limit).connect().await.unwrap();
    verdicts(sink.publish(&[message("a", 1)]).await, 1).remove(0)
}

#[tokio::test]
async fn only_2xx_confirms() {
    for code in [200, 201, 202, 204, 299] {
        assert_eq!(answered(status(code)).await, Verdict::Confirmed, "{code}");
    }
}

#[tokio::test]
async fn what_an_endpoint_does_not_want_is_refused() {
    for code in [400, 401, 403, 404, 405, 410, 413, 422, 451] {
        let failure = failed(status(code)).await;
        assert_eq!((failure.fault(), failure.code()), (Fault::Refused, "E-WEBHOOK-REFUSED"));
        assert!(failure.to_string().contains(&code.to_string()), "{failure}");
    }
}

#[tokio::test]
async fn what_may_work_later_is_tried_again() {
    for code in [408, 409, 421, 425, 500, 501, 507] {
        let failure = failed(status(code)).await;
        assert_eq!((failure.fault(), failure.code()), (Fault::Transient, "E-WEBHOOK-STATUS"));
    }
}

#[tokio::test]
async fn a_wait_for_one_event_is_kept() {
    let failure = failed(with(500, "retry-after", "30")).await;
    assert_eq!(failure.retry_after(), Some(Duration::from_secs(30)));
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = Endpoint::start(|_| status(200)).await;
    let place = format!("http://{}/new?token=hunter2", elsewhere.address);
    for code in [302, 303, 307] {
        let failure = failed(with(code, "location", &place)).await;
        assert_eq!((failure.fault(), failure.code()), (Fault::Transient, "E-WEBHOOK-REDIRECT"));
    }
    for code in [301, 308] {
        let failure = failed(with(code, "location", &place)).await;
        assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-WEBHOOK-MOVED"));
        let fix = failure.fix().unwrap();
        assert!(fix.contains("/new") && !fix.contains("hunter2"), "{fix}");
    }
    assert_eq!(elsewhere.seen().len(), 0, "nobody went there");
}

#[tokio::test]
async fn a_gateway_with_nothing_behind_it_is_an_outage() {
    for code in [502, 503, 504] {
        let failure = failed(status(code)).await;
        assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, "E-WEBHOOK-GATEWAY"));
    }
}

#[tokio::test]
async fn an_endpoint_that_asks_to_be_left_alone_is_left_alone() {
    for code in [429, 503] {
        let reply = with(code, "retry-after", "2");
        let endpoint = Endpoint::start(move |seen| {
            if seen.event().aggregate_id == "a" { reply.clone() } else { status(200) }
        })
        .await;
        let sink = endpoint.config().concurrency(1).connect().await.unwrap();
        let batch = [message("a", 1), message("b", 1), message("b", 2)];
        let first = verdicts(sink.publish(&batch).await, 3);
        let throttled = failure(&first[0]);
        assert_eq!(
            (throttled.fault(), throttled.code()),
            (Fault::Transient, "E-WEBHOOK-THROTTLED")
        );
        assert_eq!(throttled.retry_after(), Some(Duration::from_secs(2)));
        // The others were not sent, so they lose no attempt.
        assert_eq!(failure(&first[1]).fault(), Fault::Unavailable);
        assert_eq!(first[2], Verdict::Behind);
        assert_eq!(sink.check().await.unwrap_err().fault(), Fault::Unavailable);
        assert_eq!(endpoint.seen().len(), 1);

        tokio::time::sleep(Duration::from_millis(2100)).await;
        sink.check().await.unwrap();
        assert!(sink.publish(&batch[1..]).await.all_confirmed());
    }
}

#[tokio::test]
async fn a_429_without_a_time_is_about_its_event() {
    let failure = failed(status(429)).await;
    assert_eq!((failure.fault(), failure.code()), (Fault::Transient, "E-WEBHOOK-THROTTLED"));
    assert_eq!(failure.retry_after(), None);
}

#[tokio::test]
async fn silence_is_an_outage() {
    for says in ["", "HTTP/1.1 2", "HTTP/1.1 200 OK\r\ncontent-le"] {
        let limit = Duration::from_millis(300);
        let verdict = said_within(limit, says, Duration::from_secs(60)).await;
        let failure = failure(&verdict);
        assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, "E-WEBHOOK-TIMEOUT"));
    }
}

#[tokio::test]
async fn a_connection_that_is_cut_before_the_answer_is_an_outage() {
    for says in ["", "HTTP/1.1 2", "HTTP/1.1 200 OK\r\ncontent-le", "SSH-2.0-OpenSSH\r\n"] {
        let verdict = said(says, Duration::ZERO).await;
        let failure = failure(&verdict);
        assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, "E-WEBHOOK-CUT"));
    }
}

#[tokio::test]
async fn a_connection_that_is_cut_within_the_answer_counts_by_its_status() {
    let half = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf of i";
    assert_eq!(said(half, Duration::ZERO).await, Verdict::Confirmed);
    let half = "HTTP/1.1 410 Gone\r\ncontent-length: 100\r\n\r\nhalf of i";
    assert_eq!(failure(&said(half, Duration::ZERO).await).fault(), Fault::Refused);
}

#[tokio::test]
async fn an_answer_that_never_ends_is_not_waited_for() {
    let began = Instant::now();
    let drips = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\ndrip";
    assert_eq!(said(drips, Duration::from_secs(60)).await, Verdict::Confirmed);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_huge_answer_is_not_read() {
    let body = vec![b'x'; 64 * 1024 * 1024];
    let began = Instant::now();
    let endpoint = Endpoint::start(move |_| Reply { body: body.clone(), ..status(200) }).await;
    let sink = endpoint.config().connect().await.unwrap();
    for number in 0..3 {
        assert!(sink.publish(&[message("a", number)]).await.all_confirmed());
    }
    assert_eq!(endpoint.taken().len(), 3);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[tokio::test]
async fn what_the_answer_says_is_not_repeated() {
    let body = b"card 4111 is not valid".to_vec();
    let failure = failed(Reply { body, ..status(400) }).await;
    assert!(!format!("{failure:?}").contains("4111"));
}

#[tokio::test]
async fn nobody_there_is_an_outage() {
    let address = raw(Vec::new(), Duration::ZERO).await;
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    assert_ne!(address, closed);
    for host in [closed.to_string(), "no-such-host.invalid".into()] {
        let sink = plain(&format!("http://{host}/hooks?token=hunter2")).connect().await.unwrap();
        let batch = [message("a", 1), message("a", 2), message("b", 1)];
        let verdicts = verdicts(sink.publish(&batch).await, 3);
        for verdict in [&verdicts[0], &verdicts[2]] {
            let failure = failure(verdict);
            assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, "E-WEBHOOK-DOWN"));
            assert!(!failure.to_string().contains("hunter2"), "{failure}");
        }
        assert_eq!(verdicts[1], Verdict::Behind);
        assert_eq!(sink.check().await.unwrap_err().code(), "E-WEBHOOK-DOWN");
    }
}

#[tokio::test]
async fn a_check_takes_any_answer_but_that_of_a_gateway() {
    let checked = async |answer: &str| {
        let says = format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\n\r\n");
        let address = raw(says.into(), Duration::ZERO).await;
        let sink = plain(&format!("http://{address}/")).connect().await.unwrap();
        (sink.check().await, sink)
    };
    for answer in ["200 OK", "301 Moved", "404 Not Found", "405 No", "429 Slow", "500 Oh"] {
        checked(answer).await.0.expect(answer);
    }
    for answer in ["502 Bad Gateway", "503 Not Now", "504 Too Late"] {
        let failure = checked(answer).await.0.unwrap_err();
        assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, "E-WEBHOOK-GATEWAY"));
    }
    let (answer, sink) = checked("503 Not Now\r\nretry-after: 60").await;
    assert_eq!(answer.unwrap_err().code(), "E-WEBHOOK-THROTTLED");
    let verdict = verdicts(sink.publish(&[message("a", 1)]).await, 1).remove(0);
    assert_eq!(failure(&verdict).fault(), Fault::Unavailable, "nothing is sent meanwhile");
}
