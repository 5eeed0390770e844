//! Pages over many events: each answers soon. `SEMEL_TEST_PAGE_EVENTS` says how many, of which one in a
//! hundred is a dead letter.

use std::time::{Duration, Instant};

use semel_backends::postgres::{PgPool, PostgresConfig};
use semel_core::EventId;
use semel_testkit::services::{Service, service};
use serde_json::Value;

use super::relay::Relay;
use crate::shop::Shop;

const FILL: &str = "\
insert into semel.outbox (aggregate_type, aggregate_id, event_type, payload)
select 'order', g::text, (array['OrderPlaced', 'OrderPaid'])[1 + g % 2],
    '{\"total\": ' || g || ', \"note\": \"' || repeat('x', case g % 100 when 0 then 2000 else 9 end) || '\"}'
from generate_series(1, $1) g";

/// A consumer and a service with idempotency keys in the same database.
const OTHERS: &[&str] = &[
    "insert into semel.inbox (consumer, message_id) select 'payments', id from semel.outbox",
    "insert into semel.keys (key, fingerprint, token, attempt, version, body, until)
    select sha256(id::text::bytea), sha256('x'), seq, 1, 1, decode(repeat('70', 300) || '01', 'hex'),
        now() + interval '1 day' from semel.outbox where seq % 10 = 0",
    "analyze",
];

const PATHS: &[&str] = &[
    "/",
    "/api/overview",
    "/api/pipelines/orders/history",
    "/api/pipelines/orders/events",
    "/api/pipelines/orders/events?before=5000",
    "/api/pipelines/orders/events?q=state:dead",
    "/api/pipelines/orders/events?q=state:failed",
    "/api/pipelines/orders/events?q=state:pending",
    "/api/pipelines/orders/events?q=state:publishing",
    "/api/pipelines/orders/events?q=state:published",
    "/api/pipelines/orders/events?q=state:discarded",
    "/api/pipelines/orders/events?q=aggregate:order/77",
    "/api/pipelines/orders/events?q=event:Nothing",
    "/api/pipelines/orders/dead",
    "/api/pipelines/orders/workings",
    "/api/pipelines/orders/consumers",
    "/api/pipelines/orders/keys",
    "/api/pipelines/orders/activity",
];

#[test]
fn every_page_of_a_large_outbox_answers_soon() {
    let Some(server) = service(Service::Postgres) else { return };
    let wanted = std::env::var("SEMEL_TEST_PAGE_EVENTS").ok().and_then(|text| text.parse().ok());
    let events: i32 = wanted.unwrap_or(20_000);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let name = format!("semel_page_{}", EventId::now().as_uuid().simple());
    let url = format!("{}/{name}", server.rsplit_once('/').unwrap().0);
    runtime.block_on(async {
        let admin = PgPool::connect(&server).await.unwrap();
        sqlx::query(sqlx::AssertSqlSafe(format!("create database {name}")))
            .execute(&admin)
            .await
            .unwrap();
        let store = PostgresConfig::new(&url).unwrap().connect().await.unwrap();
        store.migrate().await.unwrap();
        sqlx::query(FILL).bind(events).execute(store.pool()).await.unwrap();
        for statement in OTHERS {
            sqlx::query(*statement).execute(store.pool()).await.unwrap();
        }
    });
    let shop = Shop::new();
    let relay = Relay::over(&shop, &url, "1KiB", "");
    let dead = u64::from(events.unsigned_abs()) / 100;
    let deadline =
        Instant::now() + Duration::from_secs(60 + u64::from(events.unsigned_abs()) / 1000);
    let states = || -> Value {
        let overview: Value = serde_json::from_str(&relay.get("/api/overview", "").1).unwrap();
        overview["pipelines"][0]["states"].clone()
    };
    while states()["dead"] != dead || states()["pending"] != 0 {
        assert!(Instant::now() < deadline, "{}", states());
        std::thread::sleep(Duration::from_millis(100));
    }
    // Whoever runs beside this test must not decide it.
    let most = Duration::from_millis(if wanted.is_some() { 300 } else { 1000 });
    let event = discard_one(&relay);
    let paths = PATHS.iter().copied().chain([event.as_str()]);
    let slow: Vec<_> = paths
        .map(|path| (path, slowest(&relay, path)))
        .inspect(|(path, took)| println!("{took:?} {path}"))
        .filter(|(_, took)| *took > most)
        .collect();
    drop(relay);
    runtime.block_on(async {
        let admin = PgPool::connect(&server).await.unwrap();
        let drop = sqlx::AssertSqlSafe(format!("drop database {name} with (force)"));
        sqlx::query(drop).execute(&admin).await.unwrap();
    });
    assert!(slow.is_empty(), "slower than {most:?}: {slow:?}");
}

/// Gives one dead letter up; says where it is shown.
fn discard_one(relay: &Relay) -> String {
    let events = "/api/pipelines/orders/events";
    let dead: Value =
        serde_json::from_str(&relay.get(&format!("{events}?q=state:dead"), "").1).unwrap();
    let id = dead["events"][0]["id"].as_str().unwrap();
    let order = format!("{{\"action\": \"discard\", \"q\": \"id:{id}\"}}");
    let done = relay.post("/api/pipelines/orders/changes", "", &order);
    assert_eq!(done, (200, "{\"events\":1,\"dry_run\":false}".into()));
    format!("{events}/{id}")
}

/// The slowest of five answers: somebody waits for each of them.
fn slowest(relay: &Relay, path: &str) -> Duration {
    let took = |_| {
        let began = Instant::now();
        let (status, body) = relay.get(path, "");
        assert_eq!(status, 200, "{path}: {body}");
        began.elapsed()
    };
    (0..5).map(took).max().unwrap()
}
