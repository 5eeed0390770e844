//! Order inside a lane, limits, and telling a bad event from an outage.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use semel_core::{Fault, Message, Sink, Verdict};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::endpoint::{
    Endpoint, Reply, failure, message, plain, read_request, serve, status, verdicts,
};

fn slow(after: Duration) -> Reply {
    Reply { after, ..status(200) }
}

fn lanes(count: u64) -> Vec<Message> {
    (0..count).map(|number| message(&format!("lane-{number}"), number)).collect()
}

#[tokio::test]
async fn no_more_requests_are_under_way_than_the_endpoint_bears() {
    let endpoint = Endpoint::start(|_| slow(Duration::from_millis(20))).await;
    let sink = endpoint.config().concurrency(3).connect().await.unwrap();
    let (first, second) = (lanes(20), [message("other", 1), message("another", 1)]);
    // The limit holds for all calls together.
    let (first, second) = tokio::join!(sink.publish(&first), sink.publish(&second));
    assert!(first.all_confirmed() && second.all_confirmed());
    assert_eq!(endpoint.most_at_once(), 3);
}

#[tokio::test]
async fn a_lane_has_one_request_at_a_time() {
    let endpoint = Endpoint::start(|_| slow(Duration::from_millis(5))).await;
    let sink = endpoint.config().connect().await.unwrap();
    let batch: Vec<_> = (0..10).map(|number| message("a", number)).collect();
    assert!(sink.publish(&batch).await.all_confirmed());
    assert_eq!(endpoint.most_at_once(), 1);
    let expected: Vec<_> = (0..10).map(|number| ("a".to_owned(), number)).collect();
    assert_eq!(endpoint.taken(), expected);
}

#[tokio::test]
async fn an_event_that_the_endpoint_stumbles_over_is_no_outage() {
    let endpoint =
        Endpoint::start(|seen| status(if seen.event().aggregate_id == "bad" { 502 } else { 200 }))
            .await;
    let sink = endpoint.config().concurrency(1).connect().await.unwrap();
    let batch = [message("bad", 1), message("a", 1), message("bad", 2), message("b", 1)];
    let verdicts = verdicts(sink.publish(&batch).await, 4);
    assert_eq!(failure(&verdicts[0]).fault(), Fault::Transient);
    assert_eq!(failure(&verdicts[0]).code(), "E-WEBHOOK-GATEWAY");
    assert_eq!(verdicts[2], Verdict::Behind);
    assert_eq!((&verdicts[1], &verdicts[3]), (&Verdict::Confirmed, &Verdict::Confirmed));
}

#[tokio::test]
async fn bad_events_at_the_head_do_not_pass_for_an_outage_for_long() {
    let endpoint = Endpoint::start(|seen| {
        status(if seen.event().aggregate_id.starts_with("bad") { 502 } else { 200 })
    })
    .await;
    let sink = endpoint.config().concurrency(1).connect().await.unwrap();
    let batch = [message("bad-1", 1), message("bad-2", 1), message("a", 1), message("b", 1)];
    for verdict in verdicts(sink.publish(&batch).await, 4) {
        assert_eq!(failure(&verdict).fault(), Fault::Unavailable, "it looks like an outage");
    }
    let again = verdicts(sink.publish(&batch).await, 4);
    assert_eq!(again[2..], [Verdict::Confirmed, Verdict::Confirmed]);
    assert_eq!(failure(&again[0]).fault(), Fault::Transient);
    assert_eq!(failure(&again[1]).fault(), Fault::Transient);
    // What was good for one attempt is not for the next.
    let alone = verdicts(sink.publish(&batch[..2]).await, 2);
    assert_eq!(failure(&alone[0]).fault(), Fault::Unavailable);
}

#[tokio::test]
async fn an_event_that_the_endpoint_hangs_on_is_no_outage() {
    let endpoint = Endpoint::start(|seen| {
        slow(Duration::from_secs(if seen.event().aggregate_id == "bad" { 60 } else { 0 }))
    })
    .await;
    let sink = endpoint.config().timeout(Duration::from_secs(1)).connect().await.unwrap();
    let hanging = {
        let sink = sink.clone();
        tokio::spawn(async move { sink.publish(&[message("bad", 1)]).await })
    };
    // Meanwhile others are served.
    let mut number = 0;
    while !hanging.is_finished() {
        number += 1;
        assert!(sink.publish(&[message("a", number)]).await.all_confirmed());
    }
    let verdicts = verdicts(hanging.await.unwrap(), 1);
    let failure = failure(&verdicts[0]);
    assert_eq!((failure.fault(), failure.code()), (Fault::Transient, "E-WEBHOOK-TIMEOUT"));
}

#[tokio::test]
async fn an_outage_is_noticed_after_two_requests() {
    let endpoint = Endpoint::start(|_| status(502)).await;
    let sink = endpoint.config().concurrency(1).connect().await.unwrap();
    for verdict in verdicts(sink.publish(&lanes(50)).await, 50) {
        assert_eq!(failure(&verdict).fault(), Fault::Unavailable);
    }
    assert_eq!(endpoint.seen().len(), 2);
}

#[tokio::test]
async fn a_slow_endpoint_gets_what_fits_into_the_time_and_the_rest_later() {
    let endpoint = Endpoint::start(|_| slow(Duration::from_millis(200))).await;
    let limit = Duration::from_secs(1);
    let sink = endpoint.config().timeout(limit).connect().await.unwrap();
    let mut batch: Vec<_> = (0..8).map(|number| message("a", number)).collect();
    let mut calls = 0;
    while !batch.is_empty() {
        calls += 1;
        let began = Instant::now();
        let verdicts = verdicts(sink.publish(&batch).await, batch.len());
        assert!(began.elapsed() < 2 * limit, "{:?}", began.elapsed());
        let confirmed = verdicts.iter().take_while(|it| **it == Verdict::Confirmed).count();
        assert!(confirmed > 0, "a call gets somewhere");
        if let Some(verdict) = verdicts.get(confirmed) {
            let failure = failure(verdict);
            assert_eq!((failure.fault(), failure.code()), (Fault::Unavailable, "E-WEBHOOK-SLOW"));
            assert!(verdicts[confirmed + 1..].iter().all(|it| *it == Verdict::Behind));
        }
        batch.drain(..confirmed);
    }
    assert!(calls > 1, "it did not fit into one");
    let expected: Vec<_> = (0..8).map(|number| ("a".to_owned(), number)).collect();
    assert_eq!(endpoint.taken(), expected);
}

#[tokio::test]
async fn a_dropped_call_gives_its_place_back() {
    let endpoint = Endpoint::start(|_| slow(Duration::from_millis(200))).await;
    let sink = endpoint.config().concurrency(1).connect().await.unwrap();
    for _ in 0..5 {
        let dropped = timeout(Duration::from_millis(20), sink.publish(&lanes(3))).await;
        assert!(dropped.is_err());
    }
    assert!(sink.publish(&[message("a", 1)]).await.all_confirmed());
}

#[tokio::test]
async fn connections_are_kept_and_used_again() {
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    let address = serve(move |mut stream| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            while read_request(&mut stream).await {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n").await.unwrap();
                // The body comes later, and the connection is free only behind it.
                tokio::time::sleep(Duration::from_millis(5)).await;
                stream.write_all(b"thank you").await.unwrap();
            }
        }
    })
    .await;
    let sink = plain(&format!("http://{address}/")).concurrency(4).connect().await.unwrap();
    for _ in 0..5 {
        assert!(sink.publish(&lanes(20)).await.all_confirmed());
    }
    let connections = connections.load(Ordering::SeqCst);
    assert!((1..=8).contains(&connections), "{connections} connections for 100 requests");
}
