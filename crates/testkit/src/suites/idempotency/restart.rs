//! What a store must keep over a crash. Not stamped by the suite: who owns a server to crash calls
//! it.

use std::time::Duration;

use semel_core::idempotency::{Claim, Fingerprint, ScopedKey};
use semel_core::{EventId, Failure, Holding, IdempotencyStore};
use tokio::time::{Instant, sleep};

use super::{LONG, record};

/// A claim outlives a crash of the store between claim and completion, and a result outlives the
/// next one. `crash` ends the store and gives it back when it has been started again.
///
/// # Panics
/// When that is not so.
pub async fn outlives_crashes<S: IdempotencyStore>(store: S, crash: impl AsyncFn(S) -> S) {
    let key = ScopedKey::new(&["suite", &EventId::now().to_string()]);
    let print = Fingerprint::new(&[b"POST", b"/orders"]);
    let Claim::Fresh { token, attempt: 1 } = store.claim(&key, &print, LONG).await.expect("claim")
    else {
        panic!("the key is free")
    };
    let store = crash(store).await;
    let claim = insist(async || store.claim(&key, &print, LONG).await).await;
    assert!(matches!(claim, Claim::InFlight { .. }), "expected in flight, got {claim:?}");
    let completed = insist(async || store.complete(&key, token, record("paid"), LONG).await).await;
    assert_eq!(completed, Holding::Held);
    let store = crash(store).await;
    let claim = insist(async || store.claim(&key, &print, LONG).await).await;
    assert_eq!(claim, Claim::Done(record("paid")));
}

/// Connections of before the crash fail once each.
async fn insist<T>(ask: impl AsyncFn() -> Result<T, Failure>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(failure) => assert!(Instant::now() < deadline, "it stays away: {failure}"),
        }
        sleep(Duration::from_millis(50)).await;
    }
}
