//! What browsers and probes see, over the database in memory.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod access;
mod bulk;
mod documented;
mod effects;
mod gauges;
mod live;
mod outages;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use futures_util::StreamExt;
use http_body_util::BodyExt;
use semel_core::admin::{AdminStore, Cursor, EventView, Filter, Page, Selection, Stats};
use semel_core::memory::{ManualClock, MemoryDatabase};
use semel_core::{
    Event, EventId, Failure, Limit, OutboxWriter, Outcome, Settlement, Source, Timestamp,
};
use semel_dashboard::{Access, Dashboard, Pipeline, router};
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
    send(app, Request::builder().method(method).uri(path).body(Body::empty()).unwrap()).await
}

async fn send(app: &Router, request: Request<Body>) -> Answer {
    let response = app.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes().to_vec();
    Answer { status: parts.status, headers: parts.headers, body: String::from_utf8(body).unwrap() }
}

async fn get(app: &Router, path: &str) -> Answer {
    ask(app, Method::GET, path).await
}

async fn post(app: &Router, path: &str, body: Value) -> Answer {
    let request = Request::post(path)
        .header("content-type", "application/json")
        .body(Body::from(body.to_string()))
        .unwrap();
    send(app, request).await
}

/// Always ready, and for everybody.
fn open() -> Dashboard {
    Dashboard::new(|| async { Ok(()) }).with_access(Access::open())
}

fn on(store: impl AdminStore + 'static) -> Router {
    router(open().with(Pipeline::new("orders", Arc::new(store))))
}

/// With the log of changes.
fn over(database: &MemoryDatabase, access: Access) -> Router {
    let database = Arc::new(database.clone());
    let pipeline =
        Pipeline::new("orders", database.clone()).with_insight(database).to("out", "file");
    router(open().with(pipeline).with_access(access))
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
async fn the_overview_is_live_and_remembers() {
    let (database, _) = orders().await;
    let app = over(&database, Access::open());
    let request = Request::get("/api/live").body(Body::empty()).unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut told = String::new();
    let mut body = response.into_body().into_data_stream();
    while !told.contains("\"dead\":1") {
        let heard = tokio::time::timeout(Duration::from_secs(10), body.next()).await;
        told += std::str::from_utf8(&heard.expect("in time").unwrap().unwrap()).unwrap();
    }
    let overview = get(&app, "/api/overview").await.json();
    assert_eq!(overview["you"], json!({"name": "local", "role": "admin"}));
    assert_eq!(overview["pipelines"][0]["states"]["pending"], 3);
    assert_eq!(overview["pipelines"][0]["to"], json!([{"name": "out", "kind": "file"}]));
    assert_eq!(overview["health"]["level"], "bad", "nobody works on it: {overview}");
    let history = get(&app, "/api/pipelines/orders/history").await.json();
    assert_eq!(history["points"][0]["dead"], 1);
}

#[tokio::test]
async fn events_are_listed_without_their_payloads() {
    let (database, _) = orders().await;
    let app = on(database);
    let dead = get(&app, "/api/pipelines/orders/events?q=state:dead").await;
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
    let id = events[0]["id"].as_str().unwrap();
    let one = get(&app, &format!("/api/pipelines/orders/events/{id}")).await;
    assert_eq!((one.json()["state"].clone(), one.body.contains("4111")), (json!("dead"), false));
}

#[tokio::test]
async fn events_are_found_by_words() {
    let (database, _) = orders().await;
    let app = on(database);
    for (words, count) in [
        ("", 5),
        ("aggregate:2", 2),
        ("aggregate:order/2+event:Paid", 1),
        ("type:payment", 0),
        ("since:2026-01-01T00:00:00Z", 5),
        ("until:2026-01-01T00:00:00Z", 0),
    ] {
        let page = get(&app, &format!("/api/pipelines/orders/events?q={words}")).await.json();
        assert_eq!(page["events"].as_array().unwrap().len(), count, "{words}");
    }
}

#[tokio::test]
async fn pages_follow_each_other_newest_first_without_gaps() {
    let (database, _) = orders().await;
    let app = on(database.clone());
    let (mut seen, mut before) = (Vec::new(), String::new());
    loop {
        let page = get(&app, &format!("/api/pipelines/orders/events?limit=2{before}")).await.json();
        let events = page["events"].as_array().unwrap();
        seen.extend(events.iter().map(|event| event["id"].as_str().unwrap().to_owned()));
        match page["next"].as_u64() {
            Some(next) => before = format!("&before={next}"),
            None => break,
        }
        assert_eq!(events.len(), 2);
    }
    let written: Vec<_> =
        database.events().iter().rev().map(|event| event.id.to_string()).collect();
    assert_eq!(seen, written);
}

#[tokio::test]
async fn a_wrong_question_is_explained() {
    let app = on(MemoryDatabase::new());
    for query in ["q=state:lost", "limit=many", "q=since:yesterday", "payload=1"] {
        let answer = get(&app, &format!("/api/pipelines/orders/events?{query}")).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{query}");
        assert_eq!(answer.json()["code"], "E-QUERY-INVALID");
    }
    let nowhere = get(&app, "/api/pipelines/nowhere/events").await;
    assert_eq!(nowhere.status, StatusCode::NOT_FOUND);
    let id = EventId::now();
    let gone = get(&app, &format!("/api/pipelines/orders/events/{id}")).await;
    assert_eq!(gone.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn troubles_are_summed_up() {
    let (database, _) = orders().await;
    let found = get(&on(database), "/api/pipelines/orders/dead").await.json();
    assert_eq!(found["groups"][0]["error"], "<b>too large</b>");
    assert_eq!(found["groups"][0]["events"], 1);
    assert_eq!(found["lanes"][0]["aggregate_id"], "2");
}

#[tokio::test]
async fn a_change_is_counted_first_made_then_and_written_down() {
    let (database, _) = orders().await;
    let app = over(&database, Access::open());
    let path = "/api/pipelines/orders/changes";
    let retry = json!({"action": "retry", "q": "state:dead", "error": "<b>too large</b>"});
    let mut dry = retry.clone();
    dry["dry_run"] = json!(true);
    assert_eq!(post(&app, path, dry).await.json(), json!({"events": 1, "dry_run": true}));
    let other = json!({"action": "retry", "q": "state:dead", "error": "another", "dry_run": true});
    assert_eq!(post(&app, path, other).await.json()["events"], 0);
    assert_eq!(get(&app, "/api/pipelines/orders/activity").await.json(), json!([]));
    assert_eq!(post(&app, path, retry.clone()).await.json()["events"], 1);
    assert_eq!(post(&app, path, retry).await.json()["events"], 0, "it is not dead any more");
    let activity = get(&app, "/api/pipelines/orders/activity").await.json();
    assert_eq!(activity.as_array().unwrap().len(), 2);
    let entry = &activity[1];
    assert_eq!(
        (&entry["who"], &entry["what"], &entry["events"]),
        (&json!("local"), &json!("retry"), &json!(1))
    );
    assert_eq!(entry["filter"], "state:dead error:\"<b>too large</b>\"");
    let wrong = post(&app, path, json!({"action": "drop"})).await;
    assert_eq!(
        (wrong.status, wrong.json()["code"].clone()),
        (StatusCode::BAD_REQUEST, json!("E-QUERY-INVALID"))
    );
}

#[tokio::test]
async fn one_event_is_changed_alone() {
    let (database, _) = orders().await;
    let app = over(&database, Access::open());
    let id = database.events()[1].id;
    let discard = json!({"action": "discard", "q": format!("id:{id}")});
    let done = post(&app, "/api/pipelines/orders/changes", discard.clone()).await;
    assert_eq!(done.json(), json!({"events": 1, "dry_run": false}));
    let view = AdminStore::get(&database, id).await.unwrap().unwrap();
    assert_eq!(view.state.as_str(), "discarded");
    let mut dry = discard;
    dry["dry_run"] = json!(true);
    let again = post(&app, "/api/pipelines/orders/changes", dry).await;
    assert_eq!(again.json()["events"], 0);
}

#[tokio::test]
async fn a_payload_is_revealed_and_that_is_written_down() {
    let (database, _) = orders().await;
    let app = over(&database, Access::open());
    let id = database.events()[0].id;
    let shown = post(&app, &format!("/api/pipelines/orders/events/{id}/reveal"), json!({})).await;
    assert_eq!(shown.json()["text"], "{\"card\":\"4111\"}");
    let activity = get(&app, "/api/pipelines/orders/activity").await.json();
    assert_eq!(activity[0]["what"], "reveal");
    assert_eq!(activity[0]["filter"], format!("id:{id}"));
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
    let list = get(&app, "/api/pipelines/orders/events").await;
    assert_eq!(list.status, StatusCode::INTERNAL_SERVER_ERROR);
    let troubles = get(&app, "/api/pipelines/orders/dead").await;
    assert_eq!(troubles.json()["code"], "E-DB-SCHEMA");
    let mut overview = Value::Null;
    for _ in 0..100 {
        overview = get(&app, "/api/overview").await.json();
        if !overview["pipelines"][0]["trouble"].is_null() {
            break;
        }
        tokio::task::yield_now().await;
    }
    let expected =
        json!({"code": "E-DB-DOWN", "error": "connection refused", "fix": "start the database"});
    assert_eq!(overview["pipelines"][0]["trouble"], expected);
    assert_eq!(overview["health"]["level"], "bad");
    for path in ["/", "/livez"] {
        assert_eq!(get(&app, path).await.status, StatusCode::OK, "{path}");
    }
}

#[tokio::test]
async fn readiness_is_what_the_check_says_and_liveness_is_not() {
    let up = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&up);
    let dashboard = Dashboard::new(move || {
        let up = asked.load(Ordering::SeqCst);
        async move {
            if up { Ok(()) } else { Err(Failure::unavailable("E-KAFKA-DOWN", "no broker answers")) }
        }
    });
    let app = router(dashboard.with_access(Access::open()).with_metrics(|| "semel_x 1\n".into()));
    let starting = get(&app, "/readyz").await;
    assert_eq!(starting.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(starting.body, "E-KAFKA-DOWN\n", "the reason stays inside");
    assert_eq!(get(&app, "/livez").await.status, StatusCode::OK);
    up.store(true, Ordering::SeqCst);
    assert_eq!(get(&app, "/readyz").await.status, StatusCode::OK);
    assert_eq!(get(&app, "/metrics").await.body, "semel_x 1\n");
}

#[tokio::test]
async fn every_answer_is_locked_down() {
    let app = on(Down);
    for path in ["/", "/assets/main.js", "/api/overview", "/livez", "/readyz", "/nowhere"] {
        let headers = get(&app, path).await.headers;
        let policy = headers["content-security-policy"].to_str().unwrap();
        for rule in [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "connect-src 'self'",
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
    let page = get(&app, "/ops/semel").await.body;
    assert!(page.starts_with("<!doctype html>") && page.contains("<base href=\"semel/\">"));
    assert_eq!(get(&app, "/ops/semel/assets/main.js").await.status, StatusCode::OK);
    assert_eq!(get(&app, "/ops/semel/assets/nothing.js").await.status, StatusCode::NOT_FOUND);
    assert_eq!(get(&app, "/ops/semel/api/overview").await.status, StatusCode::OK);
    assert_eq!(get(&app, "/ops/semel/livez").await.status, StatusCode::OK);
}
