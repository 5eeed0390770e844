//! An outbox that is divided by time.

use std::time::{Duration, Instant};

use semel_core::admin::{Filter, Selection};
use semel_core::outbox::AppendError;
use semel_core::{AdminStore, Event, EventId, Fault};
use semel_testkit::workload::{dead, delivered_numbers, event, events};
use uuid::{NoContext, Timestamp, Uuid};

use super::{Database, Relay, database};

const DAY: u64 = 86_400;

/// An outbox with partitions of a day, and one of ten days ago.
async fn divided(database: &Database) -> u64 {
    assert!(database.store.partition(Duration::from_secs(DAY)).await.unwrap());
    let now = database.number("select extract(epoch from now())::bigint").await.unsigned_abs();
    let start = (now / DAY - 10) * DAY;
    database
        .run(&format!(
            "create table semel.outbox_{start} partition of semel.outbox
            for values from ('{}') to ('{}')",
            id_of(start, 0),
            id_of(start + DAY, 0)
        ))
        .await;
    start
}

/// The first id of a time, or the id of a version that says something.
fn id_of(seconds: u64, number: u16) -> Uuid {
    if number == 0 {
        let text = format!("{:012x}{:020}", seconds * 1000, 0);
        return Uuid::parse_str(&text).unwrap();
    }
    Uuid::new_v7(Timestamp::from_unix(NoContext, seconds + u64::from(number), 0))
}

/// An event of ten days ago.
fn old(start: u64, number: u16) -> Event {
    let fresh = event("a", number.into());
    let id = EventId::from_uuid(id_of(start, number));
    let mut event = Event::with_id(id, "order", "a", "Numbered");
    event.payload = fresh.payload;
    event
}

async fn partition_of(database: &Database, event: &Event) -> String {
    sqlx::query_scalar("select tableoid::regclass::text from semel.outbox where id = $1")
        .bind(event.id.as_uuid())
        .fetch_one(database.pool())
        .await
        .unwrap()
}

async fn partitions(database: &Database) -> i64 {
    database
        .number("select count(*) from pg_inherits where inhparent = 'semel.outbox'::regclass")
        .await
}

#[tokio::test]
async fn events_are_in_the_partition_of_their_time_and_come_in_order() {
    let database = database!();
    database.commit(&events("a", 0..2)).await;
    let start = divided(&database).await;
    let mut random = event("a", 4);
    random.id = EventId::from_uuid(Uuid::from_u128(0xf47a_c10b_58cc_4372_a567_0e02_b2c3_d479));
    let all = [event("a", 2), old(start, 3), random, event("a", 5)];
    for event in &all {
        database.commit(std::slice::from_ref(event)).await;
    }
    assert_eq!(partition_of(&database, &all[1]).await, format!("semel.outbox_{start}"));
    assert_eq!(partition_of(&database, &all[2]).await, "semel.outbox_rest");
    let mut relay = database.relay().await;
    assert_eq!(delivered_numbers(&relay.deliver_all(2).await), [0, 1, 2, 3, 4, 5]);
    assert!(!database.store.partition(Duration::from_secs(60)).await.unwrap(), "once is enough");
}

#[tokio::test]
async fn a_partition_goes_when_nobody_needs_it_and_not_before() {
    let database = database!();
    let start = divided(&database).await;
    let admin = database.store.admin("orders");
    let drop_old = async || admin.upkeep(Duration::ZERO).await.unwrap();
    database.commit(&[old(start, 1), old(start, 2).with_idempotency_key("k")]).await;
    database.commit(&events("a", 3..5)).await;
    assert_eq!(drop_old().await, 0, "nobody has read it");
    let mut audit = Relay { source: database.store.source("audit").await.unwrap() };
    let mut relay = database.relay().await;
    let batch = relay.take(1).await;
    relay.settle(&batch, |_| dead(false)).await;
    relay.deliver_all(10).await;
    assert_eq!(drop_old().await, 0, "one pipeline is behind");
    audit.deliver_all(10).await;
    assert_eq!(drop_old().await, 0, "a dead letter needs its event");
    admin.discard(&Selection::Matching(Filter::default())).await.unwrap();
    let month = Duration::from_secs(30 * DAY);
    assert_eq!(admin.upkeep(month).await.unwrap(), 0, "it is not so old");
    let before = partitions(&database).await;
    assert_eq!((drop_old().await, drop_old().await), (1, 0));
    assert_eq!(partitions(&database).await, before - 1);
    assert_eq!(database.number("select count(*) from semel.outbox").await, 2, "today's");
    assert_eq!(database.number("select count(*) from semel.parked").await, 0);
    database.commit(&[event("a", 6).with_idempotency_key("k")]).await;
    assert_eq!(delivered_numbers(&relay.deliver_all(10).await), [6]);
}

/// Whoever is in the way makes it give up at once: nobody queues behind it.
#[tokio::test]
async fn an_open_writer_is_not_waited_for() {
    let database = database!();
    let start = divided(&database).await;
    let admin = database.store.admin("orders");
    database.commit(&[old(start, 1)]).await;
    database.relay().await.deliver_all(10).await;
    let mut open = database.begin().await;
    sqlx::query("lock table semel.outbox in row exclusive mode").execute(&mut *open).await.unwrap();
    let began = Instant::now();
    let other = events("b", 0..1);
    let (refused, ()) = tokio::join!(admin.upkeep(Duration::ZERO), database.commit(&other));
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(refused.unwrap_err().fault(), Fault::Transient);
    assert_eq!(database.number("select count(*) from semel.outbox").await, 2, "all is there");
    open.rollback().await.unwrap();
    assert_eq!(admin.upkeep(Duration::ZERO).await.unwrap(), 1);
}

/// A writer never needs a partition: what has none is in the rest, and is deleted there.
#[tokio::test]
async fn without_a_partition_events_are_beside_them_and_deleted_one_by_one() {
    let database = database!();
    divided(&database).await;
    database.drop_partitions().await;
    database.commit(&[event("a", 0).with_idempotency_key("k"), event("a", 1)]).await;
    let admin = database.store.admin("orders");
    assert_eq!(admin.upkeep(Duration::ZERO).await.unwrap(), 0);
    assert_eq!(partitions(&database).await, 4, "three ahead; today's stay where they are");
    database.relay().await.deliver_all(10).await;
    assert_eq!(admin.clean(Duration::ZERO, 10).await.unwrap(), 2);
    database.commit(&[event("a", 2).with_idempotency_key("k")]).await;
}

/// Keys are those of the whole outbox, whatever the partition.
#[tokio::test]
async fn keys_are_taken_over_all_partitions() {
    let database = database!();
    database.commit(&[event("a", 0).with_idempotency_key("before")]).await;
    let start = divided(&database).await;
    database.commit(&[old(start, 1).with_idempotency_key("k")]).await;
    for key in ["before", "k"] {
        let mut tx = database.begin().await;
        let again = event("a", 2).with_idempotency_key(key);
        match database.store.outbox().append(&mut tx, again).await {
            Err(AppendError::Duplicate { key: Some(taken), transaction_usable: false }) => {
                assert_eq!(taken, key);
            }
            other => panic!("{other:?}"),
        }
    }
    let mut tx = database.begin().await;
    let again = old(start, 5);
    database.append(&mut tx, std::slice::from_ref(&again)).await;
    match database.store.outbox().append(&mut tx, again).await {
        Err(AppendError::Duplicate { transaction_usable: false, .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_divided_outbox_leaves_nothing_when_it_is_dropped() {
    let database = database!();
    divided(&database).await;
    database.commit(&events("a", 0..2)).await;
    assert_eq!(database.store.drop_tables(Some(1)).await.unwrap_err().code(), "E-EVENTS-LEFT");
    database.store.drop_tables(Some(2)).await.unwrap();
    assert_eq!(
        database.number("select count(*) from pg_namespace where nspname = 'semel'").await,
        0
    );
    database.store.migrate().await.unwrap();
}
