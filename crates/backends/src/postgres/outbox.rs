//! [`OutboxWriter`]: events written in the caller's transaction.

use std::collections::HashSet;

use semel_core::event::EventLimits;
use semel_core::outbox::{AppendError, OutboxWriter};
use semel_core::{Event, Headers, Payload};
use sqlx::{Postgres, Transaction};
use uuid::Uuid;

use super::error::failure;
use super::store::{PostgresStore, count};
use super::types::Stamp;

/// Appends events to `semel.outbox`. Made by [`PostgresStore::outbox`].
///
/// It works on any transaction of the same database, also on one the application opened on a pool
/// of its own, and never begins or commits one. Any number of events is one statement and one
/// round trip.
///
/// A duplicate is found without an error of the database, so the transaction can go on after it.
///
/// **Order.** Events of one aggregate are published in the order of their transactions' commits
/// when these exclude each other, as they do when each changes the aggregate's own row *before* it
/// appends. Two transactions that append to one aggregate at the same time without that have no
/// order to keep: theirs is that of the appends, or of the commits when a relay read in between.
///
/// ```no_run
/// use semel_backends::postgres::PostgresConfig;
/// use semel_core::Event;
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let store = PostgresConfig::new("postgres://localhost/shop")?.connect().await?;
/// let outbox = store.outbox();
///
/// let mut tx = store.begin().await?;
/// sqlx::query("insert into orders (id) values (42)").execute(&mut *tx).await?;
/// outbox.append(&mut tx, Event::new("order", "42", "OrderPlaced")).await?;
/// tx.commit().await?;
/// outbox.committed();
/// # Ok(()) }
/// ```
///
/// Without a transaction it does not compile:
///
/// ```compile_fail,E0308
/// # async fn run(store: semel_backends::postgres::PostgresStore) {
/// # use semel_core::Event;
/// store.outbox().append(store.pool(), Event::new("order", "42", "OrderPlaced")).await;
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct PostgresOutbox {
    store: PostgresStore,
    limits: EventLimits,
}

/// The rows are numbered in the order of the arrays. When fewer are written than were given, some
/// key was taken: then, and only then, it says which ones are new.
const INSERT: &str = "\
with written as (
    insert into semel.outbox (id, aggregate_type, aggregate_id, event_type, payload, payload_bytes,
        content_type, headers, idempotency_key, created_at, available_at)
    select id, aggregate_type, aggregate_id, event_type, payload, payload_bytes,
        coalesce(content_type, 'application/json'), headers::json, idempotency_key,
        created_at, available_at
    from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[],
        $7::text[], $8::text[], $9::text[], $10::timestamptz[], $11::timestamptz[])
        with ordinality as input (id, aggregate_type, aggregate_id, event_type, payload,
        payload_bytes, content_type, headers, idempotency_key, created_at, available_at, place)
    order by place
    on conflict do nothing
    returning id
)
select case when count(*) < $12 then coalesce(array_agg(id), '{}') end from written";

impl PostgresOutbox {
    pub(super) fn new(store: PostgresStore) -> Self {
        Self { store, limits: EventLimits::default() }
    }

    /// Other limits for names and sizes.
    #[must_use]
    pub fn with_limits(mut self, limits: EventLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Appends one event.
    ///
    /// # Errors
    /// [`AppendError`]; after `Duplicate` and `Invalid` the transaction can go on.
    pub async fn append(
        &self,
        tx: &mut Transaction<'_, Postgres>,
        event: Event,
    ) -> Result<(), AppendError> {
        self.append_all(tx, &[event]).await
    }

    /// Appends all events, or none, in one round trip.
    ///
    /// # Errors
    /// [`AppendError`]; after `Duplicate` and `Invalid` the transaction can go on.
    pub async fn append_all(
        &self,
        tx: &mut Transaction<'_, Postgres>,
        events: &[Event],
    ) -> Result<(), AppendError> {
        events
            .iter()
            .try_for_each(|event| event.check(&self.limits))
            .map_err(AppendError::Invalid)?;
        if events.is_empty() {
            return Ok(());
        }
        let store_error = |error| AppendError::Store(failure("append to semel.outbox")(error));
        let Some(written) = insert(tx, events).await.map_err(store_error)? else {
            return Ok(());
        };
        sqlx::query("delete from semel.outbox where id = any($1)")
            .bind(&written)
            .execute(&mut **tx)
            .await
            .map_err(store_error)?;
        let key = first_missing(events, written);
        Err(AppendError::Duplicate { key, transaction_usable: true })
    }

    /// Tells the relays of this process that a transaction with events has committed, so that they
    /// look at once. Without it, and in other processes, they look again at their poll interval.
    pub fn committed(&self) {
        self.store.announce_change();
    }
}

impl OutboxWriter for PostgresOutbox {
    type Tx<'c> = Transaction<'c, Postgres>;

    async fn append(&self, tx: &mut Self::Tx<'_>, events: &[Event]) -> Result<(), AppendError> {
        self.append_all(tx, events).await
    }
}

/// Inserts what is new; none when that was everything, else the ids that were.
async fn insert(
    tx: &mut Transaction<'_, Postgres>,
    events: &[Event],
) -> Result<Option<Vec<Uuid>>, sqlx::Error> {
    let texts = |text: fn(&Event) -> &str| events.iter().map(text).collect::<Vec<_>>();
    let times = events.iter().map(|event| Stamp(event.created_at));
    sqlx::query_scalar(INSERT)
        .bind(events.iter().map(|event| *event.id.as_uuid()).collect::<Vec<_>>())
        .bind(texts(|event| &event.aggregate_type))
        .bind(texts(|event| &event.aggregate_id))
        .bind(texts(|event| &event.event_type))
        .bind(events.iter().map(|event| text(&event.payload)).collect::<Vec<_>>())
        .bind(events.iter().map(|event| bytes(&event.payload)).collect::<Vec<_>>())
        .bind(events.iter().map(|event| content_type(&event.payload)).collect::<Vec<_>>())
        .bind(events.iter().map(|event| headers(&event.headers)).collect::<Vec<_>>())
        .bind(events.iter().map(|event| event.custom_key.as_deref()).collect::<Vec<_>>())
        .bind(times.collect::<Vec<_>>())
        .bind(events.iter().map(|event| event.available_at.map(Stamp)).collect::<Vec<_>>())
        .bind(count(events.len()))
        .fetch_one(&mut **tx)
        .await
}

/// The key of the first event that is not among `written`.
fn first_missing(events: &[Event], written: Vec<Uuid>) -> Option<String> {
    let mut written: HashSet<Uuid> = written.into_iter().collect();
    let missing = events.iter().find(|event| !written.remove(event.id.as_uuid()))?;
    Some(missing.idempotency_key().into_owned())
}

/// The payload as text, if PostgreSQL can store it as such.
fn text(payload: &Payload) -> Option<&str> {
    std::str::from_utf8(payload.bytes()).ok().filter(|text| !text.contains('\0'))
}

fn bytes(payload: &Payload) -> Option<&[u8]> {
    if text(payload).is_some() { None } else { Some(payload.bytes()) }
}

fn content_type(payload: &Payload) -> Option<&str> {
    Some(payload.content_type()).filter(|kind| *kind != Payload::JSON)
}

fn headers(headers: &Headers) -> Option<String> {
    if headers.is_empty() {
        return None;
    }
    // Strings always make JSON.
    serde_json::to_string(headers).ok()
}
