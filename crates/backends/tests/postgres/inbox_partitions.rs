//! An inbox that is divided by time.

use std::time::{Duration, Instant};

use semel_backends::postgres::{Postgres, Transaction};
use semel_core::inbox::{Opening, Seen};
use semel_core::{EventId, Fault, InboxStore};
use uuid::{NoContext, Timestamp, Uuid};

use super::{Database, database};

const DAY: u64 = 86_400;
const WEEK: Duration = Duration::from_secs(7 * DAY);

/// An inbox with partitions of a day, and one of ten days ago, when it began.
async fn divided(database: &Database) -> u64 {
    assert!(database.store.partition_inbox(Duration::from_secs(DAY)).await.unwrap());
    let now = database.number("select extract(epoch from now())::bigint").await.unsigned_abs();
    let start = (now / DAY - 10) * DAY;
    database
        .run(&format!(
            "create table semel.inbox_{start} partition of semel.inbox for values
            from (semel.partition_bound({start})) to (semel.partition_bound({}))",
            start + DAY
        ))
        .await;
    start
}

fn id_of(seconds: u64) -> EventId {
    EventId::from_uuid(Uuid::new_v7(Timestamp::from_unix(NoContext, seconds, 0)))
}

/// In a transaction of its own, as a consumer does.
async fn is_new(database: &Database, id: EventId) -> bool {
    let (tx, new) = recorded(database, id).await;
    database.store.inbox().commit(tx).await.unwrap();
    new
}

async fn recorded(database: &Database, id: EventId) -> (Transaction<'static, Postgres>, bool) {
    let inbox = database.store.inbox();
    let (mut tx, mut new) =
        inbox.begin_with("payments", Opening { ids: &[id], ..Opening::default() }).await.unwrap();
    if !new {
        new = inbox.record(&mut tx, "payments", id).await.unwrap() == Seen::First;
    }
    (tx, new)
}

async fn place_of(database: &Database, id: EventId) -> String {
    sqlx::query_scalar("select tableoid::regclass::text from semel.inbox where message_id = $1")
        .bind(id.as_uuid())
        .fetch_one(database.pool())
        .await
        .unwrap()
}

async fn partitions(database: &Database) -> i64 {
    database
        .number("select count(*) from pg_inherits where inhparent = 'semel.inbox'::regclass")
        .await
}

#[tokio::test]
async fn a_copy_is_found_wherever_its_time_is() {
    let database = database!();
    let tomorrow = database.number("select extract(epoch from now())::bigint").await + 86_400;
    let before = EventId::now();
    assert!(is_new(&database, before).await);
    let start = divided(&database).await;
    let random = EventId::from_uuid(Uuid::from_u128(0xf47a_c10b_58cc_4372_a567_0e02_b2c3_d479));
    let (old, next) = (id_of(start + 5), id_of(tomorrow.unsigned_abs()));
    for id in [random, old, next] {
        assert!(is_new(&database, id).await);
    }
    for id in [before, random, old, next] {
        assert!(!is_new(&database, id).await, "{id}");
    }
    assert_eq!(place_of(&database, old).await, format!("semel.inbox_{start}"));
    assert_eq!(place_of(&database, random).await, "semel.inbox_rest");
    assert_ne!(place_of(&database, next).await, "semel.inbox_rest");
    assert!(!database.store.partition_inbox(WEEK).await.unwrap(), "once is enough");
}

/// The time of an id is when the message was made. It may have come much later.
#[tokio::test]
async fn a_partition_goes_when_all_of_it_was_recorded_long_ago() {
    let database = database!();
    let start = divided(&database).await;
    let (inbox, old, late) = (database.store.inbox(), id_of(start + 5), id_of(start + 6));
    let today = EventId::now();
    for id in [old, late, today] {
        assert!(is_new(&database, id).await);
    }
    let age = |id: EventId| {
        format!(
            "update semel.inbox set processed_at = to_timestamp({}) where message_id = '{id}'",
            start + 10
        )
    };
    database.run(&age(old)).await;
    let before = partitions(&database).await;
    assert_eq!(inbox.forget(WEEK, 10).await.unwrap(), 0);
    assert!(!is_new(&database, late).await, "it came today");
    assert!(!is_new(&database, old).await, "its partition is needed");
    database.run(&age(late)).await;
    assert_eq!(inbox.forget(30 * WEEK, 10).await.unwrap(), 0);
    assert_eq!(partitions(&database).await, before, "it is not so old");
    assert_eq!(inbox.forget(WEEK, 10).await.unwrap(), 0);
    assert_eq!(partitions(&database).await, before - 1);
    assert!(!is_new(&database, today).await);
    assert!(is_new(&database, old).await, "it was forgotten");
    assert_eq!(place_of(&database, old).await, "semel.inbox_rest");
    assert_eq!(inbox.forget(WEEK, 10).await.unwrap(), 0);
    database.run(&age(old)).await;
    assert_eq!(inbox.forget(WEEK, 10).await.unwrap(), 1, "one by one");
}

/// Whoever is in the way makes it give up at once: nobody queues behind it.
#[tokio::test]
async fn an_open_consumer_is_not_waited_for() {
    let database = database!();
    let start = divided(&database).await;
    let (inbox, before) = (database.store.inbox(), partitions(&database).await);
    let (open, _) = recorded(&database, id_of(start + 5)).await;
    let began = Instant::now();
    let (refused, new) = tokio::join!(inbox.forget(WEEK, 10), is_new(&database, EventId::now()));
    assert!(new && began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(refused.unwrap_err().fault(), Fault::Transient);
    inbox.rollback(open).await;
    inbox.forget(WEEK, 10).await.unwrap();
    assert_eq!(partitions(&database).await, before - 1);
}

/// A consumer never needs a partition, and partitions are made ahead.
#[tokio::test]
async fn without_a_partition_ids_are_beside_them() {
    let database = database!();
    divided(&database).await;
    database
        .run(
            "do $$ declare name text; begin
                for name in select relname from pg_class
                    where relname ~ '^inbox_[0-9]+$' and relkind = 'r'
                loop execute 'drop table semel.' || name; end loop;
            end $$",
        )
        .await;
    let id = EventId::now();
    assert!(is_new(&database, id).await);
    database.store.inbox().forget(WEEK, 10).await.unwrap();
    assert_eq!(partitions(&database).await, 4, "three ahead; today's stay where they are");
    assert!(!is_new(&database, id).await);
}

#[tokio::test]
async fn a_divided_inbox_leaves_nothing_when_it_is_dropped() {
    let database = database!();
    divided(&database).await;
    database.store.partition(WEEK).await.unwrap();
    assert!(is_new(&database, EventId::now()).await);
    database.store.drop_tables(None).await.unwrap();
    let schemas = "select count(*) from pg_namespace where nspname = 'semel'";
    assert_eq!(database.number(schemas).await, 0);
    database.store.migrate().await.unwrap();
}
