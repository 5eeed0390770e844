//! The shared suites, for three shapes. Each has the classic columns; payloads are bytes, and there
//! are columns for everything an event can have, because the suites write such events.

use std::marker::PhantomData;

use semel_backends::mapped::{MappedAdmin, MappedSource, Mapping};
use semel_backends::postgres::{Postgres, Transaction};
use semel_core::Event;
use semel_core::outbox::AppendError;
use semel_testkit::probe::{Probe, Ran, Skip, WriteProbe};
use semel_testkit::suites::admin::AdminProbe;
use semel_testkit::suites::source::SourceProbe;

use super::super::{complete_polling_publisher, write_event};
use super::Database;

mod polling_publisher {
    use super::{MappedProbe, PollingPublisher};
    semel_testkit::source_suite!(MappedProbe<PollingPublisher>);
    semel_testkit::admin_suite!(MappedProbe<PollingPublisher>);
}

mod transactional_outbox {
    use super::{MappedProbe, TransactionalOutbox};
    semel_testkit::source_suite!(MappedProbe<TransactionalOutbox>);
    semel_testkit::admin_suite!(MappedProbe<TransactionalOutbox>);
}

mod debezium {
    use super::{Debezium, MappedProbe};
    semel_testkit::source_suite!(MappedProbe<Debezium>);
    // The other scenarios look at published events, which are deleted here.
    semel_testkit::stamp_suite! { admin, MappedProbe<Debezium>,
        an_empty_outbox_has_nothing_to_show
        the_oldest_waiting_event_has_its_age
        what_waits_for_something_else_is_not_the_oldest
        lanes_that_wait_are_counted
        a_listing_is_oldest_first_and_filtered
        one_event_is_found_by_its_id
        a_retried_failed_event_is_due_now
        a_discarded_event_lets_its_lane_go_on
    }
}

/// A shape of table. The parameters of `INSERT` are id, aggregate type and id, event type, payload,
/// content type, headers, key, and two times in microseconds.
trait Shape: Send + Sync + 'static {
    const TABLE: &str;
    const INSERT: &str;
    const RETAINS: bool = true;

    fn mapping() -> Mapping;
}

struct PollingPublisher;

impl Shape for PollingPublisher {
    const TABLE: &str = "create table outbox (id bigint generated always as identity primary key,
        aggregate_type varchar(255), aggregate_id varchar(255), event_type varchar(255),
        payload bytea, created_at timestamp default now(), published boolean default false,
        published_at timestamp, retry_count int default 0,
        idempotency_key varchar(255) unique not null,
        event_id uuid not null unique, content_type text, headers jsonb, available_at timestamptz);
        create index on outbox (published, created_at)";
    const INSERT: &str = "insert into outbox (event_id, aggregate_type, aggregate_id, event_type,
        payload, content_type, headers, idempotency_key, created_at, available_at)
        values ($1::text::uuid, $2, $3, $4, $5, $6, $7::text::jsonb, $8,
        to_timestamp($9::bigint / 1e6) at time zone 'UTC', to_timestamp($10::bigint / 1e6))";

    fn mapping() -> Mapping {
        complete_polling_publisher()
    }
}

struct TransactionalOutbox;

impl Shape for TransactionalOutbox {
    const TABLE: &str = "create table outbox (id uuid primary key, aggregate_type varchar(255),
        aggregate_id varchar(255), event_type varchar(255), payload bytea,
        created_at timestamp default now(), published_at timestamp,
        content_type text, headers json, key text, available_at timestamp);
        create index on outbox (created_at) where published_at is null";
    const INSERT: &str = "insert into outbox (id, aggregate_type, aggregate_id, event_type,
        payload, content_type, headers, key, created_at, available_at)
        values ($1::text::uuid, $2, $3, $4, $5, $6, $7::text::json, $8,
        to_timestamp($9::bigint / 1e6) at time zone 'UTC',
        to_timestamp($10::bigint / 1e6) at time zone 'UTC')";

    fn mapping() -> Mapping {
        Mapping::transactional_outbox("outbox")
            .content_type("content_type")
            .headers("headers")
            .idempotency_key("key")
            .available_at("available_at")
    }
}

struct Debezium;

impl Shape for Debezium {
    const TABLE: &str = "create table outboxevent (id uuid primary key,
        aggregatetype varchar(255) not null, aggregateid varchar(255) not null,
        type varchar(255) not null, payload bytea, contenttype text, headers jsonb, key text,
        timestamp timestamptz, availableat timestamptz)";
    const INSERT: &str = "insert into outboxevent (id, aggregatetype, aggregateid, type, payload,
        contenttype, headers, key, timestamp, availableat)
        values ($1::text::uuid, $2, $3, $4, $5, $6, $7::text::jsonb, $8,
        to_timestamp($9::bigint / 1e6), to_timestamp($10::bigint / 1e6))";
    const RETAINS: bool = false;

    fn mapping() -> Mapping {
        Mapping::debezium("outboxevent")
            .content_type("contenttype")
            .headers("headers")
            .idempotency_key("key")
            .created_at("timestamp")
            .available_at("availableat")
    }
}

struct MappedProbe<S> {
    database: Database,
    admin: MappedAdmin,
    shape: PhantomData<S>,
}

impl<S: Shape> Probe for MappedProbe<S> {
    const BACKEND: &'static str = "PostgreSQL, mapped";

    async fn fresh() -> Option<Self> {
        let database = Database::new().await?;
        database.run(S::TABLE).await;
        let admin = database.store.mapped_admin("orders", &S::mapping());
        Some(Self { database, admin, shape: PhantomData })
    }
}

impl<S: Shape> WriteProbe for MappedProbe<S> {
    type Tx = Transaction<'static, Postgres>;

    async fn begin(&self) -> Self::Tx {
        self.database.begin().await
    }

    async fn append(&self, tx: &mut Self::Tx, events: &[Event]) -> Result<(), AppendError> {
        for event in events {
            write_event!(S::INSERT, event, tx)?;
        }
        Ok(())
    }

    async fn commit(&self, tx: Self::Tx) {
        tx.commit().await.unwrap();
        self.database.store.outbox().committed();
    }

    async fn roll_back(&self, tx: Self::Tx) {
        tx.rollback().await.unwrap();
    }
}

impl<S: Shape> SourceProbe for MappedProbe<S> {
    type Source = MappedSource;

    async fn open(&self) -> MappedSource {
        self.database.store.mapped_source("orders", &S::mapping()).await.unwrap()
    }

    fn places_when_due(&self) -> Ran {
        Err(Skip::because("the order column says where a row belongs"))
    }

    fn wakes(&self) -> Ran {
        Ok(())
    }
}

impl<S: Shape> AdminProbe for MappedProbe<S> {
    type Admin = MappedAdmin;

    fn admin(&self) -> &MappedAdmin {
        &self.admin
    }

    fn retains(&self) -> Ran {
        Skip::unless(S::RETAINS, "published rows are deleted")
    }
}
