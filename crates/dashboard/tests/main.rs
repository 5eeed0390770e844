//! What browsers and probes see, over the database in memory.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::expect_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt;
use semel_core::admin::{AdminStore, Cursor, EventView, Filter, Page, Selection, Stats};
use semel_core::memory::{ManualClock, MemoryDatabase};
use semel_core::{
    Event, EventId, Failure, Limit, OutboxWriter, Outcome, Settlement, Source, Timestamp,
};
use semel_dashboard::{Dashboard, router};
use serde_json::{Value, json};
use tower::ServiceExt;

const START: Timestamp = Timestamp::constant(1_767_225_600, 0);

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        assert_eq!(self.headers["content-type"], "application/json");
        serde_json::from_str(&self.body).unwrap()
    }
}

async fn ask(app: &Router, method: Method, path: &str) -> Answer {
    let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes().to_vec();
    Answer { status: parts.status, headers: parts.headers, body: String::from_utf8(body).unwrap() }
}

async fn get(app: &Router, path: &str) -> Answer {
    ask(app, Method::GET, path).await
}

fn on(store: impl AdminStore + 'static) -> Router {
    router(Dashboard::new(Arc::new(store), || async { Ok(()) }))
}

/// Five orders: the first is published, the second a dead letter with one event behind it.
async fn orders() -> (MemoryDatabase, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(START));
    let database = MemoryDatabase::with_clock(clock.clone());
    let mut tx = database.begin().await;
    let mut events = Vec::new();
    for (order, kind) in
        [("1", "Placed"), ("2", "Placed"), ("2", "Paid"), ("3", "Placed"), ("4", "Placed")]
    {
        let mut event =
            Event::new("order", order, kind).with_json(&json!({"card": "4111"})).unwrap();
        event.created_at = START;
        events.push(event);
    }
    database.append(&mut tx, &events).await.unwrap();
    tx.commit();
    let mut source = database.source();
    let batch = source.next_batch(Limit { events: 2, ..Limit::default() }).await.unwrap();
    let failure = Failure::refused("E-TOO-LARGE", "<b>too large</b>");
    let dead = Outcome::Dead { attempts: 5, failure, parks_lane: true };
    let outcomes = [Outcome::Delivered, dead];
    let settlements: Vec<_> = batch
        .deliveries
        .iter()
        .zip(outcomes)
        .map(|(delivery, outcome)| Settlement { receipt: delivery.receipt, outcome })
        .collect();
    assert!(source.settle(&settlements).await.unwrap().is_held());
    (database, clock)
}

#[tokio::test]
async fn status_counts_by_state() {
    let (database, clock) = orders().await;
    clock.advance(Duration::from_millis(90_500));
    let status = get(&on(database), "/api/status").await;
    assert_eq!(status.status, StatusCode::OK);
    let expected = json!({
        "states": {
            "pending": 3, "publishing": 0, "published": 1, "failed": 0, "dead": 1, "discarded": 0,
        },
        "oldest_pending_seconds": 90.5,
        "parked_lanes": 1,
    });
    assert_eq!(status.json(), expected);
    let empty = get(&on(MemoryDatabase::new()), "/api/status").await;
    assert_eq!(empty.json()["oldest_pending_seconds"], Value::Null);
}

#[tokio::test]
async fn events_are_listed_without_their_payloads() {
    let (database, _) = orders().await;
    let app = on(database);
    let dead = get(&app, "/api/events?state=dead").await;
    assert!(!dead.body.contains("4111") && !dead.body.contains("card"), "{}", dead.body);
    let json = dead.json();
    assert_eq!(json["next"], Value::Null);
    let events = json["events"].as_array().unwrap();
    assert_eq!(events.len(), 1);
    for (field, value) in [
        ("aggregate_type", json!("order")),
        ("aggregate_id", json!("2")),
        ("event_type", json!("Placed")),
        ("payload_bytes", json!(15)),
        ("created_at", json!("2026-01-01T00:00:00Z")),
        ("state", json!("dead")),
        ("attempts", json!(5)),
        ("error", json!("<b>too large</b>")),
    ] {
        assert_eq!(events[0][field], value, "{field}");
    }
}

#[tokio::test]
async fn events_are_filtered() {
    let (database, _) = orders().await;
    let app = on(database);
    for (query, count) in [
        ("", 5),
        ("?aggregate_id=2", 2),
        ("?aggregate_id=2&event_type=Paid", 1),
        ("?aggregate_type=payment", 0),
        ("?since=2026-01-01T00:00:00Z", 5),
        ("?until=2026-01-01T00:00:00Z", 0),
    ] {
        let page = get(&app, &format!("/api/events{query}")).await.json();
        assert_eq!(page["events"].as_array().unwrap().len(), count, "{query}");
    }
}

#[tokio::test]
async fn pages_follow_each_other_without_gaps() {
    let (database, _) = orders().await;
    let app = on(database);
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let page = get(&app, &format!("/api/events?limit=2{after}")).await.json();
        let events = page["events"].as_array().unwrap();
        seen.extend(events.iter().map(|event| event["id"].to_string()));
        match page["next"].as_u64() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
        assert_eq!(events.len(), 2);
    }
    let all = get(&app, "/api/events").await.json();
    let all: Vec<_> =
        all["events"].as_array().unwrap().iter().map(|event| event["id"].to_string()).collect();
    assert_eq!(seen, all);
}

#[tokio::test]
async fn a_wrong_question_is_explained() {
    let app = on(MemoryDatabase::new());
    for query in ["state=lost", "limit=many", "since=yesterday", "payload=1"] {
        let answer = get(&app, &format!("/api/events?{query}")).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{query}");
        assert_eq!(answer.json()["code"], "E-QUERY-INVALID");
        let name = query.split('=').next().unwrap();
        assert!(answer.body.contains(name), "{}", answer.body);
    }
}

/// A database that cannot be reached.
struct Down;

#[async_trait]
impl AdminStore for Down {
    async fn stats(&self) -> Result<Stats, Failure> {
        Err(Failure::unavailable("E-DB-DOWN", "connection refused").with_fix("start the database"))
    }
    async fn list(&self, _: &Filter, _: Option<Cursor>, _: usize) -> Result<Page, Failure> {
        Err(Failure::misconfigured("E-DB-SCHEMA", "no outbox table"))
    }
    async fn get(&self, _: EventId) -> Result<Option<EventView>, Failure> {
        panic!("never asked")
    }
    async fn retry(&self, _: &Selection) -> Result<usize, Failure> {
        panic!("the dashboard only reads")
    }
    async fn discard(&self, _: &Selection) -> Result<usize, Failure> {
        panic!("the dashboard only reads")
    }
    async fn replay(&self, _: &Selection) -> Result<usize, Failure> {
        panic!("the dashboard only reads")
    }
    async fn clean(&self, _: Duration, _: usize) -> Result<usize, Failure> {
        panic!("the dashboard only reads")
    }
}

#[tokio::test]
async fn an_unreachable_database_is_said_but_the_process_lives() {
    let app = on(Down);
    let status = get(&app, "/api/status").await;
    assert_eq!(status.status, StatusCode::SERVICE_UNAVAILABLE);
    let expected =
        json!({"code": "E-DB-DOWN", "error": "connection refused", "fix": "start the database"});
    assert_eq!(status.json(), expected);
    assert_eq!(get(&app, "/api/events").await.status, StatusCode::INTERNAL_SERVER_ERROR);
    for path in ["/", "/livez"] {
        assert_eq!(get(&app, path).await.status, StatusCode::OK, "{path}");
    }
}

#[tokio::test]
async fn readiness_is_what_the_check_says_and_liveness_is_not() {
    let up = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&up);
    let dashboard = Dashboard::new(Arc::new(Down), move || {
        let up = asked.load(Ordering::SeqCst);
        async move {
            if up { Ok(()) } else { Err(Failure::unavailable("E-KAFKA-DOWN", "no broker answers")) }
        }
    });
    let app = router(dashboard);
    let starting = get(&app, "/readyz").await;
    assert_eq!(starting.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(starting.body, "E-KAFKA-DOWN: no broker answers\n");
    assert_eq!(get(&app, "/livez").await.status, StatusCode::OK);
    up.store(true, Ordering::SeqCst);
    assert_eq!(get(&app, "/readyz").await.status, StatusCode::OK);
}

#[tokio::test]
async fn unsafe_methods_are_refused_everywhere() {
    let app = on(Down);
    for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS] {
        for path in ["/", "/api/status", "/api/events", "/livez", "/readyz", "/nowhere"] {
            let answer = ask(&app, method.clone(), path).await;
            assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
            assert_eq!(answer.headers["allow"], "GET, HEAD");
        }
    }
    assert_eq!(ask(&app, Method::HEAD, "/livez").await.status, StatusCode::OK);
    assert_eq!(get(&app, "/nowhere").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn every_answer_is_locked_down() {
    let app = on(Down);
    for path in ["/", "/api/status", "/api/events", "/livez", "/readyz", "/nowhere"] {
        let headers = get(&app, path).await.headers;
        let policy = headers["content-security-policy"].to_str().unwrap();
        for rule in [
            "default-src 'none'",
            "script-src 'sha256-",
            "style-src 'sha256-",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ] {
            assert!(policy.contains(rule), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(headers["x-content-type-options"], "nosniff");
        assert_eq!(headers["cache-control"], "no-store");
    }
}

#[tokio::test]
async fn it_can_be_mounted_anywhere() {
    let (database, _) = orders().await;
    let app = Router::new().nest("/ops/semel", on(database));
    assert!(get(&app, "/ops/semel").await.body.starts_with("<!doctype html>"));
    assert_eq!(get(&app, "/ops/semel/api/status").await.json()["parked_lanes"], 1);
    assert_eq!(get(&app, "/ops/semel/livez").await.status, StatusCode::OK);
}
