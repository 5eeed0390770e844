//! Large bodies, streams, and bodies that end early.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::IntoResponse;
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use http::StatusCode;
use http_body_util::BodyExt;
use tower::ServiceExt;

use crate::support::*;

fn chunks(count: usize) -> impl Stream<Item = Result<Bytes, Infallible>> {
    stream::iter((0..count).map(|_| Ok(Bytes::from_static(&[b'x'; 10]))))
}

#[tokio::test]
async fn a_request_over_the_limit_is_refused_with_and_without_a_length() {
    let api = orders(ietf().max_request_bytes(30));
    let sized = keyed("k").body(Body::from(vec![b'x'; 31])).unwrap();
    let unsized_ = keyed("k").body(Body::from_stream(chunks(4))).unwrap();
    for request in [sized, unsized_] {
        let answer = api.send(request).await;
        assert_eq!((answer.status, api.runs()), (StatusCode::PAYLOAD_TOO_LARGE, 0));
        assert_eq!(answer.problem(), "body-too-large");
    }
    let fits = keyed("k").body(Body::from_stream(chunks(3))).unwrap();
    assert_eq!(api.send(fits).await.status, StatusCode::CREATED, "there was no record");
}

#[tokio::test]
async fn the_default_limit_is_a_mebibyte_and_the_handler_gets_the_whole_body() {
    let api = api(ietf(), |_, request: Request| async {
        request.into_body().collect().await.unwrap().to_bytes().len().to_string()
    });
    let sized = |bytes: usize| keyed("k").body(Body::from(vec![0; bytes])).unwrap();
    assert_eq!(api.send(sized(1 << 20)).await.body, "1048576");
    assert_eq!(api.send(sized((1 << 20) + 1)).await.status.as_u16(), 413);
}

#[tokio::test]
async fn an_upload_that_is_cut_off_runs_nothing() {
    let api = orders(hasty());
    let pieces = [Ok(Bytes::from_static(b"{\"total\"")), Err(std::io::Error::other("gone"))];
    let cut = keyed("k").body(Body::from_stream(stream::iter(pieces))).unwrap();
    let answer = api.send(cut).await;
    assert_eq!((answer.status.as_u16(), answer.problem()), (400, "body-cut-off".to_owned()));
    assert_eq!(api.runs(), 0);
    assert_eq!(api.post("k", "another").await.status, StatusCode::CREATED, "there was no record");
}

async fn assert_tombstone(api: &Api, status: StatusCode) {
    for _ in 0..2 {
        let again = api.post("k", "").await;
        assert_eq!(
            (again.status, again.problem()),
            (StatusCode::CONFLICT, "not-retained".to_owned())
        );
        assert_eq!(again.json()["original_status"], status.as_u16());
        assert_eq!(again.header("retry-after"), None);
        assert_eq!(api.runs(), 1, "never a second run");
    }
}

#[tokio::test]
async fn a_response_over_the_limit_reaches_only_the_first_client() {
    for sized in [true, false] {
        let api = api(ietf().max_response_bytes(30), move |_, _| async move {
            let body =
                if sized { Body::from(vec![b'x'; 40]) } else { Body::from_stream(chunks(4)) };
            (StatusCode::CREATED, body)
        });
        let first = api.post("k", "").await;
        assert_eq!((first.status, &first.body[..]), (StatusCode::CREATED, &[b'x'; 40][..]));
        assert_eq!(first.header("idempotency-status"), Some("not-retained"));
        assert_tombstone(&api, StatusCode::CREATED).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_reaches_the_client_before_it_ends() {
    for content_type in ["text/event-stream", "application/x-ndjson"] {
        let api = api(ietf(), move |_, _| async move {
            let endless = chunks(1).chain(stream::pending());
            ([("content-type", content_type)], Body::from_stream(endless)).into_response()
        });
        let started = tokio::time::Instant::now();
        let response = api.app.clone().oneshot(post("k", "")).await.unwrap();
        let waited = started.elapsed();
        let mut body = response.into_body();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap().len(), 10);
        let at_once = content_type == "text/event-stream";
        assert_eq!(waited, if at_once { Duration::ZERO } else { Duration::from_secs(1) });
        assert_tombstone(&api, StatusCode::OK).await;
    }
}

#[tokio::test]
async fn a_response_that_ends_early_is_never_stored_as_complete() {
    let broken = api(ietf(), |_, _| async {
        let pieces = [Ok(Bytes::from_static(b"half")), Err(std::io::Error::other("gone"))];
        Body::from_stream(stream::iter(pieces)).into_response()
    });
    let response = broken.app.clone().oneshot(post("k", "")).await.unwrap();
    assert!(response.into_body().collect().await.is_err(), "the client sees it too");
    assert_tombstone(&broken, StatusCode::OK).await;

    let short = api(ietf(), |_, _| async { ([("content-length", "10")], "half") });
    assert_eq!(short.post("k", "").await.body, "half");
    assert_tombstone(&short, StatusCode::OK).await;
}
