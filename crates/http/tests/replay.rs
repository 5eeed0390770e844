//! The first answer, and the same one again.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::response::{AppendHeaders, IntoResponse};
use http::{HeaderName, StatusCode};
use http_body_util::BodyExt;
use semel_core::memory::MemoryKeys;
use semel_http::Retention;
use tokio::time::advance;
use tower::ServiceExt;

use crate::support::*;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[tokio::test]
async fn the_first_answer_is_untouched_and_a_thousand_more_are_the_same() {
    let api = orders(ietf());
    let first = api.post("k", "{\"total\":1}").await;
    assert_eq!(first.status, StatusCode::CREATED);
    assert_eq!((first.header("location"), first.header(MARKER)), (Some("/orders/1"), None));
    assert_eq!(first.header("cache-control"), None);

    for _ in 0..1000 {
        let again = api.post("k", "{\"total\":1}").await;
        assert_eq!((again.status, &again.body), (first.status, &first.body));
        assert_eq!(again.header("location"), Some("/orders/1"));
        assert_eq!(again.header("content-type"), first.header("content-type"));
        assert_eq!((again.is_replay(), again.header("cache-control")), (true, Some("no-store")));
    }
    assert_eq!(api.runs(), 1);
}

#[tokio::test]
async fn another_instance_on_the_same_store_replays() {
    let store = Arc::new(MemoryKeys::new());
    let one = api_on(store.clone(), ietf(), place_order);
    let other = api_on(store, ietf(), place_order);
    one.post("k", "{}").await;
    assert!(other.post("k", "{}").await.is_replay());
    assert_eq!((one.runs(), other.runs()), (1, 0));
}

#[tokio::test]
async fn headers_keep_count_and_order_and_secrets_are_left_out() {
    let policy = ietf().replay_headers(["set-cookie", "mine"].map(HeaderName::from_static));
    let api = api(policy, |_, _| async {
        AppendHeaders([
            ("x-many", "1"),
            ("etag", "\"7\""),
            ("content-language", "de"),
            ("content-disposition", "attachment"),
            ("x-many", "2"),
            ("mine", "yes"),
            ("other", "no"),
            ("cache-control", "max-age=1"),
            ("set-cookie", "session=1"),
            ("www-authenticate", "Basic"),
            ("connection", "x-hop"),
            ("x-hop", "1"),
        ])
    });
    let first = api.post("k", "").await;
    assert_eq!(
        (first.header("set-cookie"), first.header("other")),
        (Some("session=1"), Some("no"))
    );
    let again = api.post("k", "").await;
    let many: Vec<_> = again.headers.get_all("x-many").iter().collect();
    assert_eq!(many, ["1", "2"]);
    for name in ["etag", "content-language", "content-disposition", "mine", "cache-control"] {
        assert_eq!(again.header(name), first.header(name), "{name}");
    }
    for name in ["set-cookie", "www-authenticate", "connection", "x-hop", "other"] {
        assert_eq!(again.header(name), None, "{name}");
    }
}

#[tokio::test]
async fn all_headers_by_option() {
    let api = api(ietf().replay_all_headers(), |_, _| async {
        AppendHeaders([("other", "yes"), ("set-cookie", "session=1")])
    });
    api.post("k", "").await;
    let again = api.post("k", "").await;
    assert_eq!((again.header("other"), again.header("set-cookie")), (Some("yes"), None));
}

#[tokio::test]
async fn all_bytes_and_no_bytes_are_replayed() {
    let bytes: Vec<u8> = (0..=255).collect();
    let binary = {
        let bytes = bytes.clone();
        api(ietf(), move |_, _| {
            std::future::ready((([("content-encoding", "gzip")]), bytes.clone()))
        })
    };
    binary.post("k", "").await;
    let again = binary.post("k", "").await;
    assert_eq!((&again.body[..], again.header("content-encoding")), (&bytes[..], Some("gzip")));

    let empty = api(ietf(), |_, _| async { StatusCode::NO_CONTENT });
    empty.post("k", "").await;
    let again = empty.post("k", "").await;
    assert_eq!((again.status, again.body.len()), (StatusCode::NO_CONTENT, 0));
    assert!(again.is_replay());
}

#[tokio::test]
async fn trailers_are_replayed_and_no_length_is_announced_that_would_leave_no_room_for_them() {
    let api = api(ietf(), |_, _| async {
        let trailers = http::HeaderMap::from_iter([(
            HeaderName::from_static("x-checksum"),
            http::HeaderValue::from_static("42"),
        )]);
        let frames = [
            Ok::<_, std::convert::Infallible>(http_body::Frame::data("chunk".into())),
            Ok(http_body::Frame::data("ed".into())),
            Ok(http_body::Frame::trailers(trailers)),
        ];
        let stream = futures_util::stream::iter(frames);
        Body::new(http_body_util::StreamBody::new(stream)).into_response()
    });
    api.post("k", "").await;
    let again = api.app.clone().oneshot(post("k", "")).await.unwrap();
    let size = http_body::Body::size_hint(again.body());
    assert_eq!((size.lower(), size.exact()), (7, None));
    let collected = again.into_body().collect().await.unwrap();
    assert_eq!(collected.trailers().unwrap()["x-checksum"], "42");
    assert_eq!(collected.to_bytes(), "chunked");
}

#[tokio::test]
async fn headers_that_do_not_matter_do_not_matter() {
    let api = orders(ietf());
    let from = |agent: &str, trace: &str| {
        let request = keyed("k").header("user-agent", agent).header("traceparent", trace);
        request.header("x-request-id", trace).body(Body::empty()).unwrap()
    };
    api.send(from("one", "1")).await;
    assert!(api.send(from("two", "2")).await.is_replay());
}

#[tokio::test(start_paused = true)]
async fn a_result_is_kept_for_a_day_to_the_second() {
    let api = orders(ietf());
    api.post("k", "").await;
    advance(DAY - Duration::from_secs(1)).await;
    assert!(api.post("k", "").await.is_replay());
    advance(Duration::from_secs(1)).await;
    let expired = api.post("k", "another body, and nobody minds").await;
    assert_eq!((expired.is_replay(), api.runs()), (false, 2));
}

#[tokio::test(start_paused = true)]
async fn retention_by_policy_and_by_handler() {
    let policy = ietf().rules(|rules| rules.keep = Duration::from_secs(60));
    let api = api(policy, |_, request: axum::extract::Request| async move {
        let week = Extension(Retention(7 * DAY));
        match request.uri().path() {
            "/orders" => (week, "kept longer").into_response(),
            _ => "kept as usual".into_response(),
        }
    });
    let usual = || keyed("k").uri("/usual").body(Body::empty()).unwrap();
    api.send(usual()).await;
    api.post("k", "").await;
    advance(Duration::from_secs(60)).await;
    assert!(!api.send(usual()).await.is_replay());
    advance(6 * DAY).await;
    assert!(api.post("k", "").await.is_replay());
}

#[tokio::test]
async fn how_long_results_are_kept_can_be_asked() {
    let api = orders(ietf().rules(|rules| rules.keep = Duration::from_secs(60)));
    let options = keyed("k").method(http::Method::OPTIONS).body(Body::empty()).unwrap();
    let told = api.send(options).await;
    assert_eq!(told.header("idempotency-retention"), Some("60"));
    let first = api.post("k", "").await;
    assert_eq!(first.header("idempotency-retention"), None, "only whoever asks is told");
}

#[cfg(feature = "trace")]
#[tokio::test]
async fn a_replay_points_to_the_trace_of_the_first() {
    use opentelemetry::trace::TracerProvider;
    use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};
    use tracing_subscriber::layer::SubscriberExt;

    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    let _collecting = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));

    // Other tests, which nobody watches, may have come here first.
    tracing::callsite::rebuild_interest_cache();
    let (first, second) = ("0af7651916cd43dd8448eb211c80319c", "1af7651916cd43dd8448eb211c80319c");
    let traced = |trace: &str| {
        let parent = format!("00-{trace}-b7ad6b7169203331-01");
        keyed("k").header("traceparent", parent).body(Body::empty()).unwrap()
    };
    let api = orders(ietf());
    api.send(traced(first)).await;
    assert!(api.send(traced(second)).await.is_replay());
    let spans = exporter.get_finished_spans().unwrap();
    let replay = spans.iter().find(|span| span.name == "replay of a stored response").unwrap();
    assert_eq!(replay.span_context.trace_id().to_string(), second);
    let linked: Vec<_> =
        replay.links.iter().map(|link| link.span_context.trace_id().to_string()).collect();
    assert_eq!(linked, [first]);
}
