//! Several pipelines, the states as a view, and what cleaning may delete.

use std::time::Duration;

use semel_core::admin::{Filter, Selection, State};
use semel_core::{AdminStore, Outcome};
use semel_testkit::workload::{dead, delivered_numbers, event, events};

use super::{Relay, database};
use crate::outboxes;

async fn states(database: &super::Database) -> Vec<(Option<String>, String)> {
    sqlx::query_as("select pipeline, state from semel.events order by pipeline, seq")
        .fetch_all(database.pool())
        .await
        .unwrap()
}

#[tokio::test]
async fn the_view_shows_every_event_in_every_pipeline() {
    let database = database!();
    database.commit(&events("a", 0..2)).await;
    let pending = (None, "pending".to_owned());
    assert_eq!(states(&database).await, [pending.clone(), pending]);
    let mut relay = database.relay().await;
    let batch = relay.take(10).await;
    let mut other = Relay { source: database.store.source("audit").await.unwrap() };
    other.deliver_all(10).await;
    relay.settle(&batch[..1], |_| dead(false)).await;
    let shown = |pipeline: &str, state: &str| (Some(pipeline.to_owned()), state.to_owned());
    let expected = [
        shown("audit", "published"),
        shown("audit", "published"),
        shown("orders", "dead"),
        shown("orders", "publishing"),
    ];
    assert_eq!(states(&database).await, expected);
    drop(relay);
    database.relay().await;
    assert_eq!(states(&database).await[3], shown("orders", "pending"), "nobody has it any more");
}

#[tokio::test]
async fn what_came_back_untried_is_pending() {
    let database = database!();
    database.commit(&events("a", 0..2)).await;
    let mut relay = database.relay().await;
    let batch = relay.take(10).await;
    relay.settle(&batch, |_| Outcome::Released).await;
    let stats = database.store.admin("orders").stats().await.unwrap();
    assert_eq!(stats.count(State::Pending), 2);
}

/// Each pipeline has its own cursor, dead letters and operator.
#[tokio::test]
async fn pipelines_do_not_touch_each_other() {
    let database = database!();
    database.commit(&events("a", 0..3)).await;
    let mut orders = database.relay().await;
    let batch = orders.take(1).await;
    orders.settle(&batch, |_| dead(true)).await;
    assert!(orders.take(10).await.is_empty());
    let mut audit = Relay { source: database.store.source("audit").await.unwrap() };
    assert_eq!(delivered_numbers(&audit.deliver_all(10).await), [0, 1, 2]);
    let all = Selection::Matching(Filter::default());
    assert_eq!(database.store.admin("audit").retry(&all).await.unwrap(), 0);
    assert_eq!(database.store.admin("nobody").retry(&all).await.unwrap(), 0);
    assert_eq!(database.store.admin("orders").retry(&all).await.unwrap(), 1);
    assert_eq!(delivered_numbers(&orders.deliver_all(10).await), [0, 1, 2]);
}

/// An event goes only when the last pipeline is done with it, and its key is free then.
#[tokio::test]
async fn cleaning_waits_for_every_pipeline() {
    let database = database!();
    let admin = database.store.admin("orders");
    database.commit(&[event("a", 0).with_idempotency_key("k")]).await;
    assert_eq!(admin.clean(Duration::ZERO, 10).await.unwrap(), 0, "nobody has read it");
    let mut audit = Relay { source: database.store.source("audit").await.unwrap() };
    database.relay().await.deliver_all(10).await;
    assert_eq!(admin.clean(Duration::ZERO, 10).await.unwrap(), 0, "one pipeline is behind");
    audit.deliver_all(10).await;
    assert_eq!(admin.clean(Duration::from_secs(60), 10).await.unwrap(), 0, "it is young");
    assert_eq!(admin.clean(Duration::ZERO, 10).await.unwrap(), 1);
    database.commit(&[event("a", 1).with_idempotency_key("k")]).await;
    assert_eq!(delivered_numbers(&audit.deliver_all(10).await), [1]);
}

/// When an event was published is known to the second, also after more was published.
#[tokio::test]
async fn the_time_of_publishing_stays() {
    let database = database!();
    let mut relay = database.relay().await;
    let first = event("a", 0);
    database.commit(std::slice::from_ref(&first)).await;
    relay.deliver_all(10).await;
    let admin = database.store.admin("orders");
    let published = || async {
        admin.get(first.id).await.unwrap().unwrap().published_at.expect("it is published")
    };
    let at = published().await;
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    database.commit(&[event("a", 1)]).await;
    relay.deliver_all(10).await;
    assert_eq!(published().await, at);
}

#[tokio::test]
async fn what_consumers_did_is_told() {
    let database = database!();
    let (store, inbox) = (&database.store, database.store.inbox());
    semel_testkit::suites::insight::consumers_are_known_by_what_they_did(store, &inbox).await;
}

/// The log of changes, and how far a pipeline is.
#[tokio::test]
async fn what_is_known_of_the_work_is_told() {
    let database = database!();
    semel_testkit::suites::insight::the_log_of_changes_is_kept(&database.store).await;
    database.commit(&events("a", 0..3)).await;
    database.relay().await.deliver_all(10).await;
    let member = database.store.member("orders", 2, Duration::from_secs(10)).unwrap();
    outboxes::what_is_known_of_the_work_is_told(&database.store, member).await;
}
