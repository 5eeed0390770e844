//! Waking up early: by a notification after the commit, and inside the process that writes.

use std::time::Duration;

use semel_backends::postgres::PostgresStore;
use semel_core::memory::MemoryBroker;
use semel_core::{Event, Fault};
use semel_relay::{Relay, Settings, Stop};
use semel_testkit::proxy::Proxy;
use semel_testkit::workload::event;
use tokio::time::{Instant, sleep, timeout};

use super::{Database, connect, database};

/// Longer than any test waits: whoever is earlier was woken.
const POLL: Duration = Duration::from_secs(600);
const SOON: Duration = Duration::from_secs(2);

/// A relay that looks once a minute, and has looked already.
async fn idle_relay(store: &PostgresStore) -> (MemoryBroker, semel_relay::Stopper) {
    let broker = MemoryBroker::new();
    let source = store.source("orders").await.unwrap();
    let settings = Settings { poll_interval: POLL, ..Settings::default() };
    let (stopper, stop) = Stop::new();
    tokio::spawn(Relay::new("orders", source, broker.clone()).with_settings(settings).run(stop));
    // It looks ever more seldom; after a few empty looks the next one is far away.
    sleep(Duration::from_secs(5)).await;
    (broker, stopper)
}

async fn write(store: &PostgresStore, event: Event) {
    let mut tx = store.begin().await.unwrap();
    store.outbox().append(&mut tx, event).await.unwrap();
    tx.commit().await.unwrap();
}

async fn arrives(broker: &MemoryBroker, count: usize, within: Duration) -> bool {
    let arrived = async {
        while broker.len() < count {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(within, arrived).await.is_ok()
}

#[tokio::test]
async fn a_notification_wakes_a_relay_of_another_process() {
    let database = database!();
    let relays = database.again().await;
    let _listening = relays.listen().await.unwrap();
    let (broker, _stopper) = idle_relay(&relays).await;
    write(&database.store, event("a", 1)).await;
    assert!(!arrives(&broker, 1, Duration::from_secs(1)).await, "nobody told it");
    database.store.notify();
    assert!(arrives(&broker, 1, SOON).await);
    // A writer in another language does the same.
    write(&database.store, event("a", 2)).await;
    database.run("notify semel_outbox").await;
    assert!(arrives(&broker, 2, SOON).await);
}

#[tokio::test]
async fn without_listening_a_notification_does_nothing() {
    let database = database!();
    let relays = database.again().await;
    drop(relays.listen().await.unwrap());
    let (broker, _stopper) = idle_relay(&relays).await;
    write(&database.store, event("a", 1)).await;
    database.store.notify();
    assert!(!arrives(&broker, 1, SOON).await);
}

#[tokio::test]
async fn a_relay_in_the_writing_process_is_woken_without_the_server() {
    let database = database!();
    let (broker, _stopper) = idle_relay(&database.store).await;
    write(&database.store, event("a", 1)).await;
    assert!(!arrives(&broker, 1, Duration::from_secs(1)).await, "nobody told it");
    database.store.outbox().committed();
    assert!(arrives(&broker, 1, SOON).await);
}

/// While the connection is away the relay looks by itself, and afterwards it is woken again.
#[tokio::test]
async fn a_lost_connection_is_opened_anew() {
    let database = database!();
    let address = database.address();
    let proxy = Proxy::start(address).await;
    let url = database.url().replace(address, &proxy.address());
    let relays = connect(&url).await;
    let _listening = relays.listen().await.unwrap();
    let (broker, _stopper) = idle_relay(&relays).await;
    sleep(Duration::from_secs(8)).await; // its next look by itself is half a minute away
    proxy.refuse(true);
    proxy.cut();
    write(&database.store, event("a", 1)).await;
    sleep(Duration::from_millis(1_500)).await;
    proxy.refuse(false);
    // It cannot know what it missed, so it looks as soon as it listens again.
    assert!(arrives(&broker, 1, Duration::from_secs(10)).await);
    let began = Instant::now();
    let mut number = 1;
    // The relay has to find its own connection again, too.
    while began.elapsed() < Duration::from_secs(20) {
        number += 1;
        write(&database.store, event("a", number)).await;
        database.store.notify();
        if arrives(&broker, usize::try_from(number).unwrap(), SOON).await {
            return;
        }
    }
    panic!("no notification woke it after the connection was lost");
}

/// The writer's transaction has no part in it, so no two commits wait for each other.
#[tokio::test]
async fn writing_sends_nothing_by_itself() {
    let database = database!();
    let functions = "select count(*) from pg_proc where prosrc ilike '%notify%'
        and (pronamespace = 'semel'::regnamespace
            or oid in (select tgfoid from pg_trigger where not tgisinternal))";
    assert_eq!(database.number(functions).await, 0);
}

/// Nobody waits for a notification, nobody fails with it, and many are one.
#[tokio::test]
async fn notifying_is_for_nothing_and_never_fails() {
    let database = database!();
    let store = database.again().await;
    store.close().await;
    let began = Instant::now();
    for _ in 0..10_000 {
        store.notify();
        database.store.notify();
    }
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

#[tokio::test]
async fn behind_a_pooler_listening_is_refused_and_notifying_works() {
    let Some(database) = Database::pooled().await else { return };
    let failure = database.store.listen().await.unwrap_err();
    assert_eq!((failure.fault(), failure.code()), (Fault::Misconfigured, "E-POSTGRES-POOLER"));
    assert!(failure.fix().unwrap().contains("connect to the server itself"));
    let relays = connect(&database.url()).await;
    let _listening = relays.listen().await.unwrap();
    let (broker, _stopper) = idle_relay(&relays).await;
    write(&database.store, event("a", 1)).await;
    database.store.notify();
    assert!(arrives(&broker, 1, SOON).await);
}
