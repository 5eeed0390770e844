//! [`OutboxWriter`]: events written in the caller's transaction.

use semel_core::event::EventLimits;
use semel_core::outbox::{AppendError, OutboxWriter};
use semel_core::{Event, Headers, Timestamp};
use sqlx::error::DatabaseError;
use sqlx::{Connection, MySql, MySqlConnection, QueryBuilder, Transaction};

use super::error::failure;
use super::store::MysqlStore;

/// Appends events to `semel_outbox`. Made by [`MysqlStore::outbox`].
///
/// It works on any transaction of the same database, of any isolation level, also on one the
/// application opened on a pool of its own, and never begins or commits one. Up to 500 events of
/// 4 MiB together are one statement; more are several, undone together by a savepoint. InnoDB
/// undoes a refused statement and nothing else, so the transaction can go on after a duplicate.
///
/// **Order.** Events of one aggregate are published in the order of their transactions' commits
/// when these exclude each other, as they do when each changes the aggregate's own row *before* it
/// appends. Two transactions that append to one aggregate at the same time without that have no
/// order to keep: theirs is that of the appends, or of the commits when a relay read in between.
///
/// ```no_run
/// use semel_backends::mysql::MysqlConfig;
/// use semel_core::Event;
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MysqlConfig::new("mysql://shop:secret@localhost/shop")?.connect().await?;
/// let outbox = store.outbox();
///
/// let mut tx = store.begin().await?;
/// sqlx::query("INSERT INTO orders (id) VALUES (42)").execute(&mut *tx).await?;
/// outbox.append(&mut tx, Event::new("order", "42", "OrderPlaced")).await?;
/// tx.commit().await?;
/// outbox.committed();
/// # Ok(()) }
/// ```
///
/// Without a transaction it does not compile:
///
/// ```compile_fail,E0308
/// # async fn run(store: semel_backends::mysql::MysqlStore) {
/// # use semel_core::Event;
/// store.outbox().append(store.pool(), Event::new("order", "42", "OrderPlaced")).await;
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct MysqlOutbox {
    store: MysqlStore,
    limits: EventLimits,
}

/// The most rows of one statement: its parameters stay well below the limit of 65,535.
const ROWS: usize = 500;

/// The most bytes of one statement: well below the `max_allowed_packet` of 16 MiB or more that
/// servers have unless somebody lowered it.
const BYTES: usize = 4 * 1024 * 1024;

/// Statements of up to so many rows are common enough to be kept prepared.
const PREPARED_ROWS: usize = 8;

impl MysqlOutbox {
    pub(super) fn new(store: MysqlStore) -> Self {
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
        tx: &mut Transaction<'_, MySql>,
        event: Event,
    ) -> Result<(), AppendError> {
        self.append_all(tx, &[event]).await
    }

    /// Appends all events, or none.
    ///
    /// # Errors
    /// [`AppendError`]; after `Duplicate` and `Invalid` the transaction can go on.
    pub async fn append_all(
        &self,
        tx: &mut Transaction<'_, MySql>,
        events: &[Event],
    ) -> Result<(), AppendError> {
        events
            .iter()
            .try_for_each(|event| event.check(&self.limits))
            .map_err(AppendError::Invalid)?;
        let (first, rest) = events.split_at(fitting(events));
        let inserted = if rest.is_empty() {
            insert(tx, first).await
        } else {
            insert_in_parts(tx, events).await
        };
        match inserted {
            Ok(()) => Ok(()),
            Err(sqlx::Error::Database(error)) if error.is_unique_violation() => {
                let key = duplicate_key(&*error, events);
                Err(AppendError::Duplicate { key, transaction_usable: true })
            }
            Err(error) => Err(AppendError::Store(failure("append to semel_outbox")(error))),
        }
    }

    /// Tells the relays of this process that a transaction with events has committed, so that they
    /// look at once. Without it, and in other processes, they look again at their poll interval.
    pub fn committed(&self) {
        self.store.announce_change();
    }
}

impl OutboxWriter for MysqlOutbox {
    type Tx<'c> = Transaction<'c, MySql>;

    async fn append(&self, tx: &mut Self::Tx<'_>, events: &[Event]) -> Result<(), AppendError> {
        self.append_all(tx, events).await
    }
}

/// How many of the events go into one statement: at least one, if there is any.
fn fitting(events: &[Event]) -> usize {
    let mut bytes = 0;
    let fits = |event: &&Event| {
        bytes += event.size();
        bytes <= BYTES
    };
    let count = events.iter().take(ROWS).take_while(fits).count();
    count.max(1).min(events.len())
}

/// One statement: the server numbers its rows in their order, and undoes all of it when one row is
/// refused.
async fn insert(connection: &mut MySqlConnection, events: &[Event]) -> Result<(), sqlx::Error> {
    if events.is_empty() {
        return Ok(());
    }
    let mut insert = QueryBuilder::new(
        "INSERT INTO semel_outbox (id, aggregate_type, aggregate_id, event_type, payload, \
         content_type, headers, idempotency_key, created_at, available_at) ",
    );
    insert.push_values(events, |mut row, event| {
        row.push_bind(event.id.to_string())
            .push_bind(event.aggregate_type.as_str())
            .push_bind(event.aggregate_id.as_str())
            .push_bind(event.event_type.as_str())
            .push_bind(event.payload.bytes().as_ref())
            .push_bind(event.payload.content_type())
            .push_bind(headers(&event.headers))
            .push_bind(event.custom_key.as_deref())
            .push("timestamp'1970-01-01 00:00:00' + INTERVAL ")
            .push_bind_unseparated(event.created_at.as_microsecond())
            .push_unseparated(" MICROSECOND")
            .push("timestamp'1970-01-01 00:00:00' + INTERVAL ")
            .push_bind_unseparated(event.available_at.map(Timestamp::as_microsecond))
            .push_unseparated(" MICROSECOND");
    });
    let prepared = events.len() <= PREPARED_ROWS;
    insert.build().persistent(prepared).execute(connection).await.map(drop)
}

/// Several statements, undone together by a savepoint.
async fn insert_in_parts(
    connection: &mut MySqlConnection,
    mut events: &[Event],
) -> Result<(), sqlx::Error> {
    let mut savepoint = connection.begin().await?;
    while !events.is_empty() {
        let (part, rest) = events.split_at(fitting(events));
        if let Err(error) = insert(&mut savepoint, part).await {
            savepoint.rollback().await?;
            return Err(error);
        }
        events = rest;
    }
    savepoint.commit().await
}

/// Which key is taken: the server says the value in its message, cut off when it is long.
fn duplicate_key(error: &dyn DatabaseError, events: &[Event]) -> Option<String> {
    let (_, value) = error.message().split_once('\'')?;
    let (value, _) = value.rsplit_once("' for key")?;
    let is_it = |event: &&Event| event.idempotency_key() == value || event.id.to_string() == value;
    events.iter().find(is_it).map(|event| event.idempotency_key().into_owned())
}

pub(super) fn headers(headers: &Headers) -> Option<String> {
    if headers.is_empty() {
        return None;
    }
    // Strings always make JSON.
    serde_json::to_string(headers).ok()
}

#[cfg(test)]
mod tests {
    use semel_core::Payload;

    use super::*;

    #[test]
    fn statements_are_bounded_by_rows_and_bytes() {
        let small = vec![Event::new("order", "1", "T"); ROWS + 1];
        let sized = |bytes: usize| {
            Event::new("order", "1", "T").with_bytes(Payload::JSON, vec![b' '; bytes])
        };
        assert_eq!(fitting(&[]), 0);
        assert_eq!(fitting(&small), ROWS);
        assert_eq!(fitting(&[sized(BYTES), sized(1)]), 1, "too large, and alone");
        assert_eq!(fitting(&[sized(BYTES / 2 - 1000), sized(BYTES / 2 - 1000), sized(9)]), 3);
        assert_eq!(fitting(&[sized(BYTES / 2), sized(BYTES / 2), sized(9)]), 1);
    }
}
