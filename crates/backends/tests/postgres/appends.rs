//! What an append costs, and what becomes of a transaction that repeats an event.

use semel_core::outbox::AppendError;
use semel_core::{Event, Timestamp};
use semel_testkit::proxy::Proxy;
use semel_testkit::workload::{awkward_events, event};

use super::{connect, database};

#[tokio::test]
async fn any_number_of_events_is_one_round_trip() {
    let database = database!();
    let proxy = Proxy::start(database.address()).await;
    let through = database.url().replace(database.address(), &proxy.address());
    let store = connect(&through).await;
    let outbox = store.outbox();
    let mut tx = store.begin().await.unwrap();
    // The first ones of a connection are prepared.
    outbox.append(&mut tx, event("first", 0)).await.unwrap();
    outbox.append_all(&mut tx, &of_all_kinds(2)).await.unwrap();
    for count in [2, 3, 50, 501, 2_000] {
        let (events, before) = (of_all_kinds(count), proxy.answers());
        outbox.append_all(&mut tx, &events).await.unwrap();
        assert_eq!(proxy.answers() - before, 1, "{count} events");
    }
    let before = proxy.answers();
    outbox.append(&mut tx, event("one", 1)).await.unwrap();
    assert_eq!(proxy.answers() - before, 1, "one event");
    // Without this the test could not fail.
    sqlx::query("select 1").execute(&mut *tx).await.unwrap();
    assert!(proxy.answers() - before > 1, "answers are counted");
    tx.commit().await.unwrap();
}

fn of_all_kinds(count: usize) -> Vec<Event> {
    let small = || awkward_events().into_iter().filter(|event| event.size() < 10_000);
    let mut events: Vec<_> = std::iter::repeat_with(small).flatten().take(count).collect();
    for event in &mut events {
        let own_key = event.custom_key.take();
        event.custom_key = own_key.map(|key| format!("{key} of {}", event.id));
    }
    events
}

/// Nobody looks for the id first, whatever is in the event; for a key of its own somebody does.
#[tokio::test]
async fn a_repeated_id_ends_the_transaction_and_a_repeated_key_does_not() {
    let database = database!();
    let without_a_key = [
        event("usual", 1),
        event("headers", 2).with_header("tenant", "acme"),
        event("time", 3).available_at(Timestamp::now()),
        event("content", 4).with_bytes("text/plain", "four"),
    ];
    database.commit(&without_a_key).await;
    for event in without_a_key {
        let lane = event.aggregate_id.clone();
        let mut tx = database.begin().await;
        let refused = database.store.outbox().append(&mut tx, event.clone()).await.unwrap_err();
        let AppendError::Duplicate { key, transaction_usable } = refused else {
            panic!("{lane}: {refused:?}")
        };
        assert_eq!((key, transaction_usable), (Some(event.id.to_string()), false), "{lane}");
        let after = sqlx::query("select 1").execute(&mut *tx).await;
        assert!(after.is_err(), "{lane}: the transaction is over");
    }

    let keyed = event("keyed", 5).with_idempotency_key("order-5/paid");
    database.commit(std::slice::from_ref(&keyed)).await;
    let mut tx = database.begin().await;
    let refused = database.store.outbox().append(&mut tx, keyed).await.unwrap_err();
    let AppendError::Duplicate { transaction_usable: true, .. } = refused else {
        panic!("{refused:?}")
    };
    database.append(&mut tx, &[event("after", 6)]).await;
    tx.commit().await.unwrap();
}
