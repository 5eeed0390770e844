//! Several pipelines, the states as a view, and what cleaning may delete.

use std::time::{Duration, Instant};

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

/// A replay that has chosen its events is not over yet: what it has chosen must not go meanwhile.
#[tokio::test]
async fn what_is_being_replayed_is_not_cleaned() {
    let database = database!();
    database
        .run(
            "create function wait_for_gate() returns trigger language plpgsql as
            $$ begin perform pg_advisory_xact_lock(1); return new; end $$;
            create trigger gate before insert on semel.parked for each row
            execute function wait_for_gate()",
        )
        .await;
    database.commit(&[event("a", 0)]).await;
    let mut relay = database.relay().await;
    relay.deliver_all(10).await;
    let mut gate = database.begin().await;
    sqlx::query("select pg_advisory_xact_lock(1)").execute(&mut *gate).await.unwrap();
    let admin = database.store.admin("orders");
    let replaying = tokio::spawn({
        let (admin, all) = (admin.clone(), Selection::Matching(Filter::default()));
        async move { admin.replay(&all).await.unwrap() }
    });
    let wait_for = async |count: i64, or_finished: &dyn Fn() -> bool| {
        let waiting = "select count(*) from pg_locks l join pg_database d on d.oid = l.database
            where d.datname = current_database() and l.locktype = 'advisory' and not l.granted";
        let began = Instant::now();
        while database.number(waiting).await < count && !or_finished() {
            assert!(began.elapsed() < Duration::from_secs(60), "{count} wait");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    wait_for(1, &|| false).await;
    let cleaning = tokio::spawn({
        let admin = admin.clone();
        async move { admin.clean(Duration::ZERO, 10).await.unwrap() }
    });
    wait_for(2, &|| cleaning.is_finished()).await;
    gate.rollback().await.unwrap();
    assert_eq!((replaying.await.unwrap(), cleaning.await.unwrap()), (1, 0));
    assert_eq!(delivered_numbers(&relay.deliver_all(10).await), [0]);
    assert_eq!(admin.stats().await.unwrap().count(State::Pending), 0);
}

/// As earlier versions left them, when an event was deleted while it was replayed.
#[tokio::test]
async fn replayed_events_that_are_gone_are_forgotten() {
    let database = database!();
    database.commit(&events("a", 0..2)).await;
    let mut relay = database.relay().await;
    relay.deliver_all(10).await;
    let admin = database.store.admin("orders");
    assert_eq!(admin.replay(&Selection::Matching(Filter::default())).await.unwrap(), 2);
    database.commit(&[event("a", 2), event("b", 3)]).await;
    database
        .run(
            "delete from semel.outbox where seq in (select seq from semel.parked);
            update semel.parked set due = due - interval '1 hour'",
        )
        .await;
    assert_eq!(relay.deliver_all(10).await.len(), 2);
    assert_eq!(admin.stats().await.unwrap().count(State::Pending), 2, "for ever");
    admin.clean(Duration::from_secs(3600), 10).await.unwrap();
    assert_eq!(admin.stats().await.unwrap().count(State::Pending), 0);
    assert_eq!(database.number("select count(*) from semel.parked where holds").await, 0);
    database.commit(&[event("a", 4)]).await;
    assert_eq!(delivered_numbers(&relay.deliver_all(10).await), [4]);
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
async fn old_progress_is_thinned_out_while_an_event_stays() {
    let database = database!();
    database.commit(&[event("a", 0)]).await;
    let mut relay = database.relay().await;
    let batch = relay.take(1).await;
    relay.settle(&batch, |_| dead(true)).await;
    let notes = outboxes::progress::notes(|age| {
        format!("('orders', 0, now() - interval '{age} seconds', pg_current_snapshot())")
    });
    database.run(&format!("insert into semel.passage values {notes}")).await;
    let admin = database.store.admin("orders");
    let count = async || database.number("select count(*) from semel.passage").await;
    outboxes::progress::old_progress_is_thinned_out_while_an_event_stays(&admin, count).await;
}

/// Relays that were killed could not say that they are gone.
#[tokio::test]
async fn members_that_have_been_silent_for_long_are_forgotten() {
    let database = database!();
    database
        .run(
            "insert into semel.member values ('orders', 'killed', 1, now() - interval '2 hours'),
                ('orders', 'late', 1, now() - interval '2 minutes'),
                ('other', 'killed', 1, now() - interval '2 hours')",
        )
        .await;
    let member = database.store.member("orders", 1, Duration::from_secs(10)).unwrap();
    let count = async |which: &str| {
        database.number(&format!("select count(*) from semel.member where {which}")).await
    };
    outboxes::members_that_have_been_silent_for_long_are_forgotten(member, count).await;
}

#[tokio::test]
async fn what_consumers_did_is_told() {
    let database = database!();
    let (store, inbox) = (&database.store, database.store.inbox());
    semel_testkit::suites::insight::consumers_are_known_by_what_they_did(store, &inbox).await;
}

#[tokio::test]
async fn outages_are_known_while_they_last() {
    let database = database!();
    let silence =
        async || database.run("update semel.outages set seen_at = seen_at - interval '31 s'").await;
    semel_testkit::suites::insight::outages_are_known_while_they_last(&database.store, silence)
        .await;
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
