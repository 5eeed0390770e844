//! Many events at once: one statement, prepared once, whatever is in them.

use semel_core::outbox::AppendError;
use semel_core::{Event, EventId, Timestamp};
use semel_testkit::workload::{
    assert_intact, awkward_events, delivered_numbers, event, events, numbers,
};
use sqlx::Row;

use super::{Database, MySql, Transaction, database};

const MANY: usize = 1_000;

/// Of every kind, small enough to be one statement together; every seventh is for later.
fn of_all_kinds() -> Vec<Event> {
    let small = || awkward_events().into_iter().filter(|event| event.size() < 10_000);
    let mut events: Vec<_> = std::iter::repeat_with(small).flatten().take(MANY).collect();
    let later = Timestamp::now().as_microsecond() + 3_600_000_000;
    let later = Timestamp::from_microsecond(later).unwrap();
    for (number, event) in events.iter_mut().enumerate() {
        let own_key = event.custom_key.take();
        event.custom_key = own_key.map(|key| format!("{key} of {}", event.id));
        event.available_at = (number % 7 == 0).then_some(later);
    }
    events
}

/// How many statements the session has prepared, executed, and set savepoints by.
async fn statements(tx: &mut Transaction<'_, MySql>) -> [u64; 3] {
    // As text: to prepare it would count.
    let rows = sqlx::raw_sql("SHOW SESSION STATUS LIKE 'Com\\_s%'").fetch_all(&mut **tx).await;
    let rows = rows.unwrap();
    ["Com_stmt_prepare", "Com_stmt_execute", "Com_savepoint"].map(|name| {
        let named = |row: &&sqlx::mysql::MySqlRow| row.get::<String, _>(0) == name;
        let row = rows.iter().find(named).expect(name);
        row.get::<String, _>(1).parse().unwrap()
    })
}

#[tokio::test]
async fn a_thousand_events_of_all_kinds_are_written_as_they_are() {
    let database = database!();
    let written = of_all_kinds();
    database.commit(&written).await;
    let stored: Vec<(String, Vec<u8>, Option<i64>)> = sqlx::query_as(
        "SELECT id, payload, timestampdiff(MICROSECOND, '1970-01-01', available_at) \
         FROM semel_outbox ORDER BY seq",
    )
    .fetch_all(database.pool())
    .await
    .unwrap();
    assert_eq!(stored.len(), MANY);
    for (event, (id, payload, available_at)) in written.iter().zip(stored) {
        assert_eq!(id, event.id.to_string(), "in their order");
        assert_eq!(payload, &event.payload.bytes()[..], "payload of {}", event.event_type);
        assert_eq!(available_at, event.available_at.map(Timestamp::as_microsecond));
    }
    let delivered = database.relay().await.deliver_all(300).await;
    let now: Vec<_> = written.iter().filter(|event| event.available_at.is_none()).collect();
    assert_eq!(delivered.len(), now.len());
    for (event, got) in now.into_iter().zip(&delivered) {
        assert_intact(event, &got.message.event);
    }
}

#[tokio::test]
async fn any_number_of_events_is_one_statement_that_stays_prepared() {
    let database = database!();
    let mut tx = database.begin().await;
    database.append(&mut tx, &of_all_kinds()).await;
    for count in [9, 10, 501, MANY] {
        let events = &of_all_kinds()[..count];
        let before = statements(&mut tx).await;
        database.append(&mut tx, events).await;
        let [prepared, executed, savepoints] = before;
        assert_eq!(
            statements(&mut tx).await,
            [prepared, executed + 1, savepoints],
            "{count} events: one is executed and none prepared"
        );
    }
    tx.commit().await.unwrap();
}

/// Whether the key was taken by somebody else or earlier in the same call.
#[tokio::test]
async fn a_duplicate_among_a_thousand_undoes_all_of_them() {
    let database = database!();
    let taken = || event("taken", 1).with_idempotency_key("it's \"taken\"");
    database.commit(&[taken()]).await;
    let mut by_another = events("many", 0..1_000);
    by_another[500] = taken();
    let mut by_itself = events("many", 0..1_000);
    by_itself[999] = by_itself[3].clone();
    let id: EventId = by_itself[3].id;
    let mut tx = database.begin().await;
    database.append(&mut tx, &[event("before", 1)]).await;
    for (many, duplicate) in
        [(by_another, "it's \"taken\"".to_owned()), (by_itself, id.to_string())]
    {
        let refused = database.store.outbox().append_all(&mut tx, &many).await.unwrap_err();
        let AppendError::Duplicate { key, transaction_usable } = refused else {
            panic!("{refused:?}")
        };
        assert_eq!((key, transaction_usable), (Some(duplicate), true));
    }
    database.append(&mut tx, &events("after", 0..20)).await;
    tx.commit().await.unwrap();
    let lanes = database.relay().await.lanes().await;
    assert_eq!(lanes[..2], ["taken", "before"]);
    assert_eq!(lanes[2..], ["after"; 20]);
}

/// Statements of many events, one of few because one of these is large, and what is left.
#[tokio::test]
async fn appends_of_several_statements_keep_their_order_and_are_undone_together() {
    let database: Database = database!();
    database.commit(&[event("taken", 0).with_idempotency_key("taken")]).await;
    let padded = |number: u64| {
        let zeros = if number == 25 { 1_000_000 } else { 300_000 };
        event("a", number).with_bytes("text/plain", format!("{}{number}", "0".repeat(zeros)))
    };
    let mut all: Vec<_> = (0..40).map(padded).collect();
    let mut tx = database.begin().await;
    all.push(event("a", 40).with_idempotency_key("taken"));
    let refused = database.store.outbox().append_all(&mut tx, &all).await.unwrap_err();
    assert!(matches!(refused, AppendError::Duplicate { .. }), "{refused:?}");
    all.pop();
    let before = statements(&mut tx).await;
    database.append(&mut tx, &all).await;
    let after = statements(&mut tx).await;
    assert_eq!(after[2], before[2] + 1, "it is more than one statement");
    tx.commit().await.unwrap();
    let delivered = database.relay().await.deliver_all(100).await;
    let expected: Vec<_> = numbers(&all);
    assert_eq!(delivered_numbers(&delivered[1..]), expected);
}
