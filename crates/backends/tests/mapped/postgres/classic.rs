//! The classic tables as teams have them: what is true in them after success, failure and retry.

use semel_backends::mapped::{LaneOrder, Mapping};
use semel_core::admin::{AdminStore, Filter, Selection, State};
use semel_core::{Outcome, Settlement, Source};

use super::super::{
    dead, deliver_all, insert_twice, insert_with_ids, inserts, long_lanes, retry_now, settle, take,
};
use super::Database;

const TRANSACTIONAL_OUTBOX: &str = "create table outbox (id uuid primary key,
    aggregate_type varchar(255), aggregate_id varchar(255), event_type varchar(255), payload jsonb,
    created_at timestamp default now(), published_at timestamp null);
    create index on outbox (created_at) where published_at is null";

const POLLING_PUBLISHER: &str = "create table outbox (id bigserial primary key,
    aggregate_type varchar(255), aggregate_id varchar(255), event_type varchar(255), payload text,
    created_at timestamp default now(), published boolean default false,
    published_at timestamp null, retry_count int default 0,
    idempotency_key varchar(255) unique not null);
    create index on outbox (published, created_at)";

/// Writes events of these lanes, one after the other.
async fn write(database: &Database, lanes: &[&str]) {
    for insert in inserts(lanes) {
        database.run(&insert).await;
    }
}

#[tokio::test]
async fn a_transactional_outbox_is_marked_when_published() {
    let Some(database) = Database::new().await else { return };
    database.run(TRANSACTIONAL_OUTBOX).await;
    for insert in insert_with_ids(&["good", "bad", "worse"]) {
        database.run(&insert).await;
    }
    let mapping = Mapping::transactional_outbox("outbox");
    let open = async || database.store.mapped_source("orders", &mapping).await.unwrap();
    let admin = database.store.mapped_admin("orders", &mapping);
    let is_published = "published_at between (now() at time zone 'UTC') - interval '1 minute'
        and (now() at time zone 'UTC') + interval '1 minute'";
    let number = async |sql: String| database.number(&sql).await;
    super::super::a_transactional_outbox_is_marked_when_published(
        open,
        &admin,
        is_published,
        number,
    )
    .await;
}

#[tokio::test]
async fn a_polling_publisher_has_true_marks_and_counts() {
    let Some(database) = Database::new().await else { return };
    database.run(POLLING_PUBLISHER).await;
    write(&database, &["good", "bad", "worse"]).await;
    let mapping = Mapping::polling_publisher("outbox");
    let mut source = database.store.mapped_source("orders", &mapping).await.unwrap();
    let admin = database.store.mapped_admin("orders", &mapping);
    let waits = "not published and published_at is null";
    let is_published = "published and published_at is not null";
    let number = async |sql: String| database.number(&sql).await;
    super::super::a_polling_publisher_has_true_marks_and_counts(
        &mut source,
        &admin,
        [waits, is_published],
        number,
    )
    .await;
}

#[tokio::test]
async fn a_replayed_row_waits_again() {
    let Some(database) = Database::new().await else { return };
    database.run(POLLING_PUBLISHER).await;
    write(&database, &["a", "b"]).await;
    let mapping = Mapping::polling_publisher("outbox");
    let mut source = database.store.mapped_source("orders", &mapping).await.unwrap();
    let first = deliver_all(&mut source).await;
    let admin = database.store.mapped_admin("orders", &mapping);
    let one = Selection::Ids(vec![first[0].message.event.id]);
    assert_eq!(admin.replay(&one).await.unwrap(), 1);
    let waits = "select count(*) from outbox where not published and published_at is null";
    assert_eq!(database.number(waits).await, 1);
    let again = deliver_all(&mut source).await;
    assert_eq!(again[0].message.event.id, first[0].message.event.id);
    assert_eq!(database.number(waits).await, 0);
}

#[tokio::test]
async fn numbers_become_ids_that_stay() {
    let Some(database) = Database::new().await else { return };
    database.run(POLLING_PUBLISHER).await;
    write(&database, &["a", "b", "c"]).await;
    let mapping = Mapping::polling_publisher("outbox");
    let ids = async || {
        let store = database.again().await;
        let mut source = store.mapped_source("orders", &mapping).await.unwrap();
        let batch = take(&mut source).await;
        batch.iter().map(|got| got.message.event.id).collect::<Vec<_>>()
    };
    let (before, after) = (ids().await, ids().await);
    assert_eq!(before.len(), 3);
    assert_eq!(before, after, "the same after a restart");
    assert!(before.is_sorted());
    let admin = database.store.mapped_admin("orders", &mapping);
    let view = admin.get(before[1]).await.unwrap().expect("found by its id");
    assert_eq!(view.event.aggregate_id, "b");
}

#[tokio::test]
async fn ids_may_be_any_text() {
    let Some(database) = Database::new().await else { return };
    database
        .run(
            "create table outbox (id text primary key, aggregate_type text, aggregate_id text,
            event_type text, payload text, sent boolean not null default false);
            insert into outbox select 'evt_' || n, 'order', n, 'Placed', n
            from generate_series(1, 30) n",
        )
        .await;
    let mapping = Mapping::new("outbox").mark_flag("sent").order_by("id");
    let mut source = database.store.mapped_source("orders", &mapping).await.unwrap();
    let delivered = deliver_all(&mut source).await;
    assert_eq!(delivered.len(), 30);
    let admin = database.store.mapped_admin("orders", &mapping);
    let wanted = &delivered[7].message.event;
    let view = admin.get(wanted.id).await.unwrap().expect("found by its id");
    assert_eq!((view.event.aggregate_id.as_str(), view.state), ("16", State::Published));
}

#[tokio::test]
async fn any_characters_may_be_in_names() {
    let Some(database) = Database::new().await else { return };
    database
        .run(r#"create schema "my ""own""; --";
            create table "my ""own""; --"."o'utbox""; drop table x" (
                "the ""id""" bigserial primary key, "type; --" text, "aggregate id" text,
                "Event" text, "päyload" json, "st'atus" text default 'it''s \ new', "try's" int);
            insert into "my ""own""; --"."o'utbox""; drop table x"
                ("type; --", "aggregate id", "Event", "päyload") values ('order', '42', 'Placed', '1')"#)
        .await;
    let mapping = Mapping::new(r#"o'utbox"; drop table x"#)
        .in_schema(r#"my "own"; --"#)
        .id(r#"the "id""#)
        .aggregate_type("type; --")
        .aggregate_id("aggregate id")
        .event_type("Event")
        .payload("päyload")
        .retry_count("try's")
        .mark_status("st'atus", r"it's \ new", "it's done");
    let mut source = database.store.mapped_source("orders", &mapping).await.unwrap();
    let batch = take(&mut source).await;
    settle(&mut source, &batch[0], retry_now(1)).await;
    assert_eq!(deliver_all(&mut source).await.len(), 1);
    let table = r#""my ""own""; --"."o'utbox""; drop table x""#;
    let done = format!(r#"select count(*) from {table} where "st'atus" = 'it''s done'"#);
    assert_eq!(database.number(&done).await, 1);
    let admin = database.store.mapped_admin("orders", &mapping);
    assert_eq!(admin.stats().await.unwrap().counts, [0, 0, 1, 0, 0, 0]);
    assert_eq!(admin.list(&Filter::default(), None, 9).await.unwrap().events.len(), 1);
}

#[tokio::test]
async fn rows_with_another_status_are_left_alone() {
    let Some(database) = Database::new().await else { return };
    database
        .run(
            "create type state as enum ('NEW', 'SENT', 'DRAFT');
            create table outbox (id bigserial primary key, aggregate_id uuid, event_type text,
                payload bytea, state state not null default 'NEW');
            insert into outbox (aggregate_id, event_type, payload, state) values
                (gen_random_uuid(), 'Placed', '\\x00ff', 'NEW'),
                (gen_random_uuid(), 'Placed', '\\x01', 'DRAFT')",
        )
        .await;
    let mapping =
        Mapping::new("outbox").aggregate_type_is("order").mark_status("state", "NEW", "SENT");
    let mut source = database.store.mapped_source("orders", &mapping).await.unwrap();
    let delivered = deliver_all(&mut source).await;
    assert_eq!(delivered.len(), 1);
    let event = &delivered[0].message.event;
    assert_eq!(
        (event.aggregate_type.as_str(), event.payload.bytes().as_ref()),
        ("order", &[0, 255][..])
    );
    assert_eq!(event.payload.content_type(), "application/octet-stream");
    let draft = "select count(*) from outbox where state = 'DRAFT'";
    assert_eq!(database.number(draft).await, 1);
    let admin = database.store.mapped_admin("orders", &mapping);
    assert_eq!(admin.list(&Filter::default(), None, 9).await.unwrap().events.len(), 1);
}

#[tokio::test]
async fn debeziums_columns_become_headers_and_rows_go() {
    let Some(database) = Database::new().await else { return };
    database
        .run("create table outboxevent (id uuid primary key, aggregatetype varchar(255) not null,
                aggregateid varchar(255) not null, type varchar(255) not null, payload jsonb,
                tracingspancontext varchar(256), version int);
            insert into outboxevent values ('0190b6e8-7a3c-7def-8000-0123456789ab', 'order', '42',
                'OrderPlaced', '{}', 'traceparent=00-x', 7),
                ('1190b6e8-7a3c-7def-8000-0123456789ab', 'order', '43', 'OrderPlaced', null, null, 8)")
        .await;
    let mapping = Mapping::debezium("outboxevent");
    let mut source = database.store.mapped_source("orders", &mapping).await.unwrap();
    assert!(!source.guarantees().lane_order, "a UUID alone is no order");
    let order = async |mapping| database.store.check_mapping(&mapping).await.unwrap();
    assert_eq!(order(mapping.clone()).await, LaneOrder::None);
    assert_eq!(order(mapping.clone().order_by("version")).await, LaneOrder::ByColumn);
    let delivered = deliver_all(&mut source).await;
    let headers: Vec<_> = delivered[0].message.event.headers.iter().collect();
    assert_eq!(headers, [("tracingspancontext", "traceparent=00-x"), ("version", "7")]);
    let tombstone = &delivered[1].message.event;
    assert_eq!(tombstone.payload.bytes().as_ref(), b"null");
    assert_eq!(tombstone.headers.iter().collect::<Vec<_>>(), [("version", "8")]);
    assert_eq!(database.number("select count(*) from outboxevent").await, 0);

    let admin = database.store.mapped_admin("orders", &mapping);
    let refused = admin.replay(&Selection::Matching(Filter::default())).await.unwrap_err();
    assert_eq!(refused.code(), "E-MAPPED-REPLAY");
    assert!(refused.fix().is_some());
}

#[tokio::test]
async fn a_batch_is_marked_by_one_statement() {
    let Some(database) = Database::new().await else { return };
    database.run(POLLING_PUBLISHER).await;
    database
        .run(
            "create table statements (at timestamptz default clock_timestamp());
            create function count_statement() returns trigger language plpgsql as
                $$ begin insert into statements default values; return null; end $$;
            create trigger count_statement after update on outbox for each statement
                execute function count_statement()",
        )
        .await;
    write(&database, &["a", "b", "c", "d", "e", "f", "g"]).await;
    let mapping = Mapping::polling_publisher("outbox");
    let mut source = database.store.mapped_source("orders", &mapping).await.unwrap();
    let before = database.number("select count(*) from statements").await;
    let settled: Vec<_> = take(&mut source)
        .await
        .iter()
        .map(|got| Settlement { receipt: got.receipt, outcome: Outcome::Delivered })
        .collect();
    assert_eq!(settled.len(), 7);
    assert!(source.settle(&settled).await.unwrap().is_held());
    let after = database.number("select count(*) from statements").await;
    assert_eq!(after - before, 1);
}

#[tokio::test]
async fn a_dead_row_that_somebody_deletes_holds_nobody() {
    let Some(database) = Database::new().await else { return };
    database.run(POLLING_PUBLISHER).await;
    write(&database, &["a"]).await;
    let mapping = Mapping::polling_publisher("outbox");
    let mut source = database.store.mapped_source("orders", &mapping).await.unwrap();
    let head = take(&mut source).await;
    settle(&mut source, &head[0], dead()).await;
    database
        .run("insert into outbox (aggregate_type, aggregate_id, event_type, payload, idempotency_key)
            values ('order', 'a', 'OrderPaid', '{}', 'next')")
        .await;
    assert!(take(&mut source).await.is_empty(), "its lane waits");
    database.run("delete from outbox where event_type = 'OrderPlaced'").await;
    let mut source = database.store.mapped_source("orders", &mapping).await.unwrap();
    assert_eq!(deliver_all(&mut source).await.len(), 1);
    assert_eq!(database.number("select count(*) from semel.mapped_parked").await, 0);
}

#[tokio::test]
async fn what_an_operator_gave_up_while_it_was_in_flight_stays_given_up() {
    let Some(database) = Database::new().await else { return };
    database.run(POLLING_PUBLISHER).await;
    write(&database, &["a"]).await;
    let mapping = Mapping::polling_publisher("outbox");
    let mut source = database.store.mapped_source("orders", &mapping).await.unwrap();
    let first = take(&mut source).await;
    settle(&mut source, &first[0], retry_now(1)).await;
    let second = take(&mut source).await;
    // Another process does not know what is in flight here.
    let elsewhere = database.again().await.mapped_admin("orders", &mapping);
    let all = Selection::Matching(Filter::default());
    assert_eq!(elsewhere.discard(&all).await.unwrap(), 1);
    settle(&mut source, &second[0], retry_now(2)).await;
    assert!(take(&mut source).await.is_empty());
    assert_eq!(elsewhere.stats().await.unwrap().count(State::Discarded), 1);
}

#[tokio::test]
async fn a_lane_with_a_long_name_waits_behind_its_dead_letter() {
    let Some(database) = Database::new().await else { return };
    database.run(&POLLING_PUBLISHER.replace("varchar(255)", "text")).await;
    let lanes = long_lanes();
    for insert in insert_twice(&lanes) {
        database.run(&insert).await;
    }
    let mapping = Mapping::polling_publisher("outbox");
    let mut source = database.store.mapped_source("orders", &mapping).await.unwrap();
    let admin = database.store.mapped_admin("orders", &mapping);
    super::super::a_lane_with_a_long_name_waits_behind_its_dead_letter(&mut source, &admin, &lanes)
        .await;
}

/// Whatever index there is; the classic one has all rows.
#[tokio::test]
async fn rows_whose_flag_is_null_are_published() {
    let classic = "create index on outbox (published, created_at)";
    let in_order = "create index on outbox (published, id)";
    let none = "";
    let partial = "create index on outbox (id) where published = false";
    for (index, at_once) in [(classic, true), (in_order, true), (none, true), (partial, false)] {
        let Some(database) = Database::new().await else { return };
        database.run(&POLLING_PUBLISHER.replace(classic, index)).await;
        let mapping = Mapping::polling_publisher("outbox");
        let open = async || database.store.mapped_source("orders", &mapping).await.unwrap();
        let run = async |sql: String| database.run(&sql).await;
        let admin = database.store.mapped_admin("orders", &mapping);
        super::super::rows_whose_flag_is_null_are_published(&admin, open, run, at_once).await;
    }
}

/// An event that cannot be parked would be published again and again.
#[tokio::test]
async fn an_error_for_which_the_database_has_no_letters_is_stored_without_them() {
    let Some(database) = Database::latin1().await else { return };
    database.run(POLLING_PUBLISHER).await;
    write(&database, &["a"]).await;
    let mapping = Mapping::polling_publisher("outbox");
    let mut source = database.store.mapped_source("orders", &mapping).await.unwrap();
    let batch = take(&mut source).await;
    let failure = semel_core::Failure::refused("E-X", "no room for \u{1f680}");
    let outcome = Outcome::Dead { attempts: 1, failure, parks_lane: true };
    settle(&mut source, &batch[0], outcome).await;
    let stored = "select count(*) from semel.mapped_parked where error = 'no room for ?'";
    assert_eq!(database.number(stored).await, 1);
}
