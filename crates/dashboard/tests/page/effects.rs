//! What took effect elsewhere: consumers, and operations under keys.

use std::sync::Arc;
use std::time::Duration;

use semel_core::idempotency::{Claim, Ending, Fingerprint, ScopedKey, Stored};
use semel_core::inbox::Tally;
use semel_core::memory::{MemoryDatabase, MemoryKeys};
use semel_core::{IdempotencyStore, InboxStore};
use semel_dashboard::{Access, Pipeline, router};
use serde_json::{Value, json};

use crate::{get, open, orders, over};

#[tokio::test]
async fn an_event_that_took_effect_says_for_whom() {
    let (database, _) = orders().await;
    let app = over(&database, Access::open());
    let id = database.events()[0].id;
    let shown = || async { get(&app, &format!("/api/pipelines/orders/events/{id}")).await.json() };
    assert_eq!(shown().await["effects"], json!([]));
    let mut tx = database.begin().await;
    database.record(&mut tx, "payments", id).await.unwrap();
    tx.commit();
    database.count("payments", Tally { applied: 1, duplicates: 4 }).await.unwrap();
    assert_eq!(
        shown().await["effects"],
        json!([{"consumer": "payments", "at": "2026-01-01T00:00:00Z"}])
    );
    let consumers = get(&app, "/api/pipelines/orders/consumers").await.json();
    assert_eq!((&consumers[0]["applied"], &consumers[0]["duplicates"]), (&json!(1), &json!(4)));
}

#[tokio::test]
async fn keys_are_counted_by_outcome_and_the_open_ones_told() {
    let (keys, print) = (MemoryKeys::new(), Fingerprint::new(&[b"99"]));
    for name in ["k1", "k2", "k3"] {
        let key = ScopedKey::new(&[name]);
        let claim = keys.claim(&key, &print, Duration::from_secs(60)).await.unwrap();
        if let (Claim::Fresh { token, .. }, "k1") = (claim, name) {
            let paid = Stored::record(Ending::Succeeded, b"paid".to_vec());
            let kept = keys.complete(&key, token, paid, Duration::from_secs(60)).await.unwrap();
            assert!(kept.is_held());
        }
    }
    let pipeline =
        Pipeline::new("orders", Arc::new(MemoryDatabase::new())).with_keys(Arc::new(keys));
    let app = router(open().with(pipeline));
    let first = get(&app, "/api/pipelines/orders/keys").await.json();
    let survey = &first["survey"];
    assert_eq!(survey["states"], json!([["RUNNING", 2], ["SUCCEEDED", 1]]));
    assert_eq!((&survey["keys"], &survey["whole"]), (&json!(3), &json!(true)));
    assert_eq!(survey["open"].as_array().unwrap().len(), 2);
    let key = first["keys"][0]["key"].as_str().unwrap();
    let next = get(&app, &format!("/api/pipelines/orders/keys?after={key}")).await.json();
    assert_eq!(next["survey"], Value::Null, "once is enough");
}
