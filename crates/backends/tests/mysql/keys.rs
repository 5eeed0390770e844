//! Idempotency keys: an answer that is lost on its way.

use std::time::Duration;

use semel_core::idempotency::{Claim, Fingerprint, Record, ScopedKey};
use semel_core::{Holding, IdempotencyStore};
use semel_testkit::proxy::Proxy;
use semel_testkit::services::{Private, Service};
use semel_testkit::suites::idempotency::outlives_crashes;
use tokio::time::timeout;

use super::frozen::somebody_waits;
use super::{connect, database};

const LEASE: Duration = Duration::from_secs(600);
const PATIENCE: Duration = Duration::from_secs(30);

/// Whoever lost the answer to a claim is its owner all the same, once.
#[tokio::test]
async fn a_claim_whose_answer_is_lost_is_found_again() {
    let database = database!();
    let (_, address) = database.server.split_once('@').unwrap();
    let address = address.split('/').next().unwrap();
    let proxy = Proxy::start(address).await;
    let keys = connect(&database.url().replace(address, &proxy.address())).await.keys();
    let (key, print) = (ScopedKey::new(&["acme", "k1"]), Fingerprint::new(&[b"99"]));
    // Abandoned, and locked, so that the claim arrives and waits before its answer can be lost.
    database.store.keys().claim(&key, &print, Duration::from_micros(1)).await.unwrap();
    let mut lock = database.begin().await;
    sqlx::query("SELECT token FROM semel_keys FOR UPDATE").fetch_one(&mut *lock).await.unwrap();
    let made = async {
        somebody_waits(&database).await;
        proxy.swallow_replies(true);
        lock.rollback().await.unwrap();
        while database.number("SELECT count(*) FROM semel_keys WHERE attempt = 2").await == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        proxy.swallow_replies(false);
        proxy.cut();
    };
    let claimed = async { tokio::join!(keys.claim(&key, &print, LEASE), made).0 };
    let claim = timeout(PATIENCE, claimed).await.unwrap().unwrap();
    let Claim::Fresh { token, attempt: 2 } = claim else { panic!("{claim:?}") };
    let other = database.store.keys().claim(&key, &print, LEASE).await.unwrap();
    assert!(matches!(other, Claim::InFlight { .. }), "{other:?}");
    let record = Record { version: 1, body: "paid".into() };
    assert_eq!(keys.complete(&key, token, record, LEASE).await.unwrap(), Holding::Held);
}

#[tokio::test]
async fn claims_and_results_outlive_crashes_of_the_server() {
    let Some(server) = Private::start(Service::Mysql) else { return };
    let store = connect(server.address()).await;
    store.migrate().await.unwrap();
    outlives_crashes(store.keys(), async |keys| {
        server.kill();
        server.restart();
        keys
    })
    .await;
}
