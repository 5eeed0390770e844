//! Idempotency keys: what they ask of the server.

use std::time::Duration;

use semel_backends::postgres::PostgresConfig;
use semel_core::idempotency::{Claim, Fingerprint, Record, ScopedKey};
use semel_core::{Holding, IdempotencyStore};
use semel_testkit::proxy::Proxy;
use semel_testkit::services::{Private, Service};
use semel_testkit::suites::idempotency::outlives_crashes;
use tokio::time::timeout;

use super::{Database, database};

const LEASE: Duration = Duration::from_secs(600);
const PATIENCE: Duration = Duration::from_secs(30);

/// Who only learns that a key is taken or done leaves no trace on it: no lock for others to wait
/// for, and no commit that waits for the disk.
#[tokio::test]
async fn a_key_that_is_not_to_be_had_is_only_read() {
    let database = database!();
    let keys = database.store.keys();
    let (key, print) = (ScopedKey::new(&["acme", "k1"]), Fingerprint::new(&[b"99"]));
    let other = Fingerprint::new(&[b"100"]);
    let untouched = async || {
        let touched = "select count(*) from semel.keys where xmax <> '0'";
        assert_eq!(database.number(touched).await, 0);
    };
    let Claim::Fresh { token, .. } = keys.claim(&key, &print, LEASE).await.unwrap() else {
        panic!("the key is free")
    };
    let claim = keys.claim(&key, &print, LEASE).await.unwrap();
    assert!(matches!(claim, Claim::InFlight { .. }), "{claim:?}");
    assert_eq!(keys.claim(&key, &other, LEASE).await.unwrap(), Claim::Mismatch);
    untouched().await;
    let record = Record { version: 1, body: "paid".into() };
    assert_eq!(keys.complete(&key, token, record.clone(), LEASE).await.unwrap(), Holding::Held);
    assert_eq!(keys.claim(&key, &print, LEASE).await.unwrap(), Claim::Done(record));
    assert_eq!(keys.claim(&key, &other, LEASE).await.unwrap(), Claim::Mismatch);
    untouched().await;
}

/// Whoever lost the answer to a claim is its owner all the same, once.
#[tokio::test]
async fn a_claim_whose_answer_is_lost_is_found_again() {
    let database = database!();
    let url = database.url();
    let (server, path) = url.rsplit_once('@').unwrap().1.split_once('/').unwrap();
    let proxy = Proxy::start(server).await;
    let through = url.replace(&format!("{server}/{path}"), &format!("{}/{path}", proxy.address()));
    let keys = PostgresConfig::new(&through).unwrap().connect().await.unwrap().keys();
    let (key, print) = (ScopedKey::new(&["acme", "k1"]), Fingerprint::new(&[b"99"]));
    // Abandoned, and locked, so that the claim arrives and waits before its answer can be lost.
    database.store.keys().claim(&key, &print, Duration::from_micros(1)).await.unwrap();
    let mut lock = database.begin().await;
    sqlx::query("select from semel.keys for update").execute(&mut *lock).await.unwrap();
    let made = async {
        let waiting = "select count(*) from pg_stat_activity
            where datname = current_database() and wait_event_type = 'Lock'";
        until(&database, waiting).await;
        proxy.swallow_replies(true);
        lock.rollback().await.unwrap();
        until(&database, "select count(*) from semel.keys where attempt = 2").await;
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
    let Some(server) = Private::start(Service::Postgres) else { return };
    let store = PostgresConfig::new(server.address()).unwrap().connect().await.unwrap();
    store.migrate().await.unwrap();
    outlives_crashes(store.keys(), async |keys| {
        server.kill();
        server.restart();
        keys
    })
    .await;
}

/// Duplicates do not queue up behind one another, however slow the disk is.
#[tokio::test]
async fn two_hundred_duplicates_do_not_wait_for_a_slow_disk() {
    let database = database!();
    let name: String = sqlx::query_scalar("select current_database()")
        .fetch_one(database.store.pool())
        .await
        .unwrap();
    database.run(&format!("alter database {name} set commit_siblings = 0")).await;
    database.run(&format!("alter database {name} set commit_delay = 50000")).await;
    let keys = database.again().await.keys();
    let (key, print) = (ScopedKey::new(&["acme", "k1"]), Fingerprint::new(&[b"99"]));
    keys.claim(&key, &print, LEASE).await.unwrap();
    let claims = (0..200).map(|_| keys.claim(&key, &print, LEASE));
    // One after the other, with a commit each, they would take 10 s.
    let claims = timeout(PATIENCE, futures_util::future::join_all(claims)).await.unwrap();
    for claim in claims {
        assert!(matches!(claim, Ok(Claim::InFlight { .. })), "{claim:?}");
    }
}

/// Waits until a query counts something.
async fn until(database: &Database, count: &str) {
    while database.number(count).await == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
