//! What is expired leaves the store, little by little.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use semel_core::IdempotencyStore;
use semel_http::purge;
use tokio::time::sleep;

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn expired_keys_are_deleted_in_steps_also_after_an_outage() {
    let store = Arc::new(Flaky::new());
    let brief = hasty().rules(|rules| rules.keep = Duration::from_secs(30));
    let api = api_on(store.clone(), brief, place_order);
    for number in 0..2500 {
        api.post(&number.to_string(), "").await;
    }
    store.down.store(true, Ordering::SeqCst);
    let purging = tokio::spawn(purge(Arc::clone(&store) as Arc<dyn IdempotencyStore>));
    sleep(Duration::from_secs(59)).await;
    assert_eq!(store.len(), 2500, "the store is down");
    store.down.store(false, Ordering::SeqCst);
    sleep(Duration::from_millis(1050)).await;
    assert_eq!(store.len(), 1500, "a thousand at a time");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(store.len(), 0);
    assert!(!purging.is_finished(), "it goes on");
}
