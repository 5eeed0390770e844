//! Tables of somebody else's shape: the shared suites, and what is particular to them.

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

use semel_backends::mapped::{MappedAdmin, MappedSource, Mapping};
use semel_core::admin::{AdminStore, Filter, Selection, State};
use semel_core::{Delivery, Failure, Limit, Outcome, Settlement, Source, Timestamp};

/// Writes an event with all that it can have, each a value of the statement.
macro_rules! write_event {
    ($insert:expr, $event:expr, $tx:expr) => {
        sqlx::query($insert)
            .bind($event.id.to_string())
            .bind(&$event.aggregate_type)
            .bind(&$event.aggregate_id)
            .bind(&$event.event_type)
            .bind($event.payload.bytes().to_vec())
            .bind($event.payload.content_type())
            .bind(serde_json::to_string(&$event.headers).unwrap())
            .bind($event.idempotency_key().into_owned())
            .bind($event.created_at.as_microsecond())
            .bind($event.available_at.map(semel_core::Timestamp::as_microsecond))
            .execute(&mut **$tx)
            .await
            .map_err(|error| {
                let failure = semel_core::Failure::refused("E-TEST", "insert").with_source(error);
                semel_core::outbox::AppendError::Store(failure)
            })
    };
}
use write_event;

/// A polling publisher's table with columns for everything that an event can have.
fn complete_polling_publisher() -> Mapping {
    Mapping::polling_publisher("outbox")
        .event_id("event_id")
        .content_type("content_type")
        .headers("headers")
        .available_at("available_at")
}

/// What writes an event of each lane, one after the other, into a polling publisher's table.
fn inserts(lanes: &[&str]) -> Vec<String> {
    let insert = |(number, lane): (usize, &&str)| {
        format!(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload, idempotency_key)
            values ('order', '{lane}', 'OrderPlaced', '{{\"total\": {number}}}', '{lane}-{number}')"
        )
    };
    lanes.iter().enumerate().map(insert).collect()
}

/// The lanes are `good`, `bad` and `worse`. The conditions say that a row waits, and that it was
/// published.
async fn a_polling_publisher_has_true_marks_and_counts(
    source: &mut MappedSource,
    admin: &MappedAdmin,
    [waits, is_published]: [&str; 2],
    number: impl AsyncFn(String) -> i64,
) {
    let count = async |lane: &str, condition: &str| {
        let sql =
            format!("select count(*) from outbox where aggregate_id = '{lane}' and {condition}");
        number(sql).await
    };
    let batch = take(source).await;
    settle(source, &batch[0], Outcome::Delivered).await;
    settle(source, &batch[1], retry_now(1)).await;
    settle(source, &batch[2], dead()).await;
    assert_eq!(count("good", &format!("{is_published} and retry_count = 0")).await, 1);
    assert_eq!(count("bad", &format!("{waits} and retry_count = 1")).await, 1);
    assert_eq!(count("worse", &format!("{waits} and retry_count = 5")).await, 1);

    let again = take(source).await;
    assert_eq!((again.len(), again[0].message.attempt), (1, 2));
    settle(source, &again[0], retry_now(2)).await;
    assert_eq!(count("bad", &format!("{waits} and retry_count = 2")).await, 1);
    deliver_all(source).await;
    assert_eq!(count("bad", &format!("{is_published} and retry_count = 2")).await, 1);

    let dead = Filter { state: Some(State::Dead), ..Filter::default() };
    assert_eq!(admin.retry(&Selection::Matching(dead)).await.unwrap(), 1);
    assert_eq!(count("worse", &format!("{waits} and retry_count = 0")).await, 1);
    deliver_all(source).await;
    assert_eq!(count("worse", is_published).await, 1);
}

/// What writes an event of each lane as the classic application does, with an id of its own making, into
/// a transactional outbox. The ids are in order, because rows of one second have no other.
fn insert_with_ids(lanes: &[&str]) -> Vec<String> {
    let insert = |(number, lane): (usize, &&str)| {
        format!(
            "insert into outbox (id, aggregate_type, aggregate_id, event_type, payload) values
            ('{number}190b6e8-7a3c-4def-8000-0123456789ab', 'order', '{lane}', 'OrderPlaced',
            '{{\"total\": {number}}}')"
        )
    };
    lanes.iter().enumerate().map(insert).collect()
}

/// The table has what [`insert_with_ids`] writes of `good`, `bad` and `worse`. The condition says that a
/// row was published just now.
async fn a_transactional_outbox_is_marked_when_published(
    open: impl AsyncFn() -> MappedSource,
    admin: &MappedAdmin,
    is_published: &str,
    number: impl AsyncFn(String) -> i64,
) {
    // A digit each, in this order.
    let lanes = async |condition: &str| {
        let of = |lane: &str| format!("count(case when aggregate_id = '{lane}' then 1 end)");
        let (good, bad, worse) = (of("good"), of("bad"), of("worse"));
        number(format!("select {good} * 100 + {bad} * 10 + {worse} from outbox where {condition}"))
            .await
    };
    let waits = "published_at is null";
    let mut source = open().await;
    let batch = take(&mut source).await;
    let event = &batch[1].message.event;
    assert_eq!(event.id.to_string(), "1190b6e8-7a3c-4def-8000-0123456789ab");
    assert_eq!(event.payload.bytes().as_ref(), br#"{"total": 1}"#);
    assert!(event.payload.is_json());
    assert_eq!((lanes(waits).await, lanes(is_published).await), (111, 0));
    settle(&mut source, &batch[0], Outcome::Delivered).await;
    settle(&mut source, &batch[1], retry_now(1)).await;
    settle(&mut source, &batch[2], dead()).await;
    assert_eq!((lanes(waits).await, lanes(is_published).await), (11, 100));

    let again = take(&mut source).await;
    assert_eq!((again.len(), again[0].message.attempt), (1, 2));
    settle(&mut source, &again[0], retry_now(2)).await;
    assert_eq!((lanes(waits).await, lanes(is_published).await), (11, 100));
    let mut source = open().await;
    assert_eq!(deliver_all(&mut source).await.len(), 1);
    assert_eq!((lanes(waits).await, lanes(is_published).await), (1, 110));

    let dead = Filter { state: Some(State::Dead), ..Filter::default() };
    assert_eq!(admin.retry(&Selection::Matching(dead)).await.unwrap(), 1);
    assert_eq!(deliver_all(&mut source).await.len(), 1);
    assert_eq!((lanes(waits).await, lanes(is_published).await), (0, 111));
    assert!(take(&mut open().await).await.is_empty(), "each is published once");
}

/// What writes a row of a lane with this flag into a polling publisher's table.
fn insert_flag(lane: &str, flag: &str, number: usize) -> String {
    format!(
        "insert into outbox (aggregate_type, aggregate_id, event_type, payload, published,
            idempotency_key) values ('order', '{lane}', 'Placed', '{number}', {flag}, '{number}')"
    )
}

/// The table is empty. `at_once` says whether an index has all rows, or there is none.
async fn rows_whose_flag_is_null_are_published(
    admin: &MappedAdmin,
    open: impl AsyncFn() -> MappedSource,
    run: impl AsyncFn(String),
    at_once: bool,
) {
    let mut source = open().await;
    for (number, (lane, flag)) in [("a", "null"), ("a", "false"), ("b", "null")].iter().enumerate()
    {
        run(insert_flag(lane, flag, number)).await;
    }
    if !at_once {
        source = open().await;
    }
    assert_eq!(admin.stats().await.unwrap().counts, [3, 0, 0, 0, 0, 0]);
    let batch = take(&mut source).await;
    let content = |got: &Delivery| got.message.event.payload.bytes().clone();
    assert_eq!(batch.iter().map(content).collect::<Vec<_>>(), ["0", "1", "2"], "in order");
    settle(&mut source, &batch[0], retry_now(1)).await;
    let again = take(&mut source).await;
    assert_eq!((again.len(), again[0].message.attempt), (1, 2), "it is not forgotten");
    for got in [&again[0], &batch[1], &batch[2]] {
        settle(&mut source, got, Outcome::Delivered).await;
    }
    run(insert_flag("a", "null", 3)).await;
    let mut source = open().await;
    assert_eq!(deliver_all(&mut source).await.len(), 1, "a new owner takes it as well");
    assert_eq!(admin.stats().await.unwrap().counts, [0, 0, 4, 0, 0, 0]);
}

/// Two lanes whose names differ in the end, after more than an index has room for, and one that begins
/// alike.
fn long_lanes() -> [String; 3] {
    let random = std::hash::RandomState::new();
    let digits = |part: u32| format!("{:016x}", std::hash::BuildHasher::hash_one(&random, part));
    let begin: String = (0..300).map(digits).collect();
    [format!("{begin}-1"), format!("{begin}-2"), begin[..210].to_owned()]
}

/// What writes an event of each lane, one after the other, and then another one of each.
fn insert_twice(lanes: &[String; 3]) -> Vec<String> {
    let insert = |(number, lane): (usize, &String)| {
        format!(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload, idempotency_key)
            values ('order', '{lane}', 'OrderPlaced', '', '{number}')"
        )
    };
    lanes.iter().chain(lanes).enumerate().map(insert).collect()
}

/// The table has what [`insert_twice`] writes.
async fn a_lane_with_a_long_name_waits_behind_its_dead_letter(
    source: &mut MappedSource,
    admin: &MappedAdmin,
    lanes: &[String; 3],
) {
    let lane = |got: &Delivery| got.message.event.aggregate_id.clone();
    let batch = source.next_batch(Limit { events: 3, ..Limit::default() }).await.unwrap();
    assert_eq!(batch.deliveries.iter().map(lane).collect::<Vec<_>>(), lanes);
    for (got, outcome) in batch.deliveries.iter().zip([dead(), Outcome::Delivered, dead()]) {
        settle(source, got, outcome).await;
    }
    let others = deliver_all(source).await;
    assert_eq!(others.iter().map(lane).collect::<Vec<_>>(), [lanes[1].clone()]);
    let dead = Filter { state: Some(State::Dead), ..Filter::default() };
    assert_eq!(admin.retry(&Selection::Matching(dead)).await.unwrap(), 2);
    let mut rest: Vec<_> = deliver_all(source).await.iter().map(lane).collect();
    rest.sort_unstable();
    let [first, _, short] = lanes.clone();
    let mut expected = [first.clone(), first, short.clone(), short];
    expected.sort_unstable();
    assert_eq!(rest, expected);
}

/// The table has twelve rows of a mebibyte each, of one lane, with their numbers as types.
async fn large_rows_come_in_order_and_all_of_them(open: impl AsyncFn() -> MappedSource) {
    let limit = Limit { events: 100, bytes: 3 << 20 };
    let mut source = open().await;
    let first = source.next_batch(limit).await.unwrap();
    assert!(first.more && (1..=3).contains(&first.deliveries.len()), "{}", first.deliveries.len());
    let second = source.next_batch(limit).await.unwrap();
    for got in first.deliveries.iter().chain(&second.deliveries) {
        settle(&mut source, got, retry_now(1)).await;
    }
    // One that does not know yet how large they are.
    let mut source = open().await;
    let mut types = Vec::new();
    loop {
        let batch = source.next_batch(limit).await.unwrap();
        let bytes: usize = batch.deliveries.iter().map(|got| got.message.event.size()).sum();
        assert!(bytes <= limit.bytes, "{bytes}");
        for got in &batch.deliveries {
            types.push(got.message.event.event_type.clone());
            settle(&mut source, got, Outcome::Delivered).await;
        }
        assert_eq!(batch.more, types.len() < 12, "{types:?}");
        if !batch.more {
            break;
        }
    }
    assert_eq!(types, (0..12).map(|number| number.to_string()).collect::<Vec<_>>());
}

async fn a_source_that_was_replaced_says_so(open: impl AsyncFn() -> MappedSource) {
    let mut first = open().await;
    assert!(take(&mut first).await.is_empty() && !first.is_lost());
    let mut second = open().await;
    assert!(take(&mut first).await.is_empty() && first.is_lost());
    assert!(take(&mut second).await.is_empty() && !second.is_lost());
}

/// What is ready, at most 100.
async fn take(source: &mut MappedSource) -> Vec<Delivery> {
    source.next_batch(Limit::default()).await.unwrap().deliveries
}

async fn settle(source: &mut MappedSource, got: &Delivery, outcome: Outcome) {
    let settlement = Settlement { receipt: got.receipt, outcome };
    assert!(source.settle(&[settlement]).await.unwrap().is_held());
}

async fn deliver_all(source: &mut MappedSource) -> Vec<Delivery> {
    let mut delivered = Vec::new();
    loop {
        let batch = take(source).await;
        if batch.is_empty() {
            return delivered;
        }
        let outcome = Outcome::Delivered;
        let settle = |got: &Delivery| Settlement { receipt: got.receipt, outcome: outcome.clone() };
        let settlements: Vec<_> = batch.iter().map(settle).collect();
        assert!(source.settle(&settlements).await.unwrap().is_held());
        delivered.extend(batch);
    }
}

fn retry_at(at: Timestamp, attempts: u32) -> Outcome {
    Outcome::Retry { at, attempts, failure: Failure::transient("E-TEST", "try again") }
}

/// Long ago: due at once.
fn retry_now(attempts: u32) -> Outcome {
    retry_at(Timestamp::UNIX_EPOCH, attempts)
}

fn dead() -> Outcome {
    let failure = Failure::refused("E-TEST", "never");
    Outcome::Dead { attempts: 5, failure, parks_lane: true }
}
