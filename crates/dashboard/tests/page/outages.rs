//! A sink that is away, as a relay in another process tells the database.

use semel_core::insight::{Insight, Outage};

use super::*;

#[tokio::test]
async fn an_outage_is_told_whichever_process_serves_the_page() {
    let database = MemoryDatabase::new();
    let app = over(&database, Access::open());
    let failure = Failure::unavailable("E-NATS-DOWN", "NATS: <b>refused</b>").with_fix("ask Ada");
    let outage = Outage::of(&failure, &["out"]);
    database.tell_outage("orders", "r1", Some(&outage)).await.unwrap();
    let workings = get(&app, "/api/pipelines/orders/workings").await.json();
    assert_eq!(workings["outages"][0]["code"], "E-NATS-DOWN");
    let overview = looked(&app, |overview| overview["health"]["level"] == "bad").await;
    let sentence = overview["health"]["sentence"].as_str().unwrap();
    let begin = "orders cannot reach its sink out: NATS: <b>refused</b> (E-NATS-DOWN), for ";
    assert!(sentence.starts_with(begin) && sentence.ends_with("; nothing waits."), "{sentence}");
    let told = &overview["pipelines"][0]["outages"][0];
    for (field, value) in [("relay", "r1"), ("sink", "out"), ("fix", "ask Ada")] {
        assert_eq!(told[field], value, "{field}");
    }
    assert!(told["since"].as_str().unwrap().ends_with('Z'), "{told}");

    database.tell_outage("orders", "r1", None).await.unwrap();
    let overview = looked(&app, |overview| overview["health"]["level"] == "good").await;
    assert_eq!(overview["pipelines"][0]["outages"], json!([]));
}

/// The overview, once it is so.
async fn looked(app: &Router, is_so: impl Fn(&Value) -> bool) -> Value {
    for _ in 0..600 {
        let overview = get(app, "/api/overview").await.json();
        if is_so(&overview) {
            return overview;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("never: {}", get(app, "/api/overview").await.body);
}
