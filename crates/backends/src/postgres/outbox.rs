//! [`OutboxWriter`]: events written in the caller's transaction.

use std::borrow::Cow;

use semel_core::event::EventLimits;
use semel_core::outbox::{AppendError, OutboxWriter};
use semel_core::{Event, Headers, Payload};
use sqlx::error::DatabaseError;
use sqlx::postgres::{PgArguments, PgDatabaseError};
use sqlx::query::Query;
use sqlx::{Postgres, Row, Transaction};
use uuid::Uuid;

use super::error::failure;
use super::messages;
use super::store::PostgresStore;
use super::types::Stamp;

/// Appends events to `semel.outbox`. Made by [`PostgresStore::outbox`].
///
/// It works on any transaction of the same database, also on one the application opened on a pool
/// of its own, and never begins or commits one. Any number of events is one statement and one
/// round trip.
///
/// A single event whose key of its own exists already is found without an error of the database, so
/// the transaction can go on after it, unless the outbox is *partitioned*. An event without one is a
/// duplicate only if its id was written before, which ends the transaction. Appending needs no right
/// but to insert.
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
    place: Place,
}

/// Where events are written.
#[derive(Clone, Copy, Debug)]
enum Place {
    Table,
    Messages,
}

/// An event of text in JSON that has nothing out of the ordinary: most of them. Whatever is not
/// bound is not sent, converted and looked up; and nobody looks for another event with its id
/// first, which would cost more than an index.
const USUAL: &str = "\
insert into semel.outbox
    (id, key_id, aggregate_type, aggregate_id, event_type, payload, created_at)
values ($1, $1, $2, $3, $4, $5, $6)";

/// An event without a key of its own that has headers (a trace at least), a time, or another content.
const KEYLESS: &str = "\
insert into semel.outbox (id, key_id, aggregate_type, aggregate_id, event_type, payload, created_at,
    payload_bytes, content_type, headers, available_at)
values ($1, $1, $2, $3, $4, $5, $6, $7, coalesce($8, 'application/json'), $9::text::json, $10)";

const KEYED: &str = "\
insert into semel.outbox (id, aggregate_type, aggregate_id, event_type, payload, created_at,
    payload_bytes, content_type, headers, available_at, idempotency_key)
values ($1, $2, $3, $4, $5, $6, $7, coalesce($8, 'application/json'), $9::text::json, $10, $11)
on conflict do nothing";

/// The rows are numbered in the order of the arrays.
macro_rules! insert_many {
    ($ending:literal) => {
        concat!("\
insert into semel.outbox (id, key_id, aggregate_type, aggregate_id, event_type, payload,
    payload_bytes, content_type, headers, idempotency_key, created_at, available_at)
select id, case when idempotency_key is null then id end, aggregate_type, aggregate_id, event_type,
    payload, payload_bytes, coalesce(content_type, 'application/json'), headers::json,
    idempotency_key, created_at, available_at
from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[],
    $7::text[], $8::text[], $9::text[], $10::timestamptz[], $11::timestamptz[])
    with ordinality as input (id, aggregate_type, aggregate_id, event_type, payload,
    payload_bytes, content_type, headers, idempotency_key, created_at, available_at, place)
order by place", $ending)
    };
}

const MANY: &str = insert_many!("");
const MANY_NEW: &str = insert_many!(" on conflict do nothing returning id");

impl PostgresOutbox {
    pub(super) fn new(store: PostgresStore) -> Self {
        Self { store, limits: EventLimits::default(), place: Place::Table }
    }

    /// Writes events as messages into the log instead of the table: one record each, with no index
    /// to maintain and no right on any table. A relay carries them into the outbox; see
    /// [`PostgresStore::carry_messages`].
    ///
    /// A key that exists already cannot be refused here: such an event is left out when it is
    /// carried. Without the slot that keeps messages, `append` fails. Names have 255 characters at
    /// most, whatever the limits.
    #[must_use]
    pub fn as_messages(mut self) -> Self {
        self.place = Place::Messages;
        self
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
    /// [`AppendError`]; after `Invalid` the transaction can go on, and after a `Duplicate` that
    /// says so.
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
    /// [`AppendError`]; after `Invalid` the transaction can go on, and after a `Duplicate` that says
    /// so. That of several events never does: nothing less than the end of the transaction would
    /// take back what was written of them, with no right but to insert.
    pub async fn append_all(
        &self,
        tx: &mut Transaction<'_, Postgres>,
        events: &[Event],
    ) -> Result<(), AppendError> {
        events
            .iter()
            .try_for_each(|event| event.check(&self.limits))
            .map_err(AppendError::Invalid)?;
        match (self.place, events) {
            (_, []) => Ok(()),
            (Place::Messages, events) => messages::append(tx, events).await,
            (Place::Table, [event]) => append_one(tx, event).await,
            (Place::Table, events) => append_many(tx, events).await,
        }
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

async fn append_one(tx: &mut Transaction<'_, Postgres>, event: &Event) -> Result<(), AppendError> {
    let payload = text(&event.payload);
    let key_of_its_own = event.custom_key.as_deref();
    let is_usual = payload.is_some()
        && content_type(&event.payload).is_none()
        && event.headers.is_empty()
        && key_of_its_own.is_none()
        && event.available_at.is_none();
    let sql = match key_of_its_own {
        None if is_usual => USUAL,
        None => KEYLESS,
        Some(_) => KEYED,
    };
    let query = sqlx::query(sql)
        .bind(event.id.as_uuid())
        .bind(&event.aggregate_type)
        .bind(&event.aggregate_id)
        .bind(&event.event_type)
        .bind(payload)
        .bind(Stamp(event.created_at));
    let query = if is_usual {
        query
    } else {
        query
            .bind(bytes(&event.payload))
            .bind(content_type(&event.payload))
            .bind(headers(&event.headers))
            .bind(event.available_at.map(Stamp))
    };
    let query = if key_of_its_own.is_some() { query.bind(key_of_its_own) } else { query };
    let written = query.execute(&mut **tx).await;
    let key = || Some(event.idempotency_key().into_owned());
    match written {
        Ok(written) if written.rows_affected() > 0 => Ok(()),
        Ok(_) => Err(AppendError::Duplicate { key: key(), transaction_usable: true }),
        // An id that was written before; or a key of a partitioned outbox, which is in another table.
        Err(error) if error.as_database_error().is_some_and(DatabaseError::is_unique_violation) => {
            Err(AppendError::Duplicate { key: key(), transaction_usable: false })
        }
        Err(error) => Err(AppendError::Store(failure(APPEND)(error))),
    }
}

async fn append_many(
    tx: &mut Transaction<'_, Postgres>,
    events: &[Event],
) -> Result<(), AppendError> {
    let Err(error) = many(MANY, events).execute(&mut **tx).await else { return Ok(()) };
    match error.as_database_error() {
        Some(refused) if refused.is_unique_violation() => {
            let key = key_in(refused, events);
            Err(AppendError::Duplicate { key, transaction_usable: false })
        }
        _ => Err(AppendError::Store(failure(APPEND)(error))),
    }
}

/// Adds those that are not there yet; their ids.
pub(super) async fn insert_new(
    tx: &mut Transaction<'_, Postgres>,
    events: &[Event],
) -> Result<Vec<Uuid>, sqlx::Error> {
    let rows = many(MANY_NEW, events).fetch_all(&mut **tx).await?;
    rows.iter().map(|row| row.try_get(0)).collect()
}

fn many<'q>(sql: &'static str, events: &'q [Event]) -> Query<'q, Postgres, PgArguments> {
    let texts = |text: fn(&Event) -> &str| events.iter().map(text).collect::<Vec<_>>();
    let times = events.iter().map(|event| Stamp(event.created_at));
    sqlx::query(sql)
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
}

const APPEND: &str = "append to semel.outbox";

/// The key the database refused. It says so only to those who may read it.
fn key_in(refused: &dyn DatabaseError, events: &[Event]) -> Option<String> {
    let detail = refused.try_downcast_ref::<PgDatabaseError>()?.detail()?;
    let mut keys = events.iter().map(Event::idempotency_key);
    keys.find(|key| detail.contains(&format!("=({key}) "))).map(Cow::into_owned)
}

/// The payload as text, if PostgreSQL can store it as such.
pub(super) fn text(payload: &Payload) -> Option<&str> {
    std::str::from_utf8(payload.bytes()).ok().filter(|text| !text.contains('\0'))
}

pub(super) fn bytes(payload: &Payload) -> Option<&[u8]> {
    if text(payload).is_some() { None } else { Some(payload.bytes()) }
}

fn content_type(payload: &Payload) -> Option<&str> {
    Some(payload.content_type()).filter(|kind| *kind != Payload::JSON)
}

pub(super) fn headers(headers: &Headers) -> Option<String> {
    if headers.is_empty() {
        return None;
    }
    // Strings always make JSON.
    serde_json::to_string(headers).ok()
}
