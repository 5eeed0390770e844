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
